"""The header of a rank (its arguments) in the last column of statistics, and the check that all ranks agree."""

import triton
import triton.language as tl

from .labels import number_of, read_labels
from .shard_fields import store_statistic
from .totals import given_or

# In the order of ``ntl_kernels.backends.shards.Header`` (checked by a test).
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


@triton.jit
def store_header(
    statistics, stride, shard, labels, numbers, shares, options_hash,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Write this rank's header, padded with 0."""
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


@triton.jit
def hash_of_rows(labels, numbers, vocab_size, row_count, LANES: tl.constexpr):
    """A hash of the labels, weights and positions of the rows that count."""
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
    """A hash of the number tokens' ids and values."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < numbers.size
    ids = tl.load(numbers.ids + lanes, mask=inside, other=0)
    values = tl.load(numbers.value + lanes, mask=inside, other=0.0)
    return tl.sum(tl.where(inside, hash_pair(lanes, ids, values), 0), 0)


@triton.jit
def hash_pair(place, first, second):
    """A hash of two 32-bit numbers and their position. Its sum over all positions is a hash of the sequence."""
    x = scrambled(place.to(tl.uint32))
    x = scrambled(x ^ first.to(tl.uint32))
    return scrambled(x ^ second.to(tl.uint32, bitcast=True))


@triton.jit
def scrambled(x):
    """Unsigned 32-bit numbers in which every bit depends on all bits of ``x``."""
    x = (x ^ (x >> 16)) * SCRAMBLER
    x = (x ^ (x >> 16)) * SCRAMBLER
    return x ^ (x >> 16)


@triton.jit
def as_float(total):
    """The bits of a hash that fit a float32 exactly."""
    return (total & HASH_MASK).to(tl.float32)


@triton.jit
def are_consistent(gathered, shard, RANKS: tl.constexpr):
    """Whether the headers describe the same problem and together have all columns of its vocabulary exactly once."""
    ranks = tl.arange(0, RANKS)
    inside = ranks < gathered.rank_count
    stride = gathered.stride
    header = gathered.pointer + stride - 1  # of rank 0
    headers = header + ranks * gathered.rank_stride
    is_alike = agrees(headers, header, OPTIONS_HASH, stride, inside, 0.0)
    is_alike &= agrees(headers, header, ROWS_HASH, stride, inside, 0.0)
    is_alike &= agrees(headers, header, NUM_TOKENS, stride, inside, TOLERANCE)
    is_alike &= agrees(headers, header, NUM_NUMBERS, stride, inside, TOLERANCE)
    is_alike &= agrees(headers, header, NTL_WEIGHT, stride, inside, TOLERANCE)
    are_alike = tl.sum((inside & is_alike).to(tl.int32), 0) == gathered.rank_count
    return are_covered(headers, stride, shard, inside, ranks) & are_alike


@triton.jit
def agrees(headers, header, part: tl.constexpr, stride, inside, tolerance):
    """[RANKS]: whether a number agrees with that of rank 0."""
    own = tl.load(headers + part * stride, mask=inside, other=0.0)
    first = tl.load(header + part * stride)
    room = tolerance * tl.minimum(tl.abs(own), tl.abs(first))
    return (own == first) | (tl.abs(own - first) <= room)


@triton.jit
def are_covered(headers, stride, shard, inside, ranks):
    """Whether the columns of all ranks cover the vocabulary exactly once."""
    first = tl.load(headers + FIRST * stride, mask=inside, other=0.0)
    width = tl.load(headers + WIDTH * stride, mask=inside, other=0.0)
    # Each rank with columns must start at the total width of the ranks before it, ordered by start and then by rank.
    is_tied = (first[None, :] == first[:, None]) & (ranks[None, :] < ranks[:, None])
    is_before = (first[None, :] < first[:, None]) | is_tied
    expected = tl.sum(tl.where(is_before, width[None, :], 0.0), 1)
    is_wrong = (width != 0.0) & (first != expected)
    return (tl.sum(is_wrong.to(tl.int32), 0) == 0) & (tl.sum(width, 0) == shard.vocab_size * 1.0)
