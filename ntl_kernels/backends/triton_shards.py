"""The contract of shards on GPUs: launches of the kernels in :mod:`ntl_kernels.kernels`.

Statistics and ``merged`` contain logits and totals in the units of the kernels
(:mod:`ntl_kernels.kernels.normaliser`).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..kernels.shard_gradients import shard_gradients_kernel
from ..kernels.shard_merge import cumulative_losses_kernel, merge_shards_kernel
from ..kernels.shard_statistics import number_columns_kernel, shard_statistics_kernel
from ..kernels.shards import Shard
from ..problem import NUM_FIELDS, Problem
from .contract import NUM_MERGED, Merge, num_statistics
from .launch import launch
from .tiles import NUMBERS_PER_THREAD_WITH_SUMS, UNROLL_OF_MANY_OPERATIONS
from .triton import (
    as_argument,
    block_of,
    given_shares,
    labels_of,
    loss_tile,
    matrices_of,
    matrix_of,
    numbers_of,
    options_of,
    scalars_of,
    shares_of,
    tile_of,
    transform_of,
)

MERGED_ROWS = 128
"""Rows per program of the merge kernel."""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    rows = problem.labels.numel()
    statistics = torch.empty((num_statistics(problem.spec), rows + 1), dtype=torch.float32, device=logits.device)
    options, block = options_of(problem.spec, logits), block_of(problem.table)
    tile, how = loss_tile(logits, None, options, block)
    launch(
        shard_statistics_kernel,
        rows + 1,
        (
            matrix_of(logits),
            logits.stride(0),
            logits.shape[1],
            rows,
            shard_of(problem, first, logits.shape[2]),
            labels_of(problem),
            numbers_of(problem.table),
            *given_shares(problem),
            0,
            statistics,
            transform_of(problem.spec),
            scalars_of(problem.spec),
        ),
        {"OPTIONS": options, "BLOCK": block, "TILE": tile},
        **how,
    )
    return statistics


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    rows, width = problem.labels.numel(), problem.table.ids.numel()
    columns = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    if rows:
        launch(
            number_columns_kernel,
            rows,
            (
                matrix_of(logits),
                logits.stride(0),
                logits.shape[1],
                shard_of(problem, first, logits.shape[2]),
                labels_of(problem),
                numbers_of(problem.table),
                columns,
                transform_of(problem.spec),
            ),
            {"OPTIONS": options_of(problem.spec, logits), "BLOCK": block_of(problem.table)},
        )
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
    ranks, rows = gathered.shape[0], gathered.shape[2] - 1
    fields, merged = gathered.new_empty((NUM_FIELDS, rows)), gathered.new_empty((NUM_MERGED, rows))
    if rows:
        launch(
            merge_shards_kernel,
            triton.cdiv(rows, MERGED_ROWS),
            (
                gathered,
                rows,
                ranks,
                shard_of(problem, 0, 0),
                labels_of(problem),
                numbers_of(problem.table),
                None if number_logits is None else cumulative_losses(number_logits, problem),
                fields,
                merged,
                transform_of(problem.spec),
                scalars_of(problem.spec),
            ),
            {
                "OPTIONS": options_of(problem.spec, gathered),
                "ROWS": MERGED_ROWS,
                "RANKS": triton.next_power_of_2(ranks),
            },
        )
    return fields, Merge(merged, number_logits)


def cumulative_losses(number_logits: Tensor, problem: Problem) -> Tensor:
    """L [N] with ``label_sigma``; 0 outside number rows."""
    losses = number_logits.new_empty(number_logits.shape[0])
    launch(
        cumulative_losses_kernel,
        number_logits.shape[0],
        (
            shard_of(problem, 0, 0),
            labels_of(problem),
            numbers_of(problem.table),
            number_logits,
            losses,
            transform_of(problem.spec),
            scalars_of(problem.spec),
        ),
        {"BLOCK": block_of(problem.table)},
    )
    return losses


def shard_gradients(
    logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
) -> None:
    rows, width = problem.labels.numel(), logits.shape[2]
    if rows == 0 or width == 0:
        return
    options, block = options_of(problem.spec, logits), block_of(problem.table)
    least_threads = block // NUMBERS_PER_THREAD_WITH_SUMS if options.kind == "cumulative" else 0
    tile, how = tile_of(logits, gradient, UNROLL_OF_MANY_OPERATIONS, least_threads)
    launch(
        shard_gradients_kernel,
        rows,
        (
            *matrices_of(logits, gradient)[:-1],
            rows,
            shard_of(problem, first, width),
            labels_of(problem),
            numbers_of(problem.table),
            *shares_of(problem),
            *merge,
            as_argument(upstream),
            upstream.stride(0) if upstream.ndim else 0,
            transform_of(problem.spec),
            scalars_of(problem.spec),
        ),
        {"OPTIONS": options, "BLOCK": block, "TILE": tile},
        **how,
    )


def shard_of(problem: Problem, first: int, width: int) -> Shard:
    return Shard(first, width, problem.vocab_size)
