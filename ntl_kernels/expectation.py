"""The expected value and number mass of every row of logits, and their gradient, on any backend."""

from __future__ import annotations

from torch import Tensor

from .backends import NumberField, load_backend
from .backends.layout import gradient_like
from .tokens import NumberTable

UNUSED = 1e30
"""The peak stored for a row whose upstream gradients are 0: finite in float32, also in units of log2(e)."""


def forward(logits: Tensor, table: NumberTable, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """(expected value [N], mass [N], statistics [len(NumberField), N]) of logits [B, T, V]."""
    statistics = load_backend(backend).number_statistics(logits, table)
    return statistics[NumberField.EXPECTED_VALUE].clone(), statistics[NumberField.MASS].clone(), statistics


def gradients(logits: Tensor, table: NumberTable, backend: str, statistics: Tensor, upstreams: Tensor) -> Tensor:
    """The gradient [B, T, V] for upstream gradients [2, N] of expected value and mass."""
    gradient = gradient_like(logits)
    # A row whose upstream gradients are 0 has a gradient of 0, even if it has no finite number logit: with so large a
    # peak all probabilities are 0 and none is NaN.
    statistics = statistics.masked_fill((upstreams == 0).all(0), UNUSED)
    load_backend(backend).number_statistics_gradients(logits, table, statistics, upstreams.contiguous(), gradient)
    return gradient
