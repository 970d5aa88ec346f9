"""The kernels of shards: the columns of one rank, of a vocabulary that is split over the ranks of a group.

Statistics, in the order of ``ntl_kernels.backends.shards.Statistic``, hold logits as u, and totals as normalisers do.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Fields, Shares
from .fields import ABSOLUTE_ERROR, CROSS_ENTROPY, IS_CORRECT, MASS, NTL, NUMBER_WEIGHT, WEIGHT
from .fields import PEAK as ROW_PEAK
from .fields import TOTAL as ROW_TOTAL
from .labels import coefficients, number_of, read_labels
from .losses import cross_entropy, row_lse
from .normaliser import Normaliser, anchor, dot, exponent_at, powers, rescale, share_of
from .numbers import (
    NumberTerms,
    costs,
    cumulative_effects,
    gaps_after,
    gather_numbers,
    gaussian_target,
    number_gradient,
    number_powers,
    number_softmax,
    reweighed,
    value_loss,
    value_slope,
)
from .softcap import transform
from .totals import given_or
from .walk import clear_row, column_gradient, row_normaliser, row_of, write_gradient

# The order of ``ntl_kernels.backends.shards.Statistic``, to which a test holds it.
PEAK = tl.constexpr(0)
TOTAL = tl.constexpr(1)
LABEL_LOGIT = tl.constexpr(2)
NUMBER_PEAK = tl.constexpr(3)
NUMBER_TOTAL = tl.constexpr(4)
OFFSET = tl.constexpr(5)
COST = tl.constexpr(6)
LOGIT_SUM = tl.constexpr(7)
# The order of ``ntl_kernels.backends.shards.Header``, likewise.
FIRST = tl.constexpr(0)
WIDTH = tl.constexpr(1)
OPTIONS_HASH = tl.constexpr(2)
ROWS_HASH = tl.constexpr(3)
NUM_TOKENS = tl.constexpr(4)
NUM_NUMBERS = tl.constexpr(5)
NTL_WEIGHT = tl.constexpr(6)
HEADER_SIZE = tl.constexpr(7)
HASH_MASK = tl.constexpr(0xFFFFFF)
NOT_GIVEN = tl.constexpr(-1.0)
TOLERANCE = tl.constexpr(1e-5)
SCRAMBLER = tl.constexpr(0x45D9F3B)
HASHED_PER_THREAD = tl.constexpr(4)
"""Rows, so that their loads overlap."""


class Shard(NamedTuple):
    """Which columns of the vocabulary a rank has. Of a rank without columns, ``width`` is 0."""

    first: Any
    width: Any
    vocab_size: Any
    """V, of all ranks together"""


@triton.jit
def own_column(id, shard):
    """(column of a token id among the rank's, whether it is there); column 0 if not."""
    column = id - shard.first
    is_own = (column >= 0) & (column < shard.width)
    return tl.where(is_own, column, 0), is_own


@triton.jit
def read_own_numbers(start, numbers, shard, how, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr):
    """Gather the rank's number columns of the row that starts at ``start``; other lanes are outside."""
    lanes = tl.arange(0, BLOCK)
    ids = tl.load(numbers.ids + lanes, mask=lanes < numbers.size, other=-1)
    columns, is_own = own_column(ids, shard)
    return gather_numbers(start, lanes, is_own & (ids >= 0), columns, how, SOFTCAP)


@triton.jit
def value_offsets(numbers, lanes, inside, index):
    """v_k - v_y of the lanes, for a label with this index."""
    return tl.load(numbers.value + lanes, mask=inside, other=0.0) - tl.load(numbers.value + index)


class NumberSums(NamedTuple):
    """The statistics NUMBER_PEAK to COST of a row."""

    normaliser: Any
    offset: Any
    cost: Any


@triton.jit
def number_sums(u, offsets, how, scalars):
    """From the number columns u [BLOCK] of a number row and the values' offsets [BLOCK] to the label's."""
    columns, normaliser = number_powers(u, how)
    cost = dot(columns, costs(tl.abs(offsets), scalars))
    return NumberSums(normaliser=normaliser, offset=dot(columns, offsets), cost=cost)


@triton.jit
def store_statistic(statistics, stride, statistic: tl.constexpr, row, value):
    """Write one number of one row."""
    tl.store(statistics + statistic * stride + row, value)


@triton.jit
def scrambled(x):
    """Unsigned 32-bit numbers, each of whose bits hangs on all bits of ``x``."""
    x = (x ^ (x >> 16)) * SCRAMBLER
    x = (x ^ (x >> 16)) * SCRAMBLER
    return x ^ (x >> 16)


@triton.jit
def hash_pair(place, first, second):
    """Two 32-bit numbers and their place among others. Summed over these, it is a hash of them in their order."""
    x = scrambled(place.to(tl.uint32))
    x = scrambled(x ^ first.to(tl.uint32))
    return scrambled(x ^ second.to(tl.uint32, bitcast=True))


@triton.jit
def hash_of_rows(labels, numbers, vocab_size, row_count, LANES: tl.constexpr):
    """Of the labels and weights of the rows that count, and of which these are."""
    lanes = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.uint32)
    for start in tl.range(0, row_count, LANES):
        rows = start + lanes
        inside = rows < row_count
        label = read_labels(labels, numbers, vocab_size, rows, inside)
        total += tl.where(inside, hash_pair(rows, label.id, label.weight), 0)
    return tl.sum(total, 0)


