"""Checks of the arguments of public functions, and their errors.

Checks of types, shapes and options run on every call and read no tensor element. Checks of values
(:func:`checked_rows`) run where reading them does not wait for a GPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

from . import backends
from .backends import load_backend, resolve_backend
from .config import NTLConfig, check_number, shown
from .problem import Problem, RowInputs, as_number, is_kept
from .spec import LossSpec
from .tokens import NumberTokens
from .tokens.values import check_row_weights
from .tracing import is_autocast, is_symbolic

LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LABEL_DTYPES = (torch.int64, torch.int32)
Denominator: TypeAlias = "int | float | Tensor | None"
"""A denominator as the caller passed it."""
P = ParamSpec("P")
R = TypeVar("R")


def checked_problem(
    source: Tensor,
    rows: RowInputs,
    numbers: NumberTokens,
    config: NTLConfig,
    spec: LossSpec,
    num_tokens: Denominator,
    num_numbers: Denominator,
    backend: str,
    wants_parts: bool = True,
) -> Problem:
    """Check the arguments that all functions share and return them as a problem on the device of the logits or hidden
    states.

    The callers check the logits, or the hidden states and the head, and the vocabulary of the numbers first, because
    these checks differ between the functions.
    """
    device = source.device
    check_rows(rows, source)
    check_scalars(config, spec, num_tokens, num_numbers, device)
    scalars = as_number(num_tokens), as_number(num_numbers), as_number(config.weight)
    return Problem(rows, *scalars, numbers.table(device), spec, resolve_backend(backend, source), wants_parts)


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` is a tensor [B..., V or H] of a known dtype."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in LOGIT_DTYPES:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} must be a float32, bfloat16, float16 or float64 tensor; got {got}")
    if tensor.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension; got a 0-d tensor")


def check_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None, chunk_size: int | None) -> None:
    """Raise unless hidden [B..., H], weight [V, H] and bias [V] fit each other."""
    check_tensor("hidden", hidden)
    check_tensor("weight", weight)
    if weight.ndim != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden [B..., H] and weight [V, H] must have the same H; got {tuple(hidden.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if hidden.shape[-1] == 0:
        raise ValueError(f"hidden [B..., H] and weight [V, H] must have H of at least 1; got {tuple(hidden.shape)}")
    if bias is not None:
        check_tensor("bias", bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape [V] = {tuple(weight.shape[:1])}; got {tuple(bias.shape)}")
    is_cast = is_autocast(hidden)  # which leaves float64 as it is
    others = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    for name, tensor in others.items():
        if tensor.device != hidden.device:
            raise ValueError(f"{name} must be on the hidden states' device {hidden.device}; got {tensor.device}")
        if tensor.dtype != hidden.dtype and not (is_cast and torch.float64 not in (tensor.dtype, hidden.dtype)):
            cause = " (autocast does not cast float64)" if is_cast else ""
            raise TypeError(f"{name} must have the hidden states' dtype {hidden.dtype}; got {tensor.dtype}{cause}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size must be a positive int or None; got {chunk_size!r}")


def explains_options(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function that takes a configuration say so where an option of NTLConfig is passed beside it."""
    known = signature(function).parameters
    misplaced = {field.name for field in fields(NTLConfig)} - set(known)

    @wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in misplaced:
                config = "config" if "config" in known else "ntl_config"
                raise TypeError(f"no argument {name!r}: pass {config}=NTLConfig({name}={kwargs[name]!r})")
        return function(*args, **kwargs)

    return explained


