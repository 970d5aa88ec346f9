"""The custom operators (namespace ``ntl_kernels``) that traced calls use, with their derivatives.

Each wraps a function that plain calls use directly (:mod:`ntl_kernels.autograd`, :mod:`ntl_kernels.linear`).
Operators are opaque to a compiler, which uses their fake implementations, and change
nothing in place. Their schema takes a problem as the operands of :func:`operands_of`, with numbers as 0-d tensors so
that a new value needs no new graph.

Each differentiable operator has one :class:`Formula`. It is registered as the operator's autograd formula, and it is
the `autograd.Function` that ``torch.func`` transforms and forward-mode derivatives need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import linear
from .backends import load_backend
from .backends.layout import gradient_like, loss_dtype
from .checks import checked_rows
from .linear import Chunking
from .problem import NUM_FIELDS, NUM_PARTS, Forward, Problem, RowResult, as_tensor
from .spec import LossSpec
from .tokens import NumberTable
from .tracing import NoSecondDerivative, is_differentiated, needs_function, refuse_second_derivative, times_upstream

PROBLEM = (
    "Tensor labels, Tensor? token_weights, Tensor? num_tokens, Tensor? num_numbers, Tensor ntl_weight, "
    "Tensor ids, Tensor values, Tensor lookup, float[] spec, str reduction, str backend"
)
CHUNKING = "SymInt chunk_size, bool skip_ignored"
LINEAR = f"Tensor hidden, Tensor weight, Tensor? bias, {PROBLEM}, {CHUNKING}, bool[] needs"
NUM_OPERANDS = 11
"""The number of operands of a problem."""


def operands_of(problem: Problem, dtype: torch.dtype) -> tuple[Any, ...]:
    """A problem as operands of the schema; ``dtype`` is the dtype of its numbers.

    They do not contain ``wants_parts``: the results of an operator have fixed shapes, so it always computes the parts.
    """
    numbers = (problem.num_tokens, problem.num_numbers, problem.ntl_weight)
    scalars = (as_tensor(number, dtype, problem.labels.device) for number in numbers)
    return (
        problem.labels,
        problem.token_weights,
        *scalars,
        *problem.table,
        problem.spec.pack(),
        problem.reduction,
        problem.backend,
    )


def problem_of(operands: Sequence[Any]) -> Problem:
    """The inverse of :func:`operands_of`."""
    *rows, ids, values, lookup, spec, reduction, backend = operands
    labels, token_weights, num_tokens, num_numbers, ntl_weight = rows
    shares = num_tokens, num_numbers, ntl_weight
    return Problem(
        labels, token_weights, *shares, NumberTable(ids, values, lookup), LossSpec.unpack(spec), reduction, backend
    )


def define(name: str, schema: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function that changes none of its arguments as an operator."""
    return torch.library.custom_op(f"ntl_kernels::{name}", mutates_args=(), schema=schema)


@define("losses", f"(Tensor logits, {PROBLEM}) -> (Tensor, Tensor, Tensor)")
def losses(logits: Tensor, *operands: Any) -> tuple[Any, ...]:
    """(loss, parts, fields) of logits [B, T, V], as :class:`ntl_kernels.backends.Forward` has them."""
    problem = checked_rows(problem_of(operands), logits.shape[-1], loss_dtype(logits.dtype))
    return tuple(load_backend(problem.backend).forward(logits, problem, None))


@define("one_pass", f"(Tensor logits, {PROBLEM}) -> (Tensor, Tensor, Tensor, Tensor)")
def one_pass(logits: Tensor, *operands: Any) -> tuple[Any, ...]:
    """(loss, parts, fields, gradient [B, T, V]) of reduction "mean" or "sum"."""
    gradient = gradient_like(logits)
    problem = checked_rows(problem_of(operands), logits.shape[-1], loss_dtype(logits.dtype))
    return *load_backend(problem.backend).forward(logits, problem, gradient), gradient


@define("gradients", f"(Tensor logits, {PROBLEM}, Tensor fields, Tensor upstream) -> Tensor")
def gradients(logits: Tensor, *operands: Any) -> Tensor:
    """The gradient [B, T, V] from logits, their fields and the upstream gradient (0-d, or [N] for "none")."""
    *rest, fields, upstream = operands
    problem, gradient = problem_of(rest), gradient_like(logits)
    rows = fields.contiguous(), upstream.contiguous()
    load_backend(problem.backend).row_gradients(logits, problem, *rows, gradient)
    return gradient


