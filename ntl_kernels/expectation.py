"""What every row of logits says about numbers, and the gradient of it, over any backend."""

from __future__ import annotations

from torch import Tensor

from .backends import NumberField, load_backend
from .backends.layout import gradient_like
from .tokens import NumberTable

UNUSED = 1e30
"""The statistics of a row without upstream gradients: finite in float32, also in units of log2(e)."""


def forward(logits: Tensor, table: NumberTable, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """(expected value [N], mass [N], statistics [len(NumberField), N]) of logits [B, T, V]."""
    statistics = load_backend(backend).number_statistics(logits, table)
    return statistics[NumberField.EXPECTED_VALUE].clone(), statistics[NumberField.MASS].clone(), statistics


def gradients(logits: Tensor, table: NumberTable, backend: str, statistics: Tensor, upstreams: Tensor) -> Tensor:
    """The gradient [B, T, V] for upstream gradients [2, N] of expected value and mass."""
    gradient = gradient_like(logits)
    # A row that nobody asks about has a gradient of 0, even without a finite number logit: so large a peak makes every
    # probability 0, and none NaN.
    statistics = statistics.masked_fill((upstreams == 0).all(0), UNUSED)
    load_backend(backend).number_statistics_gradients(logits, table, statistics, upstreams.contiguous(), gradient)
    return gradient
