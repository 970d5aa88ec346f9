"""The steps of a sharded loss between its collectives."""

from __future__ import annotations

from torch import Tensor

from ..backends import load_backend, load_shard_backend
from ..backends.contract import num_statistics
from ..backends.layout import gradient_like, loss_dtype
from ..problem import NUM_FIELDS, Problem
from ..steps import Operands, step
from .headers import checked_statistics, with_header


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
    "Tensor",
    lambda gathered, _, operands: rows_like(gathered, operands, NUM_FIELDS),
)
def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
    """fields [NUM_FIELDS, N] from the statistics [R, S, N + 1] of all ranks."""
    gathered, backend = checked_statistics(gathered, problem), load_shard_backend(problem.backend)
    return backend.merge_shards(gathered, number_logits, problem)


@step(
    "Tensor logits, int first, Tensor fields, Tensor? number_logits, Tensor upstream",
    "Tensor",
    lambda logits, *_: gradient_like(logits),
)
def shard_gradients(
    logits: Tensor, first: int, fields: Tensor, number_logits: Tensor | None, upstream: Tensor, problem: Problem
) -> Tensor:
    """The gradient of this rank's logits [B, T, W]."""
    gradient = gradient_like(logits)
    operands = fields, number_logits, upstream.contiguous(), gradient
    load_backend(problem.backend).row_gradients(logits, problem, first, *operands)
    return gradient


def write_gradients(
    logits: Tensor, first: int, fields: Tensor, number_logits: Tensor | None, upstream: Tensor, problem: Problem
) -> Tensor:
    """:func:`shard_gradients`, written over the logits; not in a trace."""
    load_backend(problem.backend).row_gradients(logits, problem, first, fields, number_logits, upstream, logits)
    return logits