@triton.jit
def hash_of_numbers(numbers, BLOCK: tl.constexpr):
    """Of the number tokens' ids and values."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < numbers.size
    ids = tl.load(numbers.ids + lanes, mask=inside, other=0)
    values = tl.load(numbers.value + lanes, mask=inside, other=0.0)
    return tl.sum(tl.where(inside, hash_pair(lanes, ids, values), 0), 0)


@triton.jit
def as_float(total):
    """The bits of a hash that a float32 holds exactly."""
    return (total & HASH_MASK).to(tl.float32)


@triton.jit
def store_header(
    statistics, stride, shard, labels, numbers, shares, options_hash,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Write what other ranks must know of this one, and 0 after it."""
    row = stride - 1
    of_rows = hash_of_rows(labels, numbers, shard.vocab_size, row, LANES)
    of_options = hash_of_numbers(numbers, BLOCK) + options_hash.to(tl.uint32)
    store_statistic(statistics, stride, FIRST, row, shard.first * 1.0)
    store_statistic(statistics, stride, WIDTH, row, shard.width * 1.0)
    store_statistic(statistics, stride, OPTIONS_HASH, row, as_float(of_options))
    store_statistic(statistics, stride, ROWS_HASH, row, as_float(of_rows))
    store_statistic(statistics, stride, NUM_TOKENS, row, given_or(shares.num_tokens, NOT_GIVEN))
    store_statistic(statistics, stride, NUM_NUMBERS, row, given_or(shares.num_numbers, NOT_GIVEN))
    store_statistic(statistics, stride, NTL_WEIGHT, row, number_of(shares.ntl_weight))
    for i in tl.static_range(HEADER_SIZE, COUNT):
        store_statistic(statistics, stride, i, row, 0.0)


