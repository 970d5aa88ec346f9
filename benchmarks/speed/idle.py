"""A GPU that does nothing: Triton compiles kernels for it and launches them into the void.

What a call costs is then exactly what the host does, on a machine without any GPU. CPU tensors pass for the device's.
Only for a process of its own: kernels compiled here stay in Triton's caches, with a launcher that launches nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from .replace import replaced

CAPABILITY, WARP = 90, 32
"""Of a Hopper GPU."""
DEVICE, STREAM = 1024, 0
"""An index that no real device has, since Triton keeps compiled kernels by it."""
PROPERTIES = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": WARP}


@dataclass
class Launches:
    """What was launched so far."""

    kernels: list[str] = field(default_factory=list)


class IdleLauncher:
    """A compiled kernel's launcher: keeps its name and does nothing."""

    def __init__(self, launches: Launches, source: Any, metadata: Any) -> None:
        self.launches, self.name = launches, metadata.name

    def __call__(self, *arguments: Any) -> None:
        self.launches.kernels.append(self.name)


class IdleDriver:
    """The part of Triton's driver that compiling and launching use."""

    def __init__(self, launches: Launches) -> None:
        self.launcher_cls = partial(IdleLauncher, launches)
        self.utils = SimpleNamespace(
            load_binary=lambda *binary: (None, None, 0, 0, 1024),  # module, function, registers, spills, most threads
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


@contextmanager
def idle_device() -> Iterator[Launches]:
    """Let CPU tensors go the way of a GPU's, and every kernel be launched into the void.

    Raises:
        RuntimeError: Triton interprets kernels in this process, and so would never launch any.
    """
    from triton.runtime import driver

    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("host times need compiled kernels; unset TRITON_INTERPRET")
    launches = Launches()
    with ExitStack() as stack:
        driver.set_active(IdleDriver(launches))
        stack.callback(driver.set_active, None)  # the default one, found when it is asked for
        pretend_device(stack)
        yield launches


def pretend_device(stack: ExitStack) -> None:
    """Let the package take the CPU for a device of Triton's, at whose values nobody may look."""
    from ntl_kernels import backends, linear, ops

    stack.enter_context(replaced(backends, "TRITON_DEVICES", (*backends.TRITON_DEVICES, "cpu")))
    if hasattr(backends, "HOST_DEVICES"):
        stack.enter_context(replaced(backends, "HOST_DEVICES", ()))
    else:
        for module in (ops, linear):
            stack.enter_context(replaced(module, "check_values", lambda *arguments: None))
