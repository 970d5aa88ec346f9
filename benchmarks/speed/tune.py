"""Time our loss with other launch settings, to justify the tables in the backends.

Triton: threads per row, and how many vectors each thread keeps in registers, or loads at a time if it keeps none.
Eager: bytes of a block of rows. Every setting passes the gate like a provider, and all are timed alternately on the
same tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ntl_kernels.backends.eager import blocks

from ..inspect.roofline import REGISTERS
from ..published import markdown
from .providers import Provider, by_autograd, ours, providers_of
from .results import Record, medians
from .run import Settings, run_workload, suite_of, write_records
from .tables import milliseconds
from .workloads import Case, Step

THREADS, UNROLLS = (128, 256, 512, 1024), (1, 2, 4, 8)
KEPT = [(threads, keep) for threads in THREADS for keep in (4, 8, 12, 16, 20) if threads < 1024 or keep == 4]
"""(threads, kept vectors); 1,024 threads have registers for 4."""
BLOCK_BYTES = tuple(2**power for power in range(19, 27))
BOUND = "copy"
FILE = "tune"
Setting = Callable[[], AbstractContextManager[Any]]


def tune(settings: Settings, folder: Path) -> str:
    """Time every setting on the chosen workloads, write ``folder/<device>/tune.json``; return its path and a table."""
    providers = [*providers_of("logits", (BOUND,)), *candidates(settings.device)]
    measured = partial(run_workload, providers=providers)
    target, records = write_records(suite_of(settings), settings, folder, measured, FILE, fresh=True)
    header = ["workload", "dtype", "row bytes", "fastest", "ms", "current ms", "gain"]
    return f"{target / FILE}.json\n\n{markdown(header, map(winner, records))}"


def candidates(device: torch.device) -> list[Provider]:
    """The current settings and all alternatives."""
    settings: dict[str, Setting] = {"as it is": nullcontext}
    if device.type == "cuda":
        settings |= {f"{t} threads x {u}": partial(streamed, t, u) for t, u in product(THREADS, UNROLLS)}
        settings |= {f"{t} threads keep {k}": partial(kept, t, k) for t, k in KEPT}
    else:
        settings |= {
            f"blocks of {size // 1024} KiB": partial(patch.dict, blocks.BLOCK_BYTES, cpu=size) for size in BLOCK_BYTES
        }
    return [Provider(name, name, "logits", "ce+ntl", under(setting)) for name, setting in settings.items()]


def under(setting: Setting) -> Callable[[Case], Step]:
    """Our loss, with every step run under a setting."""

    def build(case: Case) -> Step:
        plain = by_autograd(ours)(case)

        def step(index: int) -> Any:
            with setting():
                return plain(index)

        return step

    return build


@contextmanager
def streamed(threads: int, unroll: int) -> Iterator[None]:
    """Make every Triton kernel that walks rows use this many threads and vectors at a time, and keep nothing."""
    backend = importlib.import_module("ntl_kernels.backends.triton")
    original = backend.tile_for

    def tile_for(*arguments: Any) -> Any:
        tile, launch = original(*arguments)
        lanes = tile.threads // launch["num_warps"]
        return tile._replace(threads=threads, unroll=unroll), {**launch, "num_warps": threads // lanes}

    with patch.multiple(backend, tile_for=tile_for, kept_tile=lambda *arguments: None):
        yield


@contextmanager
def kept(threads: int, keep: int) -> Iterator[None]:
    """Make the kernel of loss and gradient use this many threads, each of which keeps this many vectors."""
    backend = importlib.import_module("ntl_kernels.backends.triton")
    original = backend.kept_tile

    def kept_tile(*arguments: Any) -> Any:
        found = original(*arguments)
        if found is None:
            return None
        tile, launch = found
        lanes, registers = tile.threads // launch["num_warps"], min(launch["maxnreg"], REGISTERS // threads)
        launch = {**launch, "num_warps": threads // lanes, "maxnreg": registers}
        return tile._replace(threads=threads, keep=keep, whole=False), launch

    with patch.object(backend, "kept_tile", kept_tile):
        yield


def winner(record: Record) -> list[str]:
    """The fastest setting of a workload compared with the current one."""
    times = medians(record)
    best = min((name for name in times if name != BOUND), key=times.__getitem__)
    present = times["as it is"]
    row_bytes = record["logits_bytes"] // record["rows"]
    numbers = [milliseconds(times[best]), milliseconds(present), f"{1 - times[best] / present:.1%}"]
    return [record["name"], record["dtype"], str(row_bytes), best, *numbers]
