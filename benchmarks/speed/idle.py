"""A GPU that does nothing: Triton compiles kernels for it and launches them into the void.

What a call costs is then exactly what the host does, on a machine without any GPU. CPU tensors pass for the device's.
Only for a process of its own: kernels compiled here stay in Triton's caches, with a launcher that launches nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from types import SimpleNamespace
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


@cache
def idle_driver() -> SimpleNamespace:
    """The part of Triton's driver that compiling and launching use; ``launched`` has the names of all kernels launched.

    One for the process, as the compiled kernels that Triton keeps are bound to it.
    """
    from triton.backends.compiler import GPUTarget

    launched: list[str] = []
    return SimpleNamespace(
        launched=launched,
        launcher_cls=lambda source, metadata: lambda *arguments: launched.append(metadata.name),
        utils=SimpleNamespace(
            load_binary=lambda *binary: (MODULE, FUNCTION, 0, 0, 1024),  # and registers, spills, most threads
            unload_module=lambda module: None,
            get_device_properties=lambda device: PROPERTIES,
        ),
        get_current_device=lambda: DEVICE,
        get_current_stream=lambda device: STREAM,
        get_current_target=lambda: GPUTarget("cuda", CAPABILITY, WARP),
        get_active_torch_device=lambda: torch.device("cpu"),
    )


@contextmanager
def idle_device() -> Iterator[list[str]]:
    """Let CPU tensors go the way of a GPU's, and every kernel into the void: the names of those launched."""
    from triton.runtime import driver

    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("host times need compiled kernels; unset TRITON_INTERPRET")
    before = dict(vars(driver))
    driver.set_active(idle_driver())
    try:
        with cpu_as_device():
            yield idle_driver().launched
    finally:
        vars(driver).update(before)  # reading it would look for a device


def cpu_as_device() -> AbstractContextManager[object]:
    """Let CPU tensors go the way of a GPU's, at whose values nobody may look."""
    return patch.multiple(backends, TRITON_DEVICES=(*backends.TRITON_DEVICES, "cpu"), HOST_DEVICES=())
