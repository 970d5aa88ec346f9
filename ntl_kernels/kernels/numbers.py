"""The Number Token Loss of one row, and its gradient (docs, Mathematics, eq. 4 to 15 and 23 to 30)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..config import SOFT
from ..formulas import LEAST_EXPONENT
from .normaliser import Normaliser, dot, exponent_at, log_total, powers, product
from .softcap import transformed

LEAST = tl.constexpr(LEAST_EXPONENT)
SOFT_LABELS = tl.constexpr(SOFT)


class NumberLogits(NamedTuple):
    """The number columns of one row, each [BLOCK]; BLOCK is K rounded up to a power of two."""

    lanes: Any
    inside: Any  # which lanes contain one of the K number tokens
    u: Any  # u; -inf outside.


class NumberTerms(NamedTuple):
    """The terms of a number row's loss and gradient."""

    dloss_dq: Any  # e [BLOCK]: dL/dq_k without the slope, so that dL/dx_k = slope * q_k * (e_k - mean_dloss_dq)
    mean_dloss_dq: Any  # sum_k q_k e_k
    slope: Any
    loss: Any  # L before reweighing


@triton.jit
def gather_numbers(start, lanes, inside, columns, scalars, SOFTCAP: tl.constexpr):
    """The logits in the columns of the lanes that are ``inside``."""
    u = transformed(tl.load(start + columns, mask=inside, other=0.0), scalars.inner, SOFTCAP)
    return NumberLogits(lanes=lanes, inside=inside, u=tl.where(inside, u, float("-inf")))


@triton.jit
def value_offsets(numbers, lanes, inside, index):
    """v_k - v_y in each lane, for a label with this index."""
    return tl.load(numbers.value + lanes, mask=inside, other=0.0) - tl.load(numbers.value + index)


@triton.jit
def number_powers(u, scalars):
    """(powers [BLOCK], normaliser) of the number tokens' u [BLOCK]."""
    peak = tl.max(u, 0)
    exponent = exponent_at(peak, scalars)
    columns = powers(u, exponent.factor, exponent.shift)
    return columns, Normaliser(peak=peak, total=tl.sum(columns, 0))


@triton.jit
def divisor(normaliser):
    """The total, or 1 if it is 0, so that powers of 0 stay 0."""
    return tl.where(normaliser.total == 0.0, 1.0, normaliser.total)


@triton.jit
def number_softmax(u, scalars):
    """(q [BLOCK], normaliser) of the number tokens' u [BLOCK]; q is 0 if all of them are -inf."""
    columns, normaliser = number_powers(u, scalars)
    return columns / divisor(normaliser), normaliser


@triton.jit
def costs(distance, numbers):
    """c: the cost of probability at this distance from the label's value."""
    return tl.where(distance > 0.0, numbers.cost_offset + numbers.cost_slope * distance, 0.0)


@triton.jit
def sign(x):
    return (x > 0.0).to(tl.float32) - (x < 0.0).to(tl.float32)


@triton.jit
def value_loss(error, scalars, KIND: tl.constexpr):
    """(f(error), f'(error)) of the expected-value losses."""
    size = tl.abs(error)
    if KIND == "mse":
        loss, slope = error * error, 2.0 * error
    elif KIND == "mae":
        loss, slope = size, sign(error)
    else:
        tl.static_assert(KIND == "huber", "this kind has no loss")
        delta = scalars.huber_delta
        loss = tl.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta))
        slope = tl.minimum(tl.maximum(error, -delta), delta)
    return loss, slope


@triton.jit
def target(offsets, inside, scalars):
    """(t, log t) [BLOCK]: a target around the label's value over the number tokens, from their offsets to that value;
    where t is 0, the logarithm is arbitrary."""
    # The label's own offset is 0, so the largest power is 1 and needs no shift.
    is_exponential = scalars.label_temperature > 0.0
    deviations = offsets / tl.where(is_exponential, scalars.label_temperature, scalars.label_sigma)
    exponents = tl.where(is_exponential, -tl.abs(deviations), -0.5 * deviations * deviations)
    exponents = tl.where(inside & (exponents >= LEAST), exponents, float("-inf"))
    t = tl.exp(exponents)  # 0 at -inf; a choice after it would take more registers
    total = tl.sum(t, 0)
    return t / total, exponents - tl.log(total)


@triton.jit
def divergences(t, log_t, u, peak, scalars):
    """t_k (log t_k + peak - x_k) [BLOCK], 0 where t is 0, from u and the u of the peak."""
    return tl.where(t > 0.0, product(t, log_t + scalars.outer * (peak - u)), 0.0)


