"""The same loss from hidden states and a head whose rows (the vocabulary) are split over the ranks of a group.

As in :mod:`ntl_kernels.linear`, a chunk of rows at a time. A chunk's statistics are on their way to the other ranks
while the next chunk is multiplied, so two chunks of logits exist at a time, each of half the size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..autograd import tensors_of
from ..backends import Field, load_backend
from ..backends.layout import loss_dtype
from ..backends.shards import Merged
from ..linear import (
    Chunk,
    Chunking,
    LinearGradients,
    in_unit,
    keeps_gradients,
    part_of,
    rows_that_count,
    scaled,
    unit_of,
    without_autocast,
)
from ..problem import Problem
from ..tracing import is_plain, refuse_second_derivative
from . import steps
from .collectives import finished, sum_ranks
from .logits import Exchange, Merge, Split, check_transforms, exchange, merge


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


class SentChunk(NamedTuple):
    """A chunk of rows whose statistics are under way."""

    rows: Chunk
    hidden: Tensor
    """[R, H]"""
    logits: Tensor
    """[1, R, W]"""
    problem: Problem
    """Of these rows."""
    sent: Exchange


class Result(NamedTuple):
    """What :func:`forward` returns."""

    loss: Tensor
    parts: Tensor
    fields: Tensor
    merge: Merge
    """Of all rows."""
    gradients: tuple[Tensor, Tensor, Tensor]
    """Of hidden (this rank's share), weight and bias, divided by ``scale``; empty where not needed."""
    scale: Tensor | None
    """0-d; None is 1"""


def sent_chunks(hidden: Tensor, head: Head, problem: Problem, split: Split, chunking: Chunking) -> Iterator[SentChunk]:
    """Every chunk, one behind: it is handed on after the next one is multiplied and sent."""
    waiting = None
    for rows in chunking.of(problem):
        part, states = part_of(problem, rows), hidden[rows]
        logits = head.logits(states)
        next_one = SentChunk(rows, states, logits, part, exchange(logits, part, split))
        if waiting is not None:
            yield waiting
        waiting = next_one
    if waiting is not None:
        yield waiting


@without_autocast
def forward(
    hidden: Tensor,
    head: Head,
    problem: Problem,
    split: Split,
    chunking: Chunking,
    needs: Sequence[bool],
) -> Result:
    """The losses of all rows and the gradients of the reduced loss that ``needs`` (hidden, weight, bias) names."""
    given = problem
    if problem.lacks_denominators:
        problem = problem.counted(*steps.count(problem, hidden).unbind())
    unit = unit_of(problem, hidden.dtype)
    task = in_unit(problem, unit)
    found = nothing_merged(hidden, problem)
    gradients = LinearGradients(hidden, head.weight, needs, is_single=chunking.size >= hidden.shape[0])
    one = torch.ones((), dtype=found.fields.dtype, device=hidden.device)
    for chunk in sent_chunks(hidden, head, given, split, chunking):  # the ranks compare what their callers gave
        fields, merged, number_logits = merge(chunk.sent, chunk.problem)
        found.fields[:, chunk.rows], found.merged[:, chunk.rows] = fields, merged
        if found.number_logits is not None and number_logits is not None:
            found.number_logits[chunk.rows] = number_logits
        if any(needs):
            arguments = chunk.logits, part_of(task, chunk.rows), split.first, merged, number_logits, one
            gradients.add(steps.shard_gradients(*arguments, inplace=True)[0], chunk.hidden, chunk.rows)
    loss, parts = steps.finish(found.fields, problem)
    scale = None if unit is None else unit.reciprocal()
    return Result(loss, parts, found.fields, found, gradients.finish(), scale)


def nothing_merged(hidden: Tensor, problem: Problem) -> Merge:
    """Room for what all ranks know of all rows; 0 for rows that are not walked."""
    count, dtype = hidden.shape[0], loss_dtype(hidden.dtype)
    number_logits = None
    if problem.spec.label_sigma > 0 and not keeps_gradients(problem, hidden.dtype):
        number_logits = hidden.new_zeros((count, problem.table.ids.numel()), dtype=dtype)
    fields, merged = (hidden.new_zeros((len(kind), count), dtype=dtype) for kind in (Field, Merged))
    return Merge(fields, merged, number_logits)


@without_autocast
def gradients(
    hidden: Tensor,
    head: Head,
    problem: Problem,
    split: Split,
    chunking: Chunking,
    needs: Sequence[bool],
    merged: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients for an upstream gradient ([N] for "none", else 0-d), from logits made anew. Nothing is sent."""
    gradients = LinearGradients(hidden, head.weight, needs, is_single=chunking.size >= hidden.shape[0])
    for rows in chunking.of(problem):
        states, chunk_merged = hidden[rows], merged[:, rows].contiguous()
        columns = None if number_logits is None else number_logits[rows]
        of_rows = upstream[rows] if upstream.ndim else upstream
        arguments = head.logits(states), part_of(problem, rows), split.first, chunk_merged, columns, of_rows
        gradients.add(steps.shard_gradients(*arguments, inplace=True)[0], states, rows)
    return gradients.finish()


class VocabParallelLinearCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of hidden states [N, H] and this rank's weight [W, H] and bias [W].

    The gradients are computed in the forward pass and handed over in the backward pass, or the logits made anew there,
    as on one device. The hidden states' gradient is summed over the ranks once, in the backward pass, in float32.
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.is_one_pass, ctx.needs = keeps_gradients(problem, hidden.dtype), list(ctx.needs_input_grad[:3])
        needs = ctx.needs if ctx.is_one_pass else [False] * 3
        found = forward(hidden, Head(weight, bias), problem, split, chunking, needs)
        if problem.lacks_denominators:
            problem = problem.counted(found.parts[2], found.parts[3])
        ctx.arguments, ctx.sums_hidden = (problem, split, chunking), sums_hidden
        ctx.is_traced = not is_plain(hidden)
        ctx.found = (*found.gradients, found.scale) if ctx.is_one_pass and not ctx.is_traced else None
        kept = (*found.gradients, found.scale) if ctx.is_traced else (None,) * 4
        merged = (None, None) if ctx.is_one_pass else found.merge[1:]
        ctx.save_for_backward(found.loss, hidden, weight, bias, *merged, *kept, *tensors_of(problem))
        ctx.mark_non_differentiable(found.parts, found.fields)
        return found.loss, found.parts, found.fields

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        check_transforms(upstream)
        with torch.no_grad():
            gradients = kept_gradients(ctx, upstream) if ctx.is_one_pass else gradients_anew(ctx, upstream)
            hidden_grad, weight_grad, bias_grad = gradients
            if ctx.needs[0] and ctx.sums_hidden:
                _, split, _ = ctx.arguments
                total = sum_ranks(hidden_grad.to(loss_dtype(hidden_grad.dtype)), split.group)
                hidden_grad = finished(total).to(hidden_grad.dtype)
        loss, *_ = ctx.saved_tensors
        found = zip((hidden_grad, weight_grad, bias_grad), ctx.needs, strict=True)
        refused = (refuse_second_derivative(part, loss, upstream) if needed else None for part, needed in found)
        return *refused, None, None, None, None


def gradients_anew(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients from logits made anew; hidden's is this rank's share."""
    _, hidden, weight, bias, merged, number_logits, *_ = ctx.saved_tensors
    arguments = hidden, Head(weight, bias), *ctx.arguments, ctx.needs, merged, number_logits, upstream
    return [gradient.to(hidden.dtype) for gradient in gradients(*arguments)]


def kept_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients of the forward pass times the upstream gradient; hidden's is this rank's share.

    They are given away once, since whoever receives them may keep them: a second backward computes new ones.
    """
    _, hidden, weight, bias, _, _, *kept = ctx.saved_tensors
    found, ctx.found = kept[:4] if ctx.is_traced else ctx.found, None
    if found is None:
        again = forward(hidden, Head(weight, bias), *ctx.arguments, ctx.needs)
        found = *again.gradients, again.scale
    *gradients, scale = found
    factor = upstream if scale is None else upstream * scale
    if ctx.is_traced or scale is not None:
        return scaled(gradients, factor, rows_that_count(ctx.arguments[0]), hidden.dtype)
    for gradient in gradients:
        if gradient.numel():
            load_backend(ctx.arguments[0].backend).scale_(gradient.view(1, -1, gradient.shape[-1]), factor)
    return gradients
