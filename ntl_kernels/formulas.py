"""Formulas of the specification and the `eager` backend besides those of :mod:`.value_losses`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .spec import WORST_FACTOR, LossSpec
from .tokens import Group
from .value_losses import VALUE_LOSSES


def costs(values: Tensor, targets: Tensor, spec: LossSpec) -> Tensor:
    """c_k [n, K]: the cost of probability on value k when the label's value is ``targets`` [n] (eq. 6 and 7)."""
    distance = (values - targets[:, None]).abs()
    if not isinstance(spec.cost_offset, Tensor) and spec.cost_offset == 0:
        return distance if spec.cost_slope == 1 else spec.cost_slope * distance
    return torch.where(distance > 0, spec.cost_offset + spec.cost_slope * distance, 0.0)


def in_groups(spec: LossSpec, group: Group) -> LossSpec:
    """The spec of rows whose labels are in groups with fields [n, 1]."""
    offset, slope = spec.cost_offset, spec.cost_slope
    if offset != 0:
        slope = divide(slope, group.furthest - group.nearest)
        offset = offset - slope * group.nearest
    spec = replace(spec, cost_offset=offset, cost_slope=slope)
    if spec.kind == "wasserstein":
        largest = costs(group.furthest, torch.zeros_like(group.furthest[:, 0]), spec)
    else:
        largest = VALUE_LOSSES[spec.kind].loss(group.furthest, spec.huber_delta)
    return replace(spec, worst_loss=WORST_FACTOR * largest)


def other_groups(group: Group, places: Tensor) -> Tensor:
    """bool [n, k]: which number tokens, by their indices [k] among all, are not in groups with fields [n, 1]."""
    return (places < group.start) | (places >= group.start + group.size)


def divide(total: Tensor | float, denominator: Tensor | float) -> Any:
    """total / denominator, or 0 with zero gradient if the denominator is 0; for tensors and numbers."""
    if not isinstance(denominator, Tensor):
        if denominator == 0:
            return torch.zeros_like(total) if isinstance(total, Tensor) else 0.0
        return total / denominator
    is_zero = denominator == 0
    return torch.where(is_zero, 0.0, total / torch.where(is_zero, 1.0, denominator))
