"""Computes the loss of a checked :class:`Problem` on one of three paths: plain, traced or reference.

Plain calls use the `autograd.Function`s of :mod:`ntl_kernels.autograd`, traced ones (:mod:`ntl_kernels.tracing`) the
operators of :mod:`ntl_kernels.ops`, and ``backend="reference"`` the specification.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import linear, ops, reference
from .autograd import CrossEntropyNTL, LinearCrossEntropyNTL, is_one_pass, mark_overwritten
from .backends import load_backend
from .backends.layout import loss_dtype, rows_of
from .checks import check_inplace, checked_rows
from .config import NTLOutput
from .linear import Chunking, default_chunk_size, is_autocast, keeps_gradients
from .problem import Forward, Problem, RowResult
from .tracing import is_plain


def loss_of_logits(logits: Tensor, problem: Problem, inplace: bool = False) -> Forward:
    """The loss of logits [B..., V]."""
    if problem.backend == "reference":
        return reference_loss(logits, problem)
    plain = is_plain(logits)
    problem = checked_rows(problem, logits.shape[-1], loss_dtype(logits.dtype), plain)
    needs_gradient = torch.is_grad_enabled() and logits.requires_grad
    if not plain:
        operands = ops.operands_of(problem, loss_dtype(logits.dtype))
        keeps_gradient = needs_gradient and is_one_pass(logits, problem)
        loss, parts, fields, _ = ops.call(ops.Losses, ops.losses, rows_of(logits), keeps_gradient, *operands)
        return Forward(loss, parts, fields)
    if needs_gradient:
        if inplace:
            check_inplace(logits)
        version = logits._version
        result = Forward(*CrossEntropyNTL.apply(logits, problem, inplace))
        if logits._version != version:  # not with "none" or float16, or if the rows are a copy
            mark_overwritten(logits)
        return result
    return load_backend(problem.backend).forward(rows_of(logits.detach()), problem, None)


def loss_of_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunk_size: int | None, skip_ignored: bool
) -> Forward:
    """The loss of hidden states [B..., H], weight [V, H] and bias [V]."""
    hidden, weight, bias = autocast(hidden), autocast(weight), None if bias is None else autocast(bias)
    if problem.backend == "reference":
        return reference_loss(torch.nn.functional.linear(hidden, weight, bias), problem)
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    inputs = (hidden, weight) if bias is None else (hidden, weight, bias)
    plain = is_plain(*inputs)
    problem = checked_rows(problem, weight.shape[0], loss_dtype(hidden.dtype), plain)
    # Finding the rows that count waits for the device, which compiled and captured graphs cannot do.
    skip_ignored = skip_ignored and not (torch.compiler.is_compiling() or is_capturing(hidden))
    size = default_chunk_size(rows.shape[0], weight) if chunk_size is None else chunk_size
    chunking = Chunking(size, skip_ignored)
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if not plain:
        is_exporting = torch.compiler.is_exporting()  # the exported graph may later run with other requires_grad flags
        needs = [
            needs_gradient
            and keeps_gradients(problem, hidden.dtype)
            and given is not None
            and (given.requires_grad or is_exporting)
            for given in (hidden, weight, bias)
        ]
        operands = ops.operands_of(problem, loss_dtype(hidden.dtype))
        loss, parts, fields, *_ = ops.call(
            ops.LinearLosses, ops.linear_losses, rows, weight, bias, *chunking, needs, *operands
        )
        return Forward(loss, parts, fields)
    if needs_gradient:
        return Forward(*LinearCrossEntropyNTL.apply(rows, weight, bias, problem, chunking))
    return linear.forward(rows, weight, bias, problem, chunking, [False] * 3).forward


def reference_loss(logits: Tensor, problem: Problem) -> Forward:
    """The loss computed by the specification, with gradients from autograd."""
    rows = checked_rows(problem, logits.shape[-1], loss_dtype(logits.dtype), is_plain(logits))
    return reference.forward(logits, rows)


def as_result(result: Forward, problem: Problem, return_parts: bool) -> Tensor | NTLOutput:
    """What the public function returns: the loss, or the loss with its parts."""
    return as_output(result, problem) if return_parts else in_shape(result.loss, problem)


def as_output(result: Forward, problem: Problem) -> NTLOutput:
    """The loss and its parts."""
    assert result.parts is not None
    cross_entropy, ntl, *rest = result.parts.unbind()
    if problem.reduction == "none":
        found = RowResult(*result.fields.unbind())
        cross_entropy, ntl = found.cross_entropy, found.ntl
    shown = (in_shape(part, problem) for part in (result.loss, cross_entropy, ntl))
    return NTLOutput(*shown, *rest)


def in_shape(loss: Tensor, problem: Problem) -> Tensor:
    """The loss; for reduction "none" in the labels' shape."""
    return loss.view(problem.labels.shape) if problem.reduction == "none" else loss


def autocast(tensor: Tensor) -> Tensor:
    """The tensor in the dtype to which autocast would cast a matrix product's operand."""
    if tensor.dtype == torch.float64 or not is_autocast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
