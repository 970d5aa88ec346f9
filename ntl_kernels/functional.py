"""`cross_entropy_ntl` and `linear_cross_entropy_ntl`: check, dispatch, reduce."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import ops, reference
from .autograd import CrossEntropyNTL, Problem
from .backends import Field, resolve_backend
from .backends.layout import loss_dtype, rows_of
from .config import NTLConfig, NTLOutput, check_number
from .linear import LinearCrossEntropyNTL, default_chunk_size, linear_one_pass
from .spec import LossSpec
from .tokens import NumberTokens

REDUCTIONS = ("mean", "sum", "none")
LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
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
        ignore_index: rows with this label do not count, wherever it lies.
        reduction: "mean" is ``sum(w CE) / num_tokens + lambda * sum(w NTL) / num_numbers`` (a term whose
            denominator is 0 is 0), "sum" the same undivided, "none" ``w (CE + lambda NTL)`` in the labels' shape.
        label_smoothing: epsilon in [0, 1]; this share of the target is spread over the whole vocabulary.
        z_loss: factor of ``lse ** 2``, which keeps the logsumexp near 0.
        softcap: logits become ``softcap * tanh(logits / softcap)``, after the scale.
        logit_scale: factor of the logits, above 0.
        token_weights: [...] non-negative weight w of each row; 0 takes the row out like ``ignore_index``.
        num_tokens: denominator of cross-entropy for "mean" (number or 0-d tensor); default: sum of the weights of
            the rows that count. Pass the count of a whole accumulation window for exact gradient accumulation.
        num_numbers: the same for NTL; default: sum of the weights of the rows whose label is a number.
        inplace: let the gradient overwrite the memory of ``logits``.
        return_parts: return an :class:`NTLOutput` instead of the loss alone.
        backend: "auto" (triton on GPUs, else eager), "triton", "eager" or "reference".

    Returns:
        The loss, float32 (float64 for float64 logits): 0-d, or [...] for reduction "none".

    Raises:
        TypeError, ValueError: an argument has the wrong type, dtype, shape, device or range.
        IndexError: a label outside [0, V) that is not ``ignore_index``. On a GPU, where looking would wait for the
            device, the loss is NaN instead, unless the environment has NTL_KERNELS_VALIDATE=1.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083; z-loss: PaLM, arXiv 2204.02311;
    softcap: Gemma 2, arXiv 2408.00118.
    """
    check_logits(logits, labels, numbers)
    check_rows(labels, token_weights, logits.device)
    spec = checked_spec(config, numbers, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale)
    check_denominators(num_tokens, num_numbers, reduction, logits.device)
    output = loss_of_logits(
        logits, labels, numbers, spec, reduction, token_weights, num_tokens, num_numbers, inplace, backend
    )
    return output if return_parts else output.loss


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
        hidden: [..., H] float32, bfloat16 or float16 (float64 not on Triton).
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
    spec = checked_spec(config, numbers, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale)
    check_denominators(num_tokens, num_numbers, reduction, hidden.device)
    hidden, weight, bias = autocast(hidden), autocast(weight), None if bias is None else autocast(bias)
    backend = resolve_backend(backend, hidden)
    if backend == "reference":
        logits = torch.nn.functional.linear(hidden, weight, bias)
        arguments = (spec, reduction, token_weights, num_tokens, num_numbers, False, backend)
        output = loss_of_logits(logits, labels, numbers, *arguments)
        return output if return_parts else output.loss
    rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    dtype = loss_dtype(hidden.dtype)
    problem = as_problem(
        labels, rows.shape[:1], token_weights, num_tokens, num_numbers, numbers, spec, reduction, backend, dtype
    )
    chunk_size = min(chunk_size or default_chunk_size(rows.shape[0], weight), max(rows.shape[0], 1))
    if torch.is_grad_enabled():
        loss, parts, fields = LinearCrossEntropyNTL.apply(rows, weight, bias, problem, chunk_size, skip_ignored)
    else:
        chunking = chunk_size, skip_ignored, [False, False, False]
        loss, parts, _, fields, *_ = linear_one_pass(rows, weight, bias, *problem, *chunking)
    output = as_output(loss, parts, fields, labels, reduction)
    return output if return_parts else output.loss


