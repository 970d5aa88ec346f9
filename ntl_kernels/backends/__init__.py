"""Selects a backend, a module with the functions of :mod:`.contract`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import cast

import torch
from torch import Tensor

from .contract import Backend, ShardBackend

BACKENDS = ("auto", "triton", "eager", "reference")
TRITON_DEVICES = ("cuda", "xpu")  # ROCm's devices are called cuda too
HOST_DEVICES = ("cpu",)
"""Devices whose values can be read without waiting."""
HAS_TRITON = importlib.util.find_spec("triton") is not None


@cache
def load_backend(name: str) -> Backend:
    """The module ``eager`` or ``triton``."""
    return cast(Backend, importlib.import_module(f"{__name__}.{name}"))


def load_shard_backend(name: str) -> ShardBackend:
    """The module ``eager_shards`` or ``triton_shards``."""
    return cast(ShardBackend, importlib.import_module(f"{__name__}.{name}_shards"))


def resolve_backend(backend: str, logits: Tensor) -> str:
    """The backend to run: ``auto`` is triton on supported devices if Triton can be imported, otherwise eager.

    Raises:
        ValueError: the name is unknown, or "triton" does not support the tensor's device.
        TypeError: "triton" was selected for float64.
        ImportError: "triton" was selected, but Triton is not installed.
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
        raise TypeError("backend='triton' supports float32, bfloat16 and float16 logits; got float64")
    if not on_device and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"backend='triton' needs a GPU tensor (or the environment variable TRITON_INTERPRET=1); "
            f"got one on {logits.device}"
        )
    return backend
