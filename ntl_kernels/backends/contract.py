"""What backends implement. A backend is a module with the functions of :class:`Backend`, and a second one, named
``..._shards``, with those of :class:`ShardBackend`.

Logits [B, T, V] have N = B * T rows. They are float32, bfloat16 or float16 (also float64 on eager), with last stride 1
and without overlapping elements. A gradient has their shape and dtype and may be the logits. Everything else is float32
(float64 for float64 logits).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, dtype, inf

from ..problem import Forward, Problem, Statistics, sent_statistics
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
        self,
        logits: Tensor,
        problem: Problem,
        first: int | None,
        fields: Tensor,
        number_logits: Tensor | None,
        upstream: Tensor,
        gradient: Tensor,
    ) -> None:
        """Fill ``gradient`` [B, T, W] from the columns of the logits from ``first`` on (None: all) and the ``fields``
        (contiguous) of whole rows, computed by the same backend; ``upstream`` is [N] for "none", else 0-d.
        ``number_logits`` [N, K] are those of :meth:`ShardBackend.number_columns` of all ranks, if there are any. For
        reduction "mean" the problem must contain both denominators."""
        ...

    def scale_(self, gradient: Tensor, upstream: Tensor) -> None:
        """gradient [B, T, V] *= upstream (0-d), without accessing memory if upstream is exactly 1. A row of zeros, such
        as one that does not count, stays 0 even if upstream is not finite."""
        ...


UNKNOWN = Statistics(-inf, 0.0, -inf, -inf, 0.0, 0.0, 0.0, 0.0, 0.0)
"""Where a rank has no columns, no number tokens or not the label's column."""


def num_statistics(spec: LossSpec) -> int:
    """S, how many numbers a rank sends per row."""
    return len(sent_statistics(spec.kind, spec.label_smoothing))


class ShardBackend(Protocol):
    """The losses of a vocabulary whose columns are split over the ranks of a group.

    Each rank reduces its columns to a few :class:`Statistics` per row. Those of all ranks determine the fields of a
    row, and these the gradient of every column (:meth:`Backend.row_gradients`), so one gather per forward pass is the
    only communication. Only a Wasserstein distance to a Gaussian (``label_sigma``), which compares cumulative
    distributions, also needs the logit of every number token.

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

    def merge_shards(self, gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
        """fields [NUM_FIELDS, N] from the statistics [R, S, N + 1] of all ranks with headers. All ranks get the same
        bits. Where a total is NaN, so are the row's loss and gradient. ``number_logits`` [N, K] is the sum of all
        ranks' :meth:`number_columns`, passed only if the loss is cumulative."""
        ...
