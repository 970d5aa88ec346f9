"""Cross-entropy + Number Token Loss of logits whose columns are split over the ranks of a group."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..autograd import spend, tensors_of
from ..backends.contract import Merge
from ..checks import can_look
from ..problem import Problem
from ..tracing import is_plain, refuse_second_derivative
from . import steps
from .collectives import check_transforms, finished, gather_ranks, sum_ranks
from .headers import checked_statistics


class Split(NamedTuple):
    """The position of a rank's columns, and the group that has the others."""

    first: int
    """The index of the rank's first column."""
    group: ProcessGroup


class Exchange(NamedTuple):
    """Statistics that are being sent between the ranks."""

    statistics: Tensor
    """[R, S, N + 1]"""
    number_logits: Tensor | None
    """[N, K], with ``label_sigma`` only."""


def exchange(logits: Tensor, problem: Problem, split: Split) -> Exchange:
    """Start to send the statistics of this rank's logits [B, T, W]."""
    statistics = gather_ranks(steps.shard_statistics(logits, split.first, problem), split.group)
    if problem.spec.label_sigma == 0:
        return Exchange(statistics, None)
    return Exchange(statistics, sum_ranks(steps.number_columns(logits, split.first, problem), split.group))


def merge(sent: Exchange, problem: Problem) -> tuple[Tensor, Merge]:
    """Wait for the statistics of all ranks and merge them: (fields, what gradients need)."""
    statistics = finished(sent.statistics)
    number_logits = None
    if sent.number_logits is not None:
        # A rank with other options may never send the data waited for next.
        if is_plain(statistics) and can_look(statistics):
            checked_statistics(statistics, problem)
        number_logits = finished(sent.number_logits)
    fields, merged = steps.merge_shards(statistics, number_logits, problem)
    return fields, Merge(merged, number_logits)


class VocabParallelCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of this rank's logits [B, T, W]; only the loss (0-d, or [N] for "none") is differentiable.

    The gradient is computed in the backward pass for every reduction: it needs the statistics of all ranks, so the
    logits must be read a second time in any case.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, problem: Problem, split: Split, inplace: bool) -> tuple[Tensor | None, ...]:
        fields, known = merge(exchange(logits, problem, split), problem)
        loss, parts = steps.finish(fields, problem)
        problem = problem.counted_by(parts)
        # The problem's tensors are also saved, so that changing one before the backward pass raises an error.
        ctx.save_for_backward(logits, *known, *tensors_of(problem))
        ctx.problem, ctx.split, ctx.inplace, ctx.is_spent = problem, split, inplace, False
        ctx.mark_non_differentiable(parts, fields)
        return loss, parts, fields

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, None, None, None]:
        check_transforms(upstream)
        spend(ctx)
        logits, merged, number_logits, *_ = ctx.saved_tensors
        known = Merge(merged, number_logits)
        gradient = steps.gradient_of_shard(logits, ctx.split.first, known, upstream, ctx.problem, ctx.inplace)
        return refuse_second_derivative(gradient, logits, upstream), None, None, None
