"""Instructions of NVIDIA GPUs for which Triton has no function. The interpreter cannot run them."""

import triton
import triton.language as tl

IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def hardware_tanh(t):
    """tanh(t) with a relative error of up to 5e-4, in one operation of the special-function unit."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [t], tl.float32, is_pure=True, pack=1)


@triton.jit
def widen_pairs(z):
    """bfloat16 z as float32, with one operation per value; the compiler needs three for two values."""
    instructions: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
    return tl.inline_asm_elementwise(instructions, "=r,=r,r", [z], tl.float32, is_pure=True, pack=2)


@triton.jit
def xor_pairs(z, bits):
    """16-bit values z XOR the int16 ``bits``, two at a time."""
    others = tl.zeros(z.shape, tl.int16) + bits
    return tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [z, others], z.dtype, is_pure=True, pack=2)
