"""The loss from hidden states, one chunk of logits at a time, on any backend.

For each chunk of rows, one matrix product computes the logits, the backend replaces them by their gradient in place,
and at most two more products compute the gradients of the hidden states and of the weight (docs, Mathematics, eq. 33).
No tensor of N x V elements exists unless one chunk contains all rows.

Tensors: ``hidden`` [N, H], ``weight`` [V, H] and ``bias`` [V] of one dtype; the problem's labels and weights are [N].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from .backends import load_backend
from .backends.layout import loss_dtype
from .formulas import divide
from .problem import NUM_FIELDS, Forward, Problem, in_dtype, is_kept, losses_of_rows
from .tracing import times_upstream

Chunk: TypeAlias = Union[slice, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""The rows of a chunk: a slice, or int64 indices [R]."""

CPU_CHUNK_BYTES = 2**26
"""Size of a chunk's logits on a CPU: large enough for efficient matrix products, small enough for the caches."""
CHUNK_BYTES = 2**28
"""Smallest size of a chunk's logits on other devices; larger for a large weight."""
CHUNK_MULTIPLE = 128
"""Chunks have a multiple of this many rows, the tile size of the matrix products."""
AS_IT_IS = nullcontext()
LARGEST_KEPT = 2.0**11
"""Upper bound of the float16 gradients that a forward pass keeps: far from underflow, with room for their products."""
LARGEST_NUMBER_LOSS = 2.0**11
"""The largest number loss for which NTL and cross-entropy gradients share one float16 unit."""


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


