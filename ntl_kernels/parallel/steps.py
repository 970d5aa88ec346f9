"""The steps of a sharded loss between its collectives."""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends import load_backend, load_shard_backend
from ..backends.contract import num_statistics
from ..backends.layout import gradient_like, loss_dtype
from ..problem import NUM_FIELDS, Problem
from ..steps import step
from .headers import SIZE, header_of
from .headers import disagreement as headers_disagree


def rows_like(tensor: Tensor, problem: Problem, *leading: int) -> Tensor:
    """An uninitialised tensor [..., N] in the losses' dtype."""
    return tensor.new_empty((*leading, problem.rows.labels.numel()), dtype=loss_dtype(tensor.dtype))


def fake_statistics(logits: Tensor, first: int, header: Tensor, problem: Problem) -> Tensor:
    count = num_statistics(problem.spec)
    return logits.new_empty((count, problem.rows.labels.numel() + 1), dtype=loss_dtype(logits.dtype))


@step(
    "Tensor logits, int first",
    "Tensor",
    lambda logits, first, problem: logits.new_empty(SIZE, dtype=loss_dtype(logits.dtype)),
)
def header(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[7] of this rank, with all rows of the problem as the caller passed it."""
    return header_of(problem, first, logits.shape[-1], logits)


@step("Tensor headers", "Tensor", lambda headers, problem: headers.new_empty((), dtype=torch.bool))
def disagreement(headers: Tensor, problem: Problem) -> Tensor:
    """bool 0-d: whether the headers [R, 7] of all ranks are inconsistent; an error on every rank, where its value may
    be read."""
    return headers_disagree(headers, problem.vocab_size)


@step("Tensor logits, int first, Tensor header", "Tensor", fake_statistics)
def shard_statistics(logits: Tensor, first: int, header: Tensor, problem: Problem) -> Tensor:
    """[S, N + 1] of this rank's logits [B, T, W], whose first column has the index ``first``."""
    statistics = load_shard_backend(problem.backend).shard_statistics(logits, problem, first)
    statistics[:SIZE, -1] = header
    return statistics


@step(
    "Tensor logits, int first",
    "Tensor",
    lambda logits, first, problem: rows_like(logits, problem, problem.table.ids.numel()).t().contiguous(),
)
def number_columns(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[N, K]: this rank's share of the number tokens' logits."""
    return load_shard_backend(problem.backend).number_columns(logits, problem, first)


@step(
    "Tensor gathered, Tensor? number_logits",
    "Tensor",
    lambda gathered, _, problem: rows_like(gathered, problem, NUM_FIELDS),
)
def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
    """fields [NUM_FIELDS, N] from the statistics [R, S, N + 1] of all ranks."""
    return load_shard_backend(problem.backend).merge_shards(gathered, number_logits, problem)


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
