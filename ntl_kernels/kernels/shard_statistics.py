"""The statistics of one rank for every row."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import VARYING, Shares
from .labels import read_labels
from .normaliser import dot
from .numbers import costs, number_powers, value_offsets
from .shard_fields import COST, LABEL_LOGIT, LOGIT_SUM, NUMBER_PEAK, NUMBER_TOTAL, OFFSET, PEAK, TOTAL, store_statistic
from .shard_headers import store_header
from .shards import own_column, read_own_numbers
from .softcap import transform
from .walk import row_normaliser, row_of

HASHED_PER_THREAD = tl.constexpr(4)
"""Rows per thread and iteration of the header, so that their loads overlap."""


@triton.jit(do_not_specialize=[*VARYING, "options_hash"])
def shard_statistics_kernel(
    logits, logits_stride, length, row_count,  # Matrix [B, T, W]
    shard, labels, numbers,
    num_tokens, num_numbers, ntl_weight,  # Shares
    options_hash,
    statistics,  # [S, N + 1]
    how, scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row and one for the header. The header comes first, so that it does not finish last."""
    stride = row_count + 1
    if tl.program_id(0) == 0:
        shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
        COUNT: tl.constexpr = LOGIT_SUM + 1 if OPTIONS.smoothing else LOGIT_SUM
        LANES: tl.constexpr = HASHED_PER_THREAD * TILE.threads
        store_header(statistics, stride, shard, labels, numbers, shares, options_hash, COUNT, BLOCK, LANES)
    else:
        n = tl.program_id(0) - 1
        store_row(
            logits, logits_stride, length, shard, labels, numbers, statistics, stride, n, how, scalars,
            OPTIONS, BLOCK, TILE
        )  # fmt: skip


@triton.jit
def store_row(
    logits, logits_stride, length, shard, labels, numbers, statistics, stride, n, how, scalars,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write this rank's statistics of one row."""
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    peak, total, label_u, distance = float("-inf"), 0.0, float("-inf"), 0.0
    number_peak, number_total, offset, cost = float("-inf"), 0.0, 0.0, 0.0
    if label.counts:
        row = row_of(logits, logits_stride, length, shard.width, n, TILE)
        found, distance = row_normaliser(row, how, OPTIONS.softcap, OPTIONS.smoothing, "evict_first", TILE)
        peak, total = found.peak, found.total
        column, is_own = own_column(label.id, shard)
        u = transform(tl.load(row.start + column, mask=is_own, other=0.0), how.inner, OPTIONS.softcap)
        label_u = tl.where(is_own, u, float("-inf"))
        if label.index >= 0:
            columns = read_own_numbers(row.start, numbers, shard, how, OPTIONS.softcap, BLOCK)
            offsets = value_offsets(numbers, columns.lanes, columns.inside, label.index)
            sums = number_sums(columns.u, offsets, how, scalars)
            number_peak, number_total = sums.normaliser.peak, sums.normaliser.total
            offset, cost = sums.offset, sums.cost
    store_statistic(statistics, stride, PEAK, n, peak)
    store_statistic(statistics, stride, TOTAL, n, total)
    store_statistic(statistics, stride, LABEL_LOGIT, n, label_u)
    store_statistic(statistics, stride, NUMBER_PEAK, n, number_peak)
    store_statistic(statistics, stride, NUMBER_TOTAL, n, number_total)
    store_statistic(statistics, stride, OFFSET, n, offset)
    store_statistic(statistics, stride, COST, n, cost)
    if OPTIONS.smoothing:
        store_statistic(statistics, stride, LOGIT_SUM, n, distance)


class NumberSums(NamedTuple):
    """The statistics NUMBER_PEAK to COST of a row."""

    normaliser: Any
    offset: Any
    cost: Any


@triton.jit
def number_sums(u, offsets, how, scalars):
    """The sums from the number columns u [BLOCK] of a number row and the values' offsets [BLOCK] to the label's."""
    columns, normaliser = number_powers(u, how)
    cost = dot(columns, costs(tl.abs(offsets), scalars))
    return NumberSums(normaliser=normaliser, offset=dot(columns, offsets), cost=cost)


@triton.jit(do_not_specialize=VARYING)
def number_columns_kernel(
    logits, logits_stride, length,  # Matrix [B, T, W]
    shard, labels, numbers,
    number_logits,  # [N, K]
    how, OPTIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: u of its number columns; 0 in columns of other ranks and outside number rows."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    lanes = tl.arange(0, BLOCK)
    u = tl.zeros([BLOCK], tl.float32)
    if label.index >= 0:
        start = logits.pointer + (n // length).to(tl.int64) * logits_stride
        start += (n % length).to(tl.int64) * logits.row_stride
        columns = read_own_numbers(start, numbers, shard, how, OPTIONS.softcap, BLOCK)
        u = tl.where(columns.inside, columns.u, 0.0)
    tl.store(number_logits + n.to(tl.int64) * numbers.size + lanes, u, mask=lanes < numbers.size)
