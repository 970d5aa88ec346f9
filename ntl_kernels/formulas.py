"""Formulas of the specification and the `eager` backend besides those of :mod:`.value_losses`."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from .tokens import Group

Line: TypeAlias = "tuple[Any, Any]"
"""(offset, slope), numbers or tensors [n, 1]."""
LEAST_EXPONENT = -75.0
"""Where a target would be below exp(-75) of its largest value it is 0, in every precision."""


def cost_line(squash_factor: float | None, nearest: Any, furthest: Any) -> Line:
    """The cost of another number of the label's group as a function of its distance d: ``offset + slope * d``.

    With a ``squash_factor``, the nearest costs 1 and the furthest that many times as much; if there are only two
    distinct values, their distance costs 1. Without one, the cost is the distance. Nearest and furthest may be tensors.
    """
    if squash_factor is None:
        return 0.0, 1.0
    slope = divide(squash_factor - 1.0, furthest - nearest)
    return 1.0 - slope * nearest, slope


def value_offsets(values: Tensor, targets: Tensor, others: Tensor | None) -> Tensor:
    """v_k - v_y [n, K], from the values [K] and those of the labels ``targets`` [n]: 0 for ``others`` [n, K], the
    number tokens of other groups, which may be too far away to be multiplied by a probability of 0."""
    found = values - targets[:, None]
    return found if others is None else found.masked_fill_(others, 0)


def costs(offsets: Tensor, line: Line) -> Tensor:
    """c_k [n, K]: the cost of probability on value k, by v_k - v_y (eq. 6 and 7)."""
    distance, (offset, slope) = offsets.abs(), line
    if not isinstance(offset, Tensor) and offset == 0:
        return distance if slope == 1 else slope * distance
    return torch.where(distance > 0, offset + slope * distance, 0.0)


def target_exponents(offsets: Tensor, others: Tensor | None, sigma: float, temperature: float) -> Tensor:
    """[n, K]: the logarithm of a target around the label relative to its peak, -inf where it is 0 (eq. 8 and 38).

    A softmax makes it the target t: a Gaussian, or with a temperature an exponential function of the distance.
    """
    exponents = -offsets.abs() / temperature if temperature > 0 else -((offsets / sigma) ** 2) / 2
    is_none = exponents < LEAST_EXPONENT
    return exponents.masked_fill(is_none if others is None else is_none | others, -torch.inf)


def divergence(exponents: Tensor, x: Tensor, anchor: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(t, t_k (log t_k + anchor - x_k)) [n, k], from the target's exponents [n, K] and the logits x [n, k] of all
    number tokens or of those at ``places`` [k]; with an anchor [n, 1] near the largest logit, differences are small."""
    t, log_t = exponents.softmax(-1), exponents.log_softmax(-1)
    if places is not None:
        t, log_t = t[:, places], log_t[:, places]
    return t, t * torch.where(t > 0, log_t + (anchor - x), 0.0)


def other_groups(group: Group, places: Tensor) -> Tensor:
    """bool [n, k]: which number tokens, by their indices [k] among all, are not in groups with fields [n, 1]."""
    return (places < group.start) | (places >= group.start + group.size)


def divide(total: Any, denominator: Any) -> Any:
    """total / denominator, or 0 with zero gradient if the denominator is 0; for tensors and numbers."""
    if not isinstance(denominator, Tensor):
        if denominator == 0:
            return torch.zeros_like(total) if isinstance(total, Tensor) else 0.0
        return total / denominator
    is_zero = denominator == 0
    return torch.where(is_zero, 0.0, total / torch.where(is_zero, 1.0, denominator))
