"""The steps of a sharded loss between its collectives: functions of the backend, or operators in a trace."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import load_backend, load_shard_backend
from ..backends.contract import Merge
from ..backends.layout import gradient_like, loss_dtype
from ..ops import operands_of
from ..problem import Problem, losses_of_rows
from ..tracing import is_plain
from . import operators
from .headers import check_headers, with_header


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    """[S, N + 1] of this rank's logits [B, T, W]."""
    if is_plain(logits):
        statistics = load_shard_backend(problem.backend).shard_statistics(logits, problem, first)
        return with_header(statistics, problem, first, logits.shape[-1])
    return operators.shard_statistics(logits, *operands_of(problem, loss_dtype(logits.dtype)), first)


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    """[N, K]: this rank's share of the number tokens' logits."""
    if is_plain(logits):
        return load_shard_backend(problem.backend).number_columns(logits, problem, first)
    return operators.number_columns(logits, *operands_of(problem, loss_dtype(logits.dtype)), first)


def check(gathered: Tensor, problem: Problem) -> None:
    """Check the headers of statistics [R, S, N + 1] if that waits for nothing; in a trace the merge checks them."""
    if is_plain(gathered):
        check_headers(gathered, problem)


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
    """(fields, what gradients need) of the statistics [R, S, N + 1] of all ranks."""
    if is_plain(gathered):
        return load_shard_backend(problem.backend).merge_shards(gathered, number_logits, problem)
    fields, merged = operators.merge_shards(gathered, *operands_of(problem, gathered.dtype), number_logits)
    return fields, Merge(merged, number_logits)


def shard_gradients(
    logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, inplace: bool
) -> Tensor:
    """The gradient of this rank's logits [B, T, W]; never in place in a trace."""
    upstream = upstream.contiguous()
    if not is_plain(logits, upstream):
        operands = operands_of(problem, merge.merged.dtype)
        return operators.shard_gradients(logits, *operands, first, *merge, upstream)
    with torch.no_grad():
        logits = logits.detach()
        gradient = logits if inplace else gradient_like(logits)
        steps = load_shard_backend(problem.backend)
        steps.shard_gradients(logits, problem, first, merge, upstream, gradient)
        if inplace:
            torch.autograd.graph.increment_version(logits)  # so that graphs that saved them detect the change
    return gradient


def count(problem: Problem, like: Tensor) -> Tensor:
    """[2]: the sums of w over the rows that count and over the number rows, in the losses' dtype of ``like``."""
    dtype, vocab_size = loss_dtype(like.dtype), problem.vocab_size
    if is_plain(like):
        return load_backend(problem.backend).count(problem, vocab_size, dtype)
    return operators.count(like.new_empty((), dtype=dtype), *operands_of(problem, dtype))


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
    """(loss, parts) of the fields of all rows; the loss of reduction "none" is [N]."""
    if is_plain(fields):
        loss, parts = load_backend(problem.backend).finish(fields, problem)
    else:
        loss, parts = operators.finish(fields, *operands_of(problem, fields.dtype))
    if problem.reduction == "none":
        loss = losses_of_rows(fields, problem)
    return loss, parts
