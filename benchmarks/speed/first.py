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
from contextlib import suppress
from itertools import product
from pathlib import Path

import torch

from .. import files
from ..environment import ROOT
from ..inspect.workers import on_all_cores
from ..table import Table
from .candidates import ROW_KERNEL, few_rows
from .measure import trace_of
from .providers import by_autograd, ours, providers_of
from .results import Records, medians, of_group, timed
from .run import NOT_TIMED, WARM_UP, Settings, apart, memory_bytes, write_records
from .tables import group_table, label, not_timed, scaled
from .workloads import DTYPES, Workload, fitting_rows, logits, make_case

VOCAB_SIZES = (32000, 50257, 128256)
BOUND = "copy"
PROVIDERS = (BOUND, "ours", "ours_inplace", "torch_ce", "liger_ce")
COMPILED = ("ours", "liger_ce")
"""The providers with Triton kernels; ours in place has the same kernels as ours."""
ROWS = 8192
PROFILED = ("first-32000-bf16", "first-50257-bf16")
FILE, COUNTED = "first", "first-ncu.csv"
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
NCU_SECONDS = 90
STALLS = ("barrier", "long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "math_pipe_throttle", "wait")
KERNEL_NS = "gpu__time_duration.sum"
METRICS = {
    KERNEL_NS: "time",
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
ONE_STEP = "import sys; from benchmarks.speed.first import one_step; [*map(one_step, sys.argv[1:])]"


def first(settings: Settings, folder: Path) -> str:
    """Measure, write ``folder/<device>/first.json`` and the traces beside it; return its path and all tables."""
    chosen = settings.chosen(first_workloads(memory_bytes(settings.device)))
    if settings.compile_only:
        if settings.device.type != "cpu":
            on_all_cores(run_few_rows, list(product(chosen, [settings.device], COMPILED)))
        return NOT_TIMED
    target, records = write_records(chosen, settings, folder, apart, FILE, fresh=True)
    traces = [traced(workload, settings.device, target) for workload in chosen if workload.name in PROFILED]
    named = {record["name"]: record for record in records}
    parts = [f"{target / FILE}.json", group_table(named, FILE), not_timed(named), *traces, counters(target)]
    return "\n\n".join(filter(None, parts))


def first_workloads(gpu_bytes: int) -> list[Workload]:
    """Every vocabulary in both dtypes; a case, its copies and results need sixteen times the memory of its logits."""
    return [
        logits(f"first-{vocab}", FILE, rows, vocab, dtype, providers=PROVIDERS)
        for dtype, vocab in product(DTYPES[::-1], VOCAB_SIZES)
        for rows in [min(ROWS, fitting_rows(vocab, dtype, gpu_bytes // 16))]
    ]


def run_few_rows(item: tuple[Workload, torch.device, str]) -> None:
    """Compile a provider ahead of time; a failure is reported when it is timed."""
    workload, device, name = item
    (provider,) = providers_of("logits", (name,))
    with suppress(Exception):
        provider.build(make_case(few_rows(workload), device))(0)


def traced(workload: Workload, device: torch.device, folder: Path) -> str:
    """A table of what ran on the device in one step of ours; the trace is written for a viewer of Chrome's traces."""
    step = by_autograd(ours)(make_case(workload, device))
    for index in range(WARM_UP):
        step(index)
    events = trace_of(step, device)
    path = folder / f"{workload.name}-trace.json"
    files.write(path, json.dumps({"traceEvents": events}))
    ran = sorted((event for event in events if event.get("cat") in DEVICE_EVENTS), key=lambda event: event["ts"])
    if not ran:
        return f"{workload.name}: no kernel ran on a GPU; {path.name}"
    lines, start = [], ran[0]["ts"]
    end = start
    for event in ran:
        lines.append([event["name"][:60], f"{event['ts'] - end:.1f}", f"{event['dur']:.1f}"])
        end = event["ts"] + event["dur"]
    title = f"{workload.name}: one step of ours, {end - start:.1f} µs from its first kernel to its last; {path.name}"
    return f"{title}\n\n{Table(['kernel', 'gap before, µs', 'µs'], lines).markdown()}"


def one_step(name: str) -> None:
    """Run one step of ours, to be watched from outside."""
    device = torch.device("cuda")
    (workload,) = (workload for workload in first_workloads(memory_bytes(device)) if workload.name == name)
    by_autograd(ours)(make_case(workload, device))(0)
    torch.cuda.synchronize()


def counters(folder: Path) -> str:
    """Run Nsight Compute and return :func:`counted`, or a line that says why there is none."""
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
    files.write(folder / COUNTED, done.stdout)
    _, *launches = metrics(folder)
    if done.returncode or len(launches) != len(PROFILED):
        complaints = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if "==ERROR==" in line]
        return f"ncu: refused: {next(iter(complaints), f'exit code {done.returncode}, {len(launches)} launches')}"
    return f"{ROW_KERNEL}, by Nsight Compute\n\n{counted(folder)}"


def metrics(folder: Path) -> list[dict[str, str]]:
    """What Nsight Compute wrote for a device: the units, then a line for each launch; an empty dict if nothing."""
    path = folder / COUNTED
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [*csv.DictReader(line for line in lines if line.startswith('"'))] or [{}]


def counted(folder: Path) -> str:
    """A table of Nsight Compute's metrics of the row kernel; empty if there are none."""
    units, *launches = metrics(folder)
    known = {key: name for key, name in METRICS.items() if key in units}
    lines = [[name, *(f"{one[key]} {units[key]}" for one in launches)] for key, name in known.items()]
    return Table(["metric", *PROFILED], lines).markdown()


def first_text(folder: Path, records: Records) -> str:
    """Sentences on ours beside the others in all first times, and on the row kernel alone; empty if there are none."""
    found = of_group(records, FILE)
    if not found:
        return ""
    times = [medians(record) for record in found]
    ratios = {name: [each["ours"] / each[name] for each in times if name in each] for name in ("torch_ce", "liger_ce")}
    ranges = [f"{min(each):.2f} to {max(each):.2f} of {label(found[0], n)}'s" for n, each in ratios.items() if each]
    return f"In {len(found)} problems, ours takes {' and '.join(ranges)} time.{row_kernel_text(folder, records)}"


def row_kernel_text(folder: Path, records: Records) -> str:
    """The row kernel beside a copy and the host's time, where Nsight Compute saw it."""
    _, *launches = metrics(folder)
    found = []
    for name, launch in zip(PROFILED, launches, strict=False):
        record, kernel_s = records[name], float(launch[KERNEL_NS].replace(",", "")) * 1e-9
        copied_s, issued_s = medians(record)[BOUND], timed(record)["ours"]["host_s"]
        times = f"kernel {scaled(kernel_s)}, copy {scaled(copied_s)}, to issue a step {scaled(issued_s)}"
        found.append(f"V = {record['vocab']} in {record['dtype']}: {times}")
    text = "Our kernel of loss and gradient alone, beside a copy of the logits and the host's time to issue a step"
    return f" {text}, for which short steps wait here: {'; '.join(found)}." if found else ""
