"""The loss from hidden states and a head whose rows (the vocabulary) are split over the ranks of a group.

As in :mod:`ntl_kernels.linear`, rows are processed in chunks. The statistics of a chunk are sent to the other ranks
while the logits of the next one are computed, so two chunks of logits of half the size exist at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..autograd import tensors_of
from ..backends.contract import Merge
from ..backends.layout import loss_dtype
from ..linear import (
    Chunk,
    Chunking,
    LinearGradients,
    in_unit,
    keeps_gradients,
    part_of,
    rows_that_count,
    scaled,
    scaled_once,
    unit_of,
    without_autocast,
)
from ..problem import NUM_FIELDS, NUM_MERGED, Problem
from ..tracing import is_plain, refuse_second_derivative
from . import steps
from .collectives import check_transforms, finished, sum_ranks
from .logits import Exchange, Split, exchange, merge


class Head(NamedTuple):
    """A rank's rows of the head."""

    weight: Tensor
    """[W, H]"""
    bias: Tensor | None
    """[W]"""

    def logits(self, hidden: Tensor) -> Tensor:
        """[1, R, W] of hidden states [R, H]."""
        if self.bias is None:
            return torch.mm(hidden, self.weight.t())[None]
        return torch.addmm(self.bias, hidden, self.weight.t())[None]


class Walk(NamedTuple):
    """How the rows are split into chunks, and their columns over the ranks."""

    split: Split
    chunking: Chunking

    def gradients_of(self, hidden: Tensor, head: Head, needs: Sequence[bool]) -> LinearGradients:
        """Accumulators for the gradients of all rows, before any chunk is processed."""
        return LinearGradients(hidden, head.weight, needs, is_single=self.chunking.size >= hidden.shape[0])


class SentChunk(NamedTuple):
    """A chunk of rows whose statistics are being sent."""

    rows: Chunk
    hidden: Tensor
    """[R, H]"""
    logits: Tensor
    """[1, R, W]"""
    problem: Problem
    """The problem of these rows."""
    sent: Exchange


class Result(NamedTuple):
    """What :func:`forward` returns."""

    loss: Tensor
    parts: Tensor | None
    fields: Tensor
    known: Merge
    """What all ranks together know about all rows."""
    gradients: tuple[Tensor, Tensor, Tensor]
    """Gradients of hidden (this rank's share), weight and bias, divided by ``scale``; empty if not needed."""
    scale: Tensor | None
    """0-d, or None for 1."""


def sent_chunks(hidden: Tensor, head: Head, problem: Problem, walk: Walk) -> Iterator[SentChunk]:
    """All chunks, each yielded after the next one's logits are computed and its statistics are being sent."""
    waiting = None
    for rows in walk.chunking.of(problem):
        part, states = part_of(problem, rows), hidden[rows]
        logits = head.logits(states)
        next_one = SentChunk(rows, states, logits, part, exchange(logits, part, walk.split))
        if waiting is not None:
            yield waiting
        waiting = next_one
    if waiting is not None:
        yield waiting


def forward(hidden: Tensor, head: Head, problem: Problem, walk: Walk, needs: Sequence[bool]) -> Result:
    """The losses of all rows, and the gradients of the reduced loss that ``needs`` (hidden, weight, bias) selects."""
    with without_autocast(hidden):
        given = problem
        if problem.lacks_denominators:
            problem = problem.counted(*steps.count(hidden, problem).unbind())
        unit = unit_of(problem, hidden.dtype)
        task = in_unit(problem, unit)
        fields, known = nothing_known(hidden, problem)
        gradients = walk.gradients_of(hidden, head, needs)
        one = torch.ones((), dtype=fields.dtype, device=hidden.device)
        for chunk in sent_chunks(hidden, head, given, walk):  # the ranks compare the arguments as given
            fields[:, chunk.rows], of_chunk = merge(chunk.sent, chunk.problem)
            keep(of_chunk, known, chunk.rows)
            if any(needs):
                part = part_of(task, chunk.rows)
                logits_grad = steps.gradient_of_shard(chunk.logits, walk.split.first, of_chunk, one, part, inplace=True)
                gradients.add(logits_grad[0], chunk.hidden, chunk.rows)
        loss, parts = steps.finish(fields, problem)
        scale = None if unit is None else unit.reciprocal()
        return Result(loss, parts, fields, known, gradients.finish(), scale)


def nothing_known(hidden: Tensor, problem: Problem) -> tuple[Tensor, Merge]:
    """Zeros for the fields of all rows and for what all ranks know about them; skipped rows keep the zeros."""
    count, dtype = hidden.shape[0], loss_dtype(hidden.dtype)
    number_logits = None
    if problem.spec.label_sigma > 0 and not keeps_gradients(problem, hidden.dtype):
        number_logits = hidden.new_zeros((count, problem.table.ids.numel()), dtype=dtype)
    fields, merged = (hidden.new_zeros((size, count), dtype=dtype) for size in (NUM_FIELDS, NUM_MERGED))
    return fields, Merge(merged, number_logits)


