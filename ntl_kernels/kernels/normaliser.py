"""The normaliser of a softmax: the largest column, and the sum of the columns' powers relative to it.

With x2 = u * factor a column in units of log2(e), a power is ``2**(u * factor - shift)``, one fused multiply-add and
one exponential, where the shift is the largest x2 as a float32. That rounds it, by up to 2**-24 of its size; but every
power contains the same rounding, and so does their sum, so a probability, a power over the sum, does not: it is as
exact at logits of 1e6 as near 0. One number for the logsumexp would lose what is smaller than its own last digit.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32."""
HUGE = tl.constexpr(2147483648.0)
"""2**31: where the rounding of x2 reaches 64, and two columns that differ are 64 apart at least. Much further, and the
exponential of the rounding would overflow."""

TO_INTEGER = tl.constexpr(12582912.0)
"""1.5 * 2**23: float32 numbers of this size are integers, whose last bits are those of what was added."""
ONE = tl.constexpr(0x3F800000)
"""The bits of 1.0."""


class Exponent(NamedTuple):
    """How columns become powers: ``2**(u * factor - shift)``."""

    factor: Any
    shift: Any


class Normaliser(NamedTuple):
    """Of a set of columns, or of several: sum(2**(u * factor - shift)) with the exponent at the peak."""

    peak: Any
    """The largest u."""
    total: Any
    """Between 1 and the number of columns, but for the rounding of the shift."""


@triton.jit
def product(a, b):
    """a * b in float32 and rounded, whatever it goes into.

    The compiler fuses a plain product into a sum, or narrows it to the float16 that its result is converted to.
    """
    return tl.fma(a, b, 0.0)


@triton.jit
def dot(a, b):
    """sum(a * b), the same in every lane: half of them would fuse a plain product into the sum's first step."""
    return tl.sum(product(a, b), 0)


@triton.jit
def is_huge(peak, how):
    """Whether only columns equal to this peak count beside it."""
    return tl.abs(product(peak, how.factor)) >= HUGE


@triton.jit
def anchor(peak):
    """The peak as something to subtract: 0 in place of -inf, since -inf - -inf is NaN."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def exponent_at(peak, how):
    """The exponent for columns of which ``peak`` is the largest.

    Where it is huge, any factor of that size will do: a power of two, with which products are exact. The shift is
    finite where the peak is -inf, for the same reason as :func:`anchor`.
    """
    factor = tl.where(is_huge(peak, how), how.coarse_factor, how.factor)
    return Exponent(factor=factor, shift=tl.maximum(product(peak, factor), LOWEST))


@triton.jit
def powers(u, factor, shift):
    """2**(u * factor - shift)"""
    return tl.exp2(tl.fma(u, factor, -shift))


@triton.jit
def rescale(peak, exponent):
    """What brings a total from the exponent at its own peak to that at a larger one: no rounding but the power's."""
    return tl.exp2(product(peak, exponent.factor) - exponent.shift)


@triton.jit
def polynomial_powers(u, factor, shift):
    """2**(u * factor - shift) within 3e-6 relatively, for an integral shift and results from 2**-126 on.

    Without the special-function unit, for where that is busy already: 2**x is 2**n * 2**f with the integer n nearest to
    x, and the coefficients minimise the error of 2**f for |f| <= 1/2.
    """
    origin = TO_INTEGER - shift
    shifted = tl.fma(u, factor, origin)
    f = tl.fma(u, factor, origin - shifted)
    p = 0.999999285 + f * (0.693121791 + f * (0.240247443 + f * (0.0559178591 + f * 0.00957010221)))
    return p * ((shifted.to(tl.int32, bitcast=True) << 23) + ONE).to(tl.float32, bitcast=True)


@triton.jit
def sum_of_powers(u, exponent, inside, POLYNOMIAL: tl.constexpr):
    """The powers of u [U, R, C] of the vectors [U, R] that are inside, None for all: their sum [R]."""
    factor, shift = exponent.factor[None, :, None], exponent.shift
    if POLYNOMIAL:
        whole = (shift + TO_INTEGER) - TO_INTEGER
        sums = tl.sum(polynomial_powers(u, factor, whole[None, :, None]), 2) * tl.exp2(whole - shift)[None, :]
    else:
        sums = tl.sum(powers(u, factor, shift[None, :, None]), 2)
    if inside is not None:
        sums = tl.where(inside, sums, 0.0)
    return tl.sum(sums, 0)


@triton.jit
def online_normaliser(peak, total, u, inside, how, POLYNOMIAL: tl.constexpr):
    """Take u [U, R, C] into the (peak [R], total [R]) of R threads, each reducing what it has loaded.

    Vectors [U, R] that are not inside, None for all, are no larger than any other column.
    """
    new_peak = tl.maximum(peak, tl.max(tl.max(u, 0), 1))  # in this order it takes fewer registers
    exponent = exponent_at(new_peak, how)
    return new_peak, total * rescale(peak, exponent) + sum_of_powers(u, exponent, inside, POLYNOMIAL)


@triton.jit
def merge_normalisers(peak, total, how):
    """The normaliser of the whole from those of its parts [R]."""
    whole_peak = tl.max(peak, 0)
    return Normaliser(peak=whole_peak, total=dot(total, rescale(peak, exponent_at(whole_peak, how))))


@triton.jit
def add_columns(normaliser, u, how):
    """Take u [C] into a normaliser."""
    peak = tl.maximum(normaliser.peak, tl.max(u, 0))
    exponent = exponent_at(peak, how)
    total = product(normaliser.total, rescale(normaliser.peak, exponent))
    return Normaliser(peak=peak, total=total + tl.sum(powers(u, exponent.factor, exponent.shift), 0))


@triton.jit
def share_of(part, whole, how):
    """The part's probability in the whole, from two normalisers."""
    return product(part.total, rescale(part.peak, exponent_at(whole.peak, how))) / whole.total


@triton.jit
def log_total(normaliser, how):
    """log(sum(exp(x - peak of x))): at least 0, NaN without any finite column.

    The peak's product is larger than the shift by the rounding that the powers contain, which is known exactly.
    """
    exponent = exponent_at(normaliser.peak, how)
    rounding = tl.fma(normaliser.peak, exponent.factor, -exponent.shift)
    total = tl.where(normaliser.total == 0.0, float("nan"), normaliser.total)
    return LN_2 * tl.maximum(tl.log2(total) - rounding, 0.0, propagate_nan=tl.PropagateNan.ALL)
