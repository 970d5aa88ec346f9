"""`Split`: the columns of one rank, as :mod:`ntl_kernels.loss` computes with them; and the losses of a rank's shard.

Plain and traced calls run the same code; in a trace its steps are operators (:mod:`.steps`), so that the compiler sees
the collectives between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..backends import load_backend
from ..backends.layout import loss_dtype
from ..checks import can_look
from ..dispatch import as_rows, is_capturing, loss_of, reference_loss
from ..loss import Chunk, Chunking, Found, Inputs, Plan, default_chunk_size
from ..problem import Forward, Problem
from ..tracing import is_plain
from . import steps
from .collectives import check_transforms, finished, gather_ranks, sum_ranks
from .headers import SIZE
from .whole import SummedGradient, all_columns

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """The position of a rank's columns, and the group that has the others. See :class:`ntl_kernels.loss.Columns`."""

    first: int
    """The index of the rank's first column."""
    group: ProcessGroup
    sums_hidden: bool = True
    """Whether the gradient of hidden states is summed over the ranks, in float32."""

    are_whole: ClassVar[bool] = False
    check_transforms = staticmethod(check_transforms)

    def losses(self, chunks: Iterator[Chunk], given: Problem, needs_gradient: bool) -> Iterator[tuple[Chunk, Found]]:
        """The statistics of a chunk are sent while the logits of the next one are computed."""
        is_wrong = None
        for chunk, sent, number_logits in one_ahead(self.exchanges(chunks, given)):
            statistics = finished(sent)
            if is_wrong is None:  # before waiting for data that a rank with other options may never send
                is_wrong = steps.disagreement(statistics[:, :SIZE, -1], given)
            yield chunk, self.found(chunk, statistics, number_logits, is_wrong, needs_gradient)

    def exchanges(self, chunks: Iterator[Chunk], given: Problem) -> Iterator[tuple[Chunk, Tensor, Tensor | None]]:
        """Start to send the statistics [R, S, N + 1] of each chunk and, for a cumulative loss, its number logits
        [N, K]."""
        header = None
        for chunk in chunks:
            logits, problem = chunk.logits, chunk.problem
            header = steps.header(logits, self.first, given) if header is None else header
            statistics = gather_ranks(steps.shard_statistics(logits, self.first, header, problem), self.group)
            number_logits = None
            if problem.spec.is_cumulative:
                number_logits = sum_ranks(steps.number_columns(logits, self.first, problem), self.group)
            yield chunk, statistics, number_logits

    def found(
        self, chunk: Chunk, statistics: Tensor, number_logits: Tensor | None, is_wrong: Tensor, needs_gradient: bool
    ) -> Found:
        """Merge the statistics [R, S, N + 1] of all ranks. If the ranks disagree, the results are NaN."""
        number_logits = None if number_logits is None else finished(number_logits)
        fields, gradient = steps.merge_shards(statistics, number_logits, chunk.problem), None
        if not (is_plain(statistics) and can_look(statistics)):
            fields = fields.masked_fill(is_wrong, torch.nan)
        if needs_gradient:
            one = torch.ones((), dtype=fields.dtype, device=fields.device)
            gradient = self.gradient(chunk, fields, number_logits, one, inplace=True)
        return Found(fields, number_logits, gradient)

    def gradient(
        self, chunk: Chunk, fields: Tensor, number_logits: Tensor | None, upstream: Tensor, inplace: bool
    ) -> Tensor:
        """Never in place in a trace. Sends nothing."""
        logits, problem = chunk.logits, chunk.problem
        with torch.no_grad():
            operands = self.first, fields.contiguous(), number_logits, upstream.contiguous()
            if not (inplace and is_plain(logits, upstream)):
                return steps.shard_gradients(logits, *operands, problem)
            target = logits.detach()
            load_backend(problem.backend).row_gradients(target, problem, *operands, target)
            return target

    def sum_hidden(self, gradient: Tensor) -> Tensor:
        if not self.sums_hidden:
            return gradient
        total = sum_ranks(gradient.to(loss_dtype(gradient.dtype)), self.group)
        return finished(total).to(gradient.dtype)


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The items, each after the next one has been computed."""
    waiting: list[T] = []
    for item in items:
        yield from waiting
        waiting = [item]
    yield from waiting


def loss_of_shard(logits: Tensor, problem: Problem, split: Split, inplace: bool = False) -> Forward:
    """The loss of this rank's logits [B..., W] and a checked problem."""
    check_transforms()
    if problem.backend == "reference":
        return reference_loss(all_columns(logits, problem, split), problem)
    return loss_of(Inputs(logits), problem, Plan(split, inplace=inplace))


def loss_of_head_shard(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    problem: Problem,
    split: Split,
    chunk_size: int | None,
    skip_ignored: bool,
) -> Forward:
    """The loss of hidden states [B..., H], this rank's weight [W, H] and bias [W] and a checked problem."""
    check_transforms()
    rows, weight, bias = as_rows(hidden, weight, bias)
    if problem.backend == "reference":
        states = SummedGradient.apply(rows, split) if split.sums_hidden else rows
        logits = torch.nn.functional.linear(states, weight, bias)
        return reference_loss(all_columns(logits, problem, split), problem)
    skip_ignored = skip_ignored and is_plain(hidden) and not is_capturing(hidden)
    chunking = Chunking(chunk_rows(rows.shape[0], weight, problem, split, chunk_size), skip_ignored)
    return loss_of(Inputs(rows, weight, bias), problem, Plan(split, chunking))


def chunk_rows(num_rows: int, weight: Tensor, problem: Problem, split: Split, chunk_size: int | None) -> int:
    """How many rows to process at a time; the same on all ranks, whatever their share of the vocabulary.

    If there are several chunks, two exist at a time, so each is half as large.
    """
    if chunk_size is None:
        width = -(-problem.vocab_size // dist.get_world_size(split.group))
        chunk_size = default_chunk_size(num_rows, weight.new_empty(()).expand(width, weight.shape[1]))
    if num_rows <= chunk_size or dist.get_world_size(split.group) == 1:
        return max(min(chunk_size, num_rows), 1)
    return -(-chunk_size // 2)