def keep(found: Merge, known: Merge, rows: Chunk) -> None:
    """Copy what was found for a chunk's rows into the tensors for all rows, where these exist."""
    known.merged[:, rows] = found.merged
    if known.number_logits is not None and found.number_logits is not None:
        known.number_logits[rows] = found.number_logits


def gradients(
    hidden: Tensor, head: Head, problem: Problem, walk: Walk, needs: Sequence[bool], known: Merge, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients for an upstream gradient ([N] for "none", else 0-d), from recomputed logits. Sends nothing."""
    with without_autocast(hidden):
        gradients = walk.gradients_of(hidden, head, needs)
        for rows in walk.chunking.of(problem):
            states, merged = hidden[rows], known.merged[:, rows].contiguous()
            of_chunk = Merge(merged, None if known.number_logits is None else known.number_logits[rows])
            of_rows = upstream[rows] if upstream.ndim else upstream
            logits, part = head.logits(states), part_of(problem, rows)
            found = steps.gradient_of_shard(logits, walk.split.first, of_chunk, of_rows, part, inplace=True)
            gradients.add(found[0], states, rows)
        return gradients.finish()


class VocabParallelLinearCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of hidden states [N, H] and this rank's weight [W, H] and bias [W].

    As on one device, the gradients are computed in the forward pass and returned in the backward pass, or the backward
    pass recomputes the logits. The gradient of the hidden states is summed over the ranks once, in the backward pass,
    in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        problem: Problem,
        split: Split,
        chunking: Chunking,
        sums_hidden: bool,
    ) -> tuple[Tensor | None, ...]:
        ctx.is_one_pass, ctx.needs = keeps_gradients(problem, hidden.dtype), list(ctx.needs_input_grad[:3])
        needs = ctx.needs if ctx.is_one_pass else [False] * 3
        walk = Walk(split, chunking)
        found = forward(hidden, Head(weight, bias), problem, walk, needs)
        problem = problem.counted_by(found.parts)
        ctx.arguments, ctx.sums_hidden = (problem, walk), sums_hidden
        ctx.is_traced = not is_plain(hidden)
        ctx.found = (*found.gradients, found.scale) if ctx.is_one_pass and not ctx.is_traced else None
        kept = (*found.gradients, found.scale) if ctx.is_traced else (None,) * 4
        known = (None, None) if ctx.is_one_pass else found.known
        ctx.save_for_backward(hidden, weight, bias, *known, *kept, *tensors_of(problem))
        ctx.mark_non_differentiable(found.parts, found.fields)
        return found.loss, found.parts, found.fields

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        check_transforms(upstream)
        with torch.no_grad():
            gradients = kept_gradients(ctx, upstream) if ctx.is_one_pass else gradients_anew(ctx, upstream)
            hidden_grad, weight_grad, bias_grad = gradients
            if ctx.needs[0] and ctx.sums_hidden:
                _, walk = ctx.arguments
                total = sum_ranks(hidden_grad.to(loss_dtype(hidden_grad.dtype)), walk.split.group)
                hidden_grad = finished(total).to(hidden_grad.dtype)
        hidden, weight, bias, *_ = ctx.saved_tensors
        sources = [tensor for tensor in (hidden, weight, bias, upstream) if tensor is not None]
        found = zip((hidden_grad, weight_grad, bias_grad), ctx.needs, strict=True)
        refused = (refuse_second_derivative(part, *sources) if needed else None for part, needed in found)
        return *refused, None, None, None, None


def gradients_anew(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients from recomputed logits; that of hidden is this rank's share."""
    hidden, weight, bias, merged, number_logits, *_ = ctx.saved_tensors
    arguments = hidden, Head(weight, bias), *ctx.arguments, ctx.needs, Merge(merged, number_logits), upstream
    return [gradient.to(hidden.dtype) for gradient in gradients(*arguments)]


def kept_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients of the forward pass times the upstream gradient; that of hidden is this rank's share.

    They are handed over only once, because the receiver may keep them; a second backward pass computes new ones.
    """
    hidden, weight, bias, _, _, *kept = ctx.saved_tensors
    found, ctx.found = kept[:4] if ctx.is_traced else ctx.found, None
    if found is None:
        problem, walk = ctx.arguments
        again = forward(hidden, Head(weight, bias), problem, walk, ctx.needs)
        found = *again.gradients, again.scale
    *gradients, scale = found
    problem, _ = ctx.arguments
    if not ctx.is_traced:
        return scaled_once(gradients, scale, upstream, problem)
    factor = upstream if scale is None else upstream * scale
    return scaled(gradients, factor, rows_that_count(problem), hidden.dtype)
