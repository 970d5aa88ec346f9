"""Other ways in which the kernel of loss and gradient can walk its rows on an NVIDIA GPU, to be timed by `tune`.

A candidate's tile is built by the same functions as the tile in use, from other tables. Workers compile it ahead of
time by launching it on a few rows: Triton then finds it in its cache on disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from ntl_kernels import NTLConfig
from ntl_kernels.spec import spec_of

from ..inspect.workers import on_all_cores
from .providers import by_autograd, ours
from .workloads import Workload, make_case, number_tokens

THREADS = (128, 256, 512, 1024)
KEEP = (8, 12, 16)
UNROLL = (4, 8)
UNROLL_STREAMED = (2, 4, 8)
ROW_KERNEL = "row_losses_kernel"


class Candidate(NamedTuple):
    """One way to walk a row; with None, as the tables say for this number of threads."""

    threads: int
    keep: int | None = None
    """The most vectors that a thread keeps; 0: the row is streamed."""
    unroll: int | None = None
    """Vectors per thread at a time."""

    def __str__(self) -> str:
        kept = {None: "", 0: " streamed"}.get(self.keep, f" keep {self.keep}")
        return f"{self.threads} threads{kept}" + (f", unroll {self.unroll}" if self.unroll else "")


Item = tuple[Workload, torch.device, Candidate | None]
"""A candidate for a workload on a device; None: the tile in use."""


def candidates() -> list[Candidate]:
    """First those that follow the tables in all but threads; 1,024 threads have registers for 4 kept vectors."""
    followers = product(THREADS, (None, 0), (None,))
    kept = [*product(THREADS[:-1], KEEP, UNROLL), *product(THREADS[-1:], (4,), UNROLL)]
    return [Candidate(*values) for values in [*followers, *kept, *product(THREADS, (0,), UNROLL_STREAMED)]]


@cache
def candidate_tile(candidate: Candidate, *arguments: Any) -> Any:
    """What :func:`~ntl_kernels.backends.tiles.kept_tile` returns if its tables have this candidate; the tile of a row
    that is not kept, if the candidate keeps nothing."""
    from ntl_kernels.backends import tiles

    threads, keep, unroll = candidate
    line = ((math.inf, threads),)
    if keep == 0:
        row_bytes, item, aligned, stays, *_ = arguments
        with patch.object(tiles, "STREAMED", line):
            return tiles.tile_for.__wrapped__(row_bytes, item, aligned, True, stays, unroll or tiles.UNROLL, 0, "cuda")
    limits = {name: value for name, value in vars(tiles).items() if name.startswith("MOST_KEPT") and keep is not None}
    kept = {name: dict.fromkeys(value, keep) if isinstance(value, dict) else keep for name, value in limits.items()}
    with patch.multiple(tiles, KEPT=line, **kept):
        found = tiles.kept_tile.__wrapped__(*arguments)
    is_as_found = found is None or found[0].whole or unroll is None  # a row that is whole has no front to unroll
    return found if is_as_found else (found[0]._replace(unroll=unroll), found[1])


def walking(candidate: Candidate | None) -> AbstractContextManager[Any]:
    """Make the kernel of loss and gradient walk its rows this way; None: as it does."""
    from ntl_kernels.backends import triton as backend

    chosen = backend.kept_tile if candidate is None else partial(candidate_tile, candidate)
    return patch.object(backend, "kept_tile", chosen)


def few_rows(workload: Workload) -> Workload:
    """As few rows as still get the same tile: more than the L2 cache holds if those of the workload are."""
    from ntl_kernels.backends import tiles

    return replace(workload, rows=min(workload.rows, tiles.CACHED_BYTES // (workload.vocab * workload.item_bytes) + 1))


@cache
def tile_on(workload: Workload, device: torch.device, candidate: Candidate | None = None) -> Any:
    """The tile of a workload's rows on an NVIDIA GPU; without a candidate, the one in use."""
    from ntl_kernels.backends import triton as backend

    shape = 1, few_rows(workload).rows, workload.vocab
    logits = torch.empty(shape, dtype=getattr(torch, workload.dtype), device=device)
    options = backend.options_of(spec_of(NTLConfig(), number_tokens(workload)), logits.element_size(), backend.PLATFORM)
    with walking(candidate):
        return backend.loss_tile(logits, logits, options, backend.next_power_of_2(workload.numbers))[0]


def distinct(workload: Workload, device: torch.device) -> dict[Any, Candidate | None]:
    """Tile -> the first candidate that has it; None for the tile in use."""
    found: dict[Any, Candidate | None] = {tile_on(workload, device): None}
    for candidate in candidates():
        found.setdefault(tile_on(workload, device, candidate), candidate)
    return found


def compiled_ahead(workloads: Iterable[Workload], device: torch.device) -> dict[Item, str]:
    """Compile the distinct candidates of all workloads in as many processes as there are cores; return the faults."""
    items = [(workload, device, way) for workload in workloads for way in distinct(workload, device).values()]
    return {item: fault for item, fault in zip(items, on_all_cores(fault_in, items), strict=True) if fault}


def fault_in(item: Item) -> str | None:
    """Compile a candidate for a workload by running it on a few rows; return why it should not be timed."""
    from ntl_kernels.backends import launch

    workload, device, candidate = item
    launch.COMPILED.clear()
    case = make_case(few_rows(workload), device)
    try:
        with walking(candidate):
            by_autograd(ours)(case)(0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # of any stage of the compiler, or of the launch
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
    (kernel,) = (kernel for kernel in launch.COMPILED.values() if kernel.metadata.name == ROW_KERNEL)
    return f"spills {kernel.n_spills} registers" if kernel.n_spills else None
