"""The kernels without labels: logsumexps and expected value of every row, and their gradient."""

import triton
import triton.language as tl

from .logsumexp import LN_2
from .numbers import number_softmax, read_number_logits
from .softcap import LOG2_E
from .walk import column_gradient, exponent_factor, row_of, row_statistics, write_gradient


@triton.jit(do_not_specialize=["logits_stride", "length", "vocab_size", "row_count"])
def number_statistics_kernel(
    logits,  # Matrix [B, T, V]
    logits_stride,  # of B
    length,  # T
    vocab_size,  # V
    numbers,
    statistics,  # [3, N]: lse, number_lse, expected value
    row_count,
    how,  # Transform
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row."""
    n = tl.program_id(0)
    row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
    lse2 = row_statistics(row, how, False, False, "evict_first", TILE).lse2
    columns = read_number_logits(row.start, numbers, how, exponent_factor(how), False, BLOCK)
    q, number_lse2 = number_softmax(columns.x2)
    values = tl.load(numbers.value + columns.lanes, mask=columns.inside, other=0.0)
    tl.store(statistics + n, lse2 * LN_2)
    tl.store(statistics + row_count + n, number_lse2 * LN_2)
    tl.store(statistics + 2 * row_count + n, tl.sum(q * values, 0))


@triton.jit(
    do_not_specialize=[
        "logits_stride", "gradient_stride", "length", "vocab_size", "upstreams", "row_count",
    ]
)  # fmt: skip
def number_statistics_gradients_kernel(
    logits,  # Matrix [B, T, V]
    gradient,  # Matrix [B, T, V], may be the logits
    logits_stride,  # of B
    gradient_stride,  # of B
    length,  # T
    vocab_size,  # V
    numbers,
    statistics,  # [3, N]
    upstreams,  # [2, N]: of the expected value, of the mass
    row_count,
    how,  # Transform
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: the gradient of ``sum(upstreams[0] * yhat + upstreams[1] * m)``."""
    n = tl.program_id(0)
    row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
    target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
    factor = exponent_factor(how)
    lse2 = tl.load(statistics + n) * LOG2_E
    number_lse2 = tl.load(statistics + row_count + n) * LOG2_E
    expected_value = tl.load(statistics + 2 * row_count + n)
    mass_pull = tl.load(upstreams + row_count + n) * tl.exp2(number_lse2 - lse2)

    columns = read_number_logits(row.start, numbers, how, factor, False, BLOCK)
    q = tl.exp2(columns.x2 - number_lse2)
    values = tl.load(numbers.value + columns.lanes, mask=columns.inside, other=0.0)
    pull = q * (mass_pull + tl.load(upstreams + n) * (values - expected_value))
    number_columns = column_gradient(columns.u, lse2, -mass_pull, pull, factor, False)

    tl.debug_barrier()  # every thread has read its columns
    write_gradient(row, target, how, lse2, -mass_pull, 0.0, False, TILE)
    tl.debug_barrier()  # every column is written
    ids = tl.load(numbers.ids + columns.lanes, mask=columns.inside, other=0)
    tl.store(target.start + ids, number_columns.to(target.start.dtype.element_ty), mask=columns.inside)
