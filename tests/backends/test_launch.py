"""A known layout is launched directly, with the same compiled kernel that Triton would choose."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from ntl_kernels.backends import launch as module
from ntl_kernels.backends.launch import launch, layout_of
from ntl_kernels.kernels.arguments import Labels, Numbers, Tile
from ntl_kernels.kernels.losses import count_kernel, finish_kernel, scale_kernel

from ..test_kernels import NoDevice, replace_driver

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_driver(monkeypatch, NoDevice())
    monkeypatch.setattr(module, "COMPILED", {})


def at_offset(size: int, dtype: torch.dtype, offset: int) -> Tensor:
    """A tensor that starts so many elements after a multiple of 16 bytes."""
    return torch.zeros(size + offset, dtype=dtype)[offset:]


def number_tables(groups: Tensor | None = None) -> Numbers:
    ids, values, lookup = torch.zeros(16, dtype=torch.int32), torch.zeros(16), torch.zeros(64, dtype=torch.int32)
    return Numbers(ids, values, lookup, groups, 16, 0.0, 1.0, 9.0)


CPU = torch.device("cpu")
NUMBERS, GROUPED = number_tables(), number_tables(torch.zeros(16, 5))
SCALARS = (2.0, None, torch.tensor(3), torch.tensor(3.0), at_offset(1, torch.float32, 1)[0])


SHIFTED = Numbers(*(torch.cat([part, part])[1:][: len(part)] for part in GROUPED[:4]), 16, 0.0, 1.0, 9.0)
"""The same where no table starts at a multiple of 16 bytes."""


def count_calls() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for dtype, offset, weights, ignored in itertools.product(
        (torch.int64, torch.int32), (0, 1), (None, torch.zeros(8), at_offset(8, torch.float32, 3)), (-100, 0, 1)
    ):
        labels = Labels(at_offset(8, dtype, offset), weights, None, ignored)
        shifted = SHIFTED._replace(groups=None), NUMBERS._replace(value=SHIFTED.value)
        of_groups = GROUPED, GROUPED._replace(groups=SHIFTED.groups), SHIFTED
        for numbers in (NUMBERS, *shifted, *of_groups, NUMBERS._replace(size=15)):
            yield (labels, numbers, 64 + offset, 8, torch.zeros(2)), {"BLOCK": 16}


MEANS = [
    {"MEAN": mean, "OVER_TOKENS": over_tokens, "ARE_SUMS": False, "SHARED": False}
    for mean, over_tokens in ((True, False), (True, True), (False, False))
]


def finish_calls() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for tokens, weight, mean, offset in itertools.product(SCALARS, SCALARS[2:], MEANS, (0, 1)):
        tensors = at_offset(64, torch.float32, offset), at_offset(1, torch.float32, offset), torch.zeros(7)
        yield (tensors[0], 8 + offset, tokens, 2.0, weight, 1.0, *tensors[1:]), {**mean, "BLOCK": 16}


def scale_calls() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for dtype, offset, stride, batch_stride in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (0, 1), (1, 16, 17), (3, 2**31)
    ):
        gradient = at_offset(64, dtype, offset)
        tile = Tile(32, 16 // dtype.itemsize, 1, 0, False, False, False, False)
        yield (gradient, batch_stride, stride, 2, 17, 2, torch.ones(())), {"TILE": tile}


CALLS = {count_kernel: count_calls, finish_kernel: finish_calls, scale_kernel: scale_calls}


def specialisation(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> str:
    """How Triton itself distinguishes variants."""
    *_, binder = kernel.device_caches[0]
    _, found, _ = binder(*arguments, **constants)
    return repr(found)


@pytest.mark.parametrize("kernel", CALLS, ids=lambda kernel: kernel.__name__)
def test_calls_of_one_layout_are_one_variant_to_triton(kernel: Any) -> None:
    variants: dict[Any, set[str]] = {}
    for arguments, constants in CALLS[kernel]():
        key = (layout_of(kernel, arguments), *constants.values())
        variants.setdefault(key, set()).add(specialisation(kernel, arguments, constants))
    assert all(len(found) == 1 for found in variants.values())
    assert len(set.union(*variants.values())) > 5  # the calls also differ for Triton


def test_a_layout_keeps_no_table_alive() -> None:
    """The table of a vocabulary that is no longer used."""
    numbers = number_tables(torch.zeros(16, 5))
    kept = [weakref.ref(part) for part in numbers[:4]]
    layout = layout_of(count_kernel, (Labels(torch.zeros(8).long(), None, None, -100), numbers, 64, 8, torch.zeros(2)))
    del numbers
    assert layout and [reference() for reference in kept] == [None] * 4


def test_only_the_first_call_of_a_layout_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later kernels get the arguments of their own call, not of the first."""
    launched: list[tuple[Any, ...]] = []

    class Compiled:
        function, packed_metadata = "function", "metadata"

        def run(self, *arguments: Any) -> None:
            launched.append(arguments)

    bound: list[tuple[Any, ...]] = []

    def run(*arguments: Any, **keywords: Any) -> Compiled:
        bound.append(arguments)
        return Compiled()

    monkeypatch.setattr(finish_kernel, "run", run)
    fields, loss, parts = torch.zeros(8, 8), torch.zeros(()), torch.zeros(7)
    for programs, weight in ((1, 0.3), (1, 0.5), (2, 0.7)):
        arguments = (fields, 8, 2.0, None, weight, 1.0, loss, parts)
        launch(finish_kernel, programs, CPU, arguments, {**MEANS[0], "BLOCK": 16}, num_warps=4)
    assert len(bound) == 1 and [call[0] for call in launched] == [1, 2]
    assert [call[-9] for call in launched] == [0.5, 0.7]
    launch(
        finish_kernel, 1, CPU, (fields, 8, torch.tensor(2.0), None, 0.3, 1.0, loss, parts), {**MEANS[0], "BLOCK": 16}
    )
    launch(finish_kernel, 1, CPU, (fields, 8, 2.0, None, 0.3, 1.0, loss, parts), {**MEANS[2], "BLOCK": 16})
    assert len(bound) == 3


