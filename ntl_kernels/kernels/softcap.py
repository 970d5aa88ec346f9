"""The transform of a logit z to u, with x = outer * u (see :class:`~.arguments.Scalars`), and its derivative."""

import triton
import triton.language as tl

EXACT = tl.constexpr(1)
HARDWARE = tl.constexpr(2)
"""Which tanh a softcap uses; 0 is none. 16-bit logits on NVIDIA GPUs use the hardware's tanh, whose error is about that
of rounding to float16, and a quarter of that of rounding to bfloat16."""
IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter cannot run inline assembly."""


@triton.jit
def tanh(t):
    """t P(t²) / sqrt(Q(t²)), with a relative error of up to 4e-7; the coefficients minimise the error on [-8, 8].

    Beyond 8, tanh is 1 within 3e-7. This form needs one operation of the special-function unit, whose throughput limits
    a kernel with a softcap; 1 - 2 / (1 + exp(2t)) needs two, and loses digits by cancellation near 0.
    """
    t = tl.clamp(t, -8.0, 8.0, propagate_nan=tl.PropagateNan.ALL)
    s = t * t
    p = 1.0 + s * (0.132853718 + s * 3.222779005e-3)
    q = 8.567591988e-4 + s * 1.038427973e-5
    q = 1.0 + s * (0.932376152 + s * (0.267897018 + s * (2.405414235e-2 + s * q)))
    return t * p * tl.rsqrt(q)


@triton.jit
def hardware_tanh(t):
    """tanh(t) with a relative error of up to 5e-4, in one operation of the special-function unit."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [t], tl.float32, is_pure=True, pack=1)


@triton.jit
def softcap(z, inner, SOFTCAP: tl.constexpr):
    """u = tanh(inner * z)"""
    return hardware_tanh(z * inner) if SOFTCAP == HARDWARE and IS_COMPILED else tanh(z * inner)


@triton.jit
def softcap_grad(u):
    """d tanh(t) / dt = 1 - tanh(t)², given u = tanh(t)."""
    return 1.0 - u * u


@triton.jit
def transformed(z, inner, SOFTCAP: tl.constexpr):
    """u in float32, from logits z in any dtype."""
    u = z.to(tl.float32)
    if SOFTCAP:
        u = softcap(u, inner, SOFTCAP)
    return u
