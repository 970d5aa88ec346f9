"""`Problem`: everything one call computes with besides the logits, checked, and handed on whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .spec import LossSpec
from .tokens import NumberTable


class Problem(NamedTuple):
    """The rows' labels and weights, the numbers, and the loss. All tensors are on the logits' device.

    A row counts if its label is not ignored and its weight is not 0.
    """

    labels: Tensor
    """int64 or int32 [...] as the caller gave them; to the backends [N], contiguous, in the order of the rows."""
    token_weights: Tensor | None
    """Of the labels' shape; to the backends in the losses' dtype, contiguous. None means 1."""
    num_tokens: Tensor | float | None
    """Divides ``sum(w CE)`` of reduction "mean"; a 0-d tensor of any dtype, or None for ``sum(w)``."""
    num_numbers: Tensor | float | None
    """Divides ``sum(w NTL)``; None means ``sum(w)`` over the number rows."""
    ntl_weight: Tensor | float
    """lambda; a 0-d tensor of any floating dtype is read where it is needed, so that a schedule recompiles nothing."""
    table: NumberTable
    spec: LossSpec
    reduction: str
    """"mean", "sum" or "none"."""
    backend: str
    """"eager" or "triton"."""

    @property
    def lacks_denominators(self) -> bool:
        """Whether rows must be counted before the gradient of any of them is known."""
        return self.reduction == "mean" and (self.num_tokens is None or self.num_numbers is None)

    def of_rows(self, dtype: torch.dtype) -> Problem:
        """With labels and weights row by row, and the weights in the losses' dtype."""
        weights = self.token_weights
        return self._replace(
            labels=self.labels.reshape(-1).contiguous(),
            token_weights=None if weights is None else weights.reshape(-1).to(dtype).contiguous(),
        )

    def counted(self, tokens: Tensor | float, numbers: Tensor | float) -> Problem:
        """With the denominators that were not given replaced by the sums of w over all and over number rows."""
        return self._replace(
            num_tokens=tokens if self.num_tokens is None else self.num_tokens,
            num_numbers=numbers if self.num_numbers is None else self.num_numbers,
        )


def as_tensor(scalar: Tensor | float | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """A scalar as a 0-d tensor, which a graph takes as an operand: a new value is no new graph."""
    if scalar is None or isinstance(scalar, Tensor):
        return scalar
    if torch.compiler.is_compiling():  # `full` would make a graph for each float
        return torch.zeros((), dtype=dtype, device=device) + scalar
    return torch.full((), scalar, dtype=dtype, device=device)
