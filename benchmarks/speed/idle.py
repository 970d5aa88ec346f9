"""A GPU that does nothing: Triton compiles kernels for it and launches them into the void.

What a call costs is then exactly what the host does, on a machine without any GPU. CPU tensors pass for the device's.
Only for a process of its own: kernels compiled here stay in Triton's caches, with a launcher that launches nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from ntl_kernels import backends

CAPABILITY, WARP = 90, 32
"""Of a Hopper GPU."""
DEVICE, STREAM = 1024, 0
"""An index that no real device has, since Triton keeps compiled kernels by it."""
MODULE, FUNCTION = 1, 2
"""Handles of what is not loaded; Triton loads again what has none."""
PROPERTIES = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": WARP}


class IdleLauncher:
    """A compiled kernel's launcher: keeps its name and does nothing."""

    def __init__(self, launched: list[str], source: Any, metadata: Any) -> None:
        self.launched, self.name = launched, metadata.name

    def __call__(self, *arguments: Any) -> None:
        self.launched.append(self.name)


class IdleDriver:
    """The part of Triton's driver that compiling and launching use."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        """The names of all kernels that were launched."""
        self.launcher_cls = partial(IdleLauncher, self.launched)
        self.utils = SimpleNamespace(
            load_binary=lambda *binary: (MODULE, FUNCTION, 0, 0, 1024),  # and registers, spills, most threads
            unload_module=lambda module: None,
            get_device_properties=lambda device: PROPERTIES,
        )

    def get_current_device(self) -> int:
        return DEVICE

    def get_current_stream(self, device: int) -> int:
        return STREAM

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, WARP)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


DRIVER = IdleDriver()
"""One for the process, as the compiled kernels that Triton keeps are bound to it."""


@contextmanager
def idle_device() -> Iterator[list[str]]:
    """Let CPU tensors go the way of a GPU's, and every kernel be launched into the void: the names of those launched.

    Raises:
        RuntimeError: Triton interprets kernels in this process, and so would never launch any.
    """
    from triton.runtime import driver

    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("host times need compiled kernels; unset TRITON_INTERPRET")
    driver.set_active(DRIVER)
    try:
        with cpu_as_device():
            yield DRIVER.launched
    finally:
        driver.set_active(None)  # the default one, found when it is asked for


def cpu_as_device() -> AbstractContextManager[Any]:
    """Let CPU tensors go the way of a GPU's, so that nobody may look at their values."""
    return patch.multiple(backends, TRITON_DEVICES=(*backends.TRITON_DEVICES, "cpu"), HOST_DEVICES=())
