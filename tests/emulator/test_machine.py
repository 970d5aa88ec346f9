"""Single instructions of the machine, in PTX written here."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from . import needs

if reason := needs.missing():
    pytest.skip(reason, allow_module_level=True)

from .driver import Launched
from .emulator import Emulator
from .memory import Memory, Roles
from .ptx import Kernel, UnknownPTX

HEADER = """
.visible .entry test_kernel(
	.param .u64 .ptr .global .align 1 test_kernel_param_0,
	.param .u64 .ptr .global .align 1 test_kernel_param_1
)
.reqntid {threads}
{{
	.reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
	ld.param.b64 %rd0, [test_kernel_param_0];
	ld.param.b64 %rd1, [test_kernel_param_1];
	mov.u32 %r0, %tid.x;
	mad.wide.u32 %rd2, %r0, 4, %rd0;
	mad.wide.u32 %rd3, %r0, 4, %rd1;
	ld.global.b32 {{ %r1 }}, [ %rd2 + 0 ];
"""


def kernel_of(body: str, threads: int = 32) -> Kernel:
    """Thread t has x[t] in %r1, and &y[t] in %rd3."""
    return Kernel("test_kernel", HEADER.format(threads=threads) + body + "\n\tret;\n}\n")


def run(body: str, x: Tensor, y: Tensor, steps: int = 10_000) -> list[str]:
    """Faults of a kernel from x to y, each of one element per thread."""
    kernel, emulator = kernel_of(body, x.numel()), object.__new__(Emulator)
    emulator.schedule, emulator.noise, emulator.most_steps = 0, 0, steps
    memory = Memory([("x", x), ("y", y)], Roles(frozenset("y")))
    values = tuple(ctypes.c_uint64(part.data_ptr()).value.to_bytes(8, "little") for part in (x, y))
    return [*emulator.run(kernel, Launched(kernel, (1, 1, 1), 256, values), memory), *memory.unwritten()]


STORE = "st.global.b32 [ %rd3 + 0 ], { %r2 };"


def computed(instructions: str, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    assert run(instructions + "\n" + STORE, x, y) == []
    return y


def test_a_fused_multiply_add_rounds_once() -> None:
    x = torch.randn(32)
    fused = (x.double() * x.double() + 1.5).float()
    assert torch.equal(computed("fma.rn.f32 %r2, %r1, %r1, 0f3FC00000;", x), fused)
    plain = computed("mul.f32 %r2, %r1, %r1; add.f32 %r2, %r2, 0f3FC00000;", x)
    assert torch.equal(plain, x * x + 1.5) and not torch.equal(plain, fused)


def test_a_float_becomes_the_integer_towards_zero() -> None:
    """The nearest integer for a value out of range, and 0 for NaN."""
    x = torch.tensor([0.0, -0.99, 2.99, -2.99, 1e6 + 0.5, 3e9, -3e9, torch.inf, torch.nan] + [7.0] * 23)
    y = computed("cvt.rzi.s32.f32 %r2, %r1;", x).view(torch.int32)
    assert y.tolist() == [0, 0, 2, -2, 10**6, 2**31 - 1, -(2**31), 2**31 - 1, 0] + [7] * 23


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("setp.lt.s32 %p1, %r0, 5; @%p1 bra $L__1; bar.sync 0;\n$L__1:\n mov.b32 %r2, 0;", "some lanes of a warp"),
        ("setp.lt.s32 %p1, %r0, 32; @%p1 bra $L__1; bar.sync 0;\n$L__1:\n mov.b32 %r2, 0;", "never reaches"),
        ("$L__1:\n bra $L__1;", "too many steps"),
        ("setp.lt.s32 %p1, %r0, 5; @%p1 shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;", "do not take part"),
        ("ld.shared.b32 %r2, [global_smem + 256];", "out of bounds"),
        ("ld.shared.b32 %r2, [global_smem + 0];", "read of what was not written"),
        ("ld.global.b32 { %r2 }, [ %rd2 + 2 ];", "misaligned"),
        ("st.global.b32 [ %rd2 + 0 ], { %r1 }; mov.b32 %r2, 0;", "write to an input"),
        ("ld.global.b32 { %r2 }, [ %rd3 + 0 ];", "read of what was not written"),
    ],
)
def test_faults(body: str, fault: str) -> None:
    x, y = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    assert any(fault in found for found in run(body + "\n" + STORE, x, y)), run(body + "\n" + STORE, x, y)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("sin.approx.f32 %r2, %r1;", "sin.approx.f32"),
        ("ld.global.L1::unknown.b32 { %r2 }, [ %rd2 + 0 ];", "L1::unknown"),
        ("atom.global.add.u32 %r2, [%rd2], 1;", "atom.global"),
        ("add.s32 %r2, %rd1, 1;", "%rd1 holds 8 bytes where 4 are expected"),
        ("bar.sync 1;", "bar.sync"),
        ("mov.b32 %r2, %clock;", "%clock"),
    ],
)
def test_what_is_unknown_is_named(line: str, named: str) -> None:
    with pytest.raises(UnknownPTX, match=named):
        kernel_of(line)
