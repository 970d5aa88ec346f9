"""The loss from hidden states: a chunk of logits at a time, over any backend.

For each chunk of rows one matrix product makes the logits, the row contract turns them into their gradient in place,
and at most two products turn that into the gradients of the hidden states and of the weight. No tensor of N x V
elements exists unless one chunk holds all rows.

Tensors: ``hidden`` [N, H], ``weight`` [V, H] and ``bias`` [V] of one dtype, ``labels`` and ``token_weights`` [N].
"""

# No `from __future__ import annotations` here: torch reads the operators' schemas off the annotations.
import functools
from typing import Any, Callable, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor

from .autograd import Problem, once_differentiable
from .backends import Denominator, Field, Rows, load_backend
from .backends.layout import loss_dtype
from .ops import check_values, fake_losses, losses_of_rows, merge_denominators
from .spec import LossSpec
from .tokens import NumberTable

Chunk = Union[slice, Tensor]
"""Which rows: a slice, or int64 indices [R]."""

CPU_CHUNK_BYTES = 2**26
"""Logits of a chunk on a CPU: large enough for the matrix products, small enough to stay near the caches."""
CHUNK_BYTES = 2**28
"""Logits of a chunk elsewhere, at least; a larger weight affords larger chunks."""
CHUNK_MULTIPLE = 128
"""Rows come in multiples of the matrix products' tiles."""


