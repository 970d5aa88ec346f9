"""The custom operators (namespace ``ntl_kernels``) that traced calls use, with their derivatives.

Each wraps a function that plain calls use directly. Operators are opaque to a compiler, which uses their fake
implementations, and change nothing in place. Their last arguments are the operands of a problem, with numbers as 0-d
tensors so that a new value needs no new graph.

The derivative of an operator is an `autograd.Function`, which ``torch.func.grad`` needs. Its methods are also
registered as the operator's autograd formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import linear
from .backends import load_backend
from .backends.layout import gradient_like, loss_dtype
from .checks import checked_rows
from .linear import Chunking
from .problem import AT, NUM_FIELDS, NUM_PARTS, Forward, Problem, as_tensor
from .spec import LossSpec
from .tokens import NumberTable
from .tracing import check_transforms, is_functorch, refuse_second_derivative, times_upstream


class Operands(NamedTuple):
    """A problem as arguments of an operator: the tensors, then the constants.

    It has no ``wants_parts``: the results of an operator have fixed shapes, so it always computes the parts.
    """

    labels: Tensor
    token_weights: Tensor | None
    number_weights: Tensor | None
    num_tokens: Tensor | None
    num_numbers: Tensor | None
    ntl_weight: Tensor
    ids: Tensor
    values: Tensor
    lookup: Tensor
    groups: Tensor | None
    width: int
    spec: list[float]
    reduction: str
    backend: str

    @property
    def problem(self) -> Problem:
        return Problem(
            labels=self.labels,
            token_weights=self.token_weights,
            number_weights=self.number_weights,
            num_tokens=self.num_tokens,
            num_numbers=self.num_numbers,
            ntl_weight=self.ntl_weight,
            table=NumberTable(self.ids, self.values, self.lookup, self.groups, self.width),
            spec=LossSpec.unpack(self.spec),
            reduction=self.reduction,
            backend=self.backend,
        )

    @property
    def tensors(self) -> list[Tensor | None]:
        return [part for part in self if part is None or isinstance(part, Tensor)]

    @property
    def constants(self) -> tuple[Any, ...]:
        return self[len(self.tensors) :]


PROBLEM = (
    "Tensor labels, Tensor? token_weights, Tensor? number_weights, Tensor? num_tokens, Tensor? num_numbers, "
    "Tensor ntl_weight, Tensor ids, Tensor values, Tensor lookup, Tensor? groups, int width, "
    "float[] spec, str reduction, str backend"
)
"""The schema of :class:`Operands`."""
HEAD = "Tensor hidden, Tensor weight, Tensor? bias, SymInt chunk_size, bool skip_ignored, bool[] needs"


def operands_of(problem: Problem, dtype: torch.dtype) -> Operands:
    """A problem as operands; ``dtype`` is the dtype of its numbers."""
    numbers = (problem.num_tokens, problem.num_numbers, problem.ntl_weight)
    operands: list[Any] = [problem.labels, problem.token_weights, problem.number_weights]
    operands += [as_tensor(number, dtype, problem.labels.device) for number in numbers]
    operands += [*problem.table, problem.spec.pack(), problem.reduction, problem.backend]
    return Operands(*operands)


def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], Operands]:
    """(the first arguments, the operands) of an operator."""
    count = len(arguments) - len(Operands._fields)
    return arguments[:count], Operands(*arguments[count:])


def define(name: str, given: str, results: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of tensors (``given``) and operands, which changes none of them, as an operator."""
    schema = f"({given}, {PROBLEM}) -> {results}"
    return torch.library.custom_op(f"ntl_kernels::{name}", mutates_args=(), schema=schema)


@define("losses", "Tensor logits, bool keeps_gradient", "(Tensor, Tensor, Tensor, Tensor)")
def losses(logits: Tensor, keeps_gradient: bool, *operands: Any) -> tuple[Any, ...]:
    """(loss, parts, fields, gradient) of logits [B, T, V].

    The gradient [B, T, V] is that of reduction "mean" or "sum" for an upstream gradient of 1, or empty.
    """
    gradient = gradient_like(logits) if keeps_gradient else None
    problem = checked_rows(Operands(*operands).problem, logits.shape[-1], loss_dtype(logits.dtype))
    result = load_backend(problem.backend).forward(logits, problem, gradient)
    return *result, logits.new_empty(0) if gradient is None else gradient


@define("gradients", "Tensor logits, Tensor fields, Tensor upstream", "Tensor")
def gradients(logits: Tensor, fields: Tensor, upstream: Tensor, *operands: Any) -> Tensor:
    """The gradient [B, T, V] from logits, fields and the upstream gradient (0-d, or [N] for "none")."""
    problem, gradient = Operands(*operands).problem, gradient_like(logits)
    backend = load_backend(problem.backend)
    backend.row_gradients(logits, problem, fields.contiguous(), upstream.contiguous(), gradient)
    return gradient


@define("linear_losses", HEAD, "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def linear_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    chunk_size: int,
    skip_ignored: bool,
    needs: list[bool],
    *operands: Any,
) -> tuple[Any, ...]:
    """(loss, parts, fields, hidden_grad, weight_grad, bias_grad, scale) of :func:`ntl_kernels.linear.forward`."""
    problem = Operands(*operands).problem
    checked_rows(problem, weight.shape[0], loss_dtype(hidden.dtype))
    result = linear.forward(hidden, weight, bias, problem, Chunking(chunk_size, skip_ignored), needs)
    scale = hidden.new_ones((), dtype=loss_dtype(hidden.dtype)) if result.scale is None else result.scale
    return *result.forward, *result.gradients, scale


