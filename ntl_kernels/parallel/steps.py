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


def empty(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor in the losses' dtype."""
    return like.new_empty(shape, dtype=loss_dtype(like.dtype))


@step("Tensor logits, int first", "Tensor", lambda logits, *_: empty(logits, SIZE))
def header(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[7] of this rank, with all rows of the problem as the caller passed it."""
    return header_of(problem, first, logits.shape[-1], logits)


@step("Tensor headers", "Tensor", lambda headers, problem: headers.new_empty((), dtype=torch.bool))
def disagreement(headers: Tensor, problem: Problem) -> Tensor:
    """bool 0-d: whether the headers [R, 7] of all ranks are inconsistent; an error on every rank, where its value may
    be read."""
    return headers_disagree(headers, problem.vocab_size)


@step(
    "Tensor logits, int first, Tensor header",
    "Tensor",
    lambda logits, _, __, problem: empty(logits, num_statistics(problem.spec), problem.rows.labels.numel() + 1),
)
def shard_statistics(logits: Tensor, first: int, header: Tensor, problem: Problem) -> Tensor:
    """[S, N + 1] of this rank's logits [B, T, W], whose first column has the index ``first``."""
    statistics = load_shard_backend(problem.backend).shard_statistics(logits, problem, first)
    statistics[:SIZE, -1] = header
    return statistics


@step(
    "Tensor logits, int first",
    "Tensor",
    lambda logits, _, problem: empty(logits, problem.rows.labels.numel(), problem.table.ids.numel()),
)
def number_columns(logits: Tensor, first: int, problem: Problem) -> Tensor:
    """[N, K]: this rank's share of the number tokens' logits."""
    return load_shard_backend(problem.backend).number_columns(logits, problem, first)


@step(
    "Tensor gathered, Tensor? number_logits",
    "Tensor",
    lambda gathered, _, problem: empty(gathered, NUM_FIELDS, problem.rows.labels.numel()),
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
