"""The columns of one rank, for a vocabulary that is split over the ranks of a group."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .numbers import cumulative_terms, gather_numbers, number_softmax, value_offsets


class Shard(NamedTuple):
    """The columns of the vocabulary that a rank has. ``width`` is 0 for a rank without columns."""

    first: Any
    width: Any
    vocab_size: Any
    """V, of all ranks together"""


@triton.jit
def own_column(id, shard):
    """(the column of a token id among the rank's columns, whether it is there); column 0 if it is not."""
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
def read_all_numbers(number_logits, n, numbers, BLOCK: tl.constexpr):
    """u [BLOCK] of all number tokens in row n; -inf outside."""
    lanes = tl.arange(0, BLOCK)
    pointer = number_logits + n.to(tl.int64) * numbers.size + lanes
    return tl.load(pointer, mask=lanes < numbers.size, other=float("-inf"))


@triton.jit
def smooth_terms(u, numbers, index, how, scalars, BLOCK: tl.constexpr):
    """The terms with ``label_sigma``, from the logits of all number tokens."""
    q, _ = number_softmax(u, how)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < numbers.size
    return cumulative_terms(q, value_offsets(numbers, lanes, inside, index), lanes, inside, numbers, scalars, BLOCK)
