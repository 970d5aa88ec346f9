"""Other ways in which the kernel of loss and gradient can walk its rows on an NVIDIA GPU, to be timed by `tune`.

A candidate's tile is built by the same functions as the tile in use, from other tables. Workers compile it ahead of
time by launching it on a few rows: Triton then finds it in its cache on disk.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from ntl_kernels import NTLConfig, cross_entropy_ntl
from ntl_kernels.spec import LossSpec

from ..inspect.roofline import REGISTERS
from ..inspect.workers import in_processes
from .workloads import Workload, make_case, number_tokens

THREADS = (128, 256, 512, 1024)
KEEP = (8, 12, 16)
FIELDS: dict[str, tuple[Any, ...]] = {"unroll": (4, 8)}
"""Other fields of a kept row's tile, with the values to try; all are combined."""
UNROLL = (2, 4, 8)
"""Vectors per thread at a time, where nothing is kept."""
FEW_ROWS = 16
ROW_KERNEL = "row_losses_kernel"


class Candidate(NamedTuple):
    """One way to walk a row."""

    threads: int
    keep: int | None
    """The most vectors that a thread keeps; 0: none; None: as many as for other threads."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Other fields of the tile."""

    def __str__(self) -> str:
        kept = f"keep {self.keep}" if self.keep else "streamed"
        return ", ".join([f"{self.threads} threads {kept}", *(f"{name} {value}" for name, value in self.fields)])


Item = tuple[Workload, torch.device, "Candidate | None"]


def candidates() -> list[Candidate]:
    """Every combination; 1,024 threads have registers for 4 kept vectors."""
    others = [tuple(zip(FIELDS, values, strict=True)) for values in product(*FIELDS.values())]
    kept = [*product(THREADS[:-1], KEEP), (THREADS[-1], 4)]
    found = [Candidate(threads, keep, fields) for threads, keep in kept for fields in others]
    return found + [Candidate(threads, 0, (("unroll", unroll),)) for threads in THREADS for unroll in UNROLL]


