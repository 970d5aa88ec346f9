"""The contract of shards: the columns of one vocabulary, split over the ranks of a group.

Each rank turns its columns into :class:`Statistic` numbers per row. Those of all ranks together say everything about
a row that the loss and the gradient of any column need, so one gather per forward pass is all that is sent. Only a
smoothed label (``label_sigma``) compares cumulative distributions, and needs the logit of every number token.

Every rank must be called with the same problem. So beside the statistics goes a :class:`Header`: which columns the rank
has, and what its problem is, numbers as they are and all else as hashes, since the header is as short as S.

A backend of shards is a module with the functions of :class:`ShardBackend`. ``problem`` is that of the whole
vocabulary, the same on all ranks; ``first`` is the first column of the rank's logits [B, T, W], whose W may be 0.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..problem import Problem
from ..spec import LossSpec


class Statistic(IntEnum):
    """The rows of ``statistics`` [S, N + 1]: what one rank knows of a row, from transformed logits x.

    They are in units of the backend, which sends and merges them. A rank without columns, or
    without number tokens, or whose columns lack the label, says -inf for the peak or logit and 0 for the sums. The
    last column is no row: it holds the :class:`Header`, and 0 after it.
    """

    PEAK = 0  # the largest x
    TOTAL = 1  # sum of exp(x - PEAK)
    LABEL_LOGIT = 2  # x of the label
    NUMBER_PEAK = 3  # the largest x of the number tokens; this and the next three on number rows only
    NUMBER_TOTAL = 4  # sum of e_k = exp(x_k - NUMBER_PEAK) over the number tokens
    OFFSET = 5  # sum of e_k (v_k - v_y); a difference before it is sent, so that large values keep their digits
    COST = 6  # sum of e_k c_k
    LOGIT_SUM = 7  # sum of x - PEAK, or of x without a PEAK; sent with label smoothing only


class Header(IntEnum):
    """The last column of ``statistics``: which columns of the vocabulary the rank has, and what it was called with."""

    FIRST = 0  # the first of its columns; this and the next three are integers below 2**24, exact in float32
    WIDTH = 1  # how many they are
    OPTIONS_HASH = 2  # of V, the number tokens, the options, the reduction and the backend
    ROWS_HASH = 3  # of labels and weights; of rows that do not count only that they do not
    NUM_TOKENS = 4  # this and the next: the denominator that was given, -1 for None
    NUM_NUMBERS = 5
    NTL_WEIGHT = 6  # lambda


MOST_TOKENS = 2**24
"""A larger vocabulary's bounds would be rounded."""
HASH_MASK = 2**24 - 1
"""The bits of a hash that are sent."""
NOT_GIVEN = -1.0
"""A denominator of None."""
TOLERANCE = 1e-5
"""By how much two denominators, or two lambdas, may differ, relative to them. Ranks often sum them over groups of their
own, in an order of their own."""


def num_statistics(spec: LossSpec) -> int:
    """S, how many numbers a rank sends of a row."""
    return len(Statistic) if spec.label_smoothing else Statistic.LOGIT_SUM


def hash_of_options(problem: Problem) -> int:
    """What the host knows of :attr:`Header.OPTIONS_HASH`, in 31 bits: a signed 32-bit integer holds them."""
    return hash_of(problem.spec, problem.reduction, problem.backend, problem.vocab_size)


@lru_cache(maxsize=256)
def hash_of(spec: LossSpec, *others: str | int) -> int:
    """The same in every process, unlike Python's own hashes, and whether or not the spec went through a trace."""
    return zlib.crc32(repr((spec.pack(), *others)).encode()) >> 1


def disagreements(headers: Tensor) -> Tensor:
    """bool [R, 5]: which numbers of the headers [R, 7], from OPTIONS_HASH on, are not those of rank 0."""
    exact, rough = headers[:, Header.OPTIONS_HASH : Header.NUM_TOKENS], headers[:, Header.NUM_TOKENS :]
    is_close = torch.isclose(rough, rough[:1], rtol=TOLERANCE, atol=0.0, equal_nan=True)
    return torch.cat([exact != exact[:1], ~is_close], -1)


class Merged(IntEnum):
    """The rows of ``merged`` [len(Merged), N]: what the gradient of any rank's columns needs of a row."""

    PEAK = 0  # this and the next: the row's normaliser, as Field has it
    TOTAL = 1
    NUMBER_PEAK = 2  # this and the next: that over the number tokens, on number rows only, as is the last
    NUMBER_TOTAL = 3
    EFFECT = 4  # L before reweighing of kind "wasserstein", yhat - v_y of the others


class Merge(NamedTuple):
    """What all ranks together know of some rows, the same bits on each of them: all that gradients need."""

    merged: Tensor
    """[len(Merged), N]"""
    number_logits: Tensor | None
    """[N, K], with ``label_sigma`` only."""


class ShardBackend(Protocol):
    """N = B * T rows. All but gradients is float32 (float64 for float64 logits)."""

    def shard_statistics(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """[S, N + 1] of the rank's columns."""
        ...

    def number_columns(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """[N, K] transformed logits of the number tokens; 0 where another rank holds them, and off the number rows.

        Their sum over the ranks is exact in any order, since all but one of its terms are 0.
        """
        ...

    def merge_shards(self, gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
        """(fields [len(Field), N], what gradients need) from the statistics [R, S, N + 1] of all ranks.

        In the order of the ranks, so that all of them find the same bits. Where their columns do not make up the
        vocabulary, or their problems differ, the losses of rows that count are NaN, and so are their gradients (on a
        CPU, where looking is free, it is an error before).
        ``number_logits`` [N, K] is the sum of all ranks' :meth:`number_columns`, given with ``label_sigma`` only.
        """
        ...

    def shard_gradients(
        self, logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` [B, T, W], which may be the logits; ``upstream`` is [N] for reduction "none", else 0-d.

        For reduction "mean" the problem has its denominators.
        """
        ...
