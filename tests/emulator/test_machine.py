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


def run(body: str, x: Tensor, y: Tensor, grid: tuple[int, int, int] = (1, 1, 1)) -> list[str]:
    """Faults of a kernel from x to y, with a thread for each element of x."""
    return run_kernel(kernel_of(body, x.numel()), x, y, grid)


def run_kernel(kernel: Kernel, x: Tensor, y: Tensor, grid: tuple[int, int, int] = (1, 1, 1)) -> list[str]:
    emulator = object.__new__(Emulator)
    emulator.schedule, emulator.noise, emulator.most_steps = 0, 0, 10_000
    memory = Memory([("x", x), ("y", y)], Roles(frozenset("y")))
    values = tuple(ctypes.c_uint64(part.data_ptr()).value.to_bytes(8, "little") for part in (x, y))
    return [*emulator.run(kernel, Launched(kernel, grid, 256, values), memory), *memory.unwritten()]


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


def test_a_shift_of_64_bits_keeps_the_sign() -> None:
    """The upper half of x * 2^32, shifted; a shift by more than 63 is one by 63."""
    x = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31)] + [77] * 27, dtype=torch.int32)
    for shift, expected in ((31, 2 * x.long()), (33, x.long() >> 1), (63, x.long() >> 31), (200, x.long() >> 31)):
        body = f"mul.wide.s32 %rd4, %r1, 1; shl.b64 %rd4, %rd4, 32; shr.s64 %rd5, %rd4, {shift}; cvt.u32.u64 %r2, %rd5;"
        assert torch.equal(computed(body, x), expected.to(torch.int32)), shift


@pytest.mark.parametrize("first", [0, 3, 31, 32, 64 + 3, 256 + 3])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 255, 256 + 5])
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_a_field_of_bits(kind: str, count: int, first: int) -> None:
    """Bit by bit as PTX defines it, which takes both numbers modulo 256."""
    x, start, size = torch.randint(-(2**31), 2**31, (32,), dtype=torch.int32), first % 256, count % 256
    sign = x >> min(start + size - 1, 31) & 1 if size and kind == "s32" else 0 * x
    bits = [x >> start + i & 1 if i < size and start + i < 32 else sign for i in range(32)]
    y = computed(f"bfe.{kind} %r2, %r1, {first}, {count};", x)
    assert all(torch.equal(y >> i & 1, bit) for i, bit in enumerate(bits))


def test_pairs_and_shifts_of_16_bits() -> None:
    x = torch.arange(32, dtype=torch.int32) - 7
    y = computed("mov.b64 %rd4, {%r0, %r1}; shr.s64 %rd4, %rd4, 31; cvt.u32.u64 %r2, %rd4;", x)
    assert torch.equal(y, 2 * x)
    for shift, expected in ((3, (x & 0xFFFF) >> 3), (16, 0 * x), (200, 0 * x)):
        y = computed(f"cvt.u16.u32 %rs1, %r1; shr.u16 %rs1, %rs1, {shift}; cvt.u32.u16 %r2, %rs1;", x)
        assert torch.equal(y, expected), shift


def test_a_comparison_of_64_bits_is_signed() -> None:
    x = torch.tensor([0, 6, 7, 8, -8, -(2**31)] + [2**31 - 1] * 26, dtype=torch.int32)
    body = "cvt.s64.s32 %rd4, %r1; setp.ge.s64 %p1, %rd4, 7; selp.b32 %r2, 1, 0, %p1;"
    assert torch.equal(computed(body, x), (x >= 7).int())


def test_a_grid_has_three_axes() -> None:
    """Program (a, b, c) of 2 x 3 x 4 writes its place, and 32 lanes read one place each."""
    body = """
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mov.u32 %r4, %ctaid.z;
        mov.u32 %r5, %nctaid.x; mov.u32 %r6, %nctaid.y;
        mad.lo.s32 %r3, %r4, %r6, %r3; mad.lo.s32 %r2, %r3, %r5, %r2;
        mad.wide.u32 %rd3, %r2, 4, %rd1;
    """
    y = torch.full((24,), -1, dtype=torch.int32)
    assert run(body + STORE, torch.zeros(32), y, grid=(2, 3, 4)) == []
    assert y.tolist() == list(range(24))


def test_neighbours_at_one_place_access_it_once() -> None:
    """All lanes read x[lane], then x[0], then x[lane / 8], and write one value to y[0]."""
    body = """
        ld.global.b32 { %r3 }, [ %rd0 + 0 ];
        shr.u32 %r4, %r0, 3; mad.wide.u32 %rd4, %r4, 4, %rd0;
        ld.global.b32 { %r5 }, [ %rd4 + 0 ];
        mov.b32 %r2, 0;
        st.global.b32 [ %rd1 + 0 ], { %r2 };
    """
    kernel = kernel_of(body)
    assert run_kernel(kernel, torch.zeros(32), torch.zeros(1)) == []
    places = dict(zip(kernel.lines, kernel.accesses.tolist(), strict=True))
    assert [count for line, count in places.items() if ".global" in line] == [32, 1, 4, 1]


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
        ("cos.approx.f32 %r2, %r1; lg2.approx.f32 %r3, %r1;", "test_kernel:\ncos.*\nlg2"),
    ],
)
def test_what_is_unknown_is_named(line: str, named: str) -> None:
    with pytest.raises(UnknownPTX, match=named):
        kernel_of(line)
