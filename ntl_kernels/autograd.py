"""The `autograd.Function`s of plain calls: what they save, and how they return gradients.

They call the computing functions directly, keep the gradient from the forward pass and scale it in place. Calls that
anything besides autograd observes use the operators instead (see :mod:`ntl_kernels.tracing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import linear, ops
from .backends import load_backend
from .backends.layout import gradient_like, loss_dtype, rows_of
from .checks import can_look
from .linear import Chunking, rows_that_count
from .problem import Problem
from .tracing import check_transforms, is_differentiated, refuse_second_derivative, times_upstream


def is_one_pass(logits: Tensor, problem: Problem) -> bool:
    """Whether the forward pass also computes the gradient.

    It does not for reduction "none", which has one upstream gradient per row, or in float16, where the gradient could
    underflow before it is multiplied by the upstream gradient (the loss scale).
    """
    return problem.reduction != "none" and logits.dtype != torch.float16


class CrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of logits [B..., V], or (loss, None, None) if the problem wants no parts.

    Only the loss (0-d, or [N] for "none") is differentiable.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, problem: Problem, inplace: bool) -> tuple[Tensor | None, ...]:
        logits = rows_of(given)
        backend = load_backend(problem.backend)
        ctx.inplace, ctx.is_spent, ctx.gradient = inplace, False, None
        if is_one_pass(logits, problem):
            ctx.gradient = logits if inplace else gradient_like(logits)
            result = backend.forward(logits, problem, ctx.gradient)
            if inplace:
                torch.autograd.graph.increment_version(logits)
        else:
            if problem.lacks_denominators:
                counts = backend.count(problem, logits.shape[-1], loss_dtype(logits.dtype))
                problem = problem.counted(*counts.unbind())
            result = backend.forward(logits, problem, None)
        ctx.is_one_pass, ctx.problem, ctx.shape = ctx.gradient is not None, problem, given.shape
        # Detached because torch 2.8 and 2.9 cannot save a view from `split` or `unbind` that was changed in place.
        kept = given.detach() if inplace and ctx.is_one_pass else given
        ctx.save_for_backward(None if ctx.is_one_pass else result.fields, kept, *tensors_of(problem))
        if not problem.wants_parts:
            return result.loss, None, None
        ctx.mark_non_differentiable(result.parts, result.fields)
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, None, None]:
        check_transforms(upstream)
        if not is_differentiated():
            return gradient_of_logits(ctx, upstream), None, None
        if ctx.inplace:
            raise RuntimeError(
                "a loss computed with inplace=True does not support create_graph=True in its backward pass, because "
                "its logits were overwritten by their gradient. Pass inplace=False"
            )
        with torch.no_grad():
            gradient = gradient_of_logits(ctx, upstream)
        return refuse_second_derivative(gradient, ctx.saved_tensors[1], upstream), None, None


class Overwritten(torch.autograd.Function):
    """Marks logits whose memory now holds their gradient: later uses of them have no derivative.

    The graph up to this point keeps the gradient of the original logits; later uses of the tensor reach this node.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        is_used = upstream != 0  # zero for the other rows of a tensor that was overwritten in part
        if can_look(upstream) and is_used.any():
            raise RuntimeError(
                "logits given with inplace=True were used after the call, which had overwritten them with their "
                "gradient. Pass inplace=False, or do everything that reads the logits before computing the loss"
            )
        return torch.where(is_used, torch.nan, 0.0).to(upstream.dtype)


def mark_overwritten(logits: Tensor) -> None:
    """Make later uses of the logits raise an error in the backward pass, where torch can detect them.

    It cannot for views that torch does not allow to be changed in place: those from ``split`` or ``unbind``, and views
    created by an `autograd.Function` or under ``no_grad``.
    """
    autograd = torch._C._autograd
    if logits._is_view() and autograd._get_creation_meta(logits) != autograd.CreationMeta.DEFAULT:
        return
    Overwritten.apply(logits)


def tensors_of(problem: Problem) -> list[Tensor]:
    """The tensors that a caller could change in place before the backward pass; saved so that torch detects it."""
    scalars = problem.num_tokens, problem.num_numbers, problem.ntl_weight
    given = problem.labels, problem.token_weights, problem.number_weights, *scalars
    return [part for part in given if isinstance(part, Tensor)]


def gradient_of_logits(ctx: Any, upstream: Tensor) -> Tensor:
    """The gradient, in the shape of the logits."""
    compute = traced_gradient if torch.compiler.is_compiling() else plain_gradient
    return compute(ctx, upstream).view(ctx.shape)


def plain_gradient(ctx: Any, upstream: Tensor) -> Tensor:
    """The gradient of the logits: the one from the forward pass, scaled in place."""
    spend(ctx)
    backend = load_backend(ctx.problem.backend)
    if ctx.is_one_pass:
        gradient = unscaled_gradient(ctx)
        backend.scale_(gradient, upstream)
    else:
        fields, logits = ctx.saved_tensors[0], rows_of(ctx.saved_tensors[1])
        gradient = logits if ctx.inplace else gradient_like(logits)
        backend.row_gradients(logits, ctx.problem, fields, upstream.contiguous(), gradient)
    if ctx.inplace:
        torch.autograd.graph.increment_version(gradient)  # so that graphs that saved the logits detect the change
    return gradient