class Chunking(NamedTuple):
    """How the rows are split into chunks."""

    size: int
    """Rows whose logits are stored at a time."""
    skip_ignored: bool
    """Process only the rows that count. Finding them waits for a GPU."""

    def of(self, problem: Problem) -> Iterator[Chunk]:
        """The chunks of a problem's rows."""
        rows = problem.labels.shape[0]
        chosen = rows_that_count(problem).nonzero().squeeze(-1) if self.skip_ignored else None
        total = rows if chosen is None else chosen.numel()
        count = -(-total // self.size)
        if count == 1 and total == rows:  # a slice without bounds, which a trace would specialise on
            yield slice(None)
            return
        for i in range(count):
            chunk = slice(i * self.size, min((i + 1) * self.size, total))
            yield chunk if chosen is None or total == rows else chosen[chunk]


def rows_that_count(problem: Problem) -> Tensor:
    """bool [N]: not ignored, and with a weight other than 0."""
    counts = is_kept(problem.labels, problem.spec.ignore_index)
    return counts if problem.token_weights is None else counts & (problem.token_weights != 0)


def part_of(problem: Problem, chunk: Chunk) -> Problem:
    """The problem of a chunk's rows."""
    given = problem.token_weights, problem.number_weights
    weights, number_weights = (None if each is None else each[chunk] for each in given)
    return problem.changed(labels=problem.labels[chunk], token_weights=weights, number_weights=number_weights)


def chunk_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    """hidden [R, H] times weight, plus bias, in the first R rows of the buffer."""
    out = buffer[: hidden.shape[0]]
    if bias is None:
        return torch.mm(hidden, weight.t(), out=out)
    return torch.addmm(bias, hidden, weight.t(), out=out)


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


class LinearGradients:
    """The required gradients of hidden, weight and bias, summed over chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, needs: Sequence[bool], is_single: bool = False) -> None:
        needs_hidden, needs_weight, needs_bias = needs
        total_dtype = loss_dtype(weight.dtype)
        # A single product accumulates in fp32 internally; only a sum of several needs an fp32 total. float16 also
        # needs its range, because its gradients are not yet divided by the denominators.
        weight_dtype = weight.dtype if is_single and weight.dtype != torch.float16 else total_dtype
        self.weight = weight
        self.hidden_grad = torch.zeros_like(hidden) if needs_hidden else hidden.new_empty(0)
        self.weight_grad = weight.new_empty(weight.shape if needs_weight else 0, dtype=weight_dtype)
        self.bias_grad = weight.new_zeros(weight.shape[0] if needs_bias else 0, dtype=total_dtype)
        self.needs = needs
        self.is_first = True

    def add(self, logits_grad: Tensor, hidden: Tensor, chunk: Chunk) -> None:
        """Add one chunk with the gradient [R, V] of its logits and its hidden states [R, H]."""
        needs_hidden, needs_weight, needs_bias = self.needs
        if needs_hidden and isinstance(chunk, slice):
            torch.mm(logits_grad, self.weight, out=self.hidden_grad[chunk])
        elif needs_hidden:
            self.hidden_grad[chunk] = logits_grad @ self.weight
        if needs_weight:
            add_product_(self.weight_grad, logits_grad.t(), hidden, self.is_first)
        if needs_bias:
            self.bias_grad += logits_grad.sum(0, dtype=self.bias_grad.dtype)
        self.is_first = False

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three gradients; without any chunk they are 0. float16 ones stay in fp32 until they are scaled."""
        if self.is_first:
            self.weight_grad.zero_()
        if self.weight.dtype == torch.float16:
            return self.hidden_grad, self.weight_grad, self.bias_grad
        return self.hidden_grad, self.weight_grad.to(self.weight.dtype), self.bias_grad.to(self.weight.dtype)


def keeps_gradients(problem: Problem, dtype: torch.dtype) -> bool:
    """Whether the forward pass computes the gradients and keeps them for the backward pass.

    It does not for reduction "none", which has one upstream gradient per row. Nor does it in float16 for values so far
    apart that one unit (:func:`unit_of`) would make the gradients of other rows too small: then the backward pass,
    which knows the loss scale, recomputes the logits.
    """
    fits = dtype != torch.float16 or problem.spec.worst_loss <= LARGEST_NUMBER_LOSS
    return problem.reduction != "none" and fits


def unit_of(problem: Problem, dtype: torch.dtype) -> Tensor | None:
    """The factor of the float16 gradient of the logits until it is converted to fp32: a 0-d tensor, or None for 1.

    Gradients computed in the forward pass do not contain the upstream gradient and its loss scale yet. Without them,
    in float16 the gradient of a mean over many tokens would underflow, and that of NTL over few numbers overflow. This
    factor makes LARGEST_KEPT the bound of all rows' gradients.
    """
    if dtype != torch.float16 or problem.reduction == "none":
        return None
    spec, given = problem.spec, (*denominators_of(problem), problem.ntl_weight)
    tokens, numbers, ntl_weight = (in_dtype(part, torch.float32, problem.labels.device) for part in given)
    # A derivative by a logit is at most the range of the values that the softmax averages.
    bound = divide(ntl_weight * spec.worst_loss, numbers) * largest_weight(problem.number_weights, problem)
    bound = (divide(spec.ce_weight, tokens) + bound) * largest_weight(problem.token_weights, problem)
    unit = LARGEST_KEPT / (spec.logit_scale * bound)
    return torch.where(bound > 0, unit, 1.0)


def largest_weight(weights: Tensor | None, problem: Problem) -> Tensor | float:
    """The largest of these weights [N] of the rows that count."""
    if weights is None or not problem.labels.numel():
        return 1.0
    return weights.masked_fill(~rows_that_count(problem), 0.0).amax()


def in_unit(problem: Problem, unit: Tensor | None) -> Problem:
    """The same problem with its reduced loss multiplied by the unit."""
    if unit is None:
        return problem
    tokens, numbers = denominators_of(problem)
    return problem.changed(reduction="mean", num_tokens=tokens / unit, num_numbers=numbers / unit)


def denominators_of(problem: Problem) -> tuple[Tensor | float, Tensor | float]:
    """The denominators of cross-entropy and of NTL; both are 1 for a sum."""
    if problem.reduction != "mean":
        return 1.0, 1.0
    assert problem.num_tokens is not None and problem.ntl_denominator is not None
    return problem.num_tokens, problem.ntl_denominator


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast does not cast the operands, for sums in fp32."""
    return torch.autocast(tensor.device.type, enabled=False) if is_autocast(tensor) else AS_IT_IS


def is_autocast(tensor: Tensor) -> bool:
    """Whether autocast may run matrix products of the tensor in another dtype."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


class Result(NamedTuple):
    """What :func:`forward` returns."""

    forward: Forward
    gradients: tuple[Tensor, Tensor, Tensor]
    """Gradients of hidden, weight and bias divided by ``scale``, in the accumulation dtype; empty if not needed."""
    scale: Tensor | None
    """0-d, or None for 1."""


def scaled(gradients: Sequence[Tensor], factor: Tensor, counts: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The gradients of hidden, weight and bias times a factor (0-d), computed in its dtype and rounded to ``dtype``.

    Hidden states of rows that do not count (``counts`` [N]) keep a gradient of 0 even if the factor is not finite.
    """
    hidden_grad, *of_head = (gradient.to(factor.dtype) for gradient in gradients)
    if hidden_grad.ndim > 1:  # needed; otherwise it is empty
        hidden_grad = times_upstream(hidden_grad, factor, counts)
    return [gradient.to(dtype) for gradient in (hidden_grad, *(gradient * factor for gradient in of_head))]


def scaled_once(
    gradients: Sequence[Tensor], scale: Tensor | None, upstream: Tensor, problem: Problem
) -> Sequence[Tensor]:
    """The gradients that a forward pass has kept, times an upstream gradient (0-d), which may change them in place.

    Only float16 has a scale: the fp32 gradients get their final magnitude here.
    """
    if scale is not None:
        return scaled(gradients, upstream * scale, rows_that_count(problem), torch.float16)
    for gradient in gradients:
        if gradient.numel():
            load_backend(problem.backend).scale_(gradient.view(1, -1, gradient.shape[-1]), upstream)
    return gradients


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunking: Chunking, needs: Sequence[bool]
) -> Result:
    """The losses of all rows, and the gradients of the reduced loss that ``needs`` (hidden, weight, bias) selects."""
    with without_autocast(hidden):
        backend, dtype = load_backend(problem.backend), loss_dtype(hidden.dtype)
        if problem.lacks_denominators:
            problem = problem.counted(*backend.count(problem, weight.shape[0], dtype).unbind())
        unit = unit_of(problem, hidden.dtype)
        task = in_unit(problem, unit)
        fields = hidden.new_zeros((NUM_FIELDS, hidden.shape[0]), dtype=dtype)
        gradients = LinearGradients(hidden, weight, needs, is_single=chunking.size >= hidden.shape[0])
        for chunk, states, logits in logits_by_chunk(hidden, weight, bias, problem, chunking):
            chunk_fields = fields.new_empty((NUM_FIELDS, logits.shape[0]))
            target = logits[None] if any(needs) else None
            backend.row_losses(logits[None], part_of(task, chunk), chunk_fields, target)
            fields[:, chunk] = chunk_fields
            if target is not None:
                gradients.add(logits, states, chunk)
        loss, parts = backend.finish(fields, problem)
        if problem.reduction == "none":
            loss = losses_of_rows(fields, problem)
        scale = None if unit is None else unit.reciprocal()
        return Result(Forward(loss, parts, fields), gradients.finish(), scale)


def gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    problem: Problem,
    chunking: Chunking,
    needs: Sequence[bool],
    fields: Tensor,
    upstream: Tensor,
) -> Sequence[Tensor]:
    """The gradients for an upstream gradient ([N] for "none", else 0-d), from recomputed logits and fields.

    For reduction "mean" the problem must contain both denominators.
    """
    with without_autocast(hidden):
        backend = load_backend(problem.backend)
        gradients = LinearGradients(hidden, weight, needs, is_single=chunking.size >= hidden.shape[0])
        for chunk, states, logits in logits_by_chunk(hidden, weight, bias, problem, chunking):
            of_chunk = upstream[chunk].contiguous() if upstream.ndim else upstream
            rows = part_of(problem, chunk), fields[:, chunk].contiguous(), of_chunk
            backend.row_gradients(logits[None], *rows, logits[None])
            gradients.add(logits, states, chunk)
        return gradients.finish()


def logits_by_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunking: Chunking
) -> Iterator[tuple[Chunk, Tensor, Tensor]]:
    """(rows, their hidden states [R, H], their logits [R, V]) of every chunk; all logits share one buffer."""
    buffer = hidden.new_empty((min(chunking.size, hidden.shape[0]), weight.shape[0]))
    for chunk in chunking.of(problem):
        states = hidden[chunk]
        yield chunk, states, chunk_logits(states, weight, bias, buffer)
