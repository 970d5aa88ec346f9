"""What a call costs before any kernel runs: host time of the Triton path, and of the eager one where logits are few."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .. import environment
from . import measure, results, workloads
from .idle import Launches, idle_device
from .providers import Provider, providers_of
from .run import Settings, cpu_threads, first_line, quiet, run_workload, summary, timed_entry
from .steps import Step
from .workloads import Case, Workload

FILE = "host"
WARM_UP = 20
WAITS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
"""torch operators that return only when all work on a GPU before them is done. Reading a number calls the first of
them, selecting by a mask the last."""


def host(settings: Settings, folder: Path) -> Path:
    """Measure and put the results into ``folder/<device>/host.json``; returns that folder.

    Raises:
        Refusal: the settings choose nothing, or nothing can be written there.
    """
    chosen = settings.chosen([*workloads.eager_workloads(), *workloads.host_workloads()])
    described = environment.describe("speed", settings.device, settings.threads, settings.commit)
    target = results.make_folder(folder / environment.slug(described["device"]))
    for number, workload in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {workload.name}", flush=True)
        measured = run_idle if workload.family == "host" else run_workload
        record = measured(workload, settings) | {"environment": described}
        for line in summary(record):
            print(f"    {line}", flush=True)
        results.add(target, FILE, record, replace=settings.is_whole and number == 1)
    return target


def run_idle(workload: Workload, settings: Settings) -> dict[str, Any]:
    """The record of a workload whose kernels do not run: times, launches and waits of each provider."""
    with quiet(), cpu_threads(settings.threads), idle_device() as launches:
        case = workloads.make_case(workload, torch.device("cpu"))
        providers = settings.providers_among(providers_of("host", workload.providers))
        entries, steps = prepare(case, providers, settings)
        timed = measure.time_alternately(steps, measure.WallClock(), *settings.samples_of(workload))
        for name, sampled in timed.items():
            entries[name] = timed_entry(*sampled) | calls(steps[name], launches)
    return {**asdict(workload), "providers": entries}


def prepare(case: Case, providers: list[Provider], settings: Settings) -> tuple[dict[str, Any], dict[str, Step]]:
    """Build every provider and let it compile: (why some cannot run, the steps of the others)."""
    entries: dict[str, Any] = {}
    steps: dict[str, Step] = {}
    for provider in providers:
        reason = provider.missing(case.device)
        if reason is not None:
            entries[provider.name] = {"status": "missing", "reason": reason}
            continue
        step = provider.build(replace(case, sets=[tensors.copy() for tensors in case.sets]))
        try:
            for index in range(1 if settings.dry else WARM_UP):
                step(index)
        except Exception as error:  # a peer that fails is reported, and does not take the others with it
            entries[provider.name] = {"status": "failed", "reason": first_line(error)}
            continue
        entries[provider.name], steps[provider.name] = {}, step
    return entries, steps


def calls(step: Step, launches: Launches) -> dict[str, int]:
    """What one step launches, how often it waits for the device, and how many torch operators it calls."""
    before = len(launches.kernels)
    events = measure.trace_of(step, torch.device("cpu"))
    return {
        "launches": len(launches.kernels) - before,
        "host_waits": sum(event.get("cat") == "cpu_op" and event["name"] in WAITS for event in events),
        "operators": measure.count_leaves(events),
    }
