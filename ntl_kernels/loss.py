"""A loss and its gradients, from logits or from hidden states, of all columns of the vocabulary or of one rank's.

Hidden states are processed one chunk of rows at a time: one matrix product computes the logits of the chunk, they are
replaced by their gradient in place, and at most two more products compute the gradients of the hidden states and of
the head (docs, Mathematics, eq. 33). No tensor of N x V elements exists unless one chunk contains all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from . import steps
from .backends import load_backend
from .backends.layout import gradient_like, loss_dtype, rows_of
from .problem import NUM_FIELDS, Forward, Problem, Rows, is_kept
from .tracing import check_transforms, is_autocast

CPU_CHUNK_BYTES = 2**26
"""Size of a chunk's logits on a CPU: large enough for efficient matrix products, small enough for the caches."""
CHUNK_BYTES = 2**28
"""Smallest size of a chunk's logits on other devices; larger for a large weight."""
CHUNK_MULTIPLE = 128
"""Chunks have a multiple of this many rows, the tile size of the matrix products."""
AS_IT_IS = nullcontext()


class Inputs(NamedTuple):
    """What a loss is computed from and differentiated by, all of one dtype."""

    source: Tensor
    """Logits [B, T, V], or hidden states [N, H] with a head."""
    weight: Tensor | None = None
    """[V, H], the head; None with logits."""
    bias: Tensor | None = None
    """[V]"""


class Gradients(NamedTuple):
    """The gradients of the :class:`Inputs`; None where they are not needed."""

    source: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


def as_inputs(source: Tensor, weight: Tensor | None, bias: Tensor | None) -> Inputs:
    """Logits [..., V] as [B, T, V]; hidden states and a head as they are."""
    return Inputs(rows_of(source) if weight is None else source, weight, bias)


