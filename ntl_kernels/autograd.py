"""`CrossEntropyNTL`: the `autograd.Function` of every loss that is not an operator (:mod:`ntl_kernels.ops`).

It keeps the gradients of the forward pass and scales them in place; or, where there are none
(:meth:`ntl_kernels.loss.Plan.keeps_gradients`), computes them in the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import loss, ops, steps
from .backends.layout import loss_dtype
from .checks import can_look
from .loss import Gradients, Inputs, Plan, as_inputs
from .problem import Problem
from .tracing import is_differentiated, refuse_second_derivative


class Saved(NamedTuple):
    """The tensors of a forward pass that the backward pass reads. They are read once: a checkpoint provides them only
    once."""

    inputs: Inputs
    """As given: logits may have any shape [..., V]."""
    fields: Tensor | None
    """This and the next only if the backward pass computes the gradients."""
    number_logits: Tensor | None
    kept: Gradients
    """Those of the forward pass, in a trace."""

    def keep(self, ctx: Any, problem: Problem) -> None:
        """Save them, and the tensors of the problem, so that torch detects changes here before the backward pass."""
        given = *problem.rows, problem.num_tokens, problem.num_numbers, problem.ntl_weight
        of_problem = [part for part in given if isinstance(part, Tensor)]
        ctx.save_for_backward(*self.inputs, self.fields, self.number_logits, *self.kept, *of_problem)

    @classmethod
    def of(cls, ctx: Any) -> Saved:
        source, weight, bias, fields, number_logits, *others = ctx.saved_tensors
        return cls(Inputs(source, weight, bias), fields, number_logits, Gradients(*others[: len(Gradients._fields)]))


class CrossEntropyNTL(torch.autograd.Function):
    """(loss, parts, fields) of :class:`Inputs`, or (loss, None, None) if the problem wants no parts.

    Logits may have any shape [..., V]. Only the loss (0-d, or [N] for "none") is differentiable.
    """

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, weight: Tensor | None, bias: Tensor | None, problem: Problem, plan: Plan
    ) -> tuple[Tensor | None, ...]:
        given = Inputs(source, weight, bias)
        inputs = as_inputs(*given)
        ctx.plan, ctx.is_spent, ctx.wanted = plan, False, ctx.needs_input_grad[: len(inputs)]
        ctx.shape, ctx.has_head = source.shape, weight is not None
        ctx.keeps = keeps = plan.keeps_gradients(inputs, problem)
        wants_parts = problem.wants_parts  # outputs that the caller does not want would get gradients of zeros
        if problem.lacks_denominators and not keeps:
            problem = problem.changed(wants_parts=True)  # they contain the denominators
        result, number_logits, found = loss.forward(inputs, problem, plan, ctx.wanted if keeps else [False] * 3)
        if keeps and plan.inplace:
            torch.autograd.graph.increment_version(inputs.source)
            # torch 2.8 and 2.9 cannot save a view from `split` or `unbind` that was changed in place.
            given = Inputs(source.detach())
        ctx.problem = problem if keeps else problem.counted_by(result.parts)
        # Not the whole result: the loss refers to this object, and the cycle would keep the gradients of a dropped one.
        ctx.found, kept = (found, Gradients()) if keeps and not plan.is_traced else (None, found)
        Saved(given, None if keeps else result.fields, number_logits, kept).keep(ctx, ctx.problem)
        if not wants_parts:
            return result.loss, None, None
        ctx.mark_non_differentiable(result.parts, result.fields)
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        ctx.plan.columns.check_transforms(upstream)
        if ctx.plan.inplace:
            check_overwritten(ctx)
        inputs: Inputs | None
        with torch.no_grad():
            if torch.compiler.is_compiling() and not ctx.plan.is_traced and ctx.plan.columns.are_whole:
                inputs, found = compiled_gradients(ctx, upstream)
            else:
                inputs, found = gradients_of(ctx, upstream)
            source, *of_head = found
            if source is not None:
                source = ctx.plan.columns.sum_hidden(source) if ctx.has_head else source.view(ctx.shape)
        results = [source, *of_head]
        if is_differentiated():
            sources = [each for each in (*(inputs or Saved.of(ctx).inputs), upstream) if each is not None]
            results = [None if each is None else refuse_second_derivative(each, *sources) for each in results]
        return *results, None, None


def check_overwritten(ctx: Any) -> None:
    """Raise for a backward pass that needs logits which were overwritten by their gradient."""
    if is_differentiated():
        raise RuntimeError(
            "a loss computed with inplace=True does not support create_graph=True in its backward pass, because "
            "its logits were overwritten by their gradient. Pass inplace=False"
        )
    if ctx.is_spent:
        raise RuntimeError(
            "second backward pass through a loss computed with inplace=True: its logits were already overwritten by "
            "their gradient. Pass inplace=False to use retain_graph=True"
        )


def gradients_of(ctx: Any, upstream: Tensor) -> tuple[Inputs | None, Gradients]:
    """(the inputs, or None if they were not needed; their gradients)"""
    found, ctx.found, ctx.is_spent = ctx.found, None, True  # handed over once, because the receiver may keep them
    if found is not None:
        inputs, found = None, loss.scaled_(found, upstream, ctx.problem)
    else:
        saved = Saved.of(ctx)
        inputs, found = saved.inputs, new_gradients(ctx, saved, upstream)
    if ctx.plan.inplace and found.source is not None:  # so that graphs that saved the logits detect the change
        torch.autograd.graph.increment_version(found.source)
    return inputs, found


def new_gradients(ctx: Any, saved: Saved, upstream: Tensor) -> Gradients:
    """The gradients where the forward pass has left none, or has left them to a first backward pass."""
    problem, plan = ctx.problem, ctx.plan
    if plan.is_traced and ctx.keeps:
        return loss.scaled(saved.kept, upstream, problem)
    inputs = as_inputs(*saved.inputs)
    if ctx.keeps:
        return loss.scaled_(loss.forward(inputs, problem, plan, ctx.wanted).gradients, upstream, problem)
    assert saved.fields is not None
    return loss.gradients(inputs, problem, plan, ctx.wanted, saved.fields, saved.number_logits, upstream)


def compiled_gradients(ctx: Any, upstream: Tensor) -> tuple[Inputs, Gradients]:
    """The same in a compiled backward pass of an uncompiled forward pass: changes nothing in place."""
    saved, problem, plan = Saved.of(ctx), ctx.problem, ctx.plan
    inputs = as_inputs(*saved.inputs)
    operands = *inputs, *plan.chunking, ctx.wanted, *steps.operands_of(problem, loss_dtype(inputs.source.dtype))
    if not ctx.keeps:
        found = ops.of_inputs(ctx.wanted, *ops.gradients(saved.fields, upstream, *operands))
    elif plan.inplace:
        found = loss.scaled(Gradients(inputs.source), upstream, problem)
    else:
        _, _, _, *kept = ops.losses(*operands)
        found = loss.scaled(ops.of_inputs(ctx.wanted, *kept), upstream, problem)
    return saved.inputs, found


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
