"""Time our loss under other launch settings: the evidence for the tables in the backends.

Triton: threads per row and how many vectors each holds at a time. Eager: bytes of a block of rows. Every setting passes
the gate like a provider, and all are timed alternately on the same tensors.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from .. import environment
from . import results
from .providers import Provider, ours, providers_of
from .replace import replaced
from .run import Settings, run_workload, suite_of, summary
from .steps import Step, by_autograd
from .tables import milliseconds, table
from .workloads import Case

THREADS, UNROLLS = (128, 256, 512, 1024), (1, 2, 4, 8)
BLOCK_BYTES = tuple(2**power for power in range(19, 27))
BOUND = "copy"
FILE = "tune"


def tune(settings: Settings, folder: Path) -> str:
    """Time every setting on the chosen workloads, write ``folder/<device>/tune.json`` and say which won."""
    chosen = suite_of(settings)
    described = environment.describe("speed", settings.device, settings.threads, settings.commit)
    target = results.make_folder(folder / environment.slug(described["device"]))
    providers = [*providers_of("logits", (BOUND,)), *candidates(settings.device)]
    rows = []
    for number, workload in enumerate(chosen):
        record = run_workload(workload, settings, providers) | {"environment": described}
        print(workload.name, *summary(record), sep="\n    ", flush=True)
        results.add(target, FILE, record, replace=number == 0)
        rows.append(winner(record))
    header = ["workload", "dtype", "row bytes", "fastest", "ms", "ms as it is", "gain"]
    return f"{table(header, rows)}\n{target / FILE}.json"


def candidates(device: torch.device) -> list[Provider]:
    """The settings as they are, and every other."""
    settings: dict[str, Callable[[], AbstractContextManager[None]]] = {"as it is": nothing}
    if device.type == "cuda":
        for threads in THREADS:
            for unroll in UNROLLS:
                settings[f"{threads} threads x {unroll}"] = functools.partial(tiles, threads, unroll)
    else:
        for size in BLOCK_BYTES:
            settings[f"blocks of {size // 1024} KiB"] = functools.partial(block_bytes, size)
    return [Provider(name, name, "logits", "ce+ntl", under(setting)) for name, setting in settings.items()]


def under(setting: Callable[[], AbstractContextManager[None]]) -> Callable[[Case], Step]:
    """Our loss, each step of it under a setting."""

    def build(case: Case) -> Step:
        plain = by_autograd(ours)(case)

        def step(index: int) -> Any:
            with setting():
                return plain(index)

        return step

    return build


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def tiles(threads: int, unroll: int) -> Iterator[None]:
    """Let every Triton kernel that walks rows use so many threads and vectors at a time."""
    backend = importlib.import_module("ntl_kernels.backends.triton")
    original = backend.tile_for

    def tile_for(*arguments: Any) -> Any:
        tile, launch = original(*arguments)
        lanes = tile.threads // launch["num_warps"]
        return tile._replace(threads=threads, unroll=unroll), {**launch, "num_warps": threads // lanes}

    with replaced(backend, "tile_for", tile_for):
        yield


@contextmanager
def block_bytes(size: int) -> Iterator[None]:
    """Let the eager backend take blocks of so many bytes."""
    blocks = importlib.import_module("ntl_kernels.backends.eager.blocks")
    with replaced(blocks, "BLOCK_BYTES", {**blocks.BLOCK_BYTES, "cpu": size}):
        yield


def winner(record: results.Record) -> list[str]:
    """The fastest setting of a workload beside the one in use."""
    times = {
        name: results.percentiles(found["samples_s"])[1]
        for name, found in record["providers"].items()
        if found["status"] == "timed" and name != BOUND
    }
    best, present = min(times, key=times.__getitem__), times["as it is"]
    row_bytes = record["logits_bytes"] // record["rows"]
    numbers = [milliseconds(times[best]), milliseconds(present), f"{1 - times[best] / present:.1%}"]
    return [record["name"], record["dtype"], str(row_bytes), best, *numbers]