@define("linear_losses", f"({LINEAR}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def linear_losses(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Any, ...]:
    """(loss, parts, fields, hidden_grad, weight_grad, bias_grad, scale) of :func:`ntl_kernels.linear.forward`."""
    problem, chunking, needs = linear_arguments(rest)
    checked_rows(problem, weight.shape[0], loss_dtype(hidden.dtype))
    result = linear.forward(hidden, weight, bias, problem, chunking, needs)
    scale = result.forward.loss.new_ones(()) if result.scale is None else result.scale
    return *result.forward, *result.gradients, scale


@define("linear_gradients", f"({LINEAR}, Tensor fields, Tensor upstream) -> (Tensor, Tensor, Tensor)")
def linear_gradients(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    """(hidden_grad, weight_grad, bias_grad) from recomputed logits; upstream is [N] for "none", else 0-d."""
    *arguments, fields, upstream = rest
    problem, chunking, needs = linear_arguments(arguments)
    return tuple(linear.gradients(hidden, weight, bias, problem, chunking, needs, fields, upstream))


def linear_arguments(rest: Sequence[Any]) -> tuple[Problem, Chunking, list[bool]]:
    """The arguments after hidden, weight and bias."""
    *operands, chunk_size, skip_ignored, needs = rest
    return problem_of(operands), Chunking(chunk_size, skip_ignored), list(needs)


def fake_forward(tensor: Tensor, operands: Sequence[Any]) -> Forward:
    """What a forward pass returns, without values; ``tensor`` is the logits or the hidden states."""
    labels, reduction = operands[0], operands[NUM_OPERANDS - 2]
    fields = tensor.new_empty((NUM_FIELDS, labels.numel()), dtype=loss_dtype(tensor.dtype))
    loss = fields.new_empty(labels.numel() if reduction == "none" else ())
    return Forward(loss, fields.new_empty(NUM_PARTS), fields)


losses.register_fake(lambda logits, *operands: tuple(fake_forward(logits, operands)))
one_pass.register_fake(lambda logits, *operands: (*fake_forward(logits, operands), gradient_like(logits)))
gradients.register_fake(lambda logits, *_: gradient_like(logits))


@linear_losses.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Any, ...]:
    result = fake_forward(hidden, rest)
    return *result, *linear.LinearGradients(hidden, weight, rest[-1]).finish(), result.fields.new_empty(())


@linear_gradients.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return linear.LinearGradients(hidden, weight, rest[-3]).finish()


class Formula(torch.autograd.Function):
    """An operator with its derivatives, in the form that ``torch.func`` transforms need."""

    operator: Any

    @classmethod
    def register(cls) -> None:
        """Register the formula as the operator's autograd, and a loop over the batch as its vmap rule."""
        cls.operator.register_autograd(cls.backward, setup_context=cls.setup_context)
        register_loop(cls.operator)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return looped(cls.apply, info, in_dims, arguments)


def looped(function: Callable[..., Any], info: Any, in_dims: tuple[Any, ...], arguments: Sequence[Any]) -> Any:
    """The vmap rule: one call per sample, because each sample has its own counts and reduction."""
    dims = [dim if isinstance(dim, int) else None for dim in in_dims]  # a list argument has a list of None here
    samples = [
        function(*(part if dim is None else part.select(dim, i) for part, dim in zip(arguments, dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(samples[0], Tensor):
        return torch.stack(samples), 0
    return tuple(torch.stack(parts) for parts in zip(*samples, strict=True)), (0,) * len(samples[0])


def register_loop(operator: Any) -> None:
    """Give an operator :func:`looped` as its vmap rule."""
    operator.register_vmap(lambda info, in_dims, *arguments: looped(operator, info, in_dims, arguments))


def call(formula: Any, operator: Any, *arguments: Any) -> Any:
    """Call a formula's operator so that its results are differentiable under any transform."""
    loss, *rest = formula.apply(*arguments) if needs_function() else operator(*arguments)
    return loss.clone(), *rest  # a copy, since the formula keeps the loss and a caller may change it in place


class Once(torch.autograd.Function):
    """An operator that computes a gradient, for ``torch.func`` transforms; differentiating it raises an error."""

    @staticmethod
    def forward(operator: Any, *arguments: Any) -> Any:
        return operator(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], operator: Any, *arguments: Any) -> tuple[Any, Any]:
        return looped(functools.partial(Once.apply, operator), info, in_dims[1:], arguments)

    backward = staticmethod(NoSecondDerivative.backward)
    jvp = staticmethod(NoSecondDerivative.jvp)


def call_once(operator: Any, *arguments: Any) -> Any:
    """Call an operator that computes a gradient; no transform can differentiate the result."""
    is_watched = is_differentiated() and not torch.compiler.is_compiling()
    return Once.apply(operator, *arguments) if is_watched else operator(*arguments)


def save(ctx: Any, *tensors: Tensor) -> None:
    """Save tensors for reverse-mode and forward-mode derivatives."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


class OnePass(Formula):
    """(loss, parts, fields, gradient) of logits; the backward pass multiplies the gradient by the upstream one."""

    operator = one_pass
    forward = staticmethod(one_pass)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loss, parts, fields, gradient = output
        ctx.mark_non_differentiable(parts, fields, gradient)
        save(ctx, loss, fields, gradient)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        loss, fields, gradient = ctx.saved_tensors
        gradient = refuse_second_derivative(gradient, loss)
        return times_upstream(gradient, upstream, RowResult(*fields.unbind()).weight != 0), *(None,) * NUM_OPERANDS

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        loss, _, gradient = ctx.saved_tensors
        return along(tangent, refuse_second_derivative(gradient, loss), loss.dtype).sum(), None, None, None


class TwoPass(Formula):
    """(loss, parts, fields) of logits; the backward pass computes the gradient from logits and fields."""

    operator = losses
    forward = staticmethod(losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        save(ctx, *output, *inputs[: NUM_OPERANDS - 2])
        ctx.options = inputs[NUM_OPERANDS - 2 :]

    @staticmethod
    def gradient(options: Sequence[Any], saved: Sequence[Tensor], upstream: Tensor) -> Tensor:
        """The gradient of the logits."""
        _, parts, fields, logits, *tensors = saved
        operands = with_denominators([*tensors, *options], parts)
        return call_once(gradients, logits, *operands, fields, upstream)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        saved = ctx.saved_tensors  # read once: a checkpoint provides them only once
        gradient = TwoPass.gradient(ctx.options, saved, upstream)
        return refuse_second_derivative(gradient, saved[0]), *(None,) * NUM_OPERANDS

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        saved = ctx.saved_tensors
        loss = saved[0]
        rows = along(tangent, TwoPass.gradient(ctx.options, saved, torch.ones_like(loss)), loss.dtype)
        return rows.view(loss.shape) if loss.ndim else rows.sum(), None, None


def along(tangent: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The directional derivative of every row [B, T] along a tangent of logits [B, T, V], from their gradient."""
    return (gradient.to(dtype) * tangent).sum(-1)


def with_denominators(operands: list[Any], parts: Tensor) -> list[Any]:
    """The operands with the denominators that a forward pass counted and returned among its parts."""
    problem = problem_of(operands)
    if problem.lacks_denominators:
        operands[2:4] = problem.counted(parts[2], parts[3])[2:4]
    return operands


class Linear(Formula):
    """(loss, parts, fields, three gradients, scale) of hidden states, weight and bias.

    If the forward pass does not keep the gradients (:func:`ntl_kernels.linear.keeps_gradients`), the backward pass
    recomputes the logits.
    """

    operator = linear_losses
    forward = staticmethod(linear_losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loss, parts, fields, *gradients = output
        ctx.mark_non_differentiable(parts, fields, *gradients)
        problem, *_ = linear_arguments(inputs[3:])
        ctx.is_one_pass = linear.keeps_gradients(problem, inputs[0].dtype)
        tensors = 3 + NUM_OPERANDS - 3
        ctx.save_for_backward(loss, parts, fields, *(gradients if ctx.is_one_pass else inputs[:tensors]))
        ctx.options, ctx.dtype = inputs[tensors:], inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        loss, parts, fields, *saved = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        if ctx.is_one_pass:
            *found, scale = saved
            found = [refuse_second_derivative(gradient, loss) for gradient in found]
            found = linear.scaled(found, upstream * scale, RowResult(*fields.unbind()).weight != 0, ctx.dtype)
        else:
            *options, chunk_size, skip_ignored, _ = ctx.options
            operands = with_denominators([*saved[3:], *options], parts)
            arguments = *saved[:3], *operands, chunk_size, skip_ignored, needs
            found = call_once(linear_gradients, *arguments, fields, upstream)
            found = [refuse_second_derivative(gradient.to(ctx.dtype), loss) for gradient in found]
        results = (gradient if needed else None for gradient, needed in zip(found, needs, strict=True))
        return *results, *(None,) * (NUM_OPERANDS + 3)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "linear_cross_entropy_ntl has no forward-mode derivative (torch.func.jvp, jacfwd, dual tensors). "
            "Use cross_entropy_ntl or backend='reference', which have one"
        )


for formula in (OnePass, TwoPass, Linear):
    formula.register()
for operator in (gradients, linear_gradients):
    register_loop(operator)
