"""The contract of shards on GPUs: launches of the kernels in :mod:`ntl_kernels.kernels.shards`.

Statistics hold logits in units of log2(e), as the kernels do; so does ``merged``.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..kernels.shards import (
    Shard,
    cumulative_losses_kernel,
    merge_shards_kernel,
    number_columns_kernel,
    shard_gradients_kernel,
    shard_statistics_kernel,
)
from ..problem import Problem
from . import Field
from .shards import Merged, num_statistics
from .triton import (
    NUMBERS_PER_THREAD,
    UNROLL_OF_MANY_OPERATIONS,
    block_of,
    labels_of,
    loss_tile,
    matrix_of,
    numbers_of,
    options_of,
    scalars_of,
    shares_of,
    tile_of,
    transform_of,
)

MERGED_ROWS = 128
"""Rows of one program of the merge."""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    count = problem.labels.numel()
    shape = num_statistics(problem.spec), count + 1
    statistics = torch.empty(shape, dtype=torch.float32, device=logits.device)
    options, block = options_of(problem.spec), block_of(problem.table)
    tile, launch = loss_tile(logits, None, options, block)
    shard_statistics_kernel[(count + 1,)](
        matrix_of(logits),
        logits.stride(0),
        logits.shape[1],
        count,
        shard_of(problem, first, logits.shape[-1]),
        labels_of(problem),
        numbers_of(problem.table),
        statistics,
        transform_of(problem.spec),
        scalars_of(problem.spec),
        OPTIONS=options,
        BLOCK=block,
        TILE=tile,
        **launch,
    )
    return statistics


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    count, width = problem.labels.numel(), problem.table.ids.numel()
    columns = torch.empty((count, width), dtype=torch.float32, device=logits.device)
    if count:
        number_columns_kernel[(count,)](
            matrix_of(logits),
            logits.stride(0),
            logits.shape[1],
            shard_of(problem, first, logits.shape[-1]),
            labels_of(problem),
            numbers_of(problem.table),
            columns,
            transform_of(problem.spec),
            OPTIONS=options_of(problem.spec),
            BLOCK=block_of(problem.table),
        )
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Tensor]:
    ranks, count = gathered.shape[0], gathered.shape[2] - 1
    fields, merged = gathered.new_empty((len(Field), count)), gathered.new_empty((len(Merged), count))
    if count == 0:
        return fields, merged
    shard = shard_of(problem, 0, 0)
    options = options_of(problem.spec)
    cumulative = None if number_logits is None else cumulative_losses(number_logits, problem)
    merge_shards_kernel[(triton.cdiv(count, MERGED_ROWS),)](
        gathered,
        count,
        ranks,
        shard,
        labels_of(problem),
        numbers_of(problem.table),
        cumulative,
        fields,
        merged,
        transform_of(problem.spec),
        scalars_of(problem.spec),
        OPTIONS=options,
        ROWS=MERGED_ROWS,
        RANKS=triton.next_power_of_2(ranks),
    )
    return fields, merged


def cumulative_losses(number_logits: Tensor, problem: Problem) -> Tensor:
    """L [N] with ``label_sigma``; 0 off the number rows."""
    losses = number_logits.new_empty(number_logits.shape[0])
    cumulative_losses_kernel[(number_logits.shape[0],)](
        shard_of(problem, 0, 0),
        labels_of(problem),
        numbers_of(problem.table),
        number_logits,
        losses,
        scalars_of(problem.spec),
        BLOCK=block_of(problem.table),
    )
    return losses


def shard_gradients(
    logits: Tensor,
    problem: Problem,
    first: int,
    merged: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    count = problem.labels.numel()
    if count == 0 or logits.shape[-1] == 0:
        return
    options, block = options_of(problem.spec), block_of(problem.table)
    tile, launch = tile_of(
        logits,
        gradient,
        UNROLL_OF_MANY_OPERATIONS,
        block // NUMBERS_PER_THREAD if options.kind == "cumulative" else 0,
    )
    shard_gradients_kernel[(count,)](
        matrix_of(logits),
        matrix_of(gradient),
        logits.stride(0),
        gradient.stride(0),
        logits.shape[1],
        count,
        shard_of(problem, first, logits.shape[-1]),
        labels_of(problem),
        numbers_of(problem.table),
        *shares_of(problem),
        merged,
        number_logits,
        upstream,
        upstream.stride(0) if upstream.ndim else 0,
        transform_of(problem.spec),
        scalars_of(problem.spec),
        OPTIONS=options,
        BLOCK=block,
        TILE=tile,
        **launch,
    )


def shard_of(problem: Problem, first: int, width: int) -> Shard:
    return Shard(first, width, problem.table.lookup.shape[0])
