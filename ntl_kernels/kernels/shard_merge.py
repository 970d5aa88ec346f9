"""Merges the statistics of all ranks to the fields of every row, and to what the gradient of any column needs."""

import triton
import triton.language as tl

from .arguments import VARYING, Fields
from .labels import Label, divide, read_labels
from .losses import NumberRow, cross_entropy, store_fields
from .normaliser import Normaliser, exponent_at, moved_distance, rescale, share_of
from .numbers import reweighed, value_loss
from .shard_fields import (
    COST,
    LABEL_LOGIT,
    LOGIT_SUM,
    NUMBER_PEAK,
    NUMBER_TOTAL,
    OFFSET,
    PEAK,
    TOTAL,
    Gathered,
    load_statistic,
)
from .shard_headers import WIDTH, are_consistent
from .shards import read_all_numbers, smooth_terms


@triton.jit(do_not_specialize=VARYING)
def merge_shards_kernel(
    gathered, row_count, rank_count,  # [R, S, N + 1]
    shard, labels, numbers,
    cumulative,  # [N] L with label_sigma, or None
    fields,  # [9, N]
    merged,  # [5, N]
    how, scalars,
    OPTIONS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,  # R rounded up to a power of two
):  # fmt: skip
    """The fields of ROWS rows and what the gradient of their columns needs, from the statistics of all ranks."""
    KIND: tl.constexpr = OPTIONS.kind
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < row_count
    label = read_labels(labels, numbers, shard.vocab_size, rows, inside)
    stride = row_count + 1
    rank_stride = (LOGIT_SUM + 1 if OPTIONS.smoothing else LOGIT_SUM) * stride
    ranks = Gathered(pointer=gathered, stride=stride, rank_stride=rank_stride, rank_count=rank_count)
    peak = largest(ranks, PEAK, rows, inside)
    total = summed_powers(ranks, TOTAL, PEAK, exponent_at(peak, how), rows, inside)
    label_u = largest(ranks, LABEL_LOGIT, rows, inside)
    distance = 0.0
    if OPTIONS.smoothing:
        distance = summed_distances(ranks, peak, rows, inside)
    normaliser = Normaliser(peak=peak, total=total)
    ce = cross_entropy(normaliser, distance, label_u, shard.vocab_size, how, scalars, OPTIONS.smoothing)

    loss, effect, error, number_normaliser = merged_numbers(ranks, cumulative, how, scalars, rows, inside, KIND)
    mass = share_of(number_normaliser, normaliser, how)
    is_whole = are_consistent(ranks, shard, RANKS)
    counts, is_number = label.counts, label.index >= 0
    weight = tl.where(counts & (is_whole == 0), float("nan"), label.weight)
    number = NumberRow(
        ntl=tl.where(is_number, reweighed(loss, mass, scalars, OPTIONS.reweigh), 0.0),
        absolute_error=tl.where(is_number, tl.abs(error), 0.0),
        mass=tl.where(is_number, mass, 0.0),
    )
    store_fields(
        Fields(pointer=fields, stride=row_count),
        rows,
        label=Label(id=label.id, counts=counts, weight=weight, index=label.index),
        cross_entropy=tl.where(counts, ce, 0.0),
        is_correct=(counts & (label_u >= peak)).to(tl.float32),
        normaliser=Normaliser(peak=tl.where(counts, peak, 0.0), total=tl.where(counts, total, 0.0)),
        number=number,
        inside=inside,
    )
    normaliser = Normaliser(peak=tl.where(is_whole, peak, float("nan")), total=total)  # also makes every gradient NaN
    store_merged(merged, row_count, rows, inside, normaliser, number_normaliser, effect)


@triton.jit
def merged_numbers(gathered, cumulative, how, scalars, rows, inside, KIND: tl.constexpr):
    """(L, effect, yhat - v_y, the number tokens' normaliser) of a block of rows, from the statistics of all ranks."""
    peak = largest(gathered, NUMBER_PEAK, rows, inside)
    exponent = exponent_at(peak, how)
    total = summed_powers(gathered, NUMBER_TOTAL, NUMBER_PEAK, exponent, rows, inside)
    error = divide(summed_powers(gathered, OFFSET, NUMBER_PEAK, exponent, rows, inside), total)
    if KIND == "wasserstein":
        effect = divide(summed_powers(gathered, COST, NUMBER_PEAK, exponent, rows, inside), total)
        loss = effect
    elif KIND == "cumulative":
        effect = tl.load(cumulative + rows, mask=inside, other=0.0)
        loss = effect
    else:
        effect = error
        loss = value_loss(error, scalars, KIND)
    return loss, effect, error, Normaliser(peak=peak, total=total)


@triton.jit
def largest(gathered, statistic: tl.constexpr, rows, inside):
    """The largest value of a statistic over all ranks."""
    peak = tl.where(inside, float("-inf"), float("-inf"))
    pointer = gathered.pointer
    for _ in tl.range(0, gathered.rank_count):
        own = load_statistic(pointer, gathered.stride, statistic, rows, inside, float("-inf"))
        peak = tl.maximum(peak, own)
        pointer += gathered.rank_stride
    return peak


@triton.jit
def summed_distances(gathered, peak, rows, inside):
    """sum(u - peak) over all ranks, in rank order, from each rank's sum relative to its own peak."""
    total = tl.where(inside, 0.0, 0.0)
    pointer = gathered.pointer
    for _ in tl.range(0, gathered.rank_count):
        width = tl.load(pointer + WIDTH * gathered.stride + gathered.stride - 1)
        rank_peak = load_statistic(pointer, gathered.stride, PEAK, rows, inside, 0.0)
        own = load_statistic(pointer, gathered.stride, LOGIT_SUM, rows, inside, 0.0)
        total += moved_distance(own, width, rank_peak, peak)
        pointer += gathered.rank_stride
    return total


@triton.jit
def summed_powers(gathered, statistic: tl.constexpr, at: tl.constexpr, exponent, rows, inside):
    """A sum over all ranks, in rank order, converted from the exponent at each rank's peak ``at`` to the given one."""
    total = tl.where(inside, 0.0, 0.0)
    pointer = gathered.pointer
    for _ in tl.range(0, gathered.rank_count):
        own = load_statistic(pointer, gathered.stride, statistic, rows, inside, 0.0)
        total += own * rescale(load_statistic(pointer, gathered.stride, at, rows, inside, float("-inf")), exponent)
        pointer += gathered.rank_stride
    return total


@triton.jit
def store_merged(merged, row_count, rows, inside, normaliser, number_normaliser, effect):
    """Write what the gradients of a block of rows need, in the order of ``ntl_kernels.backends.shards.Merged``."""
    tl.store(merged + rows, normaliser.peak, mask=inside)
    tl.store(merged + row_count + rows, normaliser.total, mask=inside)
    tl.store(merged + 2 * row_count + rows, number_normaliser.peak, mask=inside)
    tl.store(merged + 3 * row_count + rows, number_normaliser.total, mask=inside)
    tl.store(merged + 4 * row_count + rows, effect, mask=inside)


@triton.jit
def cumulative_losses_kernel(
    shard, labels, numbers,
    number_logits,  # [N, K]
    losses,  # [N]
    how, scalars, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: L with ``label_sigma``, 0 outside number rows."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    loss = 0.0
    if label.index >= 0:
        u = read_all_numbers(number_logits, n, numbers, BLOCK)
        loss = smooth_terms(u, numbers, label.index, how, scalars, BLOCK).loss
    tl.store(losses + n, loss)
