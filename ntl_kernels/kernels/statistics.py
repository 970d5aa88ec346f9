"""The kernels without labels: the number statistics of every row, in the order of
``ntl_kernels.backends.NumberField``, and their gradient."""

import triton
import triton.language as tl

from .arguments import VARYING
from .normaliser import dot, exponent_at, powers, share_of
from .numbers import number_powers, read_number_logits
from .walk import column_gradient, read_kept, row_normaliser, row_of, write_gradient


@triton.jit(do_not_specialize=VARYING)
def number_statistics_kernel(
    logits, logits_stride, length, vocab_size,  # Matrix [B, T, V]
    numbers,
    statistics,  # [6, N]
    row_count, how, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    n = tl.program_id(0)
    row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
    normaliser, _ = row_normaliser(row, how, False, False, "evict_first", TILE)
    columns = read_number_logits(row.start, numbers, numbers.size, how, False, BLOCK)
    number_columns, number_normaliser = number_powers(columns.u, how)
    q = number_columns / number_normaliser.total  # NaN if all are -inf, and so is the expected value
    values = tl.load(numbers.value + columns.lanes, mask=columns.inside, other=0.0)
    tl.store(statistics + n, normaliser.peak)
    tl.store(statistics + row_count + n, normaliser.total)
    tl.store(statistics + 2 * row_count + n, number_normaliser.peak)
    tl.store(statistics + 3 * row_count + n, number_normaliser.total)
    tl.store(statistics + 4 * row_count + n, dot(q, values))
    tl.store(statistics + 5 * row_count + n, share_of(number_normaliser, normaliser, how))


@triton.jit(do_not_specialize=[*VARYING, "upstreams"])
def number_statistics_gradients_kernel(
    logits, gradient, logits_stride, gradient_stride, length, vocab_size,  # Matrix [B, T, V], which may be one
    numbers,
    statistics,  # [6, N]
    upstreams,  # [2, N]: of the expected value, of the mass
    row_count, how, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row: the gradient of ``sum(upstreams[0] * yhat + upstreams[1] * m)``."""
    n = tl.program_id(0)
    row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
    target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
    exponent = exponent_at(tl.load(statistics + n), how)
    at_numbers = exponent_at(tl.load(statistics + 2 * row_count + n), how)
    expected_value = tl.load(statistics + 4 * row_count + n)
    mass_pull = tl.load(upstreams + row_count + n) * tl.load(statistics + 5 * row_count + n)
    slope = -mass_pull / tl.load(statistics + row_count + n)

    columns = read_number_logits(row.start, numbers, numbers.size, how, False, BLOCK)
    q = powers(columns.u, at_numbers.factor, at_numbers.shift) / tl.load(statistics + 3 * row_count + n)
    values = tl.load(numbers.value + columns.lanes, mask=columns.inside, other=0.0)
    # The expected value is rounded. Relative to it, large values do not lose precision.
    offsets = values - expected_value
    pull = q * (mass_pull + tl.load(upstreams + n) * (offsets - dot(q, offsets)))
    number_columns = column_gradient(columns.u, exponent, slope, pull, False)

    kept = read_kept(row, TILE)
    tl.debug_barrier()  # every thread has read the columns that another one writes
    write_gradient(row, kept, target, how, exponent, slope, 0.0, False, TILE)
    tl.debug_barrier()  # every column is written
    ids = tl.load(numbers.ids + columns.lanes, mask=columns.inside, other=0)
    tl.store(target.start + ids, number_columns.to(target.start.dtype.element_ty), mask=columns.inside)
