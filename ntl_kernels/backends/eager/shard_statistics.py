"""The statistics of one rank."""

from __future__ import annotations

import torch
from torch import Tensor

from ...problem import Problem
from ...reference import costs
from ...spec import LossSpec
from ..layout import loss_dtype
from ..shards import Statistic, num_statistics
from .blocks import Block
from .labels import Labels, for_each_block, read_labels
from .normaliser import anchor, normaliser_of
from .shard_headers import store_header
from .shards import OwnNumbers, number_rows, own_column, own_numbers
from .softcap import transform_, transform_logits


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    width, dtype, vocab_size = logits.shape[-1], loss_dtype(logits.dtype), problem.vocab_size
    everything = nothing_known(problem.labels.numel() + 1, problem.spec, dtype, logits.device)
    labels = read_labels(problem, vocab_size, dtype)
    store_header(everything[:, -1], problem, labels, first, width)
    if width == 0:
        return everything
    own = own_numbers(problem.table, first, width, dtype)

    def work(block: Block, part: Labels) -> None:
        everything[:, :-1][:, block.rows] = block_statistics(block, part, first, own, problem.spec)

    for_each_block(logits, labels, None, work)
    return everything


def nothing_known(num_rows: int, spec: LossSpec, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The statistics [S, num_rows] of a rank without columns."""
    statistics = torch.zeros((num_statistics(spec), num_rows), dtype=dtype, device=device)
    statistics[[Statistic.PEAK, Statistic.LABEL_LOGIT, Statistic.NUMBER_PEAK]] = -torch.inf
    return statistics


def block_statistics(block: Block, labels: Labels, first: int, own: OwnNumbers, spec: LossSpec) -> Tensor:
    """The statistics [S, n] of a block in which all rows count."""
    x = transform_logits(block, spec)
    entries = nothing_known(x.shape[0], spec, x.dtype, x.device)
    column, is_own = own_column(labels.ids, first, x.shape[1])
    entries[Statistic.LABEL_LOGIT] = torch.where(is_own, x.gather(-1, column), -torch.inf).squeeze(-1)
    rows = number_rows(labels)
    if rows.numel() and own.places.numel():
        sums = number_sums(x[rows[:, None], own.columns], labels.targets[rows], own, spec)
        entries[Statistic.NUMBER_PEAK : Statistic.LOGIT_SUM, rows] = sums
    peak = x.amax(-1, keepdim=True)
    if spec.label_smoothing:
        entries[Statistic.LOGIT_SUM] = torch.sub(x, anchor(peak), out=block.buffer("powers")).sum(-1)
    normaliser = normaliser_of(x, peak, block.buffer("powers") if x is block.logits else x)
    entries[Statistic.PEAK : Statistic.TOTAL + 1] = torch.cat(normaliser, -1).t()
    return entries


def number_sums(x: Tensor, targets: Tensor, own: OwnNumbers, spec: LossSpec) -> Tensor:
    """NUMBER_PEAK to COST [4, n] of number rows with the rank's number logits x [n, k] and label values [n]."""
    peak = x.amax(-1)
    powers = (x - anchor(peak)[:, None]).exp_()
    offset = (powers * (own.values - targets[:, None])).sum(-1)
    cost = (powers * costs(own.values, targets, spec)).sum(-1)
    return torch.stack([peak, powers.sum(-1), offset, cost])


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    dtype, length = loss_dtype(logits.dtype), logits.shape[1]
    labels = read_labels(problem, problem.vocab_size, dtype)
    own = own_numbers(problem.table, first, logits.shape[-1], dtype)
    columns = own.values.new_zeros((labels.ids.shape[0], problem.table.ids.numel()))
    rows = number_rows(labels)[:, None]
    if rows.numel() and own.places.numel():
        x = logits[rows // length, rows % length, own.columns].to(dtype)
        columns[rows, own.places] = transform_(x, problem.spec)
    return columns
