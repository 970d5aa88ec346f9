"""Single instructions of the machine, in PTX written here."""

from __future__ import annotations

import ctypes

import numpy as np
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


def run(body: str, x: Tensor, y: Tensor, programs: int = 1, steps: int = 10_000) -> list[str]:
    """Faults of a kernel from x to y, each of one element per thread."""
    kernel, emulator = kernel_of(body, x.numel()), object.__new__(Emulator)
    emulator.schedule, emulator.noise, emulator.most_steps = 0, 0, steps
    memory = Memory([("x", x), ("y", y)], Roles(frozenset("y")))
    values = tuple(ctypes.c_uint64(part.data_ptr()).value.to_bytes(8, "little") for part in (x, y))
    return [*emulator.run(kernel, Launched(kernel, programs, 256, values), memory), *memory.unwritten()]


STORE = "st.global.b32 [ %rd3 + 0 ], { %r2 };"


def computed(instructions: str, x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    assert run(instructions + "\n" + STORE, x, y) == []
    return y


BITS = torch.from_numpy(np.random.default_rng(0).integers(-(2**31), 2**31, 4096).astype(np.int32))
"""Any float32: subnormals, infinities and NaN among them."""


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("add.s32 %r2, %r1, -7;", lambda x: x - 7),
        ("mul.lo.s32 %r2, %r1, %r1;", lambda x: x * x),
        ("shr.s32 %r2, %r1, 5;", lambda x: x >> 5),
        ("bfe.u32 %r2, %r1, 3, 4;", lambda x: (x >> 3) & 15),
        ("prmt.b32 %r2, %r1, %r1, 0x0123U;", lambda x: torch.from_numpy(x.numpy().byteswap())),
        ("div.s32 %r2, %r1, 17;", lambda x: torch.div(x, 17, rounding_mode="trunc")),
        ("setp.lt.s32 %p1, %r1, 0; selp.b32 %r2, 5, %r1, %p1;", lambda x: torch.where(x < 0, 5, x)),
        ("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r2, {%rs2, %rs1};", lambda x: (x << 16) | ((x >> 16) & 0xFFFF)),
        (
            "and.b32 %r1, %r1, 65537; mov.b32 {%rs1, %rs2}, %r1; setp.eq.b16 %p1, %rs1, 0; selp.b32 %r2, 5, %r1, %p1;",
            lambda x: torch.where(x & 1 == 0, 5, x & 65537),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_integers(instructions: str, expected: object) -> None:
    assert torch.equal(computed(instructions, BITS[:32].contiguous()), expected(BITS[:32]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("le", [1, 1, 0, 0, 0]), ("gt", [0, 0, 1, 1, 0]), ("leu", [1, 1, 0, 0, 1]), ("gtu", [0, 0, 1, 1, 1])],
)
def test_comparisons_with_nan(name: str, expected: list[int]) -> None:
    x = torch.tensor([-torch.inf, 1.0, 1.5, torch.inf, torch.nan]).repeat(7)[:32]
    body = f"setp.{name}.f32 %p1, %r1, 0f3F800000; selp.b32 %r2, 1, 0, %p1;"
    assert computed(body, x).view(torch.int32).tolist() == (expected * 7)[:32]


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_rounding_is_torch_s(name: str, dtype: torch.dtype) -> None:
    """To half precision and back, for numbers of any size; of NaN that it stays one."""
    for x in BITS.view(torch.float32).view(-1, 32):
        x = torch.cat([x[:24], torch.randn(8) * 10.0 ** torch.randint(-8, 5, (8,))])
        body = f"cvt.rn.{name}.f32 %rs1, %r1; cvt.f32.{name} %r2, %rs1;"
        y, expected = computed(body, x), x.to(dtype).float()
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y[~y.isnan()].view(torch.int32), expected[~y.isnan()].view(torch.int32))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_two_packed_numbers_are_compared(name: str, dtype: torch.dtype) -> None:
    """A zero of either sign equals zero, NaN nothing."""
    values = torch.tensor([0.0, -0.0, 1.0, torch.nan, torch.inf, 6e-8, -2.0, 0.5], dtype=dtype)
    pairs = torch.stack([values.repeat_interleave(4), values.repeat(4)], -1).view(torch.int32).flatten()
    body = f"""
        mov.b32 %r2, 0;
        setp.eq.{name}x2 %p1|%p2, %r1, %r2;
        selp.b32 %r2, 1, 0, %p1;
        selp.b32 %r3, 2, 0, %p2;
        add.s32 %r2, %r2, %r3;
    """
    expected = (pairs.view(dtype).view(-1, 2) == 0).int() @ torch.tensor([1, 2], dtype=torch.int32)
    assert computed(body, pairs).tolist() == expected.tolist()


def test_a_fused_multiply_add_rounds_once() -> None:
    x = torch.randn(32)
    fused = (x.double() * x.double() + 1.5).float()
    assert torch.equal(computed("fma.rn.f32 %r2, %r1, %r1, 0f3FC00000;", x), fused)
    plain = computed("mul.f32 %r2, %r1, %r1; add.f32 %r2, %r2, 0f3FC00000;", x)
    assert torch.equal(plain, x * x + 1.5) and not torch.equal(plain, fused)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("bfly.b32 %r2, %r1, 16, 31", [i ^ 16 for i in range(32)]),
        ("up.b32 %r2, %r1, 3, 0", [max(i - 3, i * (i < 3)) for i in range(32)]),
        ("idx.b32 %r2, %r1, 5, 31", [5] * 32),
        ("bfly.b32 %r2, %r1, 4, 6175", [i ^ 4 for i in range(32)]),  # in segments of 8 lanes
    ],
)
def test_shuffles(how: str, expected: list[int]) -> None:
    x = torch.arange(32, dtype=torch.int32)
    assert computed(f"shfl.sync.{how}, -1;", x).tolist() == expected


def test_lanes_part_and_meet() -> None:
    body = """
        setp.lt.s32 %p1, %r0, 5;
        mov.b32 %r2, 1;
        @%p1 bra $L__few;
        mov.b32 %r2, 2;
        bra.uni $L__all;
    $L__few:
        mov.b32 %r2, 3;
    $L__all:
        add.s32 %r2, %r2, 10;
        bar.sync 0;
    """
    assert computed(body, torch.zeros(32, dtype=torch.int32)).tolist() == [13] * 5 + [12] * 27


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
