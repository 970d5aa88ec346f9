"""Controls whether memory that a step frees stays with the process or is returned and mapped again at the next step."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..commands import InputError

FRESH, KEPT = WAYS = ("fresh", "kept")
BOTH, PREPARING = "both", "preparing"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
KIB, MIB = 2**10, 2**20
NEVER, MOST_MAPPINGS = -1, 65536
PARAMETERS = {
    PREPARING: (128 * KIB, 128 * KIB, MOST_MAPPINGS),
    FRESH: (32 * MIB, 64 * MIB, MOST_MAPPINGS),
    KEPT: (32 * MIB, NEVER, 0),
}
"""glibc's thresholds: the size from which memory is mapped separately, the size of the free heap end beyond which it is
returned, and the maximum number of mappings. "Fresh" is the limit that glibc's dynamic default reaches as larger and
larger tensors are freed. While a workload is prepared, all tensors are mapped: a hole in the heap would be reused, and
would be kept memory."""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Prefixes of environment variables that change the allocator or its behaviour."""


def ways(device: torch.device, chosen: str) -> tuple[str | None, ...]:
    """The ways of memory to measure, fresh first, because a process cannot fully switch back. None if there is no
    choice."""
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        return (None,)
    return WAYS if chosen == BOTH else (chosen,)


def refuse_settings() -> None:
    """Raise if the environment makes "fresh" differ from PyTorch's default."""
    found = [name for name in os.environ if name.startswith(SETTINGS)]
    if found:
        raise InputError(f"unset {', '.join(found)}: the run itself sets how freed memory is treated (--memory)")


@contextmanager
def treated(way: str | None) -> Iterator[None]:
    """Set the allocator to a way of memory; None leaves it unchanged."""
    if way is None:
        yield
        return
    set_allocator(way)
    try:
        yield
    finally:
        set_allocator(FRESH)


def set_allocator(way: str) -> None:
    mallopt = ctypes.CDLL(None).mallopt
    parameters = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_MMAP_MAX)
    if not all(mallopt(parameter, value) for parameter, value in zip(parameters, PARAMETERS[way], strict=True)):
        raise RuntimeError("glibc's mallopt refused its arguments")


def faults() -> int:
    """The number of page faults of this process so far that did not read from disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
