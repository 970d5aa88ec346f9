"""The losses f(e) of the error e between expected value and label's value: one entry of `VALUE_LOSSES` per kind.

The kernels contain the same formulas (`value_loss` of :mod:`ntl_kernels.kernels.numbers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class ValueLoss(NamedTuple):
    """The functions of one kind (docs, Mathematics, eq. 11). All take ``huber_delta`` last."""

    loss: Callable[[Tensor, float], Tensor]  # f(e), elementwise; in the specification autograd differentiates it
    slope: Callable[[Tensor, float], Tensor]  # f'(e), elementwise, for backends that do not use autograd
    of_number: Callable[[float, float], float]  # f of one non-negative number, to compute limits without tensors
    gradient_bound: float  # The largest term of a gradient relative to the largest loss; at least 1


VALUE_LOSSES = {
    "mse": ValueLoss(
        loss=lambda e, _: F.mse_loss(e, torch.zeros_like(e), reduction="none"),
        slope=lambda e, _: 2 * e,
        of_number=lambda size, _: size**2,
        gradient_bound=4.0,
    ),
    "mae": ValueLoss(
        loss=lambda e, _: F.l1_loss(e, torch.zeros_like(e), reduction="none"),
        slope=lambda e, _: e.sign(),
        of_number=lambda size, _: size,
        gradient_bound=1.0,
    ),
    "huber": ValueLoss(
        loss=lambda e, delta: F.huber_loss(e, torch.zeros_like(e), reduction="none", delta=delta),
        slope=lambda e, delta: e.clamp(-delta, delta),
        of_number=lambda size, delta: 0.5 * size**2 if size < delta else delta * (size - 0.5 * delta),
        gradient_bound=4.0,
    ),
}
