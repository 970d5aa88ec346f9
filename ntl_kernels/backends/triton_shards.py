"""The contract of shards on GPUs: launches of the kernels in :mod:`ntl_kernels.kernels`.

Statistics contain logits and totals in the units of the kernels (:mod:`ntl_kernels.kernels.normaliser`).
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
    shard_statistics_kernel,
)
from ..problem import NUM_FIELDS, Problem
from .contract import num_statistics
from .launch import launch
from .triton import (
    block_of,
    constants_of,
    labels_of,
    loss_tile,
    matrix_of,
    numbers_of,
    options_of,
)

MERGED_ROWS = 128
"""Rows per program of the merge kernel."""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    row_count = problem.rows.labels.numel()
    statistics = torch.empty((num_statistics(problem.spec), row_count + 1), dtype=torch.float32, device=logits.device)
    if row_count:
        options, block = options_of(problem.spec, logits), block_of(problem.table)
        tile, launch_options = loss_tile(logits, None, options, block)
        arguments = (
            *matrix_of(logits),
            logits.shape[1],
            row_count,
            Shard(first, logits.shape[2], problem.vocab_size),
            labels_of(problem),
            numbers_of(problem.table),
            statistics[:, :-1],
            *constants_of(problem.spec),
        )
        constants = {"OPTIONS": options, "BLOCK": block, "TILE": tile}
        launch(shard_statistics_kernel, row_count, arguments, constants, **launch_options)
    return statistics


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    row_count, width = problem.rows.labels.numel(), problem.table.ids.numel()
    shape, fill = (row_count, width), torch.empty if problem.table.groups is None else torch.zeros
    columns = fill(shape, dtype=torch.float32, device=logits.device)
    if row_count:
        arguments = (
            *matrix_of(logits),
            logits.shape[1],
            Shard(first, logits.shape[2], problem.vocab_size),
            labels_of(problem),
            numbers_of(problem.table),
            columns,
            *constants_of(problem.spec),
        )
        constants = {"OPTIONS": options_of(problem.spec, logits), "BLOCK": block_of(problem.table)}
        launch(number_columns_kernel, row_count, arguments, constants)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
    rank_count, row_count = gathered.shape[0], gathered.shape[2] - 1
    fields = gathered.new_empty((NUM_FIELDS, row_count))
    if row_count:
        arguments = (
            gathered,
            row_count,
            rank_count,
            labels_of(problem),
            numbers_of(problem.table),
            problem.vocab_size,
            None if number_logits is None else cumulative_losses(number_logits, problem),
            fields,
            *constants_of(problem.spec),
        )
        constants = {"OPTIONS": options_of(problem.spec, gathered), "ROWS": MERGED_ROWS}
        launch(merge_shards_kernel, triton.cdiv(row_count, MERGED_ROWS), arguments, constants)
    return fields


def cumulative_losses(number_logits: Tensor, problem: Problem) -> Tensor:
    """L [N] with ``label_sigma``; 0 outside number rows."""
    losses = number_logits.new_empty(number_logits.shape[0])
    arguments = (
        labels_of(problem),
        numbers_of(problem.table),
        problem.vocab_size,
        number_logits,
        losses,
        *constants_of(problem.spec),
    )
    launch(cumulative_losses_kernel, number_logits.shape[0], arguments, {"BLOCK": block_of(problem.table)})
    return losses
