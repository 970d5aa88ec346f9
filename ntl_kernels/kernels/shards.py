"""A vocabulary that is split over the ranks of a group: what each rank sends about a row, and how all of it is merged.

Statistics contain logits as u, and totals in the units of normalisers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..problem import Header, Statistics, sent_statistics
from .arguments import VARYING
from .groups import own_group
from .losses import RESULTS, NumberResult, cross_entropy, row_result
from .normaliser import Normaliser, anchor, dot, exponent_at, log_total, moved_distance, rescale, share_of
from .numbers import (
    SOFT_LABELS,
    costs,
    cumulative_terms,
    divergences,
    gather_numbers,
    number_powers,
    number_softmax,
    reweighed,
    target,
    value_loss,
    value_offsets,
)
from .rows import constexpr_function, divide, load_named, names_in, read_labels, store_named
from .softcap import transformed
from .walk import read_kept, row_of, walk_front, walk_kept


class Shard(NamedTuple):
    """The columns of the vocabulary that a rank has. ``width`` is 0 for a rank without columns."""

    first: Any  # None: it has all
    width: Any
    vocab_size: Any  # V, of all ranks together


STATISTICS = tl.constexpr(Statistics._fields)
HEADER = tl.constexpr(Header._fields)
sent = constexpr_function(sent_statistics)


class Gathered(NamedTuple):
    """[R, S, N + 1] in memory: the statistics of all ranks."""

    pointer: Any
    stride: Any  # the distance between statistics: N + 1
    rank_stride: Any
    rank_count: Any  # R


@triton.jit
def column_in_shard(id, shard):
    """(the column of a token id among the rank's columns, whether it is there); column 0 if it is not."""
    if shard.first is None:
        column, is_here = id, id >= 0
    else:
        column = id - shard.first
        is_here = (column >= 0) & (column < shard.width)
    return tl.where(is_here, column, 0), is_here


@triton.jit
def number_places(numbers, shard, BLOCK: tl.constexpr):
    """(lanes, the numbers' columns among the rank's, whether they are there) [BLOCK]."""
    lanes = tl.arange(0, BLOCK)
    ids = tl.load(numbers.ids + lanes, mask=lanes < numbers.size, other=-1)
    columns, are_here = column_in_shard(ids, shard)
    return lanes, columns, are_here & (ids >= 0)


@triton.jit
def read_shard_numbers(start, numbers, shard, scalars, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr):
    """Gather the rank's number columns of the row that starts at ``start``; other lanes are outside."""
    lanes, columns, are_here = number_places(numbers, shard, BLOCK)
    return gather_numbers(start, lanes, are_here, columns, scalars, SOFTCAP)


@triton.jit
def smooth_terms(number_logits, n, count, numbers, scalars, BLOCK: tl.constexpr):
    """The terms of row n with ``label_sigma``, from its ``number_logits`` [N, count] and the numbers of its group."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < numbers.size
    pointer = number_logits + n.to(tl.int64) * count + lanes
    q, _ = number_softmax(tl.load(pointer, mask=inside, other=float("-inf")), scalars)
    offsets = value_offsets(numbers, lanes, inside, numbers.index)
    return cumulative_terms(q, offsets, lanes, inside, numbers, scalars, BLOCK)


@triton.jit(do_not_specialize=VARYING)
def shard_statistics_kernel(
    logits, logits_batch, logits_row, length, row_count,  # [B, T, W]
    shard, labels, numbers,
    statistics,  # [S, N + 1]; the last column is left as it is
    scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row: this rank's statistics."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n)
    KIND: tl.constexpr = OPTIONS.kind
    peak, total, label_u, distance = float("-inf"), 0.0, float("-inf"), 0.0
    number_peak, number_total, offset, cost, of_target = float("-inf"), 0.0, 0.0, 0.0, 0.0
    if label.counts:
        row = row_of(logits, logits_batch, logits_row, length, shard.width, n, TILE)
        front = walk_front(row, scalars, OPTIONS.softcap, OPTIONS.label_smoothing, "evict_first", TILE)
        kept = read_kept(row, TILE)
        found, distance = walk_kept(row, front, kept, scalars, OPTIONS.softcap, OPTIONS.label_smoothing, TILE)
        peak, total = found.peak, found.total
        column, is_here = column_in_shard(label.token, shard)
        u = transformed(tl.load(row.start + column, mask=is_here, other=0.0), scalars.inner, OPTIONS.softcap)
        label_u = tl.where(is_here, u, float("-inf"))
        own = own_group(numbers, label, scalars, KIND)
        if own.index >= 0:
            columns = read_shard_numbers(row.start, own, shard, scalars, OPTIONS.softcap, BLOCK)
            offsets = value_offsets(own, columns.lanes, columns.inside, own.index)
            powers, over_numbers = number_powers(columns.u, scalars)
            number_peak, number_total = over_numbers.peak, over_numbers.total
            if KIND == SOFT_LABELS:
                cost, of_target = soft_statistics(columns, own, number_peak, scalars)
            else:
                cost = dot(powers, costs(tl.abs(offsets), own))
            offset = dot(powers, offsets)
    found_here = Statistics(
        peak=peak,
        total=total,
        label_logit=label_u,
        number_peak=number_peak,
        number_total=number_total,
        offset=offset,
        cost=cost,
        logit_sum=distance,
        target=of_target,
    )
    NAMES: tl.constexpr = sent(OPTIONS.kind, OPTIONS.label_smoothing)
    store_named(found_here, NAMES, statistics, row_count + 1, n)


@triton.jit
def soft_statistics(columns, numbers, peak, scalars):
    """(sum(t_k (log t_k + number_peak - x_k)), sum(t_k)) over the number columns that are here."""
    inside = columns.lanes < numbers.size
    t, log_t = target(value_offsets(numbers, columns.lanes, inside, numbers.index), inside, scalars)
    t = tl.where(columns.inside, t, 0.0)
    return tl.sum(divergences(t, log_t, columns.u, anchor(peak), scalars), 0), tl.sum(t, 0)


@triton.jit(do_not_specialize=VARYING)
def number_columns_kernel(
    logits, logits_batch, logits_row, length,  # [B, T, W]
    shard, labels, numbers,
    number_logits,  # [N, K]; of several groups, a row holds the label's, from its first entry on
    scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: u of its number columns; 0 in columns of other ranks and outside number rows."""
    KIND: tl.constexpr = OPTIONS.kind
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n)
    number_logits += n.to(tl.int64) * numbers.size
    own = own_group(numbers, label, scalars, KIND)
    lanes = tl.arange(0, BLOCK)
    u = tl.zeros([BLOCK], tl.float32)
    if own.index >= 0:
        start = logits + (n // length).to(tl.int64) * logits_batch + (n % length).to(tl.int64) * logits_row
        columns = read_shard_numbers(start, own, shard, scalars, OPTIONS.softcap, BLOCK)
        u = tl.where(columns.inside, columns.u, 0.0)
    tl.store(number_logits + lanes, u, mask=lanes < own.size)


@triton.jit(do_not_specialize=VARYING)
def cumulative_losses_kernel(
    labels, numbers, vocab_size,
    number_logits,  # [N, K]
    losses,  # [N]
    scalars, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: L with ``label_sigma``, 0 outside number rows."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, vocab_size, n)
    loss = 0.0
    own = own_group(numbers, label, scalars, "cumulative")
    if own.index >= 0:
        loss = smooth_terms(number_logits, n, numbers.size, own, scalars, BLOCK).loss
    tl.store(losses + n, loss)


@triton.jit(do_not_specialize=VARYING)
def merge_shards_kernel(
    gathered, row_count, rank_count,  # [R, S, N + 1]
    labels, numbers, vocab_size,
    cumulative,  # [N] L with label_sigma, or None
    fields,  # [F, N]
    scalars, OPTIONS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The fields of ROWS rows, from the statistics of all ranks."""
    KIND: tl.constexpr = OPTIONS.kind
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < row_count
    label = read_labels(labels, numbers, vocab_size, rows, inside)
    stride = row_count + 1
    NAMES: tl.constexpr = sent(OPTIONS.kind, OPTIONS.label_smoothing)
    ranks = Gathered(pointer=gathered, stride=stride, rank_stride=names_in(NAMES) * stride, rank_count=rank_count)
    peak = largest("peak", ranks, rows, inside)
    total = summed_powers("total", "peak", ranks, exponent_at(peak, scalars), rows, inside)
    label_u = largest("label_logit", ranks, rows, inside)
    distance = 0.0
    if OPTIONS.label_smoothing:
        distance = summed_distances(ranks, peak, rows, inside)
    normaliser = Normaliser(peak=peak, total=total)
    ce = cross_entropy(normaliser, distance, label_u, vocab_size, scalars, OPTIONS.label_smoothing)

    own = own_group(numbers, label, scalars, KIND, inside)
    loss, mean_dloss_dq, error, over_numbers = merged_numbers(
        ranks, cumulative, normaliser, scalars, rows, inside, KIND
    )
    error *= own.unit
    mass = share_of(over_numbers, normaliser, scalars)
    counts, is_number = label.counts, own.index >= 0
    result = row_result(
        label,
        ce=tl.where(counts, ce, 0.0),
        is_correct=(counts & (label_u >= peak)).to(tl.float32),
        normaliser=Normaliser(peak=tl.where(counts, peak, 0.0), total=tl.where(counts, total, 0.0)),
        number=NumberResult(
            ntl=tl.where(is_number, reweighed(loss, mass, own, KIND, OPTIONS.reweigh), 0.0),
            absolute_error=tl.where(is_number, tl.abs(error), 0.0),
            mass=tl.where(is_number, mass, 0.0),
            normaliser=Normaliser(
                peak=tl.where(is_number, over_numbers.peak, 0.0), total=tl.where(is_number, over_numbers.total, 0.0)
            ),
            mean_dloss_dq=tl.where(is_number, mean_dloss_dq, 0.0),
        ),
    )
    store_named(result, RESULTS, fields, row_count, rows, inside)


@triton.jit
def merged_numbers(gathered, cumulative, normaliser, scalars, rows, inside, KIND: tl.constexpr):
    """(L, mean_dloss_dq, yhat - v_y, the number tokens' normaliser) of a block of rows, from the statistics of all
    ranks."""
    peak = largest("number_peak", gathered, rows, inside)
    exponent = exponent_at(peak, scalars)
    total = summed_powers("number_total", "number_peak", gathered, exponent, rows, inside)
    error = divide(summed_powers("offset", "number_peak", gathered, exponent, rows, inside), total)
    if KIND == "wasserstein":
        mean_dloss_dq = divide(summed_powers("cost", "number_peak", gathered, exponent, rows, inside), total)
        loss = mean_dloss_dq
    elif KIND == "cumulative":
        mean_dloss_dq = tl.load(cumulative + rows, mask=inside, other=0.0)
        loss = mean_dloss_dq
    elif KIND == SOFT_LABELS:
        mean_dloss_dq = tl.zeros(rows.shape, tl.float32)
        loss = summed_divergences(gathered, normaliser.peak, scalars, rows, inside) + log_total(normaliser, scalars)
    else:
        mean_dloss_dq = error
        loss, _ = value_loss(error, scalars, KIND)
    return loss, mean_dloss_dq, error, Normaliser(peak=peak, total=total)


@triton.jit
def largest(NAME: tl.constexpr, gathered, rows, inside):
    """The largest value of a statistic over all ranks."""
    peak = tl.full(rows.shape, float("-inf"), tl.float32)
    pointer = gathered.pointer
    for _ in tl.range(0, gathered.rank_count):
        peak = tl.maximum(peak, load_named(NAME, STATISTICS, pointer, gathered.stride, rows, inside, float("-inf")))
        pointer += gathered.rank_stride
    return peak


@triton.jit
def summed_distances(gathered, peak, rows, inside):
    """sum(u - peak) over all ranks, in rank order, from each rank's sum relative to its own peak."""
    total = tl.zeros(rows.shape, tl.float32)
    pointer, stride = gathered.pointer, gathered.stride
    for _ in tl.range(0, gathered.rank_count):
        width = load_named("width", HEADER, pointer, stride, stride - 1)
        rank_peak = load_named("peak", STATISTICS, pointer, stride, rows, inside)
        distance = load_named("logit_sum", STATISTICS, pointer, stride, rows, inside)
        total += moved_distance(distance, width, rank_peak, peak)
        pointer += gathered.rank_stride
    return total


@triton.jit
def summed_divergences(gathered, peak, scalars, rows, inside):
    """sum(t_k (log t_k + peak - x_k)) over all ranks, in rank order, from each rank's sum relative to its own peak."""
    total = tl.zeros(rows.shape, tl.float32)
    pointer, stride = gathered.pointer, gathered.stride
    for _ in tl.range(0, gathered.rank_count):
        rank_peak = anchor(load_named("number_peak", STATISTICS, pointer, stride, rows, inside))
        of_target = load_named("target", STATISTICS, pointer, stride, rows, inside)
        total += load_named("cost", STATISTICS, pointer, stride, rows, inside)
        total += of_target * (scalars.outer * (peak - rank_peak))
        pointer += gathered.rank_stride
    return total


@triton.jit
def summed_powers(NAME: tl.constexpr, AT: tl.constexpr, gathered, exponent, rows, inside):
    """A sum over all ranks, in rank order, converted from the exponent at each rank's peak ``AT`` to the given one."""
    total = tl.zeros(rows.shape, tl.float32)
    pointer, stride = gathered.pointer, gathered.stride
    for _ in tl.range(0, gathered.rank_count):
        part = load_named(NAME, STATISTICS, pointer, stride, rows, inside)
        peak = load_named(AT, STATISTICS, pointer, stride, rows, inside, float("-inf"))
        total += part * rescale(peak, exponent)
        pointer += gathered.rank_stride
    return total
