"""A fake GPU: Triton compiles kernels for it, but launching them does nothing.

The time of a call is then exactly the host's work, measurable on a machine without a GPU. CPU tensors stand in for
tensors on the device. Use it only in a separate process: kernels compiled here stay in Triton's caches, with a launcher
that launches nothing.
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
"""Compute capability of a Hopper GPU."""
DEVICE, STREAM = 1024, 0
"""An index that no real device has, because Triton caches compiled kernels by device index."""
MODULE, FUNCTION = 1, 2
"""Handles of kernels that are not loaded; without handles Triton would try to load them again."""
PROPERTIES = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": WARP}


@cache
def idle_driver() -> SimpleNamespace:
    """The part of Triton's driver that compiling and launching use; ``launched`` lists the names of launched kernels.

    There is one per process, because the compiled kernels that Triton caches are bound to it.
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
    """Send CPU tensors through the GPU path without running kernels; yields the names of the launched kernels."""
    from triton.runtime import driver

    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("host times need compiled kernels; unset TRITON_INTERPRET")
    before = dict(vars(driver))
    driver.set_active(idle_driver())
    try:
        with cpu_as_device():
            yield idle_driver().launched
    finally:
        vars(driver).update(before)  # reading the attribute would look for a device


def cpu_as_device() -> AbstractContextManager[object]:
    """Send CPU tensors through the GPU path, where values must not be read."""
    return patch.multiple(backends, TRITON_DEVICES=(*backends.TRITON_DEVICES, "cpu"), HOST_DEVICES=())
