"""Checks the values and sizes that a caller passes; rounds values to float32."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..tracing import is_symbolic

LARGEST_SPAN = 1.6e38
"""Half of the float32 range: a loss is up to 1.01 times the distance of two values, and sums need headroom."""


def checked_size(vocab_size: Any) -> int:
    """``vocab_size`` as an int; raise unless it is a positive integer whose ids fit int32."""
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral):
        raise TypeError(f"vocab_size must be an int; got {vocab_size!r}")
    if not 1 <= (size := int(vocab_size)) <= 2**31:
        raise ValueError(f"vocab_size must be from 1 to 2**31; got {vocab_size!r}")
    return size


def checked_mapping(mapping: Any, vocab_size: int) -> dict[int, float]:
    """``mapping`` with its values rounded to float32; raise unless all ids are in the vocabulary."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"mapping must map token ids to values; got {type(mapping).__name__}")
    if not mapping:
        raise ValueError("no number token found: the mapping is empty")
    for token, value in mapping.items():
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise TypeError(f"token ids must be ints; got {token!r}")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"the value of token {token} must be a number; got {value!r}")
    beyond = sorted(token for token in mapping if not 0 <= token < vocab_size)
    if beyond:
        raise ValueError(f"token ids must be in [0, {vocab_size}); got {beyond[:5]}{' ...' if beyond[5:] else ''}")
    return {int(token): to_float32(value, token) for token, value in mapping.items()}


def is_integral(tensor: Tensor) -> bool:
    """Whether a tensor contains integers; bool is not one."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_integers(name: str, given: Any) -> None:
    """Raise unless ``given`` is a tensor of integers."""
    if not isinstance(given, Tensor) or not is_integral(given):
        got = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"{name} must be a tensor of integers; got {got}")


def check_row_weights(name: str, weights: Any, labels: Tensor) -> None:
    """Raise unless weights of labels are a real tensor of their shape, on their device."""
    if not isinstance(weights, Tensor) or weights.is_complex():
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"{name} must be a real tensor; got {got}")
    if weights.shape != labels.shape:
        raise ValueError(f"{name} must have the labels' shape {tuple(labels.shape)}; got {tuple(weights.shape)}")
    if weights.device != labels.device:
        raise ValueError(f"{name} must be on the labels' device {labels.device}; got {weights.device}")


def check_ignore_index(ignore_index: int) -> None:
    """Raise unless ``ignore_index`` is an integer that fits int64."""
    if is_symbolic(ignore_index):
        return
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral):
        raise TypeError(f"ignore_index must be an int; got {ignore_index!r}")
    if not -(2**63) <= ignore_index < 2**63:
        got = ignore_index if abs(ignore_index) < 2**128 else f"an int of {ignore_index.bit_length()} bits"
        raise ValueError(f"ignore_index must fit int64, the widest dtype of labels; got {got}")


def to_float32(value: Any, token: int) -> float:
    """The nearest float32, computed without torch so that active device or tracing modes cannot affect it."""
    given = math.inf
    try:
        given = float(value)  # overflows for a large int or fraction
        rounded: float = struct.unpack("f", struct.pack("f", given))[0]  # overflows beyond float32
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise ValueError(f"the value of token {token} must be finite in float32; got {given:g}")
    return rounded + 0.0  # -0.0 is 0.0