@define("linear_gradients", f"{HEAD}, Tensor fields, Tensor upstream", "(Tensor, Tensor, Tensor)")
def linear_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    chunk_size: int,
    skip_ignored: bool,
    needs: list[bool],
    fields: Tensor,
    upstream: Tensor,
    *operands: Any,
) -> tuple[Tensor, ...]:
    """(hidden_grad, weight_grad, bias_grad) from recomputed logits; upstream is [N] for "none", else 0-d."""
    problem, chunking = Operands(*operands).problem, Chunking(chunk_size, skip_ignored)
    return tuple(linear.gradients(hidden, weight, bias, problem, chunking, needs, fields, upstream))


def fake_forward(tensor: Tensor, operands: Sequence[Any]) -> Forward:
    """What a forward pass returns, without values; ``tensor`` is the logits or the hidden states."""
    given = Operands(*operands)
    count = given.labels.numel()
    fields = tensor.new_empty((NUM_FIELDS, count), dtype=loss_dtype(tensor.dtype))
    loss = fields.new_empty(count if given.reduction == "none" else ())
    return Forward(loss, fields.new_empty(NUM_PARTS), fields)


@losses.register_fake
def _(logits: Tensor, keeps_gradient: bool, *operands: Any) -> tuple[Any, ...]:
    return *fake_forward(logits, operands), gradient_like(logits) if keeps_gradient else logits.new_empty(0)


gradients.register_fake(lambda logits, *_: gradient_like(logits))


@linear_losses.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, size: int, skip: bool, needs: Any, *operands: Any) -> Any:
    result = fake_forward(hidden, operands)
    return *result, *linear.LinearGradients(hidden, weight, needs).finish(), result.fields.new_empty(())


@linear_gradients.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, size: int, skip: bool, needs: Any, *_: Any) -> Any:
    return linear.LinearGradients(hidden, weight, needs).finish()


def call(formula: Any, operator: Any, *arguments: Any) -> Any:
    """The results of a formula's operator, differentiable under every transform that is supported."""
    check_transforms()
    loss, *others = formula.apply(*arguments) if is_functorch() else operator(*arguments)
    return loss.clone(), *others  # a copy, since the formula keeps the loss and a caller may change it in place


class Losses(torch.autograd.Function):
    """:func:`losses`. The backward pass multiplies the gradient by the upstream one, or computes it."""

    forward = staticmethod(losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loss, parts, fields, gradient = output
        ctx.mark_non_differentiable(parts, fields, gradient)
        (logits, ctx.keeps_gradient), operands = split(inputs)
        ctx.constants = operands.constants
        ctx.save_for_backward(loss, parts, fields, gradient if ctx.keeps_gradient else logits, *operands.tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        check_transforms(upstream)
        loss, parts, fields, kept, *tensors = ctx.saved_tensors  # read once: a checkpoint provides them only once
        if ctx.keeps_gradient:
            gradient = times_upstream(kept, upstream, counts_of(fields))
        else:
            operands = with_denominators(Operands(*tensors, *ctx.constants), parts)
            gradient = gradients(*detached(kept, fields, upstream), *operands)
        return refuse_second_derivative(gradient, loss, upstream), None, *(None for _ in Operands._fields)


class LinearLosses(torch.autograd.Function):
    """:func:`linear_losses`.

    If the forward pass does not keep the gradients (:func:`ntl_kernels.linear.keeps_gradients`), the backward pass
    recomputes the logits.
    """

    forward = staticmethod(linear_losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loss, parts, fields, *found = output
        ctx.mark_non_differentiable(parts, fields, *found)
        (hidden, weight, bias, *ctx.chunking, _), operands = split(inputs)
        ctx.is_one_pass = linear.keeps_gradients(operands.problem, hidden.dtype)
        ctx.constants, ctx.dtype = operands.constants, hidden.dtype
        kept = found if ctx.is_one_pass else (hidden, weight, bias, *operands.tensors)
        ctx.save_for_backward(loss, parts, fields, *kept)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        check_transforms(upstream)
        loss, parts, fields, *kept = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        if ctx.is_one_pass:
            *found, scale = kept
            found = linear.scaled(found, upstream * scale, counts_of(fields), ctx.dtype)
        else:
            hidden, weight, bias, *tensors = kept
            operands = with_denominators(Operands(*tensors, *ctx.constants), parts)
            head = detached(hidden, weight, bias)
            found = linear_gradients(*head, *ctx.chunking, needs, *detached(fields, upstream), *operands)
        results = (
            refuse_second_derivative(gradient.to(ctx.dtype), loss, upstream) if needed else None
            for gradient, needed in zip(found, needs, strict=True)
        )
        return *results, *(None for _ in (*ctx.chunking, needs, *Operands._fields))


def detached(*tensors: Tensor | None) -> list[Any]:
    """The tensors for an operator without a derivative, which ``torch.func.grad`` calls only with such."""
    return [None if tensor is None else tensor.detach() for tensor in tensors]


def counts_of(fields: Tensor) -> Tensor:
    """bool [N]: which rows count."""
    return fields[AT.weight] != 0


def with_denominators(operands: Operands, parts: Tensor) -> Operands:
    """The operands with the denominators that a forward pass counted and returned among its parts."""
    problem = operands.problem
    return operands_of(problem.counted_by(parts), parts.dtype) if problem.lacks_denominators else operands


losses.register_autograd(Losses.backward, setup_context=Losses.setup_context)
linear_losses.register_autograd(LinearLosses.backward, setup_context=LinearLosses.setup_context)