def test_whoever_watches_launches_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(finish_kernel, "run", lambda *arguments, **keywords: seen.append(keywords))
    monkeypatch.setattr(finish_kernel, "pre_run_hooks", [lambda *_, **__: None])
    arguments = (torch.zeros(8, 8), 8, 2.0, None, 0.3, 1.0, torch.zeros(()), torch.zeros(7))
    for _ in range(2):
        launch(finish_kernel, 1, CPU, arguments, {**MEANS[0], "BLOCK": 16})
    assert len(seen) == 2 and not module.COMPILED


def test_the_table_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LAYOUTS", 3)
    monkeypatch.setattr(scale_kernel, "run", lambda *arguments, **keywords: None)
    for stride in range(10):
        arguments = (torch.zeros(64), 3, 16, 2, 17, 2, torch.ones(()))
        launch(scale_kernel, 1, CPU, arguments, {"TILE": Tile(32, 4, stride, 0, False, False, False, False)})
    assert 0 < len(module.COMPILED) <= 3


def test_a_kernel_runs_where_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a model whose head is not on the current device."""
    entered: list[torch.device] = []

    class SecondDevice(NoDevice):
        def get_current_device(self) -> int:
            return 1 if entered else 0

    @contextlib.contextmanager
    def enter(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    replace_driver(monkeypatch, SecondDevice())
    monkeypatch.setattr(module, "on_device", enter)
    monkeypatch.setattr(finish_kernel, "run", lambda *arguments, **keywords: None)
    with FakeTensorMode():
        fields = torch.empty(8, 8, device="cuda:1")
    monkeypatch.setattr(module, "layout_of", lambda *_: ())
    launch(finish_kernel, 1, fields.device, (fields, 8, 2.0, None, 0.3, fields, fields), {**MEANS[0], "BLOCK": 16})
    assert entered == [torch.device("cuda", 1)] and [key[1] for key in module.COMPILED] == [1]
