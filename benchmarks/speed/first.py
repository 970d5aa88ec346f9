"""The first times of a GPU: few providers on three vocabularies, nothing compiled by torch; then one step of ours,
kernel by kernel, and what the hardware counts in the row kernel.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..environment import ROOT
from ..inspect.workers import in_processes
from ..published import markdown
from .candidates import FEW_ROWS, ROW_KERNEL
from .measure import trace_of
from .providers import providers_of
from .results import Record, medians
from .run import NOT_TIMED, WARM_UP, Settings, apart, memory_bytes, write_records
from .tables import milliseconds
from .workloads import DTYPES, Step, Workload, fitting_rows, logits, make_case

VOCAB_SIZES = (32000, 50257, 128256)
BOUND, OURS = "copy", "ours"
PROVIDERS = (BOUND, OURS, "ours_inplace", "torch_ce", "liger_ce")
COMPILED = (OURS, "liger_ce")
"""The providers with Triton kernels; ours in place has the same kernels as ours."""
ROWS = 8192
PROFILED = ("first-32000-bf16", "first-50257-bf16")
FILE = GROUP = "first"
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
NCU_SECONDS = 90
STALLS = ("barrier", "long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "math_pipe_throttle", "wait")
METRICS = {
    "gpu__time_duration.sum": "time",
    "dram__bytes_read.sum": "read from memory",
    "dram__bytes_write.sum": "written to memory",
    "lts__t_sector_hit_rate.pct": "L2 hits",
    "sm__inst_issued.avg.pct_of_peak_sustained_active": "issue slots used",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy achieved",
    **{
        f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": f"warps stalled per issue: {name}"
        for name in STALLS
    },
}
"""Nsight Compute's metrics and what we call them."""
ONE_STEP = "import sys; from benchmarks.speed.first import one_step; [one_step(name) for name in sys.argv[1:]]"


def first(settings: Settings, folder: Path) -> str:
    """Measure, write ``folder/<device>/first.json`` and the traces beside it; return its path and all tables."""
    chosen = settings.chosen(first_workloads(memory_bytes(settings.device)))
    if settings.compile_only:
        compile_ahead(chosen, settings)
        return NOT_TIMED
    target, records = write_records(chosen, settings, folder, apart, FILE, fresh=True)
    parts = [f"{target / FILE}.json", overview(records)]
    parts += [traced(workload, settings.device, target) for workload in chosen if workload.name in PROFILED]
    return "\n\n".join([*parts, counters(target)])