@triton.jit(
    do_not_specialize=[
        "logits_stride", "length", "row_count", "num_tokens", "num_numbers", "ntl_weight", "options_hash"
    ]
)  # fmt: skip
def shard_statistics_kernel(
    logits,  # Matrix [B, T, W]
    logits_stride,  # of B
    length,  # T
    row_count,  # N
    shard,
    labels,
    numbers,
    num_tokens,  # this and the next two: see Shares
    num_numbers,
    ntl_weight,
    options_hash,
    statistics,  # [S, N + 1]
    how,  # Transform
    scalars,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program for the header, the first, so that it ends among the others; and one per row."""
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
    """Write what this rank knows of one row."""
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


@triton.jit
def are_consistent(gathered, rank_stride, column_stride, rank_count, shard, RANKS: tl.constexpr):
    """Whether the headers of all ranks are of one problem and of all columns of its vocabulary, each once."""
    ranks = tl.arange(0, RANKS)
    inside = ranks < rank_count
    header = gathered + column_stride - 1  # of rank 0
    headers = header + ranks * rank_stride
    is_alike = agrees(headers, header, OPTIONS_HASH, column_stride, inside, 0.0)
    is_alike &= agrees(headers, header, ROWS_HASH, column_stride, inside, 0.0)
    is_alike &= agrees(headers, header, NUM_TOKENS, column_stride, inside, TOLERANCE)
    is_alike &= agrees(headers, header, NUM_NUMBERS, column_stride, inside, TOLERANCE)
    is_alike &= agrees(headers, header, NTL_WEIGHT, column_stride, inside, TOLERANCE)
    are_alike = tl.sum((inside & is_alike).to(tl.int32), 0) == rank_count
    return are_covered(headers, column_stride, shard, inside, ranks) & are_alike


@triton.jit
def agrees(headers, header, part: tl.constexpr, stride, inside, tolerance):
    """[RANKS]: whether a number is the same as on rank 0."""
    own = tl.load(headers + part * stride, mask=inside, other=0.0)
    first = tl.load(header + part * stride)
    room = tolerance * tl.minimum(tl.abs(own), tl.abs(first))
    return (own == first) | (tl.abs(own - first) <= room)


@triton.jit
def are_covered(headers, stride, shard, inside, ranks):
    """Whether the columns of all ranks are the whole vocabulary, each once."""
    first = tl.load(headers + FIRST * stride, mask=inside, other=0.0)
    width = tl.load(headers + WIDTH * stride, mask=inside, other=0.0)
    # Every rank with columns starts where those end together that start before it, or as late and come first.
    is_tied = (first[None, :] == first[:, None]) & (ranks[None, :] < ranks[:, None])
    is_before = (first[None, :] < first[:, None]) | is_tied
    expected = tl.sum(tl.where(is_before, width[None, :], 0.0), 1)
    is_wrong = (width != 0.0) & (first != expected)
    return (tl.sum(is_wrong.to(tl.int32), 0) == 0) & (tl.sum(width, 0) == shard.vocab_size * 1.0)


@triton.jit(do_not_specialize=["logits_stride", "length"])
def number_columns_kernel(
    logits,  # Matrix [B, T, W]
    logits_stride,  # of B
    length,  # T
    shard,
    labels,
    numbers,
    number_logits,  # [N, K]
    how,  # Transform
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row: u of its number columns, 0 where another rank has them and off the number rows."""
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


@triton.jit
def read_all_numbers(number_logits, n, numbers, BLOCK: tl.constexpr):
    """u [BLOCK] of all number tokens in row n; -inf outside."""
    lanes = tl.arange(0, BLOCK)
    pointer = number_logits + n.to(tl.int64) * numbers.size + lanes
    return tl.load(pointer, mask=lanes < numbers.size, other=float("-inf"))


@triton.jit
def cumulative_terms(u, numbers, index, how, scalars, BLOCK: tl.constexpr):
    """The terms with ``label_sigma``, from the logits of all number tokens."""
    q, _ = number_softmax(u, how)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < numbers.size
    t = gaussian_target(value_offsets(numbers, lanes, inside, index), inside, scalars.label_sigma)
    effects, loss = cumulative_effects(q, t, gaps_after(numbers, lanes), BLOCK)
    return NumberTerms(effects=effects, mean_effect=dot(q, effects), slope=1.0, loss=loss)


@triton.jit
def cumulative_losses_kernel(
    shard,
    labels,
    numbers,
    number_logits,  # [N, K]
    losses,  # [N]
    how,  # Transform
    scalars,
    BLOCK: tl.constexpr,
):
    """One program per row: L with ``label_sigma``, 0 off the number rows."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    loss = 0.0
    if label.index >= 0:
        u = read_all_numbers(number_logits, n, numbers, BLOCK)
        loss = cumulative_terms(u, numbers, label.index, how, scalars, BLOCK).loss
    tl.store(losses + n, loss)


@triton.jit
def largest(statistic, rank_stride, rank_count, rows, inside):
    """Of one statistic over all ranks."""
    peak = tl.where(inside, float("-inf"), float("-inf"))
    for _ in tl.range(0, rank_count):
        peak = tl.maximum(peak, tl.load(statistic + rows, mask=inside, other=float("-inf")))
        statistic += rank_stride
    return peak


@triton.jit
def summed_distances(gathered, peak, stride, rank_stride, rank_count, rows, inside):
    """sum(u - peak) over all ranks, in their order, from those of each rank to its own peak."""
    total = tl.where(inside, 0.0, 0.0)
    for _ in tl.range(0, rank_count):
        width = tl.load(gathered + WIDTH * stride + stride - 1)
        rank_peak = tl.load(gathered + PEAK * stride + rows, mask=inside, other=0.0)
        own = tl.load(gathered + LOGIT_SUM * stride + rows, mask=inside, other=0.0)
        total += own + width * (anchor(rank_peak) - peak)
        gathered += rank_stride
    return total


@triton.jit
def summed_powers(sums, peaks, exponent, rank_stride, rank_count, rows, inside):
    """Of sums over all ranks, in their order, each with the exponent at its rank's peak, with the one given."""
    total = tl.where(inside, 0.0, 0.0)
    for _ in tl.range(0, rank_count):
        rank_peak = tl.load(peaks + rows, mask=inside, other=float("-inf"))
        total += tl.load(sums + rows, mask=inside, other=0.0) * rescale(rank_peak, exponent)
        sums += rank_stride
        peaks += rank_stride
    return total


@triton.jit
def merged_numbers(gathered, stride, step, rank_count, cumulative, how, scalars, rows, inside, KIND: tl.constexpr):
    """(L, effect, yhat - v_y, the number tokens' normaliser) of a block of rows, from the statistics of all ranks."""
    peaks = gathered + NUMBER_PEAK * stride
    peak = largest(peaks, step, rank_count, rows, inside)
    exponent = exponent_at(peak, how)
    total = summed_powers(gathered + NUMBER_TOTAL * stride, peaks, exponent, step, rank_count, rows, inside)
    error = summed_powers(gathered + OFFSET * stride, peaks, exponent, step, rank_count, rows, inside) / total
    if KIND == "wasserstein":
        effect = summed_powers(gathered + COST * stride, peaks, exponent, step, rank_count, rows, inside) / total
        loss = effect
    elif KIND == "cumulative":
        effect = tl.load(cumulative + rows, mask=inside, other=0.0)
        loss = effect
    else:
        effect = error
        loss = value_loss(error, scalars, KIND)
    return loss, effect, error, Normaliser(peak=peak, total=total)


@triton.jit(do_not_specialize=["row_count", "rank_count"])
def merge_shards_kernel(
    gathered,  # [R, S, N + 1]
    row_count,  # N
    rank_count,  # R
    shard,
    labels,
    numbers,
    cumulative,  # [N] L with label_sigma, or None
    fields,  # [9, N]
    merged,  # [5, N]
    how,  # Transform
    scalars,
    OPTIONS: tl.constexpr,
    ROWS: tl.constexpr,
    RANKS: tl.constexpr,  # R rounded up to a power of two
):
    """The fields of ROWS rows and what the gradient of any of their columns needs, from the statistics of all ranks."""
    KIND: tl.constexpr = OPTIONS.kind
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < row_count
    label = read_labels(labels, numbers, shard.vocab_size, rows, inside)
    stride = row_count + 1  # of a statistic
    step = (LOGIT_SUM + 1 if OPTIONS.smoothing else LOGIT_SUM) * stride  # of a rank
    peak = largest(gathered + PEAK * stride, step, rank_count, rows, inside)
    exponent, peaks = exponent_at(peak, how), gathered + PEAK * stride
    total = summed_powers(gathered + TOTAL * stride, peaks, exponent, step, rank_count, rows, inside)
    label_u = largest(gathered + LABEL_LOGIT * stride, step, rank_count, rows, inside)
    distance = 0.0
    if OPTIONS.smoothing:
        distance = summed_distances(gathered, peak, stride, step, rank_count, rows, inside)
    normaliser = Normaliser(peak=peak, total=total)
    ce = cross_entropy(normaliser, distance, label_u, shard.vocab_size, how, scalars, OPTIONS.smoothing)

    loss, effect, error, number_normaliser = merged_numbers(
        gathered, stride, step, rank_count, cumulative, how, scalars, rows, inside, KIND
    )
    mass = share_of(number_normaliser, normaliser, how)
    is_whole = are_consistent(gathered, step, stride, rank_count, shard, RANKS)
    weight = tl.where(label.counts & (is_whole == 0), float("nan"), label.weight)
    ntl = weight * reweighed(loss, mass, scalars, OPTIONS.reweigh)

    counts, is_number = label.counts, label.index >= 0
    fields = Fields(pointer=fields, stride=row_count)
    store_rows(fields, CROSS_ENTROPY, rows, inside, tl.where(counts, weight * ce, 0.0))
    store_rows(fields, IS_CORRECT, rows, inside, (counts & (label_u >= peak)).to(tl.float32))
    store_rows(fields, WEIGHT, rows, inside, weight)
    store_rows(fields, ROW_PEAK, rows, inside, tl.where(counts, peak, 0.0))
    store_rows(fields, ROW_TOTAL, rows, inside, tl.where(counts, total, 0.0))
    store_rows(fields, NTL, rows, inside, tl.where(is_number, ntl, 0.0))
    store_rows(fields, ABSOLUTE_ERROR, rows, inside, tl.where(is_number, tl.abs(error), 0.0))
    store_rows(fields, MASS, rows, inside, tl.where(is_number, mass, 0.0))
    store_rows(fields, NUMBER_WEIGHT, rows, inside, tl.where(is_number, weight, 0.0))
    normaliser = Normaliser(peak=tl.where(is_whole, peak, float("nan")), total=total)  # and with it every gradient
    store_merged(merged, row_count, rows, inside, normaliser, number_normaliser, effect)


@triton.jit
def store_merged(merged, row_count, rows, inside, normaliser, number_normaliser, effect):
    """Write what gradients need of a block of rows, in the order of ``ntl_kernels.backends.shards.Merged``."""
    tl.store(merged + rows, normaliser.peak, mask=inside)
    tl.store(merged + row_count + rows, normaliser.total, mask=inside)
    tl.store(merged + 2 * row_count + rows, number_normaliser.peak, mask=inside)
    tl.store(merged + 3 * row_count + rows, number_normaliser.total, mask=inside)
    tl.store(merged + 4 * row_count + rows, effect, mask=inside)


@triton.jit
def store_rows(fields, field: tl.constexpr, rows, inside, values):
    """Write one number of a block of rows."""
    tl.store(fields.pointer + field * fields.stride + rows, values, mask=inside)


class ShardColumns(NamedTuple):
    """The gradient of a row before it is written: ``slope * power + pull`` everywhere, and the columns that differ."""

    exponent: Any
    slope: Any
    pull: Any
    label: Any
    """The label's column, off the number rows."""
    label_column: Any
    has_label: Any
    """Whether the label is among the rank's columns."""
    numbers: Any
    """[BLOCK]: the number columns of a number row, the label's among them."""
    number_columns: Any
    has_number: Any
    """[BLOCK]: which lanes are among the rank's columns."""


@triton.jit
def own_terms(columns, numbers, number_logits, n, index, effect, how, scalars, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The terms of a number row's own columns, from what all ranks together found."""
    if KIND == "cumulative":
        u = read_all_numbers(number_logits, n, numbers, BLOCK)
        terms = cumulative_terms(u, numbers, index, how, scalars, BLOCK)
    else:
        offsets = value_offsets(numbers, columns.lanes, columns.inside, index)
        if KIND == "wasserstein":
            terms = NumberTerms(effects=costs(tl.abs(offsets), scalars), mean_effect=effect, slope=1.0, loss=effect)
        else:
            slope = value_slope(effect, scalars, KIND)
            loss = value_loss(effect, scalars, KIND)
            terms = NumberTerms(effects=offsets, mean_effect=effect, slope=slope, loss=loss)
    return terms


@triton.jit
def merged_number_normaliser(merged, row_count, n):
    """Over the number tokens of all ranks."""
    return Normaliser(peak=tl.load(merged + 2 * row_count + n), total=tl.load(merged + 3 * row_count + n))


@triton.jit
def shard_columns(
    row, label, n, shard, numbers, merged, row_count, number_logits, how, scalars, a, b,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """All that is not in every column alike; call it before the row is overwritten."""
    KIND: tl.constexpr = OPTIONS.kind
    normaliser = Normaliser(peak=tl.load(merged + n), total=tl.load(merged + row_count + n))
    exponent = exponent_at(normaliser.peak, how)
    a, b = a * how.scale, b * how.scale
    own = -a
    pull = 0.0
    if OPTIONS.smoothing:
        own = -a * (1.0 - scalars.label_smoothing)
        pull = -a * scalars.label_smoothing / shard.vocab_size
    slope = a * (1.0 + 2.0 * scalars.z_loss * row_lse(normaliser, how))
    columns = read_own_numbers(row.start, numbers, shard, how, OPTIONS.softcap, BLOCK)
    number_gradients = tl.zeros([BLOCK], tl.float32)
    if label.index >= 0:
        effect = tl.load(merged + 4 * row_count + n)
        terms = own_terms(columns, numbers, number_logits, n, label.index, effect, how, scalars, KIND, BLOCK)
        over_numbers = merged_number_normaliser(merged, row_count, n)
        at_numbers = exponent_at(over_numbers.peak, how)
        q = powers(columns.u, at_numbers.factor, at_numbers.shift) / over_numbers.total
        mass = share_of(over_numbers, normaliser, how)
        excess, number_pull = number_gradient(q, terms, mass, b, scalars, OPTIONS.reweigh)
        slope = (slope + excess) / normaliser.total
        number_pull += pull + tl.where(columns.lanes == label.index, own, 0.0)
        number_gradients = column_gradient(columns.u, exponent, slope, number_pull, OPTIONS.softcap)
    else:
        slope /= normaliser.total
    column, is_own = own_column(label.id, shard)
    u = transform(tl.load(row.start + column, mask=is_own, other=0.0), how.inner, OPTIONS.softcap)
    return ShardColumns(
        exponent=exponent,
        slope=slope,
        pull=pull,
        label=column_gradient(u, exponent, slope, pull + own, OPTIONS.softcap),
        label_column=column,
        has_label=is_own,
        numbers=number_gradients,
        number_columns=columns.ids,
        has_number=columns.inside,
    )


@triton.jit(
    do_not_specialize=[
        "logits_stride", "gradient_stride", "length", "row_count",
        "num_tokens", "num_numbers", "ntl_weight", "upstream", "upstream_stride",
    ]
)  # fmt: skip
def shard_gradients_kernel(
    logits,  # Matrix [B, T, W]
    gradient,  # Matrix [B, T, W], may be the logits
    logits_stride,  # of B
    gradient_stride,  # of B
    length,  # T
    row_count,  # N
    shard,
    labels,
    numbers,
    num_tokens,  # this and the next two: see Shares
    num_numbers,
    ntl_weight,
    merged,  # [5, N]
    number_logits,  # [N, K] with label_sigma, or None
    upstream,  # [N], or 0-d with a stride of 0
    upstream_stride,
    how,  # Transform
    scalars,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program per row: the gradient of this rank's columns, from their logits and what all ranks found."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    target = row_of(gradient, gradient_stride, length, shard.width, n, TILE)
    if label.counts:
        row = row_of(logits, logits_stride, length, shard.width, n, TILE)
        incoming = tl.load(upstream + n * upstream_stride)
        shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
        a, b = coefficients(label.weight, incoming, shares, scalars)
        own = shard_columns(
            row, label, n, shard, numbers, merged, row_count, number_logits, how, scalars, a, b, OPTIONS, BLOCK
        )
        write_gradient(row, target, how, own.exponent, own.slope, own.pull, OPTIONS.softcap, TILE)
        tl.debug_barrier()  # every column is written
        dtype = target.start.dtype.element_ty
        if label.index >= 0:
            tl.store(target.start + own.number_columns, own.numbers.to(dtype), mask=own.has_number)
        else:
            tl.store(target.start + own.label_column, own.label.to(dtype), mask=own.has_label)
    else:
        clear_row(target, TILE)
