"""How a logit z becomes u, with x = outer * u (see :class:`~.arguments.Transform`), and its derivative."""

import triton
import triton.language as tl

from .assembly import IS_COMPILED, hardware_tanh

EXACT = tl.constexpr(1)
HARDWARE = tl.constexpr(2)
"""Which tanh a softcap takes; 0 is none. 16-bit logits take the hardware's on NVIDIA GPUs: its error is about what
rounding to float16 costs, and a quarter of what rounding to bfloat16 does."""


@triton.jit
def tanh(t):
    """t P(t²) / sqrt(Q(t²)), within 4e-7 of tanh(t) relatively; the coefficients minimise that error on [-8, 8].

    Beyond 8, tanh is 1 within 3e-7. One operation of the special-function unit, whose throughput bounds a kernel under
    a softcap, where 1 - 2 / (1 + exp(2t)) takes two; and it keeps the digits that this one cancels near 0.
    """
    t = tl.clamp(t, -8.0, 8.0, propagate_nan=tl.PropagateNan.ALL)
    s = t * t
    p = 1.0 + s * (0.132853718 + s * 3.222779005e-3)
    q = 8.567591988e-4 + s * 1.038427973e-5
    q = 1.0 + s * (0.932376152 + s * (0.267897018 + s * (2.405414235e-2 + s * q)))
    return t * p * tl.rsqrt(q)


@triton.jit
def softcap(z, inner, SOFTCAP: tl.constexpr):
    """u = tanh(inner * z)"""
    return hardware_tanh(z * inner) if SOFTCAP == HARDWARE and IS_COMPILED else tanh(z * inner)


@triton.jit
def softcap_grad(u):
    """d tanh(t) / dt where tanh(t) = u."""
    return 1.0 - u * u


@triton.jit
def transform(z, inner, SOFTCAP: tl.constexpr):
    """u in float32 of logits z in any dtype."""
    u = z.to(tl.float32)
    if SOFTCAP:
        u = softcap(u, inner, SOFTCAP)
    return u
