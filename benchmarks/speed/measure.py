"""Clocks, memory and counts of one step."""

from __future__ import annotations

import gc
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .memory import faults
from .workloads import Step

LEAST_SAMPLE_S, LEAST_EVENT_SAMPLE_S = 2e-3, 2e-4
"""Seconds per sample: a sample repeats the step until it takes about this long. A GPU's events resolve half a
microsecond."""
MOST_REPEATS = 200
SPACER_BYTES = 2**30
"""Bytes of a write that clears a GPU's L2 cache."""
LEAD = 1.5
"""How long a GPU writes before a sample, relative to the time that the host needs to issue the sample's steps."""
STEP = "measured step"
LAUNCHES = ("LaunchKernel", "LaunchCooperativeKernel", "GraphLaunch", "ModuleLaunch")
COPIES = ("Memcpy", "Memset")
WAITS = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")


class Sampled(NamedTuple):
    """The samples of a step."""

    repeats: int
    """Steps per sample."""
    seconds: list[float]
    """Seconds per step."""
    faults: float
    """Pages mapped per step."""


class WallClock:
    """Clock for a device that computes while the host waits, or for a host that only issues work.

    Its samples are seconds per step, over the steps ``first``, ``first + 1``, ...
    """

    least_sample_s = LEAST_SAMPLE_S

    def __init__(self, synchronise: Callable[[], None] = lambda: None) -> None:
        self.synchronise = synchronise

    def sample(self, step: Step, first: int, repeats: int) -> float:
        self.synchronise()
        start = time.perf_counter_ns()
        for index in range(first, first + repeats):
            step(index)
        stop = time.perf_counter_ns()
        self.synchronise()
        return (stop - start) / repeats * 1e-9


class EventClock:
    """Clock of a GPU: its own time between two events, the second after all work.

    Before the first event, the GPU writes so long that the host has issued all steps when it comes to them. So the time
    of the host does not count, however slow it is, unless a step waits for the GPU.
    """

    least_sample_s = LEAST_EVENT_SAMPLE_S

    def __init__(self, device: torch.device, spacer_bytes: int = SPACER_BYTES) -> None:
        self.spacer = torch.empty(spacer_bytes, dtype=torch.int8, device=device)
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.write()
        self.write_s = self.between(self.write, 1)
        self.host_s: dict[Step, float] = {}

    def sample(self, step: Step, first: int, repeats: int) -> float:
        if step not in self.host_s:
            self.host_s[step] = host_seconds(step, torch.cuda.synchronize)
        self.write(1 + math.ceil(LEAD * repeats * self.host_s[step] / self.write_s))

        def issue() -> None:
            for index in range(first, first + repeats):
                step(index)  # whose results are dropped at once

        return self.between(issue, repeats)

    def write(self, times: int = 1) -> None:
        for _ in range(times):
            self.spacer.zero_()

    def between(self, issue: Callable[[], Any], repeats: int) -> float:
        """Seconds of what ``issue`` launches, per repeat."""
        self.start.record()
        issue()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop) / repeats * 1e-3


Clock = WallClock | EventClock


def make_clock(device: torch.device, kind: str) -> Clock:
    """The clock of a workload: "device" or "host" time."""
    if device.type != "cuda":
        return WallClock()
    return WallClock(torch.cuda.synchronize) if kind == "host" else EventClock(device)


def rotating_sets(device: torch.device, set_bytes: int, cache_bytes: int) -> int:
    """How many sets of inputs together are three times the cache size; one for a CPU, as training keeps it warm."""
    if device.type != "cuda":
        return 1
    return min(max(2, math.ceil(3 * cache_bytes / max(set_bytes, 1))), 64)


