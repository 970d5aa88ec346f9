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
from .triton import arguments_of, in_memory, loss_tile

MERGED_ROWS = 128
"""Rows per program of the merge kernel."""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    row_count = problem.rows.labels.numel()
    statistics = torch.empty((num_statistics(problem.spec), row_count + 1), dtype=torch.float32, device=logits.device)
    if row_count:
        given = arguments_of(problem, logits)
        tile, launch_options = loss_tile(logits, None, given.options, given.block)
        arguments = (
            *in_memory(logits),
            logits.shape[1],
            row_count,
            Shard(first, logits.shape[2], problem.vocab_size),
            given.labels,
            given.numbers,
            statistics[:, :-1],
            given.scalars,
        )
        constants = {"OPTIONS": given.options, "BLOCK": given.block, "TILE": tile}
        launch(shard_statistics_kernel, row_count, logits.device, arguments, constants, **launch_options)
    return statistics


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    row_count, width = problem.rows.labels.numel(), problem.table.ids.numel()
    shape, fill = (row_count, width), torch.empty if problem.table.groups is None else torch.zeros
    columns = fill(shape, dtype=torch.float32, device=logits.device)
    if row_count:
        given = arguments_of(problem, logits)
        arguments = (
            *in_memory(logits),
            logits.shape[1],
            Shard(first, logits.shape[2], problem.vocab_size),
            given.labels,
            given.numbers,
            columns,
            given.scalars,
        )
        constants = {"OPTIONS": given.options, "BLOCK": given.block}
        launch(number_columns_kernel, row_count, logits.device, arguments, constants)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
    rank_count, row_count = gathered.shape[0], gathered.shape[2] - 1
    fields = gathered.new_empty((NUM_FIELDS, row_count))
    if row_count:
        given = arguments_of(problem, gathered)
        arguments = (
            gathered,
            row_count,
            rank_count,
            given.labels,
            given.numbers,
            problem.vocab_size,
            None if number_logits is None else cumulative_losses(number_logits, problem),
            fields,
            given.scalars,
        )
        constants = {"OPTIONS": given.options, "ROWS": MERGED_ROWS}
        launch(merge_shards_kernel, triton.cdiv(row_count, MERGED_ROWS), gathered.device, arguments, constants)
    return fields


def cumulative_losses(number_logits: Tensor, problem: Problem) -> Tensor:
    """L [N] with ``label_sigma``; 0 outside number rows."""
    losses, given = number_logits.new_empty(number_logits.shape[0]), arguments_of(problem, number_logits)
    arguments = given.labels, given.numbers, problem.vocab_size, number_logits, losses, given.scalars
    launch(cumulative_losses_kernel, number_logits.shape[0], losses.device, arguments, {"BLOCK": given.block})
    return losses
