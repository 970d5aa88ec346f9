"""The steps of a sharded loss between its collectives.

A plain call runs the function; any other call runs it as an operator, so that a compiler sees the collectives between
the steps. The operators have no derivatives of their own; the `autograd.Function` that calls them does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..backends import load_backend, load_shard_backend
from ..backends.contract import Merge, num_statistics
from ..backends.layout import gradient_like, loss_dtype
from ..checks import checked_rows
from ..ops import Operands, define, operands_of, split
from ..problem import NUM_FIELDS, NUM_MERGED, NUM_PARTS, Problem, losses_of_rows
from ..tracing import is_plain
from .headers import checked_statistics, with_header


def step(given: str, results: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of the tensors and numbers ``given`` and, last, a problem callable in a trace.

    Args:
        given, results: their part of the operator's schema.
        fake: the results without values, from the same arguments, with the problem as operands.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*arguments: Any) -> Any:
            first, operands = split(arguments)
            problem = operands.problem
            checked_rows(problem, problem.vocab_size, loss_dtype(first[0].dtype))  # plain calls have done it
            return function(*first, problem)

        def compute_fake(*arguments: Any) -> Any:
            first, operands = split(arguments)
            return fake(*first, operands)

        operator = define(function.__name__, given, results)(compute)
        operator.register_fake(compute_fake)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            *first, problem = arguments
            if is_plain(*(part for part in first if isinstance(part, Tensor))):
                return function(*arguments)
            return operator(*first, *operands_of(problem, loss_dtype(first[0].dtype)))

        return call

    return decorate


def rows_like(tensor: Tensor, operands: Operands, *leading: int) -> Tensor:
    """An uninitialised tensor [..., N] in the losses' dtype."""
    return tensor.new_empty((*leading, operands.labels.numel()), dtype=loss_dtype(tensor.dtype))


def fake_statistics(logits: Tensor, first: int, operands: Operands) -> Tensor:
    count = num_statistics(operands.problem.spec)
    return logits.new_empty((count, operands.labels.numel() + 1), dtype=loss_dtype(logits.dtype))


@step("Tensor logits, int first", "Tensor", fake_statistics)
def shard_statistics(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[S, N + 1] of this rank's logits [B, T, W], whose first column has the index ``first``."""
    statistics = load_shard_backend(problem.backend).shard_statistics(logits, problem, first)
    return with_header(statistics, problem, first, logits.shape[-1])


@step(
    "Tensor logits, int first",
    "Tensor",
    lambda logits, first, operands: rows_like(logits, operands, operands.ids.numel()).t().contiguous(),
)
def number_columns(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[N, K]: this rank's share of the number tokens' logits."""
    return load_shard_backend(problem.backend).number_columns(logits, problem, first)


@step(
    "Tensor gathered, Tensor? number_logits",
    "(Tensor, Tensor)",
    lambda gathered, _, operands: tuple(rows_like(gathered, operands, count) for count in (NUM_FIELDS, NUM_MERGED)),
)
def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Tensor]:
    """(fields, merged) of the statistics [R, S, N + 1] of all ranks."""
    gathered, backend = checked_statistics(gathered, problem), load_shard_backend(problem.backend)
    fields, merge = backend.merge_shards(gathered, number_logits, problem)
    return fields, merge.merged


@step(
    "Tensor logits, int first, Tensor merged, Tensor? number_logits, Tensor upstream",
    "Tensor",
    lambda logits, *_: gradient_like(logits),
)
def shard_gradients(
    logits: Tensor, first: int, merged: Tensor, number_logits: Tensor | None, upstream: Tensor, problem: Problem
) -> Tensor:
    """The gradient of this rank's logits [B, T, W]."""
    gradient, merge = gradient_like(logits), Merge(merged, number_logits)
    load_shard_backend(problem.backend).shard_gradients(logits, problem, first, merge, upstream.contiguous(), gradient)
    return gradient


def gradient_of_shard(
    logits: Tensor, first: int, merge: Merge, upstream: Tensor, problem: Problem, inplace: bool
) -> Tensor:
    """:func:`shard_gradients`, possibly written over the logits; never in a trace."""
    with torch.no_grad():
        if not inplace or not is_plain(logits, upstream):
            return shard_gradients(logits, first, *merge, upstream, problem)
        gradient, backend = logits.detach(), load_shard_backend(problem.backend)
        backend.shard_gradients(gradient, problem, first, merge, upstream.contiguous(), gradient)
        torch.autograd.graph.increment_version(logits)  # so that graphs that saved them detect the change
        return gradient


@step("Tensor like", "Tensor", lambda like, _: like.new_empty(2, dtype=loss_dtype(like.dtype)))
def count(like: Tensor, problem: Problem) -> Tensor:
    """[2]: the sums of w over the rows that count and over the number rows, in the losses' dtype of ``like``."""
    return load_backend(problem.backend).count(problem, problem.vocab_size, loss_dtype(like.dtype))


@step("Tensor fields", "(Tensor, Tensor)", lambda fields, _: (fields.new_empty(()), fields.new_empty(NUM_PARTS)))
def reduced(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """(loss 0-d, parts) of the fields of all rows."""
    loss, parts = load_backend(problem.backend).finish(fields, problem.changed(wants_parts=True))
    assert parts is not None
    return loss, parts


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """(loss, parts) of the fields of all rows; the loss of reduction "none" is [N]."""
    loss, parts = reduced(fields, problem)
    return (losses_of_rows(fields, problem) if problem.reduction == "none" else loss), parts
