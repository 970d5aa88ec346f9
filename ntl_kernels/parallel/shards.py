"""Computes the loss of one rank's shard and a checked :class:`Problem` on one of three paths: plain, traced, reference.

This is :mod:`ntl_kernels.dispatch` for shards. Here plain and traced calls use the same `autograd.Function`; in a trace
its steps are operators (:mod:`.steps`), so that the compiler sees the collectives between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.layout import loss_dtype, rows_of
from ..checks import check_inplace, checked_rows
from ..dispatch import autocast, is_capturing, reference_loss
from ..linear import Chunking, default_chunk_size
from ..problem import Forward, Problem
from ..tracing import is_plain
from .collectives import check_transforms, group_size
from .hidden import VocabParallelLinearCrossEntropyNTL
from .logits import Split, VocabParallelCrossEntropyNTL
from .whole import all_columns, summed_gradient


def loss_of_shard(logits: Tensor, problem: Problem, split: Split, inplace: bool = False) -> Forward:
    """The loss of this rank's logits [B..., W] and a checked problem."""
    check_transforms()
    if problem.backend == "reference":
        return reference_loss(all_columns(logits, problem, split), problem)
    rows = rows_of(logits) if logits.shape[-1] else logits.reshape(1, problem.labels.numel(), 0)
    problem = checked_rows(problem, problem.vocab_size, loss_dtype(logits.dtype), is_plain(logits))
    if inplace and torch.is_grad_enabled() and logits.requires_grad:
        check_inplace(logits)
    return Forward(*VocabParallelCrossEntropyNTL.apply(rows, problem, split, inplace))


def loss_of_head_shard(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    problem: Problem,
    split: Split,
    chunk_size: int | None,
    skip_ignored: bool,
    sums_hidden: bool,
) -> Forward:
    """The loss of hidden states [B..., H], this rank's weight [W, H] and bias [W] and a checked problem."""
    check_transforms()
    hidden, weight, bias = autocast(hidden), autocast(weight), None if bias is None else autocast(bias)
    if problem.backend == "reference":
        states = summed_gradient(hidden, split) if sums_hidden else hidden
        return reference_loss(all_columns(torch.nn.functional.linear(states, weight, bias), problem, split), problem)
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    plain = is_plain(hidden)
    problem = checked_rows(problem, problem.vocab_size, loss_dtype(hidden.dtype), plain)
    skip_ignored = skip_ignored and plain and not is_capturing(hidden)
    chunking = Chunking(chunk_rows(rows.shape[0], weight, problem, split, chunk_size), skip_ignored)
    return Forward(*VocabParallelLinearCrossEntropyNTL.apply(rows, weight, bias, problem, split, chunking, sums_hidden))


def chunk_rows(num_rows: int, weight: Tensor, problem: Problem, split: Split, chunk_size: int | None) -> int:
    """How many rows to process at a time; the same on all ranks, whatever their share of the vocabulary.

    If there are several chunks, two exist at a time, so each is half as large.
    """
    if chunk_size is None:
        width = -(-problem.vocab_size // group_size(split.group))
        chunk_size = default_chunk_size(num_rows, weight.new_empty(()).expand(width, weight.shape[1]))
    if num_rows <= chunk_size or group_size(split.group) == 1:
        return max(min(chunk_size, num_rows), 1)
    return -(-chunk_size // 2)
