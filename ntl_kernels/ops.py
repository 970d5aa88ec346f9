"""The custom operators (namespace ``ntl_kernels``) that traced calls use, with their derivative.

Operators are opaque to a compiler, which uses their fake implementations, and change nothing in place. Their last
arguments are the operands of a problem, with numbers as 0-d tensors so that a new value needs no new graph.

The derivative of :func:`losses` is an `autograd.Function`, which ``torch.func.grad`` needs. Its methods are also
registered as the operator's autograd formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import loss
from .backends.layout import gradient_like, loss_dtype
from .checks import checked_rows
from .loss import Chunking, Gradients, Inputs, Plan
from .problem import NUM_FIELDS, NUM_PARTS
from .steps import NUM_TENSORS, define, fake_problem_of, operands_of, problem_of, split
from .tracing import check_transforms, is_functorch, refuse_second_derivative

INPUTS = "Tensor source, Tensor? weight, Tensor? bias, SymInt chunk_size, bool skip_ignored, bool[] wanted"
"""Those of :class:`Asked`."""


class Asked(NamedTuple):
    """The first arguments of an operator."""

    inputs: Inputs
    """Logits [B, T, V], or hidden states [N, H] with a head."""
    plan: Plan
    wanted: Sequence[bool]
    """Which gradients."""

    @classmethod
    def split(cls, arguments: Sequence[Any]) -> tuple[Asked, Sequence[Any]]:
        """(what is asked, the operands) of an operator's arguments."""
        (source, weight, bias, size, skip_ignored, wanted), operands = split(arguments)
        return cls(Inputs(source, weight, bias), Plan(chunking=Chunking(size, skip_ignored)), wanted), operands

    def results(self, found: Gradients) -> tuple[Tensor, ...]:
        """Gradients as results of an operator: empty where they are not wanted."""
        source = self.inputs.source
        return tuple(source.new_empty(0) if each is None else each for each in found)

    def fake_results(self) -> tuple[Tensor, ...]:
        """The same without values."""
        source, weight, _ = self.inputs
        if weight is None:
            return self.results(Gradients(gradient_like(source) if self.wanted[0] else None))
        shapes = source.shape, weight.shape, weight.shape[:1]
        pairs = zip(shapes, self.wanted, strict=True)
        return tuple(source.new_empty(shape if is_wanted else (0,)) for shape, is_wanted in pairs)


@define("losses", INPUTS, "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
def losses(*arguments: Any) -> tuple[Any, ...]:
    """(loss, parts, fields, and the gradients that are wanted) of :func:`ntl_kernels.loss.forward`."""
    asked, operands = Asked.split(arguments)
    problem = checked_rows(problem_of(operands), loss_dtype(asked.inputs.source.dtype))
    result, _, found = loss.forward(asked.inputs, problem, asked.plan, asked.wanted)
    return *result, *asked.results(found)


@define("gradients", f"Tensor fields, Tensor upstream, {INPUTS}", "(Tensor, Tensor, Tensor)")
def gradients(fields: Tensor, upstream: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The gradients that are wanted, from fields; upstream is [N] for "none", else 0-d."""
    (inputs, plan, wanted), operands = asked, _ = Asked.split(arguments)
    return asked.results(loss.gradients(inputs, problem_of(operands), plan, wanted, fields, None, upstream))


@losses.register_fake
def _(*arguments: Any) -> tuple[Any, ...]:
    asked, operands = Asked.split(arguments)
    source, problem = asked.inputs.source, fake_problem_of(operands)
    count = problem.rows.labels.numel()
    fields = source.new_empty((NUM_FIELDS, count), dtype=loss_dtype(source.dtype))
    reduced = fields.new_empty(count if problem.spec.reduction == "none" else ())
    return reduced, fields.new_empty(NUM_PARTS), fields, *asked.fake_results()


@gradients.register_fake
def _(fields: Tensor, upstream: Tensor, *arguments: Any) -> tuple[Any, ...]:
    return Asked.split(arguments)[0].fake_results()


def of_inputs(wanted: Sequence[bool], *results: Tensor) -> Gradients:
    """The gradients among the results of an operator."""
    # No `strict`: torch 2.8 and 2.9 cannot pass it on at a graph break.
    return Gradients(*(each if is_wanted else None for each, is_wanted in zip(results, wanted)))  # noqa: B905


def call(*arguments: Any) -> Any:
    """The results of :func:`losses`, differentiable under every transform that is supported."""
    check_transforms()
    loss, *others = Losses.apply(*arguments) if is_functorch() else losses(*arguments)
    return loss.clone(), *others  # a copy, since the formula keeps the loss and a caller may change it in place


class Losses(torch.autograd.Function):
    """:func:`losses`. The backward pass multiplies the gradients by the upstream one, or computes them."""

    forward = staticmethod(losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        loss, parts, fields, *found = output
        ctx.mark_non_differentiable(parts, fields, *found)
        (source, weight, bias, *ctx.chunking, wanted), operands = split(inputs)
        tensors, ctx.constants = operands[:NUM_TENSORS], operands[NUM_TENSORS:]
        ctx.keeps = any(wanted)
        ctx.save_for_backward(loss, parts, fields, *(found if ctx.keeps else (source, weight, bias)), *tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> Any:
        check_transforms(upstream)
        # Read once: a checkpoint provides them only once. The three are the gradients if they are kept, or the inputs.
        of_loss, parts, fields, first, second, third, *tensors = ctx.saved_tensors
        operands: Sequence[Any] = (*tensors, *ctx.constants)
        wanted = ctx.needs_input_grad[:3]
        if ctx.keeps:
            found = loss.scaled(of_inputs(wanted, first, second, third), upstream, problem_of(operands))
        else:
            operands = operands_of(fake_problem_of(operands).counted_by(parts), parts.dtype)
            given = detached(fields, upstream, first, second, third)
            found = of_inputs(wanted, *gradients(*given, *ctx.chunking, list(wanted), *operands))
        results = (each if each is None else refuse_second_derivative(each, of_loss, upstream) for each in found)
        return *results, *(None for _ in (*ctx.chunking, wanted, *operands))


def detached(*tensors: Tensor | None) -> list[Any]:
    """The tensors without gradients: ``torch.func.grad`` calls operators without a derivative only with such."""
    return [None if tensor is None else tensor.detach() for tensor in tensors]


losses.register_autograd(Losses.backward, setup_context=Losses.setup_context)
