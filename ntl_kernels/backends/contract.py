"""The row contract: the interface that `eager` and `triton` both implement.

A backend is a module with the functions of :class:`Backend`. ``forward`` is the whole forward pass over logits. Its
steps ``count``, ``row_losses`` and ``finish`` are for callers that compute their logits in chunks. The gradient either
comes from the forward pass and is later scaled by ``scale_``, or from ``row_gradients`` in the backward pass.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..problem import Forward, Problem


class Backend(Protocol):
    """Functions on N = B * T rows of logits [B, T, V], float32, bfloat16 or float16 (also float64 on eager), with last
    stride 1 and without overlapping elements. ``gradient`` has the same shape and dtype and may be the logits."""

    def forward(self, logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
        """The losses of all rows; writes the gradient of the reduced loss for an upstream gradient of 1 to
        ``gradient``."""
        ...

    def count(self, problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
        """[2] in the losses' dtype: the sums of w over all rows that count and over the number rows."""
        ...

    def row_losses(self, logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
        """Fill ``fields`` [len(Field), N] (contiguous) and, if given, ``gradient``.

        The gradient is that of the reduced loss for an upstream gradient of 1. For reduction "mean" the problem must
        contain both denominators.
        """
        ...

    def finish(self, fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """(loss, parts) of :class:`Forward` from the fields of all rows."""
        ...

    def row_gradients(
        self, logits: Tensor, problem: Problem, fields: Tensor, upstream: Tensor, gradient: Tensor
    ) -> None:
        """Fill ``gradient`` from the logits and their ``fields`` (contiguous), computed by the same backend;
        ``upstream`` is [N] for "none", else 0-d."""
        ...

    def scale_(self, gradient: Tensor, upstream: Tensor) -> None:
        """gradient [B, T, V] *= upstream (0-d), without accessing memory if upstream is exactly 1.

        A row of zeros, such as one that does not count, stays 0 even if upstream is not finite.
        """
        ...
