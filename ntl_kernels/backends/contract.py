"""The row contract: what `eager` and `triton` both implement.

A backend is a module with the functions of :class:`Backend`. ``forward`` is the whole forward pass over logits;
``count``, ``row_losses`` and ``finish`` are its steps, for those who make their logits a chunk at a time. The gradient
comes either from the forward pass itself and ``scale_`` later, or from ``row_gradients`` in the backward pass.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from ..problem import Forward, Problem
from ..tokens import NumberTable


class NumberField(IntEnum):
    """The rows of ``statistics`` [len(NumberField), N]: what one row says about numbers, whatever its label."""

    PEAK = 0  # this and the next three: normalisers, as of Field, over all tokens
    TOTAL = 1
    NUMBER_PEAK = 2  # and over the number tokens
    NUMBER_TOTAL = 3
    EXPECTED_VALUE = 4  # yhat
    MASS = 5  # m


class Backend(Protocol):
    """N = B * T rows of logits [B, T, V] float32, bfloat16 or float16 (float64 on eager) with a last stride of 1, no
    two elements of which share memory. ``gradient`` has their shape and dtype and may be the logits themselves."""

    def forward(self, logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
        """The losses of all rows and, into ``gradient``, that of the reduced loss for an upstream gradient of 1."""
        ...

    def count(self, problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
        """[2] of the losses' dtype: the sums of w over all rows that count and over the number rows among them."""
        ...

    def row_losses(self, logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
        """Fill ``fields`` [len(Field), N], contiguous, and, if given, ``gradient``.

        The gradient is that of the reduced loss for an upstream gradient of 1. Reduction "mean" needs both
        denominators in the problem.
        """
        ...

    def finish(self, fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """(loss, parts) of :class:`Forward` from the fields of all rows."""
        ...

    def row_gradients(
        self, logits: Tensor, problem: Problem, normalisers: Tensor, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` from the logits and their ``normalisers`` [2, N], contiguous, as the same backend found
        them; ``upstream`` is [N] for "none", else 0-d."""
        ...

    def scale_(self, gradient: Tensor, upstream: Tensor) -> None:
        """gradient [B, T, V] *= upstream (0-d), without touching memory when upstream is exactly 1.

        A row of zeros, such as one that does not count, stays one even if upstream is not finite.
        """
        ...

    def number_statistics(self, logits: Tensor, table: NumberTable) -> Tensor:
        """[len(NumberField), N]"""
        ...

    def number_statistics_gradients(
        self, logits: Tensor, table: NumberTable, statistics: Tensor, upstreams: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` with that of ``sum(upstreams[0] * yhat + upstreams[1] * m)``; ``upstreams`` is [2, N]."""
        ...
