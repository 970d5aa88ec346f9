"""Gathers the logits of all ranks on every rank, for the specification (``backend="reference"``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backends.layout import loss_dtype
from ..checks import checked_rows
from ..problem import Problem
from ..tracing import is_plain, refuse_second_derivative
from .collectives import finished, gather_ranks, sum_ranks
from .headers import disagreement, header_of


class AllColumns(torch.autograd.Function):
    """Logits [B..., V] from the ranks' logits [B..., W]; the gradient of a rank's columns is its part of the gradient.

    Every rank computes the same loss from all logits, so the gradient is not summed over the ranks.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, vocab_size: int, split: Any) -> Tensor:
        ctx.columns = slice(split.first, split.first + logits.shape[-1])
        whole = logits.new_zeros((*logits.shape[:-1], vocab_size))
        whole[..., ctx.columns] = logits
        return finished(sum_ranks(whole, split.group))  # exact: all but one of the terms are 0

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        # A second derivative by another rank's columns would belong to that rank, and is lost here.
        return refuse_second_derivative(upstream[..., ctx.columns], upstream), None, None


class SummedGradient(torch.autograd.Function):
    """Passes on hidden states that each rank multiplies by its part of the head; sums their gradient over ranks."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, split: Any) -> Tensor:
        ctx.split = split
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        return refuse_second_derivative(ctx.split.sum_hidden(upstream.detach()), upstream), None


def all_columns(logits: Tensor, problem: Problem, split: Any) -> Tensor:
    """Logits [B..., V] from this rank's [B..., W]; NaN or an error if ranks were called with different arguments."""
    vocab_size = problem.vocab_size
    if not is_plain(logits):
        return AllColumns.apply(logits, vocab_size, split)
    rows = checked_rows(problem, loss_dtype(logits.dtype))
    header = header_of(rows, split.first, logits.shape[-1], logits)
    is_wrong = disagreement(finished(gather_ranks(header, split.group)), vocab_size)
    return torch.where(is_wrong, torch.nan, AllColumns.apply(logits, vocab_size, split))