@triton.jit
def running_sum(x, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """The running sum of x [BLOCK], from its start or, reversed, from its end: within rows, then over their totals.

    In a single scan over all threads, each thread would store the totals of all warps, which takes too many registers.
    """
    ROWS: tl.constexpr = 32 if BLOCK > 32 else BLOCK
    x = tl.reshape(x, [ROWS, BLOCK // ROWS])
    row = tl.arange(0, ROWS)
    is_before = row[None, :] > row[:, None] if REVERSE else row[None, :] < row[:, None]
    before = tl.sum(tl.where(is_before, tl.sum(x, 1)[None, :], 0.0), 1)
    return tl.reshape(tl.cumsum(x, 1, reverse=REVERSE) + before[:, None], [BLOCK])


@triton.jit
def gaps_after(numbers, lanes):
    """v_{k+1} - v_k [BLOCK]; 0 after the last value."""
    inside = lanes < numbers.size - 1
    after = tl.load(numbers.value + lanes + 1, mask=inside, other=0.0)
    return after - tl.load(numbers.value + lanes, mask=inside, other=0.0)


@triton.jit
def number_terms(q, offsets, columns, numbers, normaliser, scalars, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The terms of a number row from q [BLOCK], the values' offsets [BLOCK] to the label's and the row's normaliser."""
    if KIND == "wasserstein":
        dloss_dq = costs(tl.abs(offsets), numbers)
        loss = dot(q, dloss_dq)
        terms = NumberTerms(dloss_dq=dloss_dq, mean_dloss_dq=loss, slope=1.0, loss=loss)
    elif KIND == "cumulative":
        terms = cumulative_terms(q, offsets, columns.lanes, columns.inside, numbers, scalars, BLOCK)
    elif KIND == SOFT_LABELS:
        terms = soft_terms(columns.u, offsets, columns.inside, normaliser, scalars)
    else:
        terms = value_terms(offsets, dot(q, offsets), scalars, KIND)
    return terms


@triton.jit
def cumulative_terms(q, offsets, lanes, inside, numbers, scalars, BLOCK: tl.constexpr):
    """The terms with ``label_sigma``: L is the distance between the running sums of q and the target t."""
    # L = sum_k |F_q(k) - F_t(k)| (v_{k+1} - v_k),  e_k = sum_{j >= k} sign(F_q(j) - F_t(j)) (v_{j+1} - v_j)
    t, _ = target(offsets, inside, scalars)
    gaps = gaps_after(numbers, lanes)
    difference = running_sum(q - t, False, BLOCK)
    dloss_dq, loss = running_sum(product(sign(difference), gaps), True, BLOCK), dot(tl.abs(difference), gaps)
    return NumberTerms(dloss_dq=dloss_dq, mean_dloss_dq=dot(q, dloss_dq), slope=1.0, loss=loss)


@triton.jit
def soft_terms(u, offsets, inside, normaliser, scalars):
    """The terms of soft labels: L is KL(t || p), and ``dloss_dq`` stands for t."""
    t, log_t = target(offsets, inside, scalars)
    loss = tl.sum(divergences(t, log_t, u, normaliser.peak, scalars), 0) + log_total(normaliser, scalars)
    return NumberTerms(dloss_dq=t, mean_dloss_dq=0.0, slope=1.0, loss=loss)


@triton.jit
def value_terms(offsets, error, scalars, KIND: tl.constexpr):
    """The terms of the expected-value losses, from yhat - v_y."""
    # Using offsets instead of values changes neither e - E nor the error, and large values do not lose precision.
    loss, slope = value_loss(error, scalars, KIND)
    return NumberTerms(dloss_dq=offsets, mean_dloss_dq=error, slope=slope, loss=loss)


@triton.jit
def number_gradient(q, terms, mass, b, numbers, KIND: tl.constexpr, REWEIGH: tl.constexpr):
    """(b m dNTL/dm, pull [BLOCK]): what NTL takes from the factor of p in every column, and adds to number columns."""
    if KIND == SOFT_LABELS:  # b dNTL/dx_j = b (p_j - t_j)
        mass_gradient, pull = -b, -b * terms.dloss_dq
    else:
        mass_gradient, pull = distance_gradient(q, terms, mass, b, numbers, REWEIGH)
    return mass_gradient, pull


@triton.jit
def distance_gradient(q, terms, mass, b, numbers, REWEIGH: tl.constexpr):
    """:func:`number_gradient` of a loss of the distribution over the number tokens alone."""
    # Without reweigh, b dNTL/dx_k = b f' q_k (e_k - sum_j q_j e_j). With it, NTL = L' + m (L - L') and
    # dm/dx_j = m (q_j - p_j), so that this is multiplied by m, and b m (L' - L) (p_j - q_j) is added.
    mass_gradient = 0.0
    slope = b * terms.slope
    if REWEIGH:
        mass_gradient = b * mass * (terms.loss - numbers.worst_loss)
        slope *= mass
    return mass_gradient, q * (slope * (terms.dloss_dq - terms.mean_dloss_dq) + mass_gradient)


@triton.jit
def reweighed(loss, mass, numbers, KIND: tl.constexpr, REWEIGH: tl.constexpr):
    """NTL_i: L, or with reweigh an interpolation to the worst loss by the probability on other tokens.

    It is 0 if the number tokens have no probability, and so no distribution, except with soft labels.
    """
    if REWEIGH:
        loss = numbers.worst_loss + mass * (loss - numbers.worst_loss)
    return loss if KIND == SOFT_LABELS else tl.where(mass == 0.0, 0.0, loss)