class Chunking(NamedTuple):
    """How hidden states are split into chunks."""

    size: int
    """Rows whose logits are stored at a time."""
    skip_ignored: bool
    """Process only the rows that count. Finding them waits for a GPU."""

    def of(self, problem: Problem) -> Iterator[Rows]:
        """The chunks of a problem's rows."""
        rows = problem.rows.labels.shape[0]
        chosen = rows_that_count(problem).nonzero().squeeze(-1) if self.skip_ignored else None
        total = rows if chosen is None else chosen.numel()
        count = -(-total // self.size)
        if count == 1 and total == rows:  # a slice without bounds, which a trace would specialise on
            yield slice(None)
            return
        for i in range(count):
            chunk = slice(i * self.size, min((i + 1) * self.size, total))
            yield chunk if chosen is None or total == rows else chosen[chunk]


class Chunk(NamedTuple):
    """Some rows and their logits."""

    rows: Rows
    problem: Problem
    """Of these rows."""
    hidden: Tensor | None
    """[R, H]; None with logits."""
    logits: Tensor
    """[1, R, V], or all logits [B, T, V]."""


class Found(NamedTuple):
    """The results of a chunk."""

    fields: Tensor
    """[NUM_FIELDS, R]"""
    number_logits: Tensor | None
    """[R, K] of all ranks, for a cumulative loss of several ranks."""
    gradient: Tensor | None
    """Of the logits, perhaps in their memory; None if it is not needed."""


class Columns(Protocol):
    """Which columns of the vocabulary the logits are: all (:class:`Whole`), or one rank's (``parallel.split``)."""

    are_whole: ClassVar[bool]

    def losses(self, chunks: Iterator[Chunk], given: Problem, needs_gradient: bool) -> Iterator[tuple[Chunk, Found]]:
        """Each chunk with its results; several may exist at a time. ``given`` is the problem of all rows as the caller
        passed it."""
        ...

    def gradient(
        self, chunk: Chunk, fields: Tensor, number_logits: Tensor | None, upstream: Tensor, inplace: bool
    ) -> Tensor:
        """That of a chunk's logits, perhaps in their memory, from their fields; see ``Backend.row_gradients``."""
        ...

    def sum_hidden(self, gradient: Tensor) -> Tensor:
        """The gradient of hidden states, summed over all columns."""
        ...

    def check_transforms(self, *upstreams: Tensor) -> None:
        """Raise under a transform that is not supported; ``upstreams`` are the gradients given to a backward pass."""
        ...


class Whole:
    """All columns: a row's loss and gradient take one pass over its logits."""

    are_whole: ClassVar[bool] = True
    check_transforms = staticmethod(check_transforms)

    def losses(self, chunks: Iterator[Chunk], given: Problem, needs_gradient: bool) -> Iterator[tuple[Chunk, Found]]:
        for chunk in chunks:
            logits, problem = chunk.logits, chunk.problem
            fields = logits.new_empty((NUM_FIELDS, problem.rows.labels.numel()), dtype=loss_dtype(logits.dtype))
            gradient = logits if needs_gradient else None
            load_backend(problem.backend).row_losses(logits, problem, fields, gradient)
            yield chunk, Found(fields, None, gradient)

    def gradient(
        self, chunk: Chunk, fields: Tensor, number_logits: Tensor | None, upstream: Tensor, inplace: bool
    ) -> Tensor:
        gradient = chunk.logits if inplace else gradient_like(chunk.logits)
        operands = fields.contiguous(), number_logits, upstream.contiguous(), gradient
        load_backend(chunk.problem.backend).row_gradients(chunk.logits, chunk.problem, None, *operands)
        return gradient

    def sum_hidden(self, gradient: Tensor) -> Tensor:
        return gradient


class Plan(NamedTuple):
    """How a loss is computed."""

    columns: Columns = Whole()
    chunking: Chunking = Chunking(1, False)
    """Not used with logits."""
    inplace: bool = False
    """Whether the gradient of logits may overwrite them."""
    is_traced: bool = False
    """Whether a compiler, or anything else besides autograd, observes the call."""

    def keeps_gradients(self, inputs: Inputs, problem: Problem) -> bool:
        """Whether the forward pass also computes the gradients, which the backward pass only scales.

        It does not for reduction "none", which has one upstream gradient per row; in float16, where a gradient could
        underflow before it is multiplied by the upstream one (the loss scale); or for a rank's logits, which must be
        read a second time in any case.
        """
        fits = problem.spec.reduction != "none" and inputs.source.dtype != torch.float16
        return fits and (inputs.weight is not None or self.columns.are_whole)


class Result(NamedTuple):
    """What :func:`forward` returns."""

    forward: Forward
    number_logits: Tensor | None
    """[N, K] of all ranks, if :func:`gradients` will need them."""
    gradients: Gradients
    """For an upstream gradient of 1."""


def forward(inputs: Inputs, problem: Problem, plan: Plan, wanted: Sequence[bool]) -> Result:
    """The losses of all rows, and the gradients of the reduced loss that are ``wanted`` of the inputs'."""
    source = inputs.source
    if inputs.weight is None and plan.columns.are_whole:
        target = None if not wanted[0] else source if plan.inplace else gradient_like(source)
        return Result(load_backend(problem.backend).forward(source, problem, target), None, Gradients(target))
    with without_autocast(source):
        if inputs.weight is not None:
            return forward_of_hidden(inputs, problem, plan, wanted)
        ((_, found),) = plan.columns.losses(chunks_of(inputs, problem, plan), problem, False)
        return Result(Forward(*steps.finish(found.fields, problem), found.fields), found.number_logits, Gradients())


def forward_of_hidden(inputs: Inputs, problem: Problem, plan: Plan, wanted: Sequence[bool]) -> Result:
    """:func:`forward`, one chunk at a time."""
    hidden, given, wants_gradients = inputs.source, problem, any(wanted)
    if problem.lacks_denominators and wants_gradients:
        problem = problem.counted(*steps.count(hidden, problem).unbind())
    count, dtype = hidden.shape[0], loss_dtype(hidden.dtype)
    fields, number_logits = hidden.new_zeros((NUM_FIELDS, count), dtype=dtype), None
    if problem.spec.is_cumulative and not (plan.columns.are_whole or wants_gradients):
        number_logits = hidden.new_zeros((count, problem.table.ids.numel()), dtype=dtype)
    sums = GradientSums(inputs, plan, wanted) if wants_gradients else None
    for chunk, found in plan.columns.losses(chunks_of(inputs, problem, plan), given, wants_gradients):
        fields[:, chunk.rows] = found.fields
        if number_logits is not None and found.number_logits is not None:
            number_logits[chunk.rows] = found.number_logits
        if sums is not None:
            sums.add(found.gradient, chunk)
    result = Forward(*steps.finish(fields, problem), fields)
    return Result(result, number_logits, Gradients() if sums is None else sums.finish())


def gradients(
    inputs: Inputs,
    problem: Problem,
    plan: Plan,
    wanted: Sequence[bool],
    fields: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
) -> Gradients:
    """The gradients for an upstream gradient ([N] for "none", else 0-d), from fields and (recomputed) logits.

    For reduction "mean" the problem must contain both denominators.
    """
    if inputs.weight is None:
        (chunk,) = chunks_of(inputs, problem, plan)
        return Gradients(plan.columns.gradient(chunk, fields, number_logits, upstream, plan.inplace))
    with without_autocast(inputs.source):
        sums = GradientSums(inputs, plan, wanted)
        for chunk in chunks_of(inputs, problem, plan):
            numbers = None if number_logits is None else number_logits[chunk.rows]
            of_rows = upstream[chunk.rows] if upstream.ndim else upstream
            sums.add(plan.columns.gradient(chunk, fields[:, chunk.rows], numbers, of_rows, inplace=True), chunk)
        return sums.finish()


def chunks_of(inputs: Inputs, problem: Problem, plan: Plan) -> Iterator[Chunk]:
    """Every chunk of hidden states with its logits, which share one buffer if all columns are here."""
    hidden, weight, bias = inputs
    if weight is None:
        yield Chunk(slice(None), problem, None, hidden)
        return
    buffer = None
    if plan.columns.are_whole:
        buffer = hidden.new_empty((min(plan.chunking.size, hidden.shape[0]), weight.shape[0]))
    for rows in plan.chunking.of(problem):
        states = hidden[rows]
        out = None if buffer is None else buffer[: states.shape[0]]
        head = weight.t()
        product = torch.mm(states, head, out=out) if bias is None else torch.addmm(bias, states, head, out=out)
        yield Chunk(rows, problem.changed(rows=problem.rows.part(rows)), states, product[None])


class GradientSums:
    """The wanted gradients of hidden states, weight and bias, summed over chunks."""

    def __init__(self, inputs: Inputs, plan: Plan, wanted: Sequence[bool]) -> None:
        hidden, weight, _ = inputs
        assert weight is not None
        of_hidden, of_weight, of_bias = wanted
        total_dtype, is_single = loss_dtype(hidden.dtype), plan.chunking.size >= hidden.shape[0]
        # One product accumulates in fp32 internally; only a sum of several needs an fp32 total.
        weight_dtype = hidden.dtype if is_single else total_dtype
        self.is_first, self.head = True, weight
        self.hidden = torch.zeros_like(hidden) if of_hidden else None
        self.weight = weight.new_empty(weight.shape, dtype=weight_dtype) if of_weight else None
        self.bias = weight.new_zeros(weight.shape[0], dtype=total_dtype) if of_bias else None

    def add(self, gradient: Tensor | None, chunk: Chunk) -> None:
        """Add a chunk with the gradient [1, R, V] of its logits."""
        assert gradient is not None and chunk.hidden is not None
        (gradient,) = gradient
        if self.hidden is not None and isinstance(chunk.rows, slice):
            torch.mm(gradient, self.head, out=self.hidden[chunk.rows])
        elif self.hidden is not None:
            self.hidden[chunk.rows] = gradient @ self.head
        if self.weight is not None:
            add_product_(self.weight, gradient.t(), chunk.hidden, self.is_first)
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)
        self.is_first = False

    def finish(self) -> Gradients:
        """The three gradients; without any chunk they are 0."""
        if self.weight is not None and self.is_first:
            self.weight.zero_()
        found = self.hidden, self.weight, self.bias
        return Gradients(*(None if each is None else each.to(self.head.dtype) for each in found))


