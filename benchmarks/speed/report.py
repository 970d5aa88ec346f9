"""Tables and plots from the result files alone, and the README's section made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..environment import ROOT
from ..published import README, commit_of, digest, outdated, with_section
from . import plots, tables
from .headlines import headline_table
from .results import FOLDER, Records, Refusal, devices, load

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
    """Write each device's report and plots, and the README's section if these are the committed results.

    Raises:
        Refusal: the folder holds no results.
    """
    written = []
    for device in some_devices(folder):
        records = load(device)
        written += plots.draw(records, device, digest(records))
        report = device / "report.md"
        report.write_text(device_report(records, device))
        written.append(report)
    if is_committed(folder):
        README.write_text(with_section(README.read_text(), SECTION, section(folder)))
        written.append(README)
    return written


def check(folder: Path) -> list[str]:
    """Where README, reports and plots differ from the results.

    Raises:
        Refusal: the folder holds no results.
    """
    problems = []
    for device in some_devices(folder):
        records = load(device)
        drawn = {device / f"{name}.png": digest(records) for name in plot_names(records)}
        problems += outdated({device / "report.md": device_report(records, device)}, drawn)
    if is_committed(folder) and with_section(README.read_text(), SECTION, section(folder)) != README.read_text():
        problems.append(f"{README}: the section on speed differs from the results in {folder}")
    return [f"{problem}; `python -m benchmarks.speed report` writes it anew" for problem in problems]


def some_devices(folder: Path) -> list[Path]:
    """The folders that hold results; at least one."""
    found = devices(folder)
    if not found:
        raise Refusal(f"no results in {folder}: expected <device>/<family>.json there")
    return found


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


def plot_names(records: Records) -> list[str]:
    """The plots that the results allow, without drawing them."""
    has_sweep = any(r["group"].startswith("vocabulary") and "copy" in tables.timed(r) for r in records.values())
    return [
        *(family for family in plots.BARS if plots.drawn_as_bars(records, family)),
        *(["vocabulary"] if has_sweep else []),
    ]


def section(folder: Path) -> str:
    """The README's text on speed: a table, a plot, where they come from and where all the others are."""
    found = [(device, load(device)) for device in devices(folder)]
    found.sort(key=lambda pair: kind_of(pair[1]), reverse=True)  # GPUs first
    table = headline_table((title(records), kind_of(records), records) for _, records in found)
    parts = [table] if table is not None else []
    for device, records in found[:1]:
        where = device.resolve().relative_to(ROOT)
        parts += [f"![{plot_text(name)}]({where / name}.png)" for name in plot_names(records)[:1]]
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
        *main_tables(records, heading="## "),
        *(f"## {heading}\n\n{text}" for heading, text in groups if text is not None),
        *host_parts(records),
        *(f"![{plot_text(name)}]({name}.png)" for name in plot_names(records)),
        *host_bound(records),
        *missing(records),
        f"## Machine\n\n```json\n{json.dumps(environments(records)[0], indent=2)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def plot_text(name: str) -> str:
    return plots.BARS.get(name, "Share of the bandwidth of a copy, by vocabulary")


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
    return " ".join(origin(environment) for environment in environments(records))


def origin(environment: dict[str, Any]) -> str:
    versions = environment["versions"]
    return (
        f"Measured {environment['date']} with torch {versions['torch']}, Triton {versions['triton']} and Python "
        f"{environment['python']} at {commit_of(environment)}, by `{environment['command']}`."
    )


def targets(records: Records, device: Path) -> list[str]:
    path = device / CAUSES
    causes = json.loads(path.read_text()) if path.exists() else {}
    text = tables.target_table(records, kind_of(records), causes)
    return [text] if text is not None else []


def main_tables(records: Records, heading: str) -> list[str]:
    """A table for each workload of the group "main"."""
    close = heading.strip("# ")
    chosen = [record for record in records.values() if record["group"] == "main" and tables.timed(record)]
    return [f"{heading}{r['name']}{close}: {tables.problem(r)}\n\n{tables.provider_table(r)}" for r in chosen]


def host_parts(records: Records) -> list[str]:
    """What calls cost the host: where kernels do not run, and where there is little to compute."""
    idle = [record for record in records.values() if record["group"] == "host" and tables.timed(record)]
    parts = [f"**{record['name']}**: {tables.problem(record)}\n\n{tables.host_table(record)}" for record in idle]
    parts = [f"## {tables.HOST['host']}\n\n{IDLE}", *parts] if parts else []
    eager = tables.eager_table(records)
    return parts if eager is None else [*parts, f"## {tables.HOST['eager']}\n\n{eager}"]


def host_bound(records: Records) -> list[str]:
    """Where more than the device was measured."""
    lines = tables.host_bound(records)
    text = (
        f"Partly host-bound: issuing one of these steps takes the host more than {tables.HOST_BOUND:.0%} of the time "
        "measured (a call that waits for the device counts in full), so that a faster host would make them faster:"
    )
    return [f"{text}\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []


def missing(records: Records) -> list[str]:
    lines = tables.not_timed(records)
    return ["Not timed:\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []
