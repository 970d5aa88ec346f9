"""Numbers that are equal for all rows: Python numbers if reading them does not wait for a device."""

from __future__ import annotations

from typing import TypeAlias, Union

import torch
from torch import Tensor

from ...problem import in_dtype

Scalar: TypeAlias = Union[float, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""One number for all rows: a Python number, or a 0-d tensor if reading it would wait for a device."""


def as_scalar(given: Scalar) -> Scalar:
    """The scalar as a Python number if reading it does not wait."""
    return given.item() if isinstance(given, Tensor) and given.device.type == "cpu" else given


def count_true(mask: Tensor) -> Scalar:
    """The number of true entries of a mask."""
    return as_scalar(mask.count_nonzero())


def listed(vector: Tensor) -> list[Scalar]:
    """The entries of a vector, each converted by :func:`as_scalar`."""
    return vector.tolist() if vector.device.type == "cpu" else list(vector.unbind())


def gathered(scalars: list[Scalar], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Scalars as one tensor."""
    if device.type == "cpu" and not any(isinstance(scalar, Tensor) for scalar in scalars):
        return torch.tensor(scalars, dtype=dtype)
    return torch.stack([in_dtype(scalar, dtype, device) for scalar in scalars])
