"""Time our loss with other launch settings, to justify the tables in the backends.

Triton: how the kernel of loss and gradient walks a row (:mod:`.candidates`), compiled in all processes before anything
is timed. Eager: bytes of a block of rows. Every setting passes the gate like a provider, and all are timed alternately
on the same tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ntl_kernels.backends.eager import blocks

from ..table import Table
from .candidates import THREADS, Candidate, Item, compiled_ahead, distinct, tile_on, walking
from .providers import Provider, by_autograd, ours, providers_of
from .results import Record, percentiles, timed
from .run import NOT_TIMED, Settings, run_workload, suite_of, write_records
from .tables import milliseconds
from .workloads import Case, Step, Workload

BLOCK_BYTES = tuple(2**power for power in range(19, 27))
BOUND = "copy"
PRESENT = "as it is"
FILE = "tune"
Setting = Callable[[], AbstractContextManager[Any]]
Times = dict[Any, tuple[float, float]]
"""Tile -> (median, spread from the 20th percentile to the 80th relative to it) of a workload."""


def tune(settings: Settings, folder: Path) -> str:
    """Measure, write ``folder/<device>/tune.json``; return its path, a table, and the tables of tiles to paste."""
    chosen, device = suite_of(settings), settings.device
    is_gpu = device.type != "cpu"
    faults = compiled_ahead(chosen, device) if is_gpu else {}
    for (workload, _, candidate), reason in faults.items():
        print(f"{workload.name}: {candidate or PRESENT}{', left out' if candidate else ''}: {reason}", flush=True)
    if settings.compile_only:
        return NOT_TIMED

    def measured(workload: Workload, settings: Settings) -> list[Record]:
        ways = settings_to_time(workload, device, faults).items()
        settable = [Provider(name, name, "logits", "ce+ntl", partial(under, setting)) for name, setting in ways]
        providers = [*providers_of("logits", (BOUND,)), *settable]
        return run_workload(workload, settings, providers, observed=False)

    target, records = write_records(chosen, settings, folder, measured, FILE, fresh=True)
    header = ["workload", "dtype", "row bytes", "fastest", "ms", "current ms", "gain", "spread"]
    parts = [f"{target / FILE}.json", Table(header, map(winner, records)).markdown()]
    if is_gpu:
        times = []
        for workload, record in zip(chosen, records, strict=True):
            found, ways = setting_times(record), distinct(workload, device).items()
            names = {tile: str(way or PRESENT) for tile, way in ways}
            times.append((workload, {tile: found[name] for tile, name in names.items() if name in found}))
        parts += [table_of("KEPT", None, device, times), table_of("STREAMED", 0, device, times)]
    return "\n\n".join(parts)


def settings_to_time(workload: Workload, device: torch.device, faults: Container[Item]) -> dict[str, Setting]:
    """What is in use and the alternatives: all tiles without a fault; on a CPU, sizes of a block of rows."""
    if device.type == "cpu":
        sized = {f"blocks of {s // 1024} KiB": partial(patch.dict, blocks.BLOCK_BYTES, cpu=s) for s in BLOCK_BYTES}
        return {PRESENT: nullcontext, **sized}
    ways = [way for way in distinct(workload, device).values() if not way or (workload, device, way) not in faults]
    return {str(way or PRESENT): partial(walking, way) for way in ways}


def under(setting: Setting, case: Case) -> Step:
    """Our loss, with every step run under a setting."""
    plain = by_autograd(ours)(case)

    def step(index: int) -> Any:
        with setting():
            return plain(index)

    return step


def setting_times(record: Record) -> Times:
    """Like Times, by the name of a setting."""
    found = {name: percentiles(entry["samples_s"]) for name, entry in timed(record).items() if name != BOUND}
    return {name: (median, (high - low) / median) for name, (low, median, high) in found.items()}


def winner(record: Record) -> list[str]:
    """The fastest setting of a workload compared with the current one."""
    times = setting_times(record)
    best = min(times, key=times.__getitem__)
    gain, spread = gain_of([(times[best], times[PRESENT])])
    row_bytes = str(record["logits_bytes"] // record["rows"])
    numbers = [milliseconds(times[name][0]) for name in (best, PRESENT)]
    return [record["name"], record["dtype"], row_bytes, best, *numbers, f"{gain:.1%}", f"{spread:.1%}"]


def gain_of(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> tuple[float, float]:
    """(by how much the geometric mean of the times falls, largest spread), of pairs of found and present times."""
    logarithms = [math.log(found / present) for (found, _), (present, _) in pairs]
    return 1 - math.exp(math.fsum(logarithms) / len(pairs)), max(spread for pair in pairs for _, spread in pair)


def table_of(name: str, keep: int | None, device: torch.device, measured: Sequence[tuple[Workload, Times]]) -> str:
    """A table of :mod:`ntl_kernels.backends.tiles` as Python: (row bytes up to, threads), then gain and spread.

    A line takes the threads that were fastest on all its rows together, unless they gain less than the spread.
    """
    from ntl_kernels.backends import tiles

    text, least = [f"{name} = ("], 0.0
    for most, present in getattr(tiles, name):
        rows = [(w, times) for w, times in measured if least < w.vocab * w.item_bytes <= most]
        gains = {}
        for threads in THREADS:
            ways = Candidate(threads, keep), Candidate(present, keep)
            known = [[times.get(tile_on(w, device, way)) for way in ways] for w, times in rows]
            pairs = [(found, now) for found, now in known if found and now]
            if rows and len(pairs) == len(rows):
                gains[threads] = gain_of(pairs)
        best = max(gains, key=gains.__getitem__, default=present)
        gain, spread = gains.get(best, (0.0, 0.0))
        remark = f"{best} threads: gain {gain:.1%}, spread {spread:.1%}" if gains else "not measured"
        bound = "math.inf" if most == math.inf else f"2**{most.bit_length() - 1}"
        text.append(f"    ({bound}, {best if gain > spread else present}),  # {remark}")
        least = most
    return "\n".join([*text, ")"])
