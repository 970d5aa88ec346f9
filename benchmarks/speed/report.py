"""Tables and plots from the result files alone, and the README's section made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..environment import ROOT
from ..published import README, commit_of, digest, outdated, with_section
from . import plots, tables
from .results import FOLDER, Records, devices, load

SECTION = "speed"
CAUSES = "causes.json"
"""Beside a device's results: why a target is missed, by its key. Written by hand, after profiling."""


def write(folder: Path) -> list[Path]:
    """Write each device's report and plots, and the README's section if these are the committed results."""
    written = []
    for device in devices(folder):
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
    """Where README, reports and plots differ from the results."""
    problems = []
    for device in devices(folder):
        records = load(device)
        drawn = {device / f"{name}.png": digest(records) for name in plot_names(records)}
        problems += outdated({device / "report.md": device_report(records, device)}, drawn)
    if is_committed(folder) and with_section(README.read_text(), SECTION, section(folder)) != README.read_text():
        problems.append(f"{README}: the section on speed differs from the results in {folder}")
    return [f"{problem}; `python -m benchmarks.speed report` writes it anew" for problem in problems]


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


def plot_names(records: Records) -> list[str]:
    """The plots that the results allow, without drawing them."""
    mains = {record["family"] for record in records.values() if record["group"] == "main" and tables.timed(record)}
    has_sweep = any(r["group"].startswith("vocabulary") and "copy" in tables.timed(r) for r in records.values())
    return [*(family for family in plots.BARS if family in mains), *(["vocabulary"] if has_sweep else [])]


def section(folder: Path) -> str:
    """The README's text on speed: CPUs first, then GPUs; what is missing is said."""
    found = [(device, load(device)) for device in devices(folder)]
    found.sort(key=lambda pair: kind_of(pair[1]))
    parts = [device_summary(records, device) for device, records in found]
    if not any(kind_of(records) == "gpu" for _, records in found):
        parts.append(
            "No GPU was at hand: **GPU timings are missing.** `python -m benchmarks.speed run --device cuda` makes "
            "them; [benchmarks/speed](benchmarks/speed/README.md) says how."
        )
    return "\n\n".join(["", *parts, ""]).lstrip("\n")


def kind_of(records: Records) -> str:
    return next(iter(records.values()))["environment"]["kind"]


def device_summary(records: Records, device: Path) -> str:
    """What the README shows of a device: targets, the main workloads and the plots."""
    where = device.resolve().relative_to(ROOT)
    images = [f"![{plot_text(name)}]({where / name}.png)" for name in plot_names(records)]
    return "\n\n".join(
        [
            f"### {title(records)}",
            f"{provenance(records)} All tables: [report]({where}/report.md); raw samples, versions and hardware: "
            f"[JSON]({where}).",
            *targets(records, device),
            *main_tables(records, heading="**"),
            *images,
            *missing(records),
        ]
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
        *(f"![{plot_text(name)}]({name}.png)" for name in plot_names(records)),
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


def missing(records: Records) -> list[str]:
    lines = tables.not_timed(records)
    return ["Not timed:\n\n" + "\n".join(f"- {line}" for line in lines)] if lines else []
