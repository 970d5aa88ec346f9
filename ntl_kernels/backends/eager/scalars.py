"""Numbers that hold for all rows: Python's where asking for them waits for nothing."""

from __future__ import annotations

from typing import TypeAlias, Union

import torch
from torch import Tensor

from ...problem import in_dtype

Scalar: TypeAlias = Union[float, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""One number for all rows: a Python number, or a 0-d tensor where asking for it would wait for a device."""


def as_scalar(given: Scalar) -> Scalar:
    """A Python number where asking for it waits for nothing."""
    return given.item() if isinstance(given, Tensor) and given.device.type == "cpu" else given


def count_true(mask: Tensor) -> Scalar:
    """How many entries of a mask are true."""
    return as_scalar(mask.count_nonzero())


def listed(vector: Tensor) -> list[Scalar]:
    """The entries of a vector, each as by :func:`as_scalar`."""
    return vector.tolist() if vector.device.type == "cpu" else list(vector.unbind())


def gathered(scalars: list[Scalar], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Scalars as one tensor."""
    if device.type == "cpu" and not any(isinstance(scalar, Tensor) for scalar in scalars):
        return torch.tensor(scalars, dtype=dtype)
    return torch.stack([in_dtype(scalar, dtype, device) for scalar in scalars])