def spend(ctx: Any) -> None:
    """Record that the gradient was handed over; raise if a second one needs logits that the first overwrote."""
    if ctx.is_spent and ctx.inplace:
        raise RuntimeError(
            "second backward pass through a loss computed with inplace=True: its logits were already overwritten by "
            "their gradient. Pass inplace=False to use retain_graph=True"
        )
    ctx.is_spent = True


def unscaled_gradient(ctx: Any) -> Tensor:
    """The gradient of "mean" or "sum" for an upstream gradient of 1.

    The one from the forward pass is handed over only once, because the receiver may keep it; later calls recompute it.
    """
    gradient, ctx.gradient = ctx.gradient, None
    if gradient is None:
        logits = rows_of(ctx.saved_tensors[1])
        gradient = gradient_like(logits)
        load_backend(ctx.problem.backend).forward(logits, ctx.problem, gradient)
    return gradient


def traced_gradient(ctx: Any, upstream: Tensor) -> Tensor:
    """The same for a compiled backward pass of an uncompiled forward pass; changes nothing in place."""
    fields, logits = ctx.saved_tensors[0], rows_of(ctx.saved_tensors[1])
    operands = ops.operands_of(ctx.problem, loss_dtype(logits.dtype))
    if not ctx.is_one_pass:
        return ops.gradients(logits, fields, upstream, *operands)
    gradient = logits if ctx.inplace else ops.losses(logits, True, *operands)[-1]
    return times_upstream(gradient, upstream, rows_that_count(ctx.problem))


class LinearCrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of hidden states [N, H], weight [V, H] and bias [V]; only the loss is differentiable.

    "mean" and "sum" compute the gradients in the forward pass and return them in the backward pass. "none", and
    float16 where its range is too small (:func:`ntl_kernels.linear.keeps_gradients`), recompute the logits there.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunking: Chunking
    ) -> tuple[Tensor | None, ...]:
        ctx.is_one_pass, needs = linear.keeps_gradients(problem, hidden.dtype), ctx.needs_input_grad[:3]
        result = linear.forward(hidden, weight, bias, problem, chunking, needs if ctx.is_one_pass else [False] * 3)
        loss, parts, fields = result.forward
        problem = problem.counted_by(parts)
        ctx.problem, ctx.chunking = problem, chunking
        # Do not keep the loss: it refers to this object, and the cycle would keep the gradients of a dropped loss.
        ctx.found = (result.gradients, result.scale) if ctx.is_one_pass else None
        ctx.save_for_backward(fields, hidden, weight, bias, *tensors_of(problem))
        ctx.mark_non_differentiable(parts, fields)
        return loss, parts, fields

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        check_transforms(upstream)
        with torch.no_grad():
            compute = traced_linear_gradients if torch.compiler.is_compiling() else plain_linear_gradients
            gradients = compute(ctx, upstream)
        if is_differentiated():
            _, hidden, weight, bias, *_ = ctx.saved_tensors
            sources = [tensor for tensor in (hidden, weight, bias, upstream) if tensor is not None]
            gradients = [refuse_second_derivative(gradient, *sources) for gradient in gradients]
        # No `strict`: torch 2.8 and 2.9 cannot pass it on at a graph break.
        found = [part if needed else None for part, needed in zip(gradients, ctx.needs_input_grad)]  # noqa: B905
        return *found, None, None


def plain_linear_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The gradients of hidden, weight and bias."""
    if not ctx.is_one_pass:
        fields, hidden, weight, bias, *_ = ctx.saved_tensors
        arguments = hidden, weight, bias, ctx.problem, ctx.chunking, ctx.needs_input_grad[:3]
        gradients = linear.gradients(*arguments, fields, upstream)
        return [gradient.to(hidden.dtype) for gradient in gradients]
    return linear.scaled_once(*unscaled_linear_gradients(ctx), upstream, ctx.problem)


def unscaled_linear_gradients(ctx: Any) -> tuple[Sequence[Tensor], Tensor | None]:
    """(gradients, scale) for "mean" or "sum"; those from the forward pass are handed over only once, as for logits."""
    found, ctx.found = ctx.found, None
    if found is None:
        _, hidden, weight, bias, *_ = ctx.saved_tensors
        arguments = hidden, weight, bias, ctx.problem, ctx.chunking, ctx.needs_input_grad[:3]
        result = linear.forward(*arguments)
        found = result.gradients, result.scale
    return found


def traced_linear_gradients(ctx: Any, upstream: Tensor) -> Sequence[Tensor]:
    """The same for a compiled backward pass of an uncompiled forward pass."""
    fields, hidden, weight, bias, *_ = ctx.saved_tensors
    operands = ops.operands_of(ctx.problem, loss_dtype(hidden.dtype))
    head = hidden, weight, bias, *ctx.chunking, list(ctx.needs_input_grad[:3])
    if not ctx.is_one_pass:
        found = ops.linear_gradients(*head, fields, upstream, *operands)
        return [gradient.to(hidden.dtype) for gradient in found]
    *found, scale = ops.linear_losses(*head, *operands)[3:]
    return linear.scaled(found, upstream * scale, rows_that_count(ctx.problem), hidden.dtype)
