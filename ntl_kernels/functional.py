"""`cross_entropy_ntl` and `linear_cross_entropy_ntl`: check, dispatch, reduce.

The way of a call: its arguments are checked and put into a :class:`Problem`; :func:`loss_of_logits` or
:func:`loss_of_hidden` choose the road (:mod:`ntl_kernels.tracing`); there the backend's ``forward`` computes losses,
gradient and reduction; and :func:`as_output` shows the results to the caller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import linear, ops, reference
from .autograd import CrossEntropyNTL, LinearCrossEntropyNTL, is_one_pass, mark_overwritten
from .backends import Field, Forward, load_backend, resolve_backend
from .backends.layout import loss_dtype, rows_of
from .checks import (
    check_inplace,
    check_linear,
    check_logits,
    check_numbers,
    check_rows,
    check_shares,
    check_values,
    checked_spec,
)
from .config import NTLConfig, NTLOutput
from .linear import Chunking, default_chunk_size, is_autocast, keeps_gradients
from .problem import Problem
from .tokens import NumberTokens
from .tracing import has_dtensor, is_forward_mode, is_plain

DEFAULT_CONFIG = NTLConfig()


def cross_entropy_ntl(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    inplace: bool = False,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """Cross-entropy + lambda * Number Token Loss of logits, with the gradient computed in the same pass.

    Args:
        logits: [..., V] float32, bfloat16 or float16 (float64 not on Triton), any strides.
        labels: [...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        config: kind and weight (lambda) of the Number Token Loss.
        ignore_index: rows with this label do not count, wherever it lies; any int64, also for int32 labels.
        reduction: "mean" is ``sum(w CE) / num_tokens + lambda * sum(w NTL) / num_numbers`` (a term whose
            denominator is 0 is 0), "sum" the same undivided, "none" ``w (CE + lambda NTL)`` in the labels' shape.
        label_smoothing: epsilon in [0, 1]; this share of the target is spread over the whole vocabulary. A column of
            -inf makes the loss infinite, as in :func:`torch.nn.functional.cross_entropy`.
        z_loss: factor of ``lse ** 2``, which keeps the logsumexp near 0.
        softcap: logits become ``softcap * tanh(logits / softcap)``, after the scale.
        logit_scale: factor of the logits, above 0.
        token_weights: [...] finite non-negative weight w of each row; 0 takes the row out like ``ignore_index``.
        num_tokens: denominator of cross-entropy for "mean" (number or 0-d tensor, 0 or at least 1.2e-38); default:
            sum of the weights of the rows that count. Pass the count of a whole accumulation window for exact gradient
            accumulation.
        num_numbers: the same for NTL; default: sum of the weights of the rows whose label is a number.
        inplace: let the gradient overwrite the memory of ``logits``, in this call or in the backward pass. Do not
            use them afterwards: what autograd can see of that raises an error in the backward pass (on a GPU the
            gradients become NaN), but a metric, or anything else outside the graph, silently reads the gradient.
        return_parts: return an :class:`NTLOutput` instead of the loss alone.
        backend: "auto" (triton on GPUs, else eager), "triton", "eager" or "reference".

    Returns:
        The loss, float32 (float64 for float64 logits): 0-d, or [...] for reduction "none".

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape, device or range. Numbers must fit float32,
            in which the losses are computed, also where logits are float64; ``softcap`` and ``logit_scale`` go up to
            2.3e38, and ``logit_scale / softcap`` must be a normal float32, too. Tensors in place of numbers are looked
            at where labels are. Compiled code checks constants as it is traced, and numbers that change where it runs.
        IndexError: a label outside [0, V) that is not ``ignore_index``. On a GPU, where looking would wait for the
            device, the loss is NaN instead, unless the environment has NTL_KERNELS_VALIDATE=1.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083; z-loss: PaLM, arXiv 2204.02311;
    softcap: Gemma 2, arXiv 2408.00118.
    """
    check_logits(logits, labels, numbers)
    check_rows(labels, token_weights, logits.device)
    spec = checked_spec(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    check_shares(config, num_tokens, num_numbers, reduction, logits.device)
    shares = as_number(num_tokens), as_number(num_numbers), as_number(config.weight)
    table, backend = numbers.table(logits.device), resolve_backend(backend, logits)
    problem = Problem(labels, token_weights, *shares, table, spec, reduction, backend, return_parts)
    if has_dtensor(logits, labels, token_weights):
        from .parallel import tensors

        output = tensors.output_of_logits(logits, problem._replace(wants_parts=True), inplace, return_parts)
        return output if return_parts else output.loss
    result = loss_of_logits(logits, problem, inplace)
    return as_output(result, problem) if return_parts else in_shape(result.loss, problem)


def linear_cross_entropy_ntl(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    *,
    bias: Tensor | None = None,
    chunk_size: int | None = None,
    skip_ignored: bool = True,
    config: NTLConfig = DEFAULT_CONFIG,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    token_weights: Tensor | None = None,
    num_tokens: int | float | Tensor | None = None,
    num_numbers: int | float | Tensor | None = None,
    return_parts: bool = False,
    backend: str = "auto",
) -> Tensor | NTLOutput:
    """:func:`cross_entropy_ntl` of ``hidden @ weight.T + bias``, without ever holding those logits.

    The rows go through in chunks: logits, their gradient in the same memory, and its products with ``weight`` and
    ``hidden``. The weight's gradient is summed in float32. Under autocast the products run in its dtype, as those of
    :func:`torch.nn.functional.linear` do.

    Args:
        hidden: [..., H] float32, bfloat16 or float16 (float64 not on Triton), H at least 1.
        weight: [V, H] of the same dtype.
        labels: [...] int64 or int32, each in [0, V) or ``ignore_index``.
        numbers: the number tokens of a vocabulary of V tokens.
        bias: [V] of the same dtype.
        chunk_size: rows whose logits are held at a time; default: from a memory budget and the products' efficiency.
        skip_ignored: compute only the rows that count. Finding them waits for the GPU once; without it nothing does.
        config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale, token_weights, num_tokens,
            num_numbers, return_parts, backend: as for :func:`cross_entropy_ntl`.

    Returns:
        The loss, float32 (float64 for float64 hidden states): 0-d, or [...] for reduction "none".

    Raises:
        TypeError, ValueError, IndexError: as :func:`cross_entropy_ntl`.
    """
    check_linear(hidden, weight, bias, labels, chunk_size)
    check_numbers(numbers, weight.shape[0])
    check_rows(labels, token_weights, hidden.device)
    spec = checked_spec(config, numbers, ignore_index, label_smoothing, z_loss, softcap, logit_scale)
    check_shares(config, num_tokens, num_numbers, reduction, hidden.device)
    shares = as_number(num_tokens), as_number(num_numbers), as_number(config.weight)
    table, backend = numbers.table(hidden.device), resolve_backend(backend, hidden)
    problem = Problem(labels, token_weights, *shares, table, spec, reduction, backend)
    if has_dtensor(hidden, weight, bias, labels, token_weights):
        from .parallel import tensors

        output = tensors.output_of_hidden(hidden, weight, bias, problem, chunk_size, skip_ignored, return_parts)
        return output if return_parts else output.loss
    result = loss_of_hidden(hidden, weight, bias, problem, chunk_size, skip_ignored)
    return as_output(result, problem) if return_parts else in_shape(result.loss, problem)


def loss_of_logits(logits: Tensor, problem: Problem, inplace: bool = False) -> Forward:
    """The loss of logits [..., V] and a checked problem, by the road that fits."""
    if problem.backend == "reference":
        return reference_loss(logits, problem)
    problem = problem.of_rows(loss_dtype(logits.dtype))
    needs_gradient = torch.is_grad_enabled() and logits.requires_grad
    if not is_plain(logits):
        operands = ops.operands_of(problem, loss_dtype(logits.dtype))
        one_pass = (needs_gradient or is_forward_mode()) and is_one_pass(logits, problem)
        formula, operator = (ops.OnePass, ops.one_pass) if one_pass else (ops.TwoPass, ops.losses)
        return Forward(*ops.call(formula, operator, rows_of(logits), *operands)[:3])
    if needs_gradient:
        if inplace:
            check_inplace(logits)
        version = logits._version
        result = Forward(*CrossEntropyNTL.apply(logits, problem, inplace))
        if logits._version != version:  # not where "none" or float16 waits, or the rows are a copy
            mark_overwritten(logits)
        return result
    check_values(problem, logits.shape[-1])
    return load_backend(problem.backend).forward(rows_of(logits.detach()), problem, None)


def loss_of_hidden(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, problem: Problem, chunk_size: int | None, skip_ignored: bool
) -> Forward:
    """The loss of hidden states [..., H], weight [V, H], bias [V] and a checked problem, by the road that fits."""
    hidden, weight, bias = autocast(hidden), autocast(weight), None if bias is None else autocast(bias)
    if problem.backend == "reference":
        return reference_loss(torch.nn.functional.linear(hidden, weight, bias), problem)
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    problem = problem.of_rows(loss_dtype(hidden.dtype))
    # Finding the rows that count waits for the device, which neither a compiled nor a captured graph can.
    skip_ignored = skip_ignored and not (torch.compiler.is_compiling() or is_capturing(hidden))
    size = default_chunk_size(rows.shape[0], weight) if chunk_size is None else chunk_size
    chunking = Chunking(size, skip_ignored)
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if not is_plain(*inputs):
        is_exporting = torch.compiler.is_exporting()  # whoever runs the graph chooses anew what requires gradient
        needs = [
            needs_gradient
            and keeps_gradients(problem, hidden.dtype)
            and given is not None
            and (given.requires_grad or is_exporting)
            for given in (hidden, weight, bias)
        ]
        operands = ops.operands_of(problem, loss_dtype(hidden.dtype))
        return Forward(*ops.call(ops.Linear, ops.linear_losses, rows, weight, bias, *operands, *chunking, needs)[:3])
    if needs_gradient:
        return Forward(*LinearCrossEntropyNTL.apply(rows, weight, bias, problem, chunking))
    check_values(problem, weight.shape[0])
    return linear.forward(rows, weight, bias, problem, chunking, [False] * 3).forward


def reference_loss(logits: Tensor, problem: Problem) -> Forward:
    """The loss by the specification, differentiated by autograd."""
    problem = problem.of_rows(loss_dtype(logits.dtype))
    if is_plain(logits):
        check_values(problem, logits.shape[-1])
    return reference.forward(logits, problem)


def as_output(result: Forward, problem: Problem) -> NTLOutput:
    """A backend's results as the caller sees them."""
    cross_entropy, ntl, *rest = result.parts.unbind()
    if problem.reduction == "none":
        cross_entropy, ntl = result.fields[Field.CROSS_ENTROPY], result.fields[Field.NTL]
    shown = (in_shape(part, problem) for part in (result.loss, cross_entropy, ntl))
    return NTLOutput(*shown, *rest)


def in_shape(loss: Tensor, problem: Problem) -> Tensor:
    """Losses of rows in the labels' shape."""
    return loss.view(problem.labels.shape) if problem.reduction == "none" else loss


def as_number(given: Any) -> Any:
    """A scalar argument as a problem holds it."""
    if given is None or torch.compiler.is_compiling():  # where a number may be symbolic
        return given
    return given.detach() if isinstance(given, Tensor) else float(given)


def autocast(tensor: Tensor) -> Tensor:
    """The tensor in the dtype autocast would give a matrix product's operand."""
    if tensor.dtype == torch.float64 or not is_autocast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