def check_numbers(numbers: NumberTokens, shape: Sequence[int]) -> None:
    """Raise unless ``numbers`` belong to the vocabulary of logits [B..., V], or of a head's rows [V]."""
    vocab_size = shape[-1]
    if not isinstance(numbers, NumberTokens):
        raise TypeError(f"numbers must be NumberTokens; got {type(numbers).__name__}")
    if numbers.vocab_size != vocab_size:
        if len(shape) > 2 and shape[1] == numbers.vocab_size:
            raise ValueError(
                f"logits must have the classes in their last dimension, [B..., V]; got {tuple(shape)}, with the "
                f"vocabulary in dimension 1 as for F.cross_entropy: pass logits.movedim(1, -1)"
            )
        raise ValueError(
            f"numbers are for a vocabulary of {numbers.vocab_size} tokens; got {vocab_size} columns. "
            f"Build them with vocab_size={vocab_size} or, from a tokenizer, with model=model. If the columns are one "
            f"rank's part of a sharded vocabulary, use ntl_kernels.parallel"
        )


def check_rows(rows: RowInputs, source: Tensor) -> None:
    """Raise unless labels [B...] and weights have the leading shape of logits [B..., V] or hidden states [B..., H],
    supported dtypes and their device."""
    labels = rows.labels
    if not isinstance(labels, Tensor) or labels.dtype not in LABEL_DTYPES:
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an int64 or int32 tensor; got {got}")
    if labels.shape != source.shape[:-1]:
        raise ValueError(
            f"labels must have the shape of the logits or hidden states without its last dimension, "
            f"{tuple(source.shape[:-1])}; got {tuple(labels.shape)}"
        )
    if labels.device != source.device:
        raise ValueError(f"labels must be on the logits' device {source.device}; got {labels.device}")
    for name, weights in rows.weights().items():
        check_row_weights(name, weights, labels)
        if weights.requires_grad:
            raise ValueError(f"{name} require grad, but the loss has no gradient for them; detach them")


def check_weight(name: str, weight: float | Tensor, spec: LossSpec) -> None:
    """Raise unless lambda times the largest number loss fits float32; :func:`checked_rows` checks tensors."""
    if isinstance(weight, Tensor) or is_symbolic(weight) or weight <= spec.largest_weight:
        return
    raise ValueError(
        f"{name} must be at most {spec.largest_weight:g}: with a larger one, its product with the largest number loss "
        f"{spec.worst_loss:g} (or the gradient of that product) exceeds float32; got {shown(weight)}"
    )


def check_scalars(
    config: NTLConfig, spec: LossSpec, num_tokens: Denominator, num_numbers: Denominator, device: torch.device
) -> None:
    """Raise unless lambda and the denominators are single non-negative numbers and the reduction uses them."""
    if isinstance(config.weight, Tensor):
        check_scalar_tensor("config.weight", config.weight, device)
    check_weight("weight", config.weight, spec)
    if num_tokens is None and num_numbers is None:
        return
    for name, given in (("num_tokens", num_tokens), ("num_numbers", num_numbers)):
        if given is None:
            continue
        if spec.reduction != "mean":
            raise ValueError(f"{name} is a denominator of reduction='mean'; got reduction={spec.reduction!r}")
        if isinstance(given, Tensor):
            check_scalar_tensor(name, given, device)
        else:
            check_number(name, given, minimum=0.0, divides=True)
    if spec.mean_over == "numbers" and (num_tokens is None or num_numbers is None):
        has, lacks = ("num_numbers", "num_tokens") if num_tokens is None else ("num_tokens", "num_numbers")
        raise ValueError(
            f"got {has} without {lacks}: one term would be divided by the given count and the other by the count of "
            f"this call. Pass {lacks} as well (NumberTokens.count counts number tokens), or use "
            "NTLConfig(mean_over='tokens'), which divides both terms by num_tokens"
        )


def check_inplace(logits: Tensor) -> None:
    """Raise unless the logits may be overwritten, by the rules of torch's own in-place operations."""
    owner = logits if logits._base is None else logits._base
    if owner.is_leaf and owner.requires_grad:
        raise RuntimeError(
            "inplace=True would overwrite a leaf that requires grad (or a view of one), such as a parameter, with its "
            "gradient; pass inplace=False, or logits computed by a model"
        )