def loss_of_logits(
    logits: Tensor,
    labels: Tensor,
    numbers: NumberTokens,
    spec: LossSpec,
    reduction: str,
    token_weights: Tensor | None,
    num_tokens: int | float | Tensor | None,
    num_numbers: int | float | Tensor | None,
    inplace: bool,
    backend: str,
) -> NTLOutput:
    """Dispatch checked arguments to a backend."""
    backend = resolve_backend(backend, logits)
    if backend == "reference":
        tensors = [given if isinstance(given, Tensor) else None for given in (num_tokens, num_numbers)]
        ops.check_values(labels, token_weights, logits.shape[-1], spec.pack(), tensors)
        table = numbers.table(logits.device)
        return reference.cross_entropy_ntl(
            logits, labels, token_weights, num_tokens, num_numbers, table, spec, reduction
        )
    rows = rows_of(logits)
    dtype = loss_dtype(logits.dtype)
    problem = as_problem(
        labels, rows.shape[:2], token_weights, num_tokens, num_numbers, numbers, spec, reduction, backend, dtype
    )
    if torch.is_grad_enabled() and logits.requires_grad:
        loss, parts, fields = CrossEntropyNTL.apply(rows, problem, inplace)
    else:
        loss, parts, _, fields = ops.losses(rows.detach(), *problem)
    return as_output(loss, parts, fields, labels, reduction)


def as_problem(
    labels: Tensor,
    shape: torch.Size,
    token_weights: Tensor | None,
    num_tokens: int | float | Tensor | None,
    num_numbers: int | float | Tensor | None,
    numbers: NumberTokens,
    spec: LossSpec,
    reduction: str,
    backend: str,
    dtype: torch.dtype,
) -> Problem:
    """The operators' arguments, with labels and weights [...] in the shape of the rows."""
    table = numbers.table(labels.device)
    return Problem(
        labels=labels.reshape(shape).contiguous(),
        token_weights=None if token_weights is None else token_weights.reshape(shape).to(dtype).contiguous(),
        num_tokens=as_scalar(num_tokens, dtype),
        num_numbers=as_scalar(num_numbers, dtype),
        given=[as_float(num_tokens), as_float(num_numbers)],
        ids=table.ids,
        values=table.values,
        lookup=table.lookup,
        spec=spec.pack(),
        reduction=reduction,
        backend=backend,
    )


def as_output(loss: Tensor, parts: Tensor, fields: Tensor, labels: Tensor, reduction: str) -> NTLOutput:
    """The operators' results as the caller sees them."""
    cross_entropy, ntl, *rest = parts.unbind()
    if reduction == "none":
        loss, cross_entropy, ntl = (
            part.view(labels.shape) for part in (loss, fields[Field.CROSS_ENTROPY], fields[Field.NTL])
        )
    return NTLOutput(loss, cross_entropy, ntl, *rest)


