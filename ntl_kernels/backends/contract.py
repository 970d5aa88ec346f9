"""What backends implement. A backend is a module with the functions of :class:`Backend`, and a second one, named
``..._shards``, with those of :class:`ShardBackend`.

Logits [B, T, V] have N = B * T rows. They are float32, bfloat16 or float16 (also float64 on eager), with last stride 1
and without overlapping elements. A gradient has their shape and dtype and may be the logits. Everything else is float32
(float64 for float64 logits).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor, dtype, inf

from ..problem import Forward, Problem
from ..spec import LossSpec


class Backend(Protocol):
    """``forward`` is the whole forward pass over logits. Its steps ``count``, ``row_losses`` and ``finish`` are for
    callers that compute their logits in chunks. The gradient either comes from the forward pass and is later scaled by
    ``scale_``, or from ``row_gradients`` in the backward pass."""

    def forward(self, logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
        """The losses of all rows; writes the gradient of the reduced loss for an upstream gradient of 1 to
        ``gradient``."""
        ...

    def count(self, problem: Problem, vocab_size: int, dtype: dtype) -> Tensor:
        """[2] in the losses' dtype: the sums of w over all rows that count and over the number rows."""
        ...

    def row_losses(self, logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
        """Fill ``fields`` [NUM_FIELDS, N] (contiguous) and, if given, ``gradient``, as ``forward`` does. For reduction
        "mean" the problem must contain both denominators."""
        ...

    def finish(self, fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """(loss, parts) of :class:`Forward` from the fields of all rows."""
        ...

    def row_gradients(
        self, logits: Tensor, problem: Problem, fields: Tensor, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` from the logits and their ``fields`` (contiguous), computed by the same backend;
        ``upstream`` is [N] for "none", else 0-d."""
        ...

    def scale_(self, gradient: Tensor, upstream: Tensor) -> None:
        """gradient [B, T, V] *= upstream (0-d), without accessing memory if upstream is exactly 1. A row of zeros, such
        as one that does not count, stays 0 even if upstream is not finite."""
        ...


class Statistics(NamedTuple):
    """What one rank knows about a row, from its columns of the transformed logits x, in the units of the backend. Their
    order is that of the rows of ``statistics`` [S, N + 1], whose last column has room for the :class:`Header`."""

    peak: Any  # the largest x
    total: Any  # the sum of exp(x - peak)
    label_logit: Any  # x of the label
    number_peak: Any  # the largest x of the number tokens; this and the next three on number rows only
    number_total: Any  # the sum of e_k = exp(x_k - number_peak) over the number tokens
    offset: Any  # the sum of e_k (v_k - v_y); differences, so that large values do not lose precision
    cost: Any  # the sum of e_k c_k
    logit_sum: Any = None  # the sum of x - peak, or of x without a peak; sent with label smoothing only


UNKNOWN = Statistics(-inf, 0.0, -inf, -inf, 0.0, 0.0, 0.0, 0.0)
"""Where a rank has no columns, no number tokens or not the label's column."""


def num_statistics(spec: LossSpec) -> int:
    """S, how many numbers a rank sends per row."""
    return len(UNKNOWN) if spec.label_smoothing else len(UNKNOWN) - 1


class Header(NamedTuple):
    """The last column of ``statistics``, padded with 0: the rank's columns of the vocabulary and its arguments."""

    first: Any  # the first of its columns; this and the next three are integers below 2**24, exact in float32
    width: Any  # the number of its columns
    options_hash: Any  # of V, the number tokens, the options, the reduction and the backend
    rows_hash: Any  # of labels and weights; for rows that do not count, only of that fact
    num_tokens: Any  # this and the next: the given denominator, -1 for None
    num_numbers: Any
    ntl_weight: Any  # lambda


class Merged(NamedTuple):
    """What the gradient of any rank's columns needs to know about a row, in the order of the rows of ``merged``."""

    peak: Any  # this and the next: the row's normaliser, as in RowResult
    total: Any
    number_peak: Any  # this and the next: over the number tokens; these and the effect are 0 in rows without NTL
    number_total: Any
    effect: Any  # L before reweighing for "wasserstein", yhat - v_y for the other kinds


NUM_MERGED = len(Merged._fields)


class Merge(NamedTuple):
    """What all ranks together know about some rows and gradients need; bitwise equal on all ranks."""

    merged: Tensor  # [NUM_MERGED, N]
    number_logits: Tensor | None  # [N, K], only with ``label_sigma``


class ShardBackend(Protocol):
    """The losses of a vocabulary whose columns are split over the ranks of a group.

    Each rank reduces its columns to a few :class:`Statistics` per row. Those of all ranks determine the loss of a row
    and the gradient of every column, so one gather per forward pass is the only communication. Only ``label_sigma``,
    which compares cumulative distributions, also needs the logit of every number token.

    ``problem`` describes the whole vocabulary and is the same on all ranks; ``first`` is the first column of the rank's
    logits [B, T, W], where W may be 0.
    """

    def shard_statistics(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """The statistics [S, N + 1] of the rank's columns; the last column is left to the caller."""
        ...

    def number_columns(self, logits: Tensor, problem: Problem, first: int) -> Tensor:
        """[N, K] transformed logits of the number tokens; 0 in columns of other ranks and outside number rows. Their
        sum over the ranks is exact in any order, because all terms but one are 0."""
        ...

    def merge_shards(self, gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
        """(fields [NUM_FIELDS, N], what gradients need) from the statistics [R, S, N + 1] of all ranks with headers.
        All ranks get the same bits. Where a total is NaN, so are the row's loss and gradient. ``number_logits`` [N, K]
        is the sum of all ranks' :meth:`number_columns`, only given with ``label_sigma``."""
        ...

    def shard_gradients(
        self, logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` [B, T, W]; ``upstream`` is [N] for reduction "none", else 0-d. For reduction "mean" the
        problem must contain both denominators."""
        ...
