"""The `autograd.Function`s of plain calls: what they keep, and how a gradient reaches whoever asks for it.

They call the functions that compute, keep the gradient of the forward pass as it is, and scale it in place. Where
anything but autograd watches, the operators take their place (see :mod:`ntl_kernels.tracing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import expectation, linear, ops
from .backends import load_backend, normalisers_of
from .backends.layout import gradient_like, loss_dtype, rows_of
from .checks import check_values
from .linear import Chunking
from .problem import Problem
from .tokens import NumberTable
from .tracing import refuse_second_derivative


def is_one_pass(logits: Tensor, problem: Problem) -> bool:
    """Whether the forward pass computes the gradient, too.

    Not for reduction "none", which has an upstream gradient per row, nor in float16, where a gradient would underflow
    before the upstream gradient (the loss scale) arrives.
    """
    return problem.reduction != "none" and logits.dtype != torch.float16


class CrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of logits [..., V], or (loss, None, None) if the problem wants no parts.

    Only the loss (0-d, or [N] for "none") is differentiable.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, problem: Problem, inplace: bool) -> tuple[Tensor | None, ...]:
        logits = rows_of(given)
        check_values(problem, logits.shape[-1])
        steps = load_backend(problem.backend)
        ctx.inplace, ctx.is_spent, ctx.gradient = inplace, False, None
        if is_one_pass(logits, problem):
            ctx.gradient = logits if inplace else gradient_like(logits)
            result = steps.forward(logits, problem, ctx.gradient)
            if inplace:
                torch.autograd.graph.increment_version(logits)
        else:
            if problem.lacks_denominators:
                counts = steps.count(problem, logits.shape[-1], loss_dtype(logits.dtype))
                problem = problem.counted(*counts.unbind())
            result = steps.forward(logits, problem, None)
        ctx.is_one_pass, ctx.problem, ctx.shape = ctx.gradient is not None, problem, given.shape
        ctx.save_for_backward(None if ctx.is_one_pass else result.fields, given, *tensors_of(problem))
        if not problem.wants_parts:
            return result.loss, None, None
        ctx.mark_non_differentiable(result.parts, result.fields)
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, None, None]:
        if not torch.is_grad_enabled():
            return gradient_of_logits(ctx, upstream), None, None
        with torch.no_grad():
            gradient = gradient_of_logits(ctx, upstream)
        refuse_inplace(ctx)
        return refuse_second_derivative(gradient, ctx.saved_tensors[1]), None, None


def refuse_inplace(ctx: Any) -> None:
    """Raise for create_graph=True where the logits that the gradient depends on are gone."""
    if ctx.inplace:
        raise RuntimeError(
            "create_graph=True through a loss computed with inplace=True: it has no second derivatives, and its logits "
            "are overwritten by their gradient. Pass inplace=False to differentiate once, backend='reference' for more"
        )


def tensors_of(problem: Problem) -> list[Tensor]:
    """What a caller may change in place between forward and backward: saved, so that torch notices."""
    given = problem.labels, problem.token_weights, problem.num_tokens, problem.num_numbers, problem.ntl_weight
    return [part for part in given if isinstance(part, Tensor)]


def gradient_of_logits(ctx: Any, upstream: Tensor) -> Tensor:
    """The gradient, in the shape of the logits."""
    compute = traced_gradient if torch.compiler.is_compiling() else plain_gradient
    return compute(ctx, upstream).view(ctx.shape)


def plain_gradient(ctx: Any, upstream: Tensor) -> Tensor:
    """The gradient of the logits.

    That of the forward pass is scaled in place and given away once, since whoever receives it may keep it: a second
    backward computes a new one.
    """
    if ctx.is_spent and ctx.inplace:
        raise RuntimeError(
            "second backward through a loss computed with inplace=True: its logits are already overwritten by "
            "their gradient. Pass inplace=False to keep them for retain_graph=True"
        )
    steps, gradient = load_backend(ctx.problem.backend), ctx.gradient
    ctx.is_spent, ctx.gradient = True, None
    if gradient is not None:
        steps.scale_(gradient, upstream)
        return gradient
    fields, logits = ctx.saved_tensors[0], rows_of(ctx.saved_tensors[1])
    gradient = logits if ctx.inplace else gradient_like(logits)
    if ctx.is_one_pass:
        steps.forward(logits, ctx.problem, gradient)
        steps.scale_(gradient, upstream)
    else:
        steps.row_gradients(logits, ctx.problem, normalisers_of(fields), upstream.contiguous(), gradient)
    return gradient


def traced_gradient(ctx: Any, upstream: Tensor) -> Tensor:
    """The same for a backward pass that is compiled, though its forward pass was not: nothing in place."""
    fields, logits = ctx.saved_tensors[0], rows_of(ctx.saved_tensors[1])
    operands = ops.operands_of(ctx.problem, loss_dtype(logits.dtype))
    if not ctx.is_one_pass:
        return ops.gradients(logits, *operands, normalisers_of(fields), upstream)
    gradient = logits if ctx.inplace else ops.one_pass(logits, *operands)[-1]
    return gradient * upstream


class LinearCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of hidden states [N, H], weight [V, H] and bias [V]; only the loss is differentiable.

    "mean" and "sum" compute the gradients in the forward pass and hand them over in the backward pass. "none" has an
    upstream gradient per row and computes the logits anew in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunking: Chunking
    ) -> tuple[Tensor, ...]:
        check_values(problem, weight.shape[0])
        ctx.is_per_row, needs = problem.reduction == "none", ctx.needs_input_grad[:3]
        result = linear.forward(hidden, weight, bias, problem, chunking, [False] * 3 if ctx.is_per_row else needs)
        ctx.problem, ctx.chunking = problem, chunking
        ctx.found = None if ctx.is_per_row else result
        loss, parts, fields = result.forward
        ctx.save_for_backward(fields, hidden, weight, bias, *tensors_of(problem))
        ctx.mark_non_differentiable(parts, fields)
        return loss, parts, fields

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            if torch.compiler.is_compiling():
                found = traced_linear_gradients(ctx, upstream)
            else:
                found = plain_linear_gradients(ctx, upstream)
        gradients = [part if needed else None for part, needed in zip(found, ctx.needs_input_grad, strict=False)]
        if torch.is_grad_enabled():
            inputs = [tensor for tensor in ctx.saved_tensors[1:4] if tensor is not None]
            gradients = [refuse_second_derivative(gradient, *inputs) for gradient in gradients]
        return *gradients, None, None


def plain_linear_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients of hidden, weight and bias; those of the forward pass are given away once, as of logits."""
    found, ctx.found = ctx.found, None
    if found is None:
        fields, hidden, weight, bias, *_ = ctx.saved_tensors
        arguments = hidden, weight, bias, ctx.problem, ctx.chunking, ctx.needs_input_grad[:3]
        if ctx.is_per_row:
            gradients = linear.gradients(*arguments, normalisers_of(fields), upstream)
            return [gradient.to(hidden.dtype) for gradient in gradients]
        found = linear.forward(*arguments)
    if found.scale is not None:  # float16: what is in fp32 becomes small only now
        return linear.scaled(found.gradients, upstream * found.scale, torch.float16)
    for gradient in found.gradients:
        if gradient.numel():
            load_backend(ctx.problem.backend).scale_(gradient.view(1, -1, gradient.shape[-1]), upstream)
    return found.gradients