def autocast(tensor: Tensor) -> Tensor:
    """The tensor in the dtype autocast would give a matrix product's operand."""
    if tensor.dtype == torch.float64 or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def as_scalar(denominator: int | float | Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A denominator given as a tensor, in the losses' dtype."""
    return denominator.detach().to(dtype) if isinstance(denominator, Tensor) else None


def as_float(denominator: int | float | Tensor | None) -> float:
    """A denominator given as a number; NaN stands for any other."""
    return math.nan if denominator is None or isinstance(denominator, Tensor) else float(denominator)


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` is a tensor [..., V or H] of a known dtype."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in LOGIT_DTYPES:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} must be a float32, bfloat16, float16 or float64 tensor; got {got}")
    if tensor.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension; got a 0-d tensor")


def check_logits(logits: Tensor, labels: Tensor, numbers: NumberTokens) -> None:
    """Raise unless logits are [..., V] of a known dtype that fits labels [...] and the number tokens."""
    check_tensor("logits", logits)
    if isinstance(labels, Tensor) and labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels must have the shape of logits without the last dimension, {tuple(logits.shape[:-1])}; "
            f"got {tuple(labels.shape)}"
        )
    check_numbers(numbers, logits.shape[-1])


def check_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk_size: int | None) -> None:
    """Raise unless hidden [..., H], weight [V, H], bias [V] and labels [...] fit each other."""
    check_tensor("hidden", hidden)
    check_tensor("weight", weight)
    if weight.ndim != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden [..., H] and weight [V, H] must share H; got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape [V] = {tuple(weight.shape[:1])}; got {tuple(bias.shape)}")
    is_cast = torch.is_autocast_enabled(hidden.device.type)
    others = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    for name, tensor in others.items():
        if tensor.device != hidden.device:
            raise ValueError(f"{name} must be on the hidden states' device {hidden.device}; got {tensor.device}")
        if tensor.dtype != hidden.dtype and not is_cast:
            raise TypeError(f"{name} must have the hidden states' dtype {hidden.dtype}; got {tensor.dtype}")
    if isinstance(labels, Tensor) and labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels must have the shape of hidden without the last dimension, {tuple(hidden.shape[:-1])}; "
            f"got {tuple(labels.shape)}"
        )
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size must be a positive int or None; got {chunk_size!r}")


def check_numbers(numbers: NumberTokens, vocab_size: int) -> None:
    """Raise unless ``numbers`` belong to a vocabulary of ``vocab_size`` tokens."""
    if not isinstance(numbers, NumberTokens):
        raise TypeError(f"numbers must be NumberTokens; got {type(numbers).__name__}")
    if numbers.vocab_size != vocab_size:
        raise ValueError(
            f"numbers are for a vocabulary of {numbers.vocab_size} tokens; got {vocab_size} columns. "
            f"Build them with vocab_size={vocab_size}"
        )


def check_rows(labels: Tensor, token_weights: Tensor | None, device: torch.device) -> None:
    """Raise unless labels and weights are tensors of one shape, known dtypes and the logits' device."""
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an int64 or int32 tensor; got {got}")
    if labels.device != device:
        raise ValueError(f"labels must be on the logits' device {device}; got {labels.device}")
    if token_weights is None:
        return
    if not isinstance(token_weights, Tensor) or token_weights.is_complex():
        got = token_weights.dtype if isinstance(token_weights, Tensor) else type(token_weights).__name__
        raise TypeError(f"token_weights must be a real tensor; got {got}")
    if token_weights.shape != labels.shape:
        raise ValueError(
            f"token_weights must have the labels' shape {tuple(labels.shape)}; got {tuple(token_weights.shape)}"
        )
    if token_weights.device != device:
        raise ValueError(f"token_weights must be on the logits' device {device}; got {token_weights.device}")
    if token_weights.requires_grad:
        raise ValueError("token_weights require grad, but the loss is not differentiated by them; detach them")


def checked_spec(
    config: NTLConfig,
    numbers: NumberTokens,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    logit_scale: float,
) -> LossSpec:
    """The scalar options in one place; raises unless each has the right type and range."""
    check_options(config, ignore_index, reduction, label_smoothing, z_loss, softcap, logit_scale)
    return LossSpec.resolve(
        config,
        numbers,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
        logit_scale=logit_scale,
    )


def check_options(
    config: NTLConfig,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    logit_scale: float,
) -> None:
    """Raise unless every scalar option has the right type and range."""
    if not isinstance(config, NTLConfig):
        raise TypeError(f"config must be an NTLConfig; got {type(config).__name__}")
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int; got {ignore_index!r}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}")
    check_number("label_smoothing", label_smoothing, minimum=0.0)
    if label_smoothing > 1:
        raise ValueError(f"label_smoothing must be at most 1; got {label_smoothing!r}")
    check_number("z_loss", z_loss, minimum=0.0)
    if softcap is not None:
        check_number("softcap", softcap, above=0.0)
    check_number("logit_scale", logit_scale, above=0.0)


def check_denominators(
    num_tokens: int | float | Tensor | None,
    num_numbers: int | float | Tensor | None,
    reduction: str,
    device: torch.device,
) -> None:
    """Raise unless explicit denominators are non-negative, one element each, and have something to divide."""
    for name, given in (("num_tokens", num_tokens), ("num_numbers", num_numbers)):
        if given is None:
            continue
        if reduction != "mean":
            raise ValueError(f"{name} is a denominator of reduction='mean'; got reduction={reduction!r}")
        if not isinstance(given, Tensor):
            check_number(name, given, minimum=0.0)
        elif given.numel() != 1 or given.ndim != 0:
            raise ValueError(f"{name} must be a number or a 0-d tensor; got shape {tuple(given.shape)}")
        elif given.device != device:
            raise ValueError(f"{name} must be on the logits' device {device}; got {given.device}")
        elif given.requires_grad:
            raise ValueError(f"{name} requires grad, but the loss is not differentiated by it; detach it")
