"""The contract of shards, for a vocabulary whose columns are split over the ranks of a group.

Each rank reduces its columns to a few :class:`Statistic` numbers per row. The statistics of all ranks determine the
loss of a row and the gradient of every column, so one gather per forward pass is the only communication. Only a
smoothed label (``label_sigma``), which compares cumulative distributions, also needs the logit of every number token.

All ranks must be called with the same problem. To check this, each sends a :class:`Header` with its statistics: which
columns it has, and its problem. The header has only S numbers, so everything but single numbers is sent as hashes.

A backend of shards is a module with the functions of :class:`ShardBackend`. ``problem`` describes the whole vocabulary
and is the same on all ranks; ``first`` is the first column of the rank's logits [B, T, W], where W may be 0.
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
    """The rows of ``statistics`` [S, N + 1]: what one rank knows about a row, from transformed logits x.

    They are in the units of the backend. A rank without columns, without number tokens or without the label's column
    has -inf for the peak or logit and 0 for the sums. The last column is not a row: it contains the :class:`Header`,
    padded with 0.
    """

    PEAK = 0  # the largest x
    TOTAL = 1  # sum of exp(x - PEAK)
    LABEL_LOGIT = 2  # x of the label
    NUMBER_PEAK = 3  # the largest x of the number tokens; this and the next three on number rows only
    NUMBER_TOTAL = 4  # sum of e_k = exp(x_k - NUMBER_PEAK) over the number tokens
    OFFSET = 5  # sum of e_k (v_k - v_y); differences, so that large values do not lose precision
    COST = 6  # sum of e_k c_k
    LOGIT_SUM = 7  # sum of x - PEAK, or of x without a PEAK; sent with label smoothing only


class Header(IntEnum):
    """The last column of ``statistics``: the rank's columns of the vocabulary and its arguments."""

    FIRST = 0  # the first of its columns; this and the next three are integers below 2**24, exact in float32
    WIDTH = 1  # the number of its columns
    OPTIONS_HASH = 2  # of V, the number tokens, the options, the reduction and the backend
    ROWS_HASH = 3  # of labels and weights; for rows that do not count, only of that fact
    NUM_TOKENS = 4  # this and the next: the given denominator, -1 for None
    NUM_NUMBERS = 5
    NTL_WEIGHT = 6  # lambda


HASH_MASK = 2**24 - 1
"""A mask of the bits of a hash that are sent."""
NOT_GIVEN = -1.0
"""Stands for a denominator of None."""
TOLERANCE = 1e-5
"""The allowed relative difference of two denominators or two lambdas. Ranks often sum them over different groups and in
different orders."""


def num_statistics(spec: LossSpec) -> int:
    """S, how many numbers a rank sends per row."""
    return len(Statistic) if spec.label_smoothing else Statistic.LOGIT_SUM


def hash_of_options(problem: Problem) -> int:
    """The host's part of :attr:`Header.OPTIONS_HASH`, in 31 bits to fit a signed 32-bit integer."""
    return hash_of(problem.spec, problem.reduction, problem.backend, problem.vocab_size)


@lru_cache(maxsize=256)
def hash_of(spec: LossSpec, *others: str | int) -> int:
    """A hash that, unlike Python's own, is equal in all processes, and for traced and plain specs."""
    return zlib.crc32(repr((spec.pack(), *others)).encode()) >> 1


def disagreements(headers: Tensor) -> Tensor:
    """bool [R, 5]: which numbers of the headers [R, 7], from OPTIONS_HASH on, differ from those of rank 0."""
    exact, rough = headers[:, Header.OPTIONS_HASH : Header.NUM_TOKENS], headers[:, Header.NUM_TOKENS :]
    is_close = torch.isclose(rough, rough[:1], rtol=TOLERANCE, atol=0.0, equal_nan=True)
    return torch.cat([exact != exact[:1], ~is_close], -1)


class Merged(IntEnum):
    """The rows of ``merged`` [len(Merged), N]: what the gradient of any rank's columns needs to know about a row."""

    PEAK = 0  # this and the next: the row's normaliser, as in Field
    TOTAL = 1
    NUMBER_PEAK = 2  # this and the next: over the number tokens; these and EFFECT for number rows only
    NUMBER_TOTAL = 3
    EFFECT = 4  # L before reweighing for "wasserstein", yhat - v_y for the other kinds


class Merge(NamedTuple):
    """What all ranks together know about some rows and gradients need; bitwise equal on all ranks."""

    merged: Tensor
    """[len(Merged), N]"""
    number_logits: Tensor | None
    """[N, K], only with ``label_sigma``."""


class ShardBackend(Protocol):
    """Functions on N = B * T rows. Everything except gradients is float32 (float64 for float64 logits)."""

    def shard_statistics(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """The statistics [S, N + 1] of the rank's columns."""
        ...

    def number_columns(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """[N, K] transformed logits of the number tokens; 0 in columns of other ranks and outside number rows.

        Their sum over the ranks is exact in any order, because all terms but one are 0.
        """
        ...

    def merge_shards(self, gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
        """(fields [len(Field), N], what gradients need) from the statistics [R, S, N + 1] of all ranks.

        Sums are computed in rank order, so that all ranks get the same bits. If the ranks' columns do not cover the
        vocabulary, or their problems differ, the losses of rows that count and their gradients are NaN (on a CPU,
        where the check is free, it has already raised an error). ``number_logits`` [N, K] is the sum of all ranks'
        :meth:`number_columns`, only given with ``label_sigma``.
        """
        ...

    def shard_gradients(
        self, logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` [B, T, W], which may be the logits; ``upstream`` is [N] for reduction "none", else 0-d.

        For reduction "mean" the problem must contain both denominators.
        """
        ...
