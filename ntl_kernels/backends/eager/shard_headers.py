"""The header of a rank (its arguments), and the check that all ranks agree."""

from __future__ import annotations

import torch
from torch import Tensor

from ...problem import Problem
from ...tokens import NumberTable
from ..shards import HASH_MASK, NOT_GIVEN, Header, disagreements, hash_of_options
from .labels import Labels, read_labels

SCRAMBLER = 0x45D9F3B
WORD_MASK = 2**32 - 1


def header_of(problem: Problem, first: int, width: int, dtype: torch.dtype) -> Tensor:
    """The header [7] of this rank."""
    labels = read_labels(problem.of_rows(dtype), problem.vocab_size, dtype)
    header = torch.empty(len(Header), dtype=dtype, device=problem.labels.device)
    store_header(header, problem, labels, first, width)
    return header


def store_header(header: Tensor, problem: Problem, labels: Labels, first: int, width: int) -> None:
    """Write the header of this rank to the first of S numbers."""
    header[Header.FIRST], header[Header.WIDTH] = first, width
    header[Header.OPTIONS_HASH] = (hash_of_numbers(problem.table) + hash_of_options(problem)) & HASH_MASK
    header[Header.ROWS_HASH] = hash_of_rows(labels) & HASH_MASK
    header[Header.NUM_TOKENS] = NOT_GIVEN if problem.num_tokens is None else problem.num_tokens
    header[Header.NUM_NUMBERS] = NOT_GIVEN if problem.num_numbers is None else problem.num_numbers
    header[Header.NTL_WEIGHT] = problem.ntl_weight


def hash_of_numbers(table: NumberTable) -> Tensor:
    """int64 0-d: a hash of the number tokens' ids and values."""
    return hash_of_pairs(table.ids.long(), bits_of(table.values))


def hash_of_rows(labels: Labels) -> Tensor:
    """int64 0-d: a hash of the labels, weights and positions of the rows that count."""
    ids = labels.ids.squeeze(-1)
    weights = torch.ones_like(labels.targets) if labels.weights is None else labels.weights.squeeze(-1)
    if labels.counts is not None:
        weights = torch.where(labels.counts, weights, 0.0)
    return hash_of_pairs(ids, bits_of(weights))


def hash_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """int64 0-d: a hash of two columns [n] of 32-bit numbers in order, equal to that of the kernels."""
    places = torch.arange(first.shape[0], device=first.device)
    return scrambled(scrambled(scrambled(places) ^ first) ^ second).sum()


def scrambled(x: Tensor) -> Tensor:
    """32-bit numbers, in int64, in which every bit depends on all bits of ``x``."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * SCRAMBLER) & WORD_MASK
    return x ^ (x >> 16)


def bits_of(values: Tensor) -> Tensor:
    """int64: the bits of values as float32."""
    return values.float().view(torch.int32).long() & WORD_MASK


def is_unchecked(gathered: Tensor) -> bool:
    """Whether the headers are still unchecked; on a CPU they have been checked."""
    return gathered.device.type != "cpu"


def are_consistent(headers: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether headers [R, 7] describe the same problem and cover its vocabulary exactly once."""
    return are_covered(headers[:, : Header.OPTIONS_HASH], vocab_size) & ~disagreements(headers).any()


def are_covered(bounds: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether the columns of all ranks, with bounds [R, 2], cover the vocabulary exactly once."""
    first, width = bounds.unbind(-1)
    ranks = torch.arange(first.shape[0], device=first.device)
    is_before = (first < first[:, None]) | ((first == first[:, None]) & (ranks < ranks[:, None]))
    expected = (is_before * width).sum(-1)
    return ((width == 0) | (first == expected)).all() & (width.sum() == vocab_size)