@cache
def candidate_tile(
    candidate: Candidate, row_bytes: int, item: int, aligned: bool, block: int, options: Any, major: int
) -> Any:
    """The tile and launch options of :func:`~ntl_kernels.backends.tiles.kept_tile`, if its tables had this candidate;
    those of a row that is not kept, if the candidate keeps nothing."""
    from ntl_kernels.backends import tiles

    line = ((math.inf, candidate.threads),)
    if candidate.keep == 0:
        with patch.object(tiles, "STREAMED", line):
            unroll = dict(candidate.fields)["unroll"]
            return tiles.tile_for.__wrapped__(row_bytes, item, aligned, True, unroll, 0, "cuda")
    registers = min(tiles.KEPT_REGISTERS, REGISTERS // candidate.threads)
    others: dict[str, Any] = {"KEPT_REGISTERS": registers}
    if candidate.keep is not None:
        limits = {name: value for name, value in vars(tiles).items() if name.startswith("MOST_KEPT")}
        keep = candidate.keep
        others |= {
            name: keep if isinstance(value, int) else dict.fromkeys(value, keep) for name, value in limits.items()
        }
    with patch.multiple(tiles, KEPT=line, **others):
        found = tiles.kept_tile.__wrapped__(row_bytes, item, aligned, block, options, major)
    if found is None:
        return None
    tile, launch_options = found
    fields = {name: value for name, value in candidate.fields if name != "unroll" or not tile.whole}
    return tile._replace(**fields), launch_options  # a row that is whole has no front to unroll


@contextmanager
def walking(candidate: Candidate | None) -> Iterator[None]:
    """Make the kernel of loss and gradient walk its rows this way; None: as it does."""
    from ntl_kernels.backends import triton as backend

    chosen = backend.kept_tile if candidate is None else partial(candidate_tile, candidate)
    with patch.object(backend, "kept_tile", chosen):
        yield


def tile_on(workload: Workload, device: torch.device, candidate: Candidate | None = None) -> Any:
    """The tile of a workload's rows on an NVIDIA GPU; without a candidate, the one in use."""
    from ntl_kernels.backends import triton as backend

    logits = torch.empty(1, 2, workload.vocab, dtype=getattr(torch, workload.dtype), device=device)
    options = backend.options_of(LossSpec.resolve(NTLConfig(), number_tokens(workload)), logits)
    with walking(candidate):
        return backend.loss_tile(logits, logits, options, backend.next_power_of_2(workload.numbers), walks=2)[0]


def streamed_now(row_bytes: int) -> Candidate:
    """The candidate that is in use for rows that are not kept."""
    from ntl_kernels.backends import tiles

    return streamed_by(next(threads for most, threads in tiles.STREAMED if row_bytes <= most))


def streamed_by(threads: int) -> Candidate:
    """The candidate that keeps nothing and otherwise follows the tables."""
    from ntl_kernels.backends import tiles

    return Candidate(threads, 0, (("unroll", tiles.UNROLL),))


def needs_only_threads(candidate: Candidate, workload: Workload, device: torch.device) -> bool:
    """Whether the tables give the candidate's tile once a line has its number of threads."""
    from ntl_kernels.backends import tiles

    if candidate.keep == 0:
        return candidate == streamed_by(candidate.threads)
    fits = candidate.threads * tiles.KEPT_REGISTERS <= REGISTERS
    followed = Candidate(candidate.threads, None)
    return fits and tile_on(workload, device, candidate) == tile_on(workload, device, followed)


def distinct(workload: Workload, device: torch.device) -> dict[Any, Candidate | None]:
    """Tile -> the first candidate that has it; None for the tile in use."""
    found: dict[Any, Candidate | None] = {tile_on(workload, device): None}
    for candidate in candidates():
        found.setdefault(tile_on(workload, device, candidate), candidate)
    return found


def kernel_of(tile: Any, workload: Workload) -> Any:
    """What distinguishes the compiled kernels of workloads: the tile, and whether the distance between rows is a
    multiple of 16 elements."""
    return tile, workload.vocab % 16 == 0


def compiled_ahead(
    workloads: Iterable[Workload], device: torch.device, fault_of: Callable[[Item], str | None]
) -> dict[Any, str]:
    """Compile the distinct candidates of all workloads in as many processes as there are cores; return those with a
    fault, by :func:`kernel_of`."""
    items = {
        kernel_of(tile, workload): (workload, device, candidate)
        for workload in workloads
        for tile, candidate in distinct(workload, device).items()
    }
    workers = min(len(items), len(os.sched_getaffinity(0)))
    try:
        found = in_processes(fault_of, items.values(), workers)
    except BrokenProcessPool:  # a crash of the compiler ends its process, and with it the others
        with ThreadPoolExecutor(workers) as threads:
            found = list(threads.map(partial(fault_alone, fault_of), items.values()))
    return {kernel: fault for kernel, fault in zip(items, found, strict=True) if fault is not None}


def fault_alone(fault_of: Callable[[Item], str | None], item: Item) -> str | None:
    """The fault of an item, by a process of its own."""
    try:
        return in_processes(fault_of, [item], 1)[0]
    except BrokenProcessPool:
        return "the process that compiled it crashed"


def fault(item: Item) -> str | None:
    """Compile a candidate for a workload by running it on a few rows; return why it should not be timed."""
    from ntl_kernels.backends import launch

    workload, device, candidate = item
    launch.COMPILED.clear()
    case = make_case(replace(workload, rows=FEW_ROWS), device)
    logits, labels = case.sets[0].logits, case.sets[0].labels
    try:
        with walking(candidate):
            torch.autograd.grad(cross_entropy_ntl(logits, labels, case.numbers), logits)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # of any stage of the compiler, or of the launch
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
    (kernel,) = (kernel for kernel in launch.COMPILED.values() if kernel.metadata.name == ROW_KERNEL)
    return f"spills {kernel.n_spills} registers" if kernel.n_spills else None