def first_workloads(gpu_bytes: int) -> list[Workload]:
    """Every vocabulary in both dtypes; a case, its copies and results need sixteen times the memory of its logits."""
    return [
        logits(f"first-{vocab}", GROUP, rows, vocab, dtype, providers=PROVIDERS)
        for dtype, vocab in product(DTYPES[::-1], VOCAB_SIZES)
        for rows in [min(ROWS, fitting_rows(vocab, dtype, gpu_bytes // 16))]
    ]


def overview(records: Sequence[Record]) -> str:
    """Milliseconds of every provider, and its speed relative to a copy of the logits."""
    shown = {provider.name: provider.label for provider in providers_of("logits", PROVIDERS)}
    return markdown(["workload", "rows", *shown.values()], [overview_line(record, shown) for record in records])


def overview_line(record: Record, names: Iterable[str]) -> list[str]:
    times = medians(record)
    cells = {name: entry["status"] for name, entry in record["providers"].items()}
    for name, time in times.items():
        share = f" ({times[BOUND] / time:.0%})" if name != BOUND and BOUND in times else ""
        cells[name] = milliseconds(time) + " ms" + share
    return [record["name"], str(record["rows"]), *(cells.get(name, "") for name in names)]


# Compiling before the clock starts


def compile_ahead(chosen: Sequence[Workload], settings: Settings) -> None:
    """Compile what is timed with Triton, in as many processes as there are cores; a failure is reported when timed."""
    if settings.device.type == "cpu":
        return
    items = [(workload, settings.device, name) for workload in chosen for name in COMPILED]
    in_processes(run_few_rows, items, min(len(items), len(os.sched_getaffinity(0))))


def run_few_rows(item: tuple[Workload, torch.device, str]) -> None:
    workload, device, name = item
    (provider,) = providers_of("logits", (name,))
    if provider.missing(device) is None:
        with suppress(Exception):
            provider.build(make_case(replace(workload, rows=FEW_ROWS), device))(0)


# One step, kernel by kernel


class Kernel(NamedTuple):
    """A kernel, a copy or a fill on the device; times in microseconds."""

    name: str
    gap: float
    """Since the end of the previous one."""
    duration: float


def kernels_of(events: Iterable[dict[str, Any]]) -> list[Kernel]:
    """What ran on the device during a trace, in order."""
    found = sorted((event for event in events if event.get("cat") in DEVICE_EVENTS), key=lambda event: event["ts"])
    ends = [event["ts"] + event["dur"] for event in found]
    starts = [found[0]["ts"], *ends[:-1]] if found else []
    return [
        Kernel(event["name"], event["ts"] - since, event["dur"]) for event, since in zip(found, starts, strict=True)
    ]


def traced(workload: Workload, device: torch.device, folder: Path) -> str:
    """A table of the kernels of one step of ours; the trace is written for a viewer of Chrome's traces."""
    step = step_of(workload, device)
    for index in range(WARM_UP):
        step(index)
    events = trace_of(step, device)
    path = folder / f"{workload.name}-trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    kernels = kernels_of(events)
    if not kernels:
        return f"{workload.name}: no kernel ran on a GPU; {path.name}"
    total = sum(kernel.gap + kernel.duration for kernel in kernels)
    lines = [[kernel.name[:60], f"{kernel.gap:.1f}", f"{kernel.duration:.1f}"] for kernel in kernels]
    title = f"{workload.name}: one step of ours, {total:.1f} µs from its first kernel to its last; {path.name}"
    return f"{title}\n\n{markdown(['kernel', 'gap before, µs', 'µs'], lines)}"


def step_of(workload: Workload, device: torch.device) -> Step:
    (ours,) = providers_of("logits", (OURS,))
    return ours.build(make_case(workload, device))


# What the hardware counts


def one_step(name: str) -> None:
    """Run one step of ours, to be watched from outside."""
    device = torch.device("cuda")
    (workload,) = (workload for workload in first_workloads(memory_bytes(device)) if workload.name == name)
    step_of(workload, device)(0)
    torch.cuda.synchronize()


def counters(folder: Path) -> str:
    """A table of Nsight Compute's metrics of the row kernel, or a line that says why there is none."""
    program = shutil.which("ncu", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if program is None:
        return "ncu: not installed"
    command = [program, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--kernel-name", f"regex:^{ROW_KERNEL}$", "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-c", ONE_STEP, *PROFILED]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=NCU_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"ncu: {error}"[:200]
    (folder / "first-ncu.csv").write_text(done.stdout)
    launches = list(launches_in(done.stdout))
    if done.returncode or len(launches) != len(PROFILED):
        complaints = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if "==ERROR==" in line]
        return f"ncu: refused: {next(iter(complaints), f'exit code {done.returncode}, {len(launches)} launches')}"
    lines = [[name, *(launch.get(metric, "") for launch in launches)] for metric, name in METRICS.items()]
    return f"{ROW_KERNEL}, by Nsight Compute\n\n{markdown(['metric', *PROFILED], lines)}"


def launches_in(output: str) -> Iterator[dict[str, str]]:
    """For each profiled launch: metric -> value with its unit."""
    table = csv.reader(line for line in output.splitlines() if line.startswith('"'))
    header, units = next(table, []), next(table, [])
    for line in table:
        yield {name: f"{value} {unit}".strip() for name, value, unit in zip(header, line, units, strict=False)}