def check_scalar_tensor(name: str, given: Tensor, device: torch.device) -> None:
    """Raise unless a tensor passed as a number is real, 0-d, on the logits' device and detached."""
    if given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"{name} must be a real number or a real 0-d tensor; got {given.dtype}")
    if given.ndim != 0:
        raise ValueError(f"{name} must be a number or a 0-d tensor; got shape {tuple(given.shape)}")
    if given.device != device:
        raise ValueError(f"{name} must be on the logits' device {device}; got {given.device}")
    if given.requires_grad:
        raise ValueError(f"{name} requires grad, but the loss has no gradient for it; detach it")


def can_look(tensor: Tensor) -> bool:
    """Whether Python may read the values of a tensor."""
    return tensor.device.type in backends.HOST_DEVICES or os.environ.get("NTL_KERNELS_VALIDATE") == "1"


def checked_rows(problem: Problem, dtype: torch.dtype, is_plain: bool = True) -> Problem:
    """A problem with flat rows for losses of a dtype; raises for labels outside the vocabulary and for numbers that are
    negative or do not fit the dtype, alone or, where it is a denominator, in their sum.

    A trace (``is_plain=False``) leaves that to its operators. On a GPU, where reading the values would wait for the
    device, they are checked only under NTL_KERNELS_VALIDATE=1; without it the loss of such a row is NaN or infinite.
    """
    given = problem.rows
    rows = given.flat(dtype)
    if rows.labels is not given.labels:  # a reshaped tensor is a new one; torch 2.8 cannot compare the tuples
        problem = problem.changed(rows=rows)
    if not is_plain or not can_look(rows.labels):
        return problem
    check_label_values(rows.labels, problem.vocab_size, problem.spec.ignore_index)
    weights = rows.weights()
    for name, each in weights.items():
        check_weight_values(name, getattr(given, name), each)
    for name in ("num_tokens", "num_numbers"):
        denominator = getattr(problem, name)
        if isinstance(denominator, Tensor):
            check_number(name, denominator.item(), minimum=0.0, divides=True)
    if isinstance(problem.ntl_weight, Tensor):
        weight = problem.ntl_weight.item()
        check_number("config.weight", weight, minimum=0.0)
        check_weight("config.weight", weight, problem.spec)
    if weights and problem.lacks_denominators:
        sums = load_backend("eager").count(problem, problem.vocab_size, dtype).tolist()
        for given_rows, weight_sum in zip(("labels", "labels that are numbers"), sums, strict=True):
            check_number(f"the sum of the weights of the {given_rows}", weight_sum, minimum=0.0, divides=True)
    return problem


def check_weight_values(name: str, given: Tensor, weights: Tensor) -> None:
    """Raise for weights that are out of range, from those of the caller and the same in the losses' dtype [N]."""
    if not weights.numel():
        return
    smallest, largest = torch.aminmax(weights)  # NaN if any is
    if not (smallest.item() >= 0 and largest.item() < math.inf):
        wrong, limits = given.reshape(-1)[~((weights >= 0) & (weights < math.inf))], torch.finfo(weights.dtype)
        raise ValueError(
            f"{name} must not be negative, infinite or NaN, and must fit {weights.dtype}, the dtype of the losses "
            f"(0, or {limits.tiny * limits.eps:g} to {limits.max:g}); got {wrong[0].item()}"
        )


def check_label_values(labels: Tensor, vocab_size: int, ignore_index: int) -> None:
    """Raise the IndexError of :func:`checked_rows`, where reading labels does not wait for a GPU."""
    if not can_look(labels) or labels.numel() == 0:
        return
    smallest, largest = torch.aminmax(labels)
    if smallest.item() >= 0 and largest.item() < vocab_size:  # the usual case, in one pass
        return
    wrong = ((labels < 0) | (labels >= vocab_size)) & is_kept(labels, ignore_index)
    if wrong.any():
        raise IndexError(
            f"labels must be in [0, {vocab_size}) or equal ignore_index {ignore_index}; got {labels[wrong][0].item()}"
        )