def traced_linear_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The same for a backward pass that is compiled, though its forward pass was not."""
    fields, hidden, weight, bias, *_ = ctx.saved_tensors
    operands = ops.operands_of(ctx.problem, loss_dtype(hidden.dtype))
    arguments = hidden, weight, bias, *operands, *ctx.chunking, list(ctx.needs_input_grad[:3])
    if ctx.is_per_row:
        found = ops.linear_gradients(*arguments, normalisers_of(fields), upstream)
        return [gradient.to(hidden.dtype) for gradient in found]
    *found, scale = ops.linear_losses(*arguments)[3:]
    return linear.scaled(found, upstream * scale, hidden.dtype)


class ExpectedValueAndMass(torch.autograd.Function):
    """(expected value [N], mass [N]) of logits [B, T, V]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, table: NumberTable, backend: str) -> tuple[Tensor, Tensor]:
        expected_value, mass, statistics = expectation.forward(logits, table, backend)
        ctx.save_for_backward(logits, statistics)
        ctx.table, ctx.backend = table, backend
        return expected_value, mass

    @staticmethod
    def backward(ctx: Any, upstream_value: Tensor, upstream_mass: Tensor) -> tuple[Tensor | None, ...]:
        logits, statistics = ctx.saved_tensors
        with torch.no_grad():
            upstreams = torch.stack([upstream_value, upstream_mass])
            if torch.compiler.is_compiling():
                gradient = ops.number_statistics_gradients(logits, *ctx.table, ctx.backend, statistics, upstreams)
            else:
                gradient = expectation.gradients(logits, ctx.table, ctx.backend, statistics, upstreams)
        return refuse_second_derivative(gradient, logits), None, None
