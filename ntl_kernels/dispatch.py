"""Computes the loss of a checked :class:`Problem` on one of three paths: plain, traced or reference.

Plain calls use the `autograd.Function` of :mod:`ntl_kernels.autograd`, traced ones (:mod:`ntl_kernels.tracing`) the
operators of :mod:`ntl_kernels.ops`, and ``backend="reference"`` the specification. A traced loss of one rank's columns
uses the `autograd.Function` as well; the steps between its collectives are operators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import loss, ops, reference, steps
from .autograd import CrossEntropyNTL, mark_overwritten
from .backends.layout import loss_dtype
from .checks import check_inplace, checked_rows
from .config import NTLOutput
from .loss import Chunking, Inputs, Plan, as_inputs, default_chunk_size
from .problem import Forward, Problem, RowResult
from .tracing import is_autocast, is_plain

IN_NEW_MEMORY = Plan()
IN_PLACE = Plan(inplace=True)


def loss_of_logits(logits: Tensor, problem: Problem, inplace: bool = False) -> Forward:
    """The loss of logits [B..., V]."""
    if problem.backend == "reference":
        return reference_loss(logits, problem)
    return loss_of(Inputs(logits), problem, IN_PLACE if inplace else IN_NEW_MEMORY)


def loss_of_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunk_size: int | None, skip_ignored: bool
) -> Forward:
    """The loss of hidden states [B..., H], weight [V, H] and bias [V]."""
    operands = as_rows(hidden, weight, bias)
    if problem.backend == "reference":
        return reference_loss(torch.nn.functional.linear(*operands), problem)
    # Finding the rows that count waits for the device, which compiled and captured graphs cannot do.
    skip_ignored = skip_ignored and not (torch.compiler.is_compiling() or is_capturing(hidden))
    size = default_chunk_size(operands[0].shape[0], weight) if chunk_size is None else chunk_size
    # torch 2.8 cannot trace a default that is an object.
    return loss_of(Inputs(*operands), problem, Plan(IN_NEW_MEMORY.columns, Chunking(size, skip_ignored)))


def loss_of(inputs: Inputs, problem: Problem, plan: Plan) -> Forward:
    """The loss of logits [B..., V], or of hidden states [N, H] and a head, without the reference."""
    source, given = inputs.source, [each for each in inputs if each is not None]
    plain = is_plain(*given)
    problem = checked_rows(problem, loss_dtype(source.dtype), plain)
    needs_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    if not plain and plan.columns.are_whole:
        return traced_loss(as_inputs(*inputs), problem, plan, needs_gradient)
    if not needs_gradient:
        return loss.forward(as_inputs(*ops.detached(*inputs)), problem, plan, [False] * 3).forward
    if plan.inplace:
        check_inplace(source)
    if not plain:  # a trace changes nothing in place
        plan = Plan(plan.columns, plan.chunking, is_traced=True)
    version = source._version
    result = Forward(*CrossEntropyNTL.apply(*inputs, problem, plan))
    if plain and source._version != version:  # not with "none" or float16, or if the rows are a copy
        mark_overwritten(source)
    return result


def traced_loss(inputs: Inputs, problem: Problem, plan: Plan, needs_gradient: bool) -> Forward:
    """The loss of all columns by an operator."""
    keeps = needs_gradient and plan.keeps_gradients(inputs, problem)
    is_exporting = torch.compiler.is_exporting()  # the graph may later run with other requires_grad flags
    wanted = [keeps and each is not None and (each.requires_grad or is_exporting) for each in inputs]
    operands = steps.operands_of(problem, loss_dtype(inputs.source.dtype))
    result, parts, fields, *_ = ops.call(*inputs, *plan.chunking, wanted, *operands)
    return Forward(result, parts, fields)


def as_rows(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Hidden states [B..., H] as [N, H], and a head, all in the dtype of autocast's matrix products."""
    rows = autocast(hidden).reshape(-1, hidden.shape[-1]).contiguous()
    return rows, autocast(weight), None if bias is None else autocast(bias)


def reference_loss(logits: Tensor, problem: Problem) -> Forward:
    """The loss computed by the specification, with gradients from autograd."""
    rows = checked_rows(problem, loss_dtype(logits.dtype), is_plain(logits))
    return reference.forward(logits, rows)


def as_result(result: Forward, problem: Problem, return_parts: bool) -> Tensor | NTLOutput:
    """What the public function returns: the loss, or the loss with its parts."""
    return as_output(result, problem) if return_parts else in_shape(result.loss, problem)


def as_output(result: Forward, problem: Problem) -> NTLOutput:
    """The loss and its parts."""
    assert result.parts is not None
    cross_entropy, ntl, *rest = result.parts.unbind()
    if problem.spec.reduction == "none":
        found = RowResult(*result.fields.unbind())
        cross_entropy, ntl = found.cross_entropy, found.ntl
    shown = (in_shape(part, problem) for part in (result.loss, cross_entropy, ntl))
    return NTLOutput(*shown, *rest)


def in_shape(loss: Tensor, problem: Problem) -> Tensor:
    """The loss; for reduction "none" in the labels' shape."""
    return loss.view(problem.rows.labels.shape) if problem.spec.reduction == "none" else loss


def autocast(tensor: Tensor) -> Tensor:
    """The tensor in the dtype to which autocast would cast a matrix product's operand."""
    if tensor.dtype == torch.float64 or not is_autocast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
