"""The emulator reports each deliberate fault by its name, and nothing for correct kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from . import needs

if reason := needs.missing():
    pytest.skip(reason, allow_module_level=True)

from . import faulty
from .emulator import Emulator, Fault, emulator
from .memory import Roles

X_TO_Y = Roles(frozenset("y"))
ROLES = {
    **dict.fromkeys([name for name in vars(faulty) if name.endswith("_kernel")], X_TO_Y),
    **dict.fromkeys(["reverse_kernel", "neighbour_kernel"], Roles(frozenset(), updates=frozenset("x"))),
    "racing_branch_kernel": Roles(frozenset("y"), updates=frozenset("x")),
}


@pytest.fixture(autouse=True, params=[0, 1, 7], ids=["ascending", "descending", "random"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """The emulator, its warps and CTAs in several orders."""
    here = emulator()
    here.roles.update(ROLES)
    with here.active():
        here.schedule, here.noise = request.param, 0
        yield here
        here.schedule = 0


def faults_of(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> str:
    """The emulator's report on a launch; empty without a fault."""
    try:
        kernel[(programs,)](*arguments, **constants)
    except Fault as fault:
        return str(fault)
    return ""


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize("shape", [(3, 1000), (2, 128), (2, 1)])
def test_a_right_kernel_is_silent(shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), zeros(*shape)
    faulty.softmax_kernel[shape[:1]](x, y, shape[1], BLOCK=1024)
    torch.testing.assert_close(y, x.softmax(-1))


@pytest.mark.parametrize(
    ("kernel", "programs", "arguments", "constants", "fault"),
    [
        (faulty.copy_kernel, 2, (torch.ones(200), zeros(200), 100), {"READ": 0, "WRITE": 0}, ""),
        (faulty.copy_kernel, 2, (torch.ones(200), zeros(200), 100), {"READ": 1, "WRITE": 0}, "out of bounds"),
        (faulty.copy_kernel, 1, (torch.ones(200), zeros(100), 100), {"READ": 0, "WRITE": 1}, "out of bounds"),
        (faulty.copy_kernel, 2, (torch.ones(200), zeros(200), 100), {"READ": 0, "WRITE": 1}, "race between CTAs"),
        (faulty.copy_kernel, 1, (torch.ones(200), zeros(100), 100), {"READ": 0, "WRITE": -1}, "not written"),
        (faulty.misaligned_kernel, 1, (torch.randn(1025), zeros(1024)), {"BLOCK": 1024}, "misaligned"),
        (faulty.reverse_kernel, 1, (torch.randn(128),), {"BARRIER": True}, ""),
        (faulty.reverse_kernel, 1, (torch.randn(128),), {"BARRIER": False}, "race within a CTA"),
        (
            faulty.reverse_kernel,
            1,
            (torch.randn(32),),
            {"BARRIER": False, "BLOCK": 32, "num_warps": 1},
            "race within a warp",
        ),
        (faulty.rotate_kernel, 1, (torch.randn(128), zeros(128)), {"BARRIER": True}, ""),
        (faulty.rotate_kernel, 1, (torch.randn(128), zeros(128)), {"BARRIER": False}, "race within a CTA"),
        (faulty.same_place_kernel, 1, (zeros(128),), {}, ""),
        (faulty.same_place_kernel, 2, (zeros(128),), {}, "race between CTAs"),
        (faulty.neighbour_kernel, 2, (torch.randn(384),), {}, "race between CTAs"),
        (faulty.early_kernel, 1, (zeros(128),), {}, "read of what was not written"),
        (faulty.input_kernel, 1, (torch.randn(128), zeros(128)), {}, "write to an input"),
        (faulty.one_place_kernel, 1, (torch.randn(128), zeros(1)), {}, "lanes of one store write different values"),
        pytest.param(
            faulty.products_kernel,
            1,
            (torch.rand(128, generator=torch.Generator().manual_seed(1)), zeros(1)),
            {},
            "lanes of one store write different values",
            marks=pytest.mark.skipif(triton.__version__ < "3.9", reason="this compiler fuses nothing here"),
        ),
        (faulty.racing_branch_kernel, 1, (zeros(128), zeros(128)), {}, "race within a CTA"),
    ],
)
def test_a_fault_is_found(kernel: Any, programs: int, arguments: Any, constants: dict[str, Any], fault: str) -> None:
    copies = [part.clone() if isinstance(part, Tensor) else part for part in arguments]
    found = faults_of(kernel, programs, *copies, **{"BLOCK": 128, **constants})
    assert fault in found if fault else not found, found


def test_what_a_fault_says() -> None:
    found = faults_of(faulty.copy_kernel, 1, torch.ones(100), zeros(100), 100, READ=0, WRITE=1, BLOCK=128)
    assert found.startswith("copy_kernel: out of bounds: CTA 0, thread 100 (other: 0), 4 bytes at 0x")
    assert "st.global" in found and "of faulty.py:" in found


def test_a_kernel_without_roles_is_refused(gpu: Emulator) -> None:
    del gpu.roles["softmax_kernel"]
    with pytest.raises(KeyError, match="softmax_kernel"):
        faulty.softmax_kernel[(1,)](torch.randn(1, 128), zeros(1, 128), 128, BLOCK=128)