def default_chunk_size(num_rows: int, weight: Tensor) -> int:
    """How many rows to hold the logits of.

    Every chunk reads and writes the fp32 accumulator of the weight's gradient once, 8 V H bytes, beside products of
    2 V H R operations: a chunk whose logits take half the accumulator's bytes makes that traffic small beside the
    products, and never more memory than the accumulator takes already.
    """
    vocab_size, hidden_size = weight.shape
    is_cpu = weight.device.type == "cpu"
    budget = CPU_CHUNK_BYTES if is_cpu else max(CHUNK_BYTES, 2 * vocab_size * hidden_size)
    rows = budget // (vocab_size * weight.element_size())
    return min(max(rows // CHUNK_MULTIPLE, 1) * CHUNK_MULTIPLE, max(num_rows, 1))


def chunks(counts: Optional[Tensor], num_rows: int, size: int) -> Iterator[Chunk]:
    """Walk the rows where ``counts`` [N] is true (None: all) in chunks of ``size``. Counting waits for a GPU."""
    chosen = None if counts is None else counts.nonzero().squeeze(-1)
    total = num_rows if chosen is None else chosen.numel()
    for start in range(0, total, size):
        rows = slice(start, min(start + size, total))
        yield rows if chosen is None or total == num_rows else chosen[rows]


def logits_by_chunk(
    hidden: Tensor, weight: Tensor, bias: Optional[Tensor], counts: Optional[Tensor], size: int, buffer: Tensor
) -> Iterator[Tuple[Chunk, Tensor, Tensor]]:
    """(rows, their hidden states [R, H], their logits [R, V]) of every chunk; all logits lie in the same buffer."""
    for chunk in chunks(counts, hidden.shape[0], size):
        states = hidden[chunk]
        yield chunk, states, chunk_logits(states, weight, bias, buffer)


def chunk_logits(hidden: Tensor, weight: Tensor, bias: Optional[Tensor], buffer: Tensor) -> Tensor:
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
    elif is_first:
        total.copy_(left @ right)
    else:
        total.add_(left @ right)


class LinearGradients:
    """The gradients of hidden, weight and bias, as far as they are asked for, summed over chunks."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Optional[Tensor], needs: List[bool], is_single: bool):
        needs_hidden, needs_weight, needs_bias = needs
        total_dtype = loss_dtype(weight.dtype)
        # One product accumulates in fp32 within itself: only several need a total beyond the weight's precision.
        # float16 needs its range, too, since its gradients come without their denominators.
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

    def finish(self) -> Tuple[Tensor, Tensor, Tensor]:
        """The three gradients; without any chunk they are 0. float16 ones stay in fp32 until they are scaled."""
        if self.is_first:
            self.weight_grad.zero_()
        if self.weight.dtype == torch.float16:
            return self.hidden_grad, self.weight_grad, self.bias_grad
        return self.hidden_grad, self.weight_grad.to(self.weight.dtype), self.bias_grad.to(self.weight.dtype)


def rows_that_count(labels: Tensor, token_weights: Optional[Tensor], spec: LossSpec) -> Tensor:
    """bool [N]: not ignored, and with a weight other than 0."""
    counts = labels != spec.ignore_index
    return counts if token_weights is None else counts & (token_weights != 0)


def gradient_unit(denominators: Tensor, dtype: torch.dtype) -> Tensor:
    """The factor (0-d) kept out of the logits' gradient until it has become fp32: 1 except in float16.

    A float16 gradient of a mean over many tokens would underflow, so it is computed for a mean over one token.
    """
    num_tokens, num_numbers = denominators[Denominator.NUM_TOKENS], denominators[Denominator.NUM_NUMBERS]
    if dtype != torch.float16:
        return torch.ones_like(num_tokens)
    unit = torch.where(num_tokens > 0, num_tokens, num_numbers)
    return torch.where(unit > 0, unit, 1.0)


def without_autocast(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Run an operator with its operands' dtypes: sums in fp32 must not be cast on their way."""

    @functools.wraps(operator)
    def run(hidden: Tensor, *rest: Any) -> Any:
        if not torch.is_autocast_enabled(hidden.device.type):
            return operator(hidden, *rest)
        with torch.autocast(hidden.device.type, enabled=False):
            return operator(hidden, *rest)

    return run


@torch.library.custom_op("ntl_kernels::linear_one_pass", mutates_args=())
@without_autocast
def linear_one_pass(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    labels: Tensor,
    token_weights: Optional[Tensor],
    num_tokens: Optional[Tensor],
    num_numbers: Optional[Tensor],
    given: List[float],
    ids: Tensor,
    values: Tensor,
    lookup: Tensor,
    spec: List[float],
    reduction: str,
    backend: str,
    chunk_size: int,
    skip_ignored: bool,
    needs: List[bool],
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(loss, parts, denominators, fields, hidden_grad, weight_grad, bias_grad, scale).

    The gradients are those of the reduced loss times ``1 / scale`` (0-d), in the dtype they were summed in; ones that
    ``needs`` (hidden, weight, bias) does not name are empty.
    """
    check_values(labels, token_weights, weight.shape[0], spec, (num_tokens, num_numbers))
    loss_spec, steps, table = LossSpec.unpack(spec), load_backend(backend), NumberTable(ids, values, lookup)
    buffer = hidden.new_empty((min(chunk_size, hidden.shape[0]), weight.shape[0]))
    chosen_denominators = merge_denominators((num_tokens, num_numbers), given)
    all_rows = Rows(buffer[None], labels[None], None if token_weights is None else token_weights[None])
    denominators = steps.denominators(all_rows, table, loss_spec, *chosen_denominators)
    unit = gradient_unit(denominators, hidden.dtype) if reduction == "mean" else torch.ones_like(denominators[0])
    scaled = torch.cat([denominators[:2] / unit, denominators[2:]])
    fields = hidden.new_zeros((len(Field), labels.numel()), dtype=loss_dtype(hidden.dtype))
    gradients = LinearGradients(hidden, weight, bias, needs, is_single=chunk_size >= hidden.shape[0])
    counts = rows_that_count(labels, token_weights, loss_spec) if skip_ignored else None
    for chunk, states, logits in logits_by_chunk(hidden, weight, bias, counts, chunk_size, buffer):
        rows = chunk_rows(logits, labels, token_weights, chunk)
        chunk_fields = fields.new_empty((len(Field), logits.shape[0]))
        target = logits[None] if any(needs) else None
        steps.row_losses(rows, table, loss_spec, reduction, scaled, chunk_fields, target)
        fields[:, chunk] = chunk_fields
        if target is not None:
            gradients.add(logits, states, chunk)
    loss, parts = steps.finish(fields, denominators, loss_spec, reduction)
    loss = losses_of_rows(fields, loss_spec) if reduction == "none" else loss
    return loss, parts, denominators, fields, *gradients.finish(), unit.reciprocal()


@torch.library.custom_op("ntl_kernels::linear_gradients", mutates_args=())
@without_autocast
def linear_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    labels: Tensor,
    token_weights: Optional[Tensor],
    ids: Tensor,
    values: Tensor,
    lookup: Tensor,
    spec: List[float],
    reduction: str,
    backend: str,
    chunk_size: int,
    skip_ignored: bool,
    needs: List[bool],
    denominators: Tensor,
    lse: Tensor,
    upstream: Tensor,
) -> Tuple[Tensor, Tensor, Tensor]:
    """The gradients of hidden, weight and bias for an upstream gradient [N] per row, from logits computed anew."""
    loss_spec, steps, table = LossSpec.unpack(spec), load_backend(backend), NumberTable(ids, values, lookup)
    buffer = hidden.new_empty((min(chunk_size, hidden.shape[0]), weight.shape[0]))
    gradients = LinearGradients(hidden, weight, bias, needs, is_single=chunk_size >= hidden.shape[0])
    counts = rows_that_count(labels, token_weights, loss_spec) if skip_ignored else None
    for chunk, states, logits in logits_by_chunk(hidden, weight, bias, counts, chunk_size, buffer):
        rows = chunk_rows(logits, labels, token_weights, chunk)
        upstreams = upstream[chunk].contiguous()
        steps.row_gradients(rows, table, loss_spec, reduction, denominators, lse[chunk], upstreams, logits[None])
        gradients.add(logits, states, chunk)
    return gradients.finish()


def chunk_rows(logits: Tensor, labels: Tensor, token_weights: Optional[Tensor], chunk: Chunk) -> Rows:
    """The row contract's view of one chunk."""
    weights = None if token_weights is None else token_weights[chunk][None]
    return Rows(logits[None], labels[chunk][None], weights)


@torch.library.custom_op(
    "ntl_kernels::scale_linear_gradients_", mutates_args=("hidden_grad", "weight_grad", "bias_grad")
)
def scale_linear_gradients_(
    hidden_grad: Tensor, weight_grad: Tensor, bias_grad: Tensor, factor: Tensor, backend: str
) -> None:
    """Each gradient *= factor (0-d)."""
    steps = load_backend(backend)
    for gradient in (hidden_grad, weight_grad, bias_grad):
        if gradient.numel():
            steps.scale_(gradient.view(1, -1, gradient.shape[-1]), factor)


@linear_one_pass.register_fake
def _(hidden, weight, bias, labels, *rest):  # type: ignore[no-untyped-def]
    loss, parts, denominators, fields = fake_losses(hidden, labels, rest[-5])
    return loss, parts, denominators, fields, *fake_gradients(hidden, weight, rest[-1]), parts.new_empty(())


@linear_gradients.register_fake
def _(hidden, weight, *rest):  # type: ignore[no-untyped-def]
    return fake_gradients(hidden, weight, rest[-4])


@scale_linear_gradients_.register_fake
def _(*_):  # type: ignore[no-untyped-def]
    return None


def fake_gradients(hidden: Tensor, weight: Tensor, needs: List[bool]) -> Tuple[Tensor, Tensor, Tensor]:
    """The gradients as the fake operators return them."""
    return LinearGradients(hidden, weight, None, needs, is_single=False).finish()


class LinearCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of hidden states, weight and bias; only the loss is differentiable.

    "mean" and "sum" compute the gradients in the forward pass and hand them over in the backward pass. "none" has an
    upstream gradient per row and computes the logits anew in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        problem: Problem,
        chunk_size: int,
        skip_ignored: bool,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        needs = list(ctx.needs_input_grad[:3])
        ctx.problem, ctx.chunking, ctx.needs = problem, (chunk_size, skip_ignored), needs
        is_per_row = problem.reduction == "none"
        computed = [False] * 3 if is_per_row else needs
        outputs = linear_one_pass(hidden, weight, bias, *problem, chunk_size, skip_ignored, computed)
        loss, parts, denominators, fields, *gradients = outputs
        if is_per_row:
            ctx.save_for_backward(hidden, weight, bias, denominators, fields[Field.LSE])
        elif torch.compiler.is_compiling():  # a compiled graph wants its tensors declared
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(hidden, weight, bias)
            ctx.gradients = gradients
        ctx.mark_non_differentiable(parts, fields)
        return loss, parts, fields

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Tuple[Optional[Tensor], ...]:
        gradients = (
            per_row_gradients(ctx, upstream) if ctx.problem.reduction == "none" else reduced_gradients(ctx, upstream)
        )
        return (*(gradient if needed else None for gradient, needed in zip(gradients, ctx.needs)), None, None, None)


def per_row_gradients(ctx: Any, upstream: Tensor) -> Tuple[Tensor, ...]:
    """The gradients for one upstream gradient per row."""
    hidden, weight, bias, denominators, lse = ctx.saved_tensors
    problem = ctx.problem
    tables = problem.ids, problem.values, problem.lookup
    arguments = problem.labels, problem.token_weights, *tables, problem.spec, problem.reduction, problem.backend
    upstream = upstream.contiguous()
    gradients = linear_gradients(
        hidden, weight, bias, *arguments, *ctx.chunking, ctx.needs, denominators, lse, upstream
    )
    return tuple(gradient.to(hidden.dtype) for gradient in gradients)


def reduced_gradients(ctx: Any, upstream: Tensor) -> Tuple[Tensor, ...]:
    """The gradients of the forward pass times the upstream gradient.

    They are given away once, since whoever receives them may keep them: a second backward computes new ones.
    """
    is_compiling = torch.compiler.is_compiling()
    if is_compiling:
        *gradients, scale = ctx.saved_tensors
    else:
        if ctx.gradients is None:
            hidden, weight, bias = ctx.saved_tensors
            ctx.gradients = linear_one_pass(hidden, weight, bias, *ctx.problem, *ctx.chunking, ctx.needs)[4:]
        *gradients, scale = ctx.gradients
        ctx.gradients = None
    factor, dtype = upstream * scale, gradients[0].dtype
    if is_compiling or dtype == torch.float16:
        return tuple((gradient.to(factor.dtype) * factor).to(dtype) for gradient in gradients)
    scale_linear_gradients_(*gradients, factor, ctx.problem.backend)
    return tuple(gradients)
