"""Tables and plots from the result files alone, and the README's section made of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from ..environment import ROOT
from ..errors import InputError
from ..published import README, Draw, Pages, commit_of, digest
from . import plots, tables
from .headlines import headline_table
from .results import FOLDER, Records, devices, load, of_group

SECTION = "speed"
CAUSES = "causes.json"
"""Beside a device's results: why a target is missed, by its key. Written by hand, after profiling."""
IDLE = (
    "Triton compiles for a Hopper GPU that does not exist and launches into nothing; CPU tensors pass for its own. "
    "What is timed is what the host does for one forward and backward pass up to each launch, by the same code as on a "
    "GPU; a real launch adds some microseconds. `F.cross_entropy` runs on the CPU, where so few logits cost next to "
    "nothing. A wait is a call that on a GPU returns only when all work before it is done."
)


def write(folder: Path) -> list[Path]:
    """Write each device's report and plots, and the README's section if these are the committed results."""
    return pages(folder).write(README)


def check(folder: Path) -> list[str]:
    """Where README, reports and plots differ from the results."""
    return pages(folder).problems(README)


def pages(folder: Path) -> Pages:
    """What follows from the results of all devices in a folder."""
    found = {device: load(device) for device in devices(folder)}
    if not found:
        raise InputError(f"no results in {folder}: expected <device>/<family>.json there")
    texts = {device / "report.md": device_report(records, device) for device, records in found.items()}
    drawn: dict[Path, tuple[str, Draw]] = {
        device / f"{name}.png": (digest(records), partial(plots.draw, make))
        for device, records in found.items()
        for name, make in plots.figures(records).items()
    }
    is_committed = folder.resolve() == FOLDER.resolve()
    return Pages(SECTION, folder, texts, drawn, section(folder) if is_committed else None)


def section(folder: Path) -> str:
    """The README's text on speed: a table, a plot, where they come from and where all the others are."""
    found = [(device, load(device)) for device in devices(folder)]
    found.sort(key=lambda pair: kind_of(pair[1]), reverse=True)  # GPUs first
    table = headline_table((title(records), kind_of(records), records) for _, records in found)
    parts = [table] if table is not None else []
    for device, records in found[:1]:
        where = device.resolve().relative_to(ROOT)
        parts += [f"![{plots.TITLES[name]}]({where / name}.png)" for name in list(plots.figures(records))[:1]]
    parts += [sources(device, records) for device, records in found]
    if not any(kind_of(records) == "gpu" for _, records in found):
        parts.append(
            "No GPU has run the kernels yet: **GPU timings are missing**; `benchmarks/on_gpu.sh` makes them. "
            "An emulator executes the compiled kernels in every test run."
        )
    return "\n\n".join([*parts, ""])


def kind_of(records: Records) -> str:
    return next(iter(records.values()))["environment"]["kind"]


def sources(device: Path, records: Records) -> str:
    """Where a device's figures come from, and where all of them are."""
    where = device.resolve().relative_to(ROOT)
    versions = environments(records)[-1]["versions"]
    return (
        f"{title(records)}: medians of steps taken in turn with torch {versions['torch']}; in brackets multiples of "
        f"ours. All tables, spreads, versions and commands: [report]({where}/report.md), from [JSON]({where})."
    )


def device_report(records: Records, device: Path) -> str:
    """Everything there is of a device."""
    groups = [(heading, tables.group_table(records, group)) for group, heading in tables.GROUPS.items()]
    parts = [
        f"# Speed: {title(records)}",
        f"{provenance(records)} Times are of one forward and backward pass; peak memory is what a step holds at most "
        "beyond its inputs, its gradients among it; the gradient error is relative to float64, in the Frobenius norm.",
        *targets(records, device),
        *main_tables(records),
        *(f"## {heading}\n\n{text}" for heading, text in groups if text is not None),
        *host_parts(records),
        *(f"![{plots.TITLES[name]}]({name}.png)" for name in plots.figures(records)),
        *host_bound(records),
        *listed("Not timed:", tables.not_timed(records)),
        f"## Machine\n\n```json\n{json.dumps(environments(records)[0], indent=2)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def title(records: Records) -> str:
    environment = environments(records)[0]
    threads = f", {environment['threads']} threads" if environment["kind"] == "cpu" else ""
    return f"{environment['device']}{threads}"


def environments(records: Records) -> list[dict[str, Any]]:
    """Where the results come from, newest last; more than one where families were measured apart."""
    distinct = {json.dumps(record["environment"], sort_keys=True): record["environment"] for record in records.values()}
    return sorted(distinct.values(), key=lambda environment: environment["date"])


def provenance(records: Records) -> str:
    """Versions, commit, command and date in a sentence per environment."""
    return " ".join(
        f"Measured {environment['date']} with torch {environment['versions']['torch']}, Triton "
        f"{environment['versions']['triton']} and Python {environment['python']} at {commit_of(environment)}, by "
        f"`{environment['command']}`."
        for environment in environments(records)
    )


def targets(records: Records, device: Path) -> list[str]:
    path = device / CAUSES
    causes = json.loads(path.read_text()) if path.exists() else {}
    text = tables.target_table(records, kind_of(records), causes)
    return [text] if text is not None else []


def main_tables(records: Records) -> list[str]:
    """A table for each workload of the group "main"."""
    main = of_group(records, "main")
    return [f"## {record['name']}: {tables.problem(record)}\n\n{tables.provider_table(record)}" for record in main]


def host_parts(records: Records) -> list[str]:
    """What calls cost the host: where kernels do not run, and where there is little to compute."""
    idle = [
        f"**{record['name']}**: {tables.problem(record)}\n\n{tables.host_table(record)}"
        for record in of_group(records, "host")
    ]
    parts = [f"## Host time of a call whose kernels do not run\n\n{IDLE}", *idle] if idle else []
    eager = tables.eager_table(records)
    return parts if eager is None else [*parts, f"## Small problems on one CPU thread\n\n{eager}"]


def host_bound(records: Records) -> list[str]:
    """Where more than the device was measured."""
    text = (
        f"Partly host-bound: issuing one of these steps takes the host more than {tables.HOST_BOUND:.0%} of the time "
        "measured (a call that waits for the device counts in full), so that a faster host would make them faster:"
    )
    return listed(text, tables.host_bound(records))


def listed(text: str, lines: list[str]) -> list[str]:
    """A text above a list, where there is anything to list."""
    return [f"{text}\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []
