"""The custom operators of sharded losses, which traced calls use. The compiler sees the collectives between them.

They have no derivatives of their own; the `autograd.Function` that calls them does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..backends import load_backend, load_shard_backend
from ..backends.contract import Merge, num_statistics
from ..backends.layout import gradient_like, loss_dtype
from ..checks import checked_rows
from ..ops import NUM_OPERANDS, PROBLEM, define, problem_of
from ..problem import NUM_FIELDS, NUM_MERGED, NUM_PARTS
from .headers import check_headers, with_header

SHARD = f"Tensor logits, {PROBLEM}, int first"


@define("shard_statistics", f"({SHARD}) -> Tensor")
def shard_statistics(logits: Tensor, *rest: Any) -> Tensor:
    """[S, N + 1] of logits [B, T, W]."""
    *operands, first = rest
    problem = problem_of(operands)
    checked_rows(problem, problem.vocab_size, loss_dtype(logits.dtype))
    statistics = load_shard_backend(problem.backend).shard_statistics(logits, problem, first)
    return with_header(statistics, problem, first, logits.shape[-1])


@define("number_columns", f"({SHARD}) -> Tensor")
def number_columns(logits: Tensor, *rest: Any) -> Tensor:
    """[N, K] of logits [B, T, W]."""
    *operands, first = rest
    problem = problem_of(operands)
    return load_shard_backend(problem.backend).number_columns(logits, problem, first)


@define("merge_shards", f"(Tensor gathered, {PROBLEM}, Tensor? number_logits) -> (Tensor, Tensor)")
def merge_shards(gathered: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """(fields, merged) of the statistics [R, S, N + 1]."""
    *operands, number_logits = rest
    problem = problem_of(operands)
    gathered = gathered.clone()  # an operator must not change its arguments, and the check may
    check_headers(gathered, problem)
    fields, merge = load_shard_backend(problem.backend).merge_shards(gathered, number_logits, problem)
    return fields, merge.merged


@define("shard_gradients", f"({SHARD}, Tensor merged, Tensor? number_logits, Tensor upstream) -> Tensor")
def shard_gradients(logits: Tensor, *rest: Any) -> Tensor:
    """The gradient [B, T, W] of logits."""
    *operands, first, merged, number_logits, upstream = rest
    problem, gradient, merge = problem_of(operands), gradient_like(logits), Merge(merged, number_logits)
    steps = load_shard_backend(problem.backend)
    steps.shard_gradients(logits, problem, first, merge, upstream.contiguous(), gradient)
    return gradient


@define("finish", f"(Tensor fields, {PROBLEM}) -> (Tensor, Tensor)")
def finish(fields: Tensor, *operands: Any) -> tuple[Tensor, Tensor]:
    """(loss 0-d, parts) of the fields of all rows."""
    problem = problem_of(operands)
    loss, parts = load_backend(problem.backend).finish(fields, problem)
    assert parts is not None  # the problem of an operator wants them
    return loss, parts


@define("count", f"(Tensor like, {PROBLEM}) -> Tensor")
def count(like: Tensor, *operands: Any) -> Tensor:
    """[2]: the sums of w over the rows that count and over the number rows, in the dtype of ``like``."""
    problem = problem_of(operands)
    return load_backend(problem.backend).count(problem, problem.vocab_size, like.dtype)


def rows_like(tensor: Tensor, operands: tuple[Any, ...], *leading: int) -> Tensor:
    """An uninitialised tensor [..., N] in the losses' dtype."""
    return tensor.new_empty((*leading, operands[0].numel()), dtype=loss_dtype(tensor.dtype))


merge_shards.register_fake(
    lambda gathered, *rest: (rows_like(gathered, rest, NUM_FIELDS), rows_like(gathered, rest, NUM_MERGED))
)
shard_gradients.register_fake(lambda logits, *_: gradient_like(logits))
finish.register_fake(lambda fields, *_: (fields.new_empty(()), fields.new_empty(NUM_PARTS)))
count.register_fake(lambda like, *_: like.new_empty(2))


@shard_statistics.register_fake
def _(logits: Tensor, *rest: Any) -> Tensor:
    count = num_statistics(problem_of(rest[:NUM_OPERANDS]).spec)
    return logits.new_empty((count, rest[0].numel() + 1), dtype=loss_dtype(logits.dtype))


@number_columns.register_fake
def _(logits: Tensor, *rest: Any) -> Tensor:
    ids = rest[NUM_OPERANDS - 6]
    return logits.new_empty((rest[0].numel(), ids.numel()), dtype=loss_dtype(logits.dtype))