def cache_bytes(device: torch.device) -> int:
    """The size of a GPU's L2 cache; 0 for a CPU, where it does not matter."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def time_alternately(
    steps: Mapping[str, Step], clock: Clock, seconds: float, least: int, most: int
) -> dict[str, Sampled]:
    """The samples of each step, interleaved so that a disturbance affects all steps alike.

    Each step gets an equal share of ``seconds``, at least ``least`` and at most ``most`` samples, spread evenly over
    the rounds; every other round runs in the opposite order.
    """
    plans = {}
    for name, step in steps.items():
        estimate = min(clock.sample(step, 0, 1) for _ in range(2))
        repeats = min(max(1, math.ceil(clock.least_sample_s / max(estimate, 1e-9))), MOST_REPEATS) if most > 1 else 1
        samples = int(seconds / len(steps) / (estimate * repeats))
        plans[name] = repeats, min(max(samples, least), most)
    rounds = max((samples for _, samples in plans.values()), default=0)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    mapped = dict.fromkeys(steps, 0)
    gc.collect()
    gc.disable()  # it would run during some samples
    try:
        for turn in range(rounds):
            for name in list(steps)[:: 1 if turn % 2 else -1]:
                repeats, samples = plans[name]
                if (turn + 1) * samples // rounds > turn * samples // rounds:
                    before = faults()
                    taken[name].append(clock.sample(steps[name], turn * repeats, repeats))
                    mapped[name] += faults() - before
    finally:
        gc.enable()
    return {
        name: Sampled(repeats, taken[name], mapped[name] / max(repeats * len(taken[name]), 1))
        for name, (repeats, _) in plans.items()
    }


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set the number of CPU threads of torch's operators."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def observe(step: Step, device: torch.device) -> dict[str, int]:
    """Peak memory of a step, and its launches or operators.

    On a CPU it uses one thread: the profiler sees neither operators nor memory of the threads that compute our blocks.
    """
    gc.collect()
    if device.type != "cuda":
        with torch_threads(1):
            step(0)  # compiled code is compiled again for another number of threads
            events = trace_of(step, device)
        return {"peak_bytes": peak_of_trace(events), "operators": count_leaves(events)}
    events = trace_of(step, device)
    host_s = float(f"{host_seconds(step, torch.cuda.synchronize):.3g}")
    return {"peak_bytes": peak_of_allocator(step), "host_s": host_s, **count_calls(events)}


def host_seconds(step: Step, synchronise: Callable[[], None], samples: int = 5) -> float:
    """How long the host takes to issue a step while the device is idle: the median of some samples."""
    clock = WallClock(synchronise)
    return statistics.median(clock.sample(step, index, 1) for index in range(samples))


def peak_of_allocator(step: Step) -> int:
    """The peak memory of a step on a GPU beyond what was allocated before it, including its results."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(0)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def peak_of_trace(events: list[dict[str, Any]]) -> int:
    """The same on a CPU: the maximum of the running sum of torch's allocations and frees."""
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(accumulate((change for _, change in changes), initial=0))


def count_calls(events: list[dict[str, Any]]) -> dict[str, int]:
    """Kernel launches, memory copies (and fills) and waits of the host for the device, from the runtime's calls during
    the step. A copy that is not asynchronous also counts as a wait."""
    window = next(event for event in events if event.get("name") == STEP and event.get("cat") == "user_annotation")
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    inside = [call["name"] for call in calls if window["ts"] <= call["ts"] <= window["ts"] + window["dur"]]
    return {
        "launches": sum(any(part in name for part in LAUNCHES) for name in inside),
        "copies": sum(any(part in name for part in COPIES) for name in inside),
        "host_waits": sum(any(part in n for part in WAITS) or ("Memcpy" in n and "Async" not in n) for n in inside),
    }


def count_leaves(events: list[dict[str, Any]]) -> int:
    """The number of torch operators that called no other operator."""
    operators = [event for event in events if event.get("cat") == "cpu_op" and "::" in event["name"]]
    operators.sort(key=lambda event: (event["tid"], event["ts"], -event["dur"]))
    # An operator contains the next one on its thread if that starts before it ends.
    containing = [
        inner["tid"] == outer["tid"] and inner["ts"] < outer["ts"] + outer["dur"]
        for outer, inner in pairwise(operators)
    ]
    return len(operators) - sum(containing)


def trace_of(step: Step, device: torch.device) -> list[dict[str, Any]]:
    """The events that torch's profiler recorded for one step."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, profile_memory=device.type != "cuda", acc_events=True) as profiler:
        with record_function(STEP):
            outcome = step(0)
        if device.type == "cuda":
            torch.cuda.synchronize()
    del outcome
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
