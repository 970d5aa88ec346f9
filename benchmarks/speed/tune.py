"""Time our loss with other launch settings, to justify the tables in the backends.

Triton: how the kernel of loss and gradient walks a row (:mod:`.candidates`), compiled in all processes before anything
is timed. Eager: bytes of a block of rows. Every setting passes the gate like a provider, and all are timed alternately
on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ntl_kernels.backends.eager import blocks

from ..published import markdown
from .candidates import (
    Candidate,
    candidates,
    compiled_ahead,
    distinct,
    fault,
    kernel_of,
    needs_only_threads,
    tile_on,
    walking,
)
from .providers import Provider, by_autograd, ours, providers_of
from .results import Record, percentiles, timed
from .run import NOT_TIMED, Settings, run_workload, suite_of, write_records
from .tables import milliseconds
from .tile_tables import Row, Span, tables_of
from .workloads import Case, Step, Workload

BLOCK_BYTES = tuple(2**power for power in range(19, 27))
BOUND = "copy"
PRESENT = "as it is"
FILE = "tune"
Setting = Callable[[], AbstractContextManager[Any]]
Faults = Mapping[Any, str]
"""Kernel -> why it should not be timed."""


def tune(settings: Settings, folder: Path) -> str:
    """Time every setting on the chosen workloads and write ``folder/<device>/tune.json``; return its path, a table, and
    the lines of the tables of tiles."""
    chosen, is_gpu = suite_of(settings), settings.device.type != "cpu"
    faults = compiled_ahead(chosen, settings.device, fault) if is_gpu else {}
    for workload in chosen if is_gpu else ():
        for candidate, reason in left_out(workload, settings.device, faults).items():
            print(f"left out for {workload.name}: {candidate}: {reason}", flush=True)
    if settings.compile_only:
        return NOT_TIMED

    def measured(workload: Workload, settings: Settings) -> list[Record]:
        ways = tiles_to_time(workload, settings.device, faults) if is_gpu else sizes_to_time()
        settable = [Provider(name, name, "logits", "ce+ntl", under(setting)) for name, setting in ways.items()]
        providers = [*providers_of("logits", (BOUND,)), *settable]
        return run_workload(workload, settings, providers, observed=False)

    target, records = write_records(chosen, settings, folder, measured, FILE, fresh=True)
    header = ["workload", "dtype", "row bytes", "fastest", "ms", "current ms", "gain", "spread"]
    parts = [f"{target / FILE}.json", markdown(header, map(winner, records))]
    if is_gpu:
        parts += tables_of([by_candidate(*pair, settings.device) for pair in zip(chosen, records, strict=True)])
    return "\n\n".join(parts)


def left_out(workload: Workload, device: torch.device, faults: Faults) -> dict[Candidate, str]:
    """The candidates with a fault; the tile in use is always timed."""
    kernels = {candidate: kernel_of(tile, workload) for tile, candidate in distinct(workload, device).items()}
    return {way: faults[kernel] for way, kernel in kernels.items() if way is not None and kernel in faults}


def tiles_to_time(workload: Workload, device: torch.device, faults: Faults) -> dict[str, Setting]:
    """The tile in use and all others without a fault."""
    ways = [way for way in distinct(workload, device).values() if way not in left_out(workload, device, faults)]
    return {label(way): partial(walking, way) for way in ways}


def sizes_to_time() -> dict[str, Setting]:
    """The current size of a block of rows and the alternatives."""
    sizes = {f"blocks of {size // 1024} KiB": size for size in BLOCK_BYTES}
    alternatives = {name: partial(patch.dict, blocks.BLOCK_BYTES, cpu=size) for name, size in sizes.items()}
    return {PRESENT: nullcontext, **alternatives}


def label(candidate: Candidate | None) -> str:
    return PRESENT if candidate is None else str(candidate)


def under(setting: Setting) -> Callable[[Case], Step]:
    """Our loss, with every step run under a setting."""

    def build(case: Case) -> Step:
        plain = by_autograd(ours)(case)

        def step(index: int) -> Any:
            with setting():
                return plain(index)

        return step

    return build


def spans(record: Record) -> dict[str, Span]:
    """Setting -> its times."""
    return {name: Span(*percentiles(entry["samples_s"])) for name, entry in timed(record).items() if name != BOUND}


def winner(record: Record) -> list[str]:
    """The fastest setting of a workload compared with the current one."""
    times = spans(record)
    best = min(times, key=lambda name: times[name].median)
    found, present = times[best], times[PRESENT]
    row_bytes = record["logits_bytes"] // record["rows"]
    numbers = [milliseconds(found.median), milliseconds(present.median), f"{1 - found.median / present.median:.1%}"]
    return [record["name"], record["dtype"], str(row_bytes), best, *numbers, f"{max(found.spread, present.spread):.1%}"]


def by_candidate(workload: Workload, record: Record, device: torch.device) -> Row:
    """The times of a workload's rows under every candidate, also those that share a tile."""
    times, first = spans(record), distinct(workload, device)
    names = {way: label(first[tile_on(workload, device, way)]) for way in (None, *candidates())}
    by_threads = frozenset(way for way in candidates() if needs_only_threads(way, workload, device))
    known = {way: times[name] for way, name in names.items() if name in times}
    return Row(workload.vocab * workload.item_bytes, known, by_threads)
