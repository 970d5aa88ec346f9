"""The host time of calls: on the Triton path without running kernels, and on the eager path with few logits."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from . import workloads
from .idle import idle_device
from .measure import count_leaves, trace_of
from .providers import providers_of
from .results import Record
from .run import Settings, apart, cpu_threads, prepare, quiet, undisturbed, write_records
from .workloads import Step, Workload

FILE = "host"
WARM_UP = 20
WAITS = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")
"""torch operators that return only after all previous work on a GPU is done. Reading a number calls the first,
selecting by a mask calls the last."""


def host(settings: Settings, folder: Path) -> Path:
    """Measure, write the results to ``folder/<device>/host.json`` and return that folder."""
    chosen = settings.chosen([*workloads.eager_workloads(), *workloads.host_workloads()])
    return write_records(chosen, settings, folder, measured, FILE)[0]


def measured(workload: Workload, settings: Settings) -> list[Record]:
    """The records of a workload; for the family "host", times, launches and waits without running kernels.

    Those records have no way of memory, because their tensors are only a few KB.
    """
    if workload.family != "host":
        return apart(workload, settings)
    chosen = settings.providers_among(providers_of("host", workload.providers))
    # No check: nothing is computed.
    chosen = [replace(provider, objective=None, overwrites=True) for provider in chosen]
    with quiet(), cpu_threads(settings.threads), idle_device() as launched:
        case = workloads.make_case(workload, torch.device("cpu"))
        entries, steps = prepare(case, chosen, 0 if settings.dry else WARM_UP)
        timed, share = undisturbed(steps, workload, settings)
        for name, entry in timed.items():
            entries[name] = entry | calls(steps[name], launched)
    return [{**asdict(workload), "memory": None, "others_share": share, "providers": entries}]


def calls(step: Step, launched: list[str]) -> dict[str, int]:
    """How many kernels a step launches, how often it waits for the device, and how many torch operators it calls."""
    before = len(launched)
    events = trace_of(step, torch.device("cpu"))
    return {"launches": len(launched) - before, "host_waits": count_waits(events), "operators": count_leaves(events)}


def count_waits(events: list[dict[str, Any]]) -> int:
    """How often a traced step would wait for a GPU."""
    return sum(event.get("cat") == "cpu_op" and event["name"] in WAITS for event in events)
