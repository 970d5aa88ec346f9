"""The row contract: what `eager` and `triton` both implement, and the choice between them.

A backend is a module with the functions of :class:`Backend`. ``forward`` is the whole forward pass over logits;
``count``, ``row_losses`` and ``finish`` are its steps, for those who make their logits a chunk at a time. The gradient
comes either from the forward pass itself and ``scale_`` later, or from ``row_gradients`` in the backward pass.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from enum import IntEnum
from functools import cache
from typing import Protocol, cast

import torch
from torch import Tensor

from ..problem import NUM_PARTS, Field, Forward, Problem, losses_of_rows, normalisers_of
from ..tokens import NumberTable

__all__ = [
    "NUM_PARTS",
    "Backend",
    "Field",
    "Forward",
    "NumberField",
    "load_backend",
    "losses_of_rows",
    "normalisers_of",
    "resolve_backend",
]
BACKENDS = ("auto", "triton", "eager", "reference")
TRITON_DEVICES = ("cuda", "xpu")  # ROCm's devices are called cuda too
HOST_DEVICES = ("cpu",)
"""At whose values one may look without waiting."""
HAS_TRITON = importlib.util.find_spec("triton") is not None


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


@cache
def load_backend(name: str) -> Backend:
    """The module ``eager`` or ``triton``."""
    return cast(Backend, importlib.import_module(f"{__name__}.{name}"))


def resolve_backend(backend: str, logits: Tensor) -> str:
    """The backend to run: ``auto`` is triton on devices it knows when it imports, else eager.

    Raises:
        ValueError: unknown name, or "triton" for a tensor on a device it does not run on.
        TypeError: "triton" for float64.
        ImportError: "triton" where Triton is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    on_device = logits.device.type in TRITON_DEVICES
    if backend == "auto":
        return "triton" if on_device and logits.dtype != torch.float64 and HAS_TRITON else "eager"
    if backend != "triton":
        return backend
    if not HAS_TRITON:
        raise ImportError("backend='triton' needs the package triton, which is not installed")
    if logits.dtype == torch.float64:
        raise TypeError("backend='triton' takes float32, bfloat16 or float16 logits; got float64")
    if not on_device and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"backend='triton' needs a GPU tensor (or the environment variable TRITON_INTERPRET=1); "
            f"got one on {logits.device}"
        )
    return backend
