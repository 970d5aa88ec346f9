"""The normaliser of a softmax: the largest column, and the sum of the columns' powers relative to it.

Let x2 = u * factor be a column in units of log2(e). A power is ``2**(u * factor - shift)``, one fused multiply-add and
one exponential, where the shift is the largest x2 as a float32. The shift has a rounding error of up to 2**-24 of its
size. All powers and their sum contain the same error, so it cancels in a probability, a power divided by the sum:
probabilities are as exact at logits of 1e6 as near 0. A single number for the logsumexp would lose everything below its
own last digit.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32."""
TRACE = tl.constexpr(1e-37)
"""A probability that does not matter, and does not underflow."""
HUGE = tl.constexpr(2147483648.0)
"""2**31: from here on, the rounding error of x2 reaches 64, and different columns are at least 64 apart. For much
larger values, the exponential of the rounding error would overflow."""

TO_INTEGER = tl.constexpr(12582912.0)
"""1.5 * 2**23: float32 numbers of this size are integers, whose last bits are those of a small integer added to it."""
ONE = tl.constexpr(0x3F800000)
"""The bits of 1.0."""


class Exponent(NamedTuple):
    """How columns become powers: ``2**(u * factor - shift)``."""

    factor: Any
    shift: Any


class Normaliser(NamedTuple):
    """The normaliser of one or several sets of columns: sum(2**(u * factor - shift)) with the exponent at the peak."""

    peak: Any  # the largest u
    total: Any  # the sum: between 1 and the number of columns, apart from the rounding of the shift


@triton.jit
def product(a, b):
    """a * b, always rounded to float32.

    The compiler would fuse a plain product into a sum, or compute it in float16 if the result is converted to that.
    """
    return tl.fma(a, b, 0.0)


@triton.jit
def dot(a, b):
    """sum(a * b), equal in all lanes: with a plain product, half of the lanes would fuse it into the first addition."""
    return tl.sum(product(a, b), 0)


@triton.jit
def anchor(peak):
    """The peak for subtraction: 0 instead of -inf, because -inf - -inf is NaN."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def exponent_at(peak, scalars):
    """The exponent for columns of which ``peak`` is the largest.

    For a huge peak, only columns equal to it contribute, so any factor of the same size works; a power of two makes the
    products exact. The shift is finite even if the peak is -inf, for the same reason as in :func:`anchor`.
    """
    is_huge = tl.abs(product(peak, scalars.factor)) >= HUGE
    factor = tl.where(is_huge, scalars.coarse_factor, scalars.factor)
    return Exponent(factor=factor, shift=tl.maximum(product(peak, factor), LOWEST))


@triton.jit
def powers(u, factor, shift):
    """2**(u * factor - shift)"""
    return tl.exp2(tl.fma(u, factor, -shift))


@triton.jit
def rescale(peak, exponent):
    """The factor that converts a total from the exponent at its own peak to one at a larger peak."""
    return tl.exp2(product(peak, exponent.factor) - exponent.shift)


@triton.jit
def polynomial_powers(u, factor, shift):
    """2**(u * factor - shift), relative error up to 3e-6, for an integer shift and results of at least 2**-126.

    It does not use the special-function unit, which may be busy already: 2**x is 2**n * 2**f with the integer n nearest
    to x, and the coefficients minimise the error of 2**f for |f| <= 1/2.
    """
    origin = TO_INTEGER - shift
    shifted = tl.fma(u, factor, origin)
    f = tl.fma(u, factor, origin - shifted)
    p = 0.999999285 + f * (0.693121791 + f * (0.240247443 + f * (0.0559178591 + f * 0.00957010221)))
    return p * ((shifted.to(tl.int32, bitcast=True) << 23) + ONE).to(tl.float32, bitcast=True)


@triton.jit
def sum_of_powers(u, exponent, inside, POLYNOMIAL: tl.constexpr):
    """The sum [R] of the powers of u [U, R, C], over the vectors [U, R] that are inside (None for all)."""
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
def online_normaliser(peak, total, u, inside, scalars, POLYNOMIAL: tl.constexpr):
    """Add u [U, R, C] to the (peak [R], total [R]) of R threads, each of which reduces what it has loaded.

    Vectors [U, R] that are not inside (None for all inside) must not be larger than any other column.
    """
    new_peak = tl.maximum(peak, tl.max(tl.max(u, 0), 1))  # this order needs fewer registers
    exponent = exponent_at(new_peak, scalars)
    return new_peak, total * rescale(peak, exponent) + sum_of_powers(u, exponent, inside, POLYNOMIAL)


@triton.jit
def moved_distance(distance, count, peak, new_peak):
    """sum(u - new_peak) of ``count`` columns from their sum(u - peak); the new peak is at least as large.

    No term is positive, so nothing cancels, however far apart the columns are.
    """
    return distance + count * (anchor(peak) - anchor(new_peak))


@triton.jit
def online_distance(distance, count, peak, new_peak, u, inside):
    """Add u [U, R, C] to (sum(u - peak) [R], the number of columns [R]) of R threads; ``new_peak`` is that of all.

    ``inside`` [U, R]: the vectors to add; None for all.
    """
    sums = tl.sum(u - anchor(new_peak)[None, :, None], 2)
    if inside is not None:
        sums = tl.where(inside, sums, 0.0)
        added = tl.sum(inside.to(tl.float32), 0) * u.shape[2]
    else:
        added = 1.0 * (u.shape[0] * u.shape[2])
    return moved_distance(distance, count, peak, new_peak) + tl.sum(sums, 0), count + added


@triton.jit
def merge_normalisers(peak, total, scalars):
    """The normaliser of the whole row from those of its parts [R]."""
    whole_peak = tl.max(peak, 0)
    return Normaliser(peak=whole_peak, total=dot(total, rescale(peak, exponent_at(whole_peak, scalars))))


@triton.jit
def add_columns(normaliser, u, scalars):
    """Add columns u [C] to a normaliser."""
    peak = tl.maximum(normaliser.peak, tl.max(u, 0))
    exponent = exponent_at(peak, scalars)
    total = product(normaliser.total, rescale(normaliser.peak, exponent))
    return Normaliser(peak=peak, total=total + tl.sum(powers(u, exponent.factor, exponent.shift), 0))


@triton.jit
def share_of(part, whole, scalars):
    """The probability of a part of the columns, from the normalisers of the part and of the whole.

    It is 0 only if all columns of the part are -inf; a share that would underflow is a trace.
    """
    share = product(part.total, rescale(part.peak, exponent_at(whole.peak, scalars))) / whole.total
    return tl.where(part.peak == float("-inf"), 0.0, share + TRACE)


@triton.jit
def log_total(normaliser, scalars):
    """log(sum(exp(x - peak of x))): at least 0, NaN without any finite column.

    The powers contain the rounding error of the shift, the exact difference of the peak's product and the shift.
    """
    exponent = exponent_at(normaliser.peak, scalars)
    rounding = tl.fma(normaliser.peak, exponent.factor, -exponent.shift)
    total = tl.where(normaliser.total == 0.0, float("nan"), normaliser.total)
    return LN_2 * tl.maximum(tl.log2(total) - rounding, 0.0, propagate_nan=tl.PropagateNan.ALL)
