"""Whether memory that a step frees stays with the process, or is given back and mapped anew at the next step."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import InputError

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
"""From which size on memory is mapped on its own, beyond which size a free end of the heap is given back, and how many
mappings there may be. Fresh is how far glibc's default goes by itself, as larger and larger tensors are freed. While a
workload is prepared all tensors are mapped: a hole in the heap would be used again, and be kept memory."""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""How variables begin that choose another allocator, or another behaviour of glibc's."""


def ways(device: torch.device, chosen: str) -> tuple[str | None, ...]:
    """The ways to measure, fresh first: a process cannot quite go back. None where memory is no choice of ours."""
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        return (None,)
    return WAYS if chosen == BOTH else (chosen,)


def refuse_settings() -> None:
    """An error where the environment makes "fresh" something else than what PyTorch gets by default."""
    found = [name for name in os.environ if name.startswith(SETTINGS)]
    if found:
        raise InputError(f"unset {', '.join(found)}: the run itself chooses how freed memory is treated (--memory)")


@contextmanager
def treated(way: str | None) -> Iterator[None]:
    """Let the allocator do as one of the ways has it; None: as it does anyhow."""
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
    """Pages that this process has had mapped so far, without reading them from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