def add_product_(total: Tensor, left: Tensor, right: Tensor, is_first: bool) -> None:
    """total (+)= left @ right, accumulated in the dtype of ``total``."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, beta=0 if is_first else 1, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, beta=0 if is_first else 1, out=total)
    else:
        if left.dtype == torch.float16:  # the product may overflow
            left, right = left.to(total.dtype), right.to(total.dtype)
        total.copy_(left @ right) if is_first else total.add_(left @ right)


def scaled(gradients: Gradients, upstream: Tensor, problem: Problem) -> Gradients:
    """New tensors: the gradients times the upstream gradient (0-d). Those of rows that do not count stay 0 even if it
    is not finite."""
    source, weight, bias = (None if each is None else each * upstream for each in gradients)
    if source is not None:
        source.masked_fill_(~rows_that_count(problem).view(*source.shape[:-1], 1), 0.0)
    return Gradients(source, weight, bias)


def scaled_(gradients: Gradients, upstream: Tensor, problem: Problem) -> Gradients:
    """The same in place, on the device without access to memory if the upstream gradient is 1."""
    for each in gradients:
        if each is not None and each.numel():
            matrix = each if each.ndim == 3 else each.view(1, -1, each.shape[-1])
            load_backend(problem.backend).scale_(matrix, upstream)
    return gradients


def default_chunk_size(num_rows: int, weight: Tensor) -> int:
    """How many rows to process at a time.

    Each chunk of R rows reads and writes the fp32 accumulator of the weight's gradient once (8 V H bytes) and computes
    products of 2 V H R operations. With logits half the size of the accumulator, this traffic is small compared with
    the products, and the logits never need more memory than the accumulator.
    """
    vocab_size, hidden_size = weight.shape
    is_cpu = weight.device.type == "cpu"
    budget = CPU_CHUNK_BYTES if is_cpu else max(CHUNK_BYTES, 2 * vocab_size * hidden_size)
    rows = budget // (vocab_size * weight.element_size())
    return min(max(rows // CHUNK_MULTIPLE, 1) * CHUNK_MULTIPLE, max(num_rows, 1))


def rows_that_count(problem: Problem) -> Tensor:
    """bool [N]: not ignored, and with a weight other than 0."""
    labels, weights = problem.rows.labels, problem.rows.token_weights
    counts = is_kept(labels, problem.spec.ignore_index)
    return counts if weights is None else counts & (weights != 0)


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast does not cast the operands, for sums in fp32."""
    return torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else AS_IT_IS
