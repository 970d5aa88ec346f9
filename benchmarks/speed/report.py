"""Tables and plots made from the result files only, and the README section made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .. import files
from ..commands import InputError
from ..environment import ROOT
from ..published import README, Draw, Pages, digest
from . import plots, tables
from .counts import counts_text, headline
from .first import counted, first_text
from .headlines import headline_table, not_measured
from .memory import KEPT
from .neighbours import LIMIT
from .results import COUNTS, FOLDER, Records, devices, load, of_group, of_way

SECTION = "speed"
CAUSES = "causes.json"
"""A file next to a device's results: target key -> why it is missed. Written by hand, after profiling."""
IDLE = (
    "Triton compiles for a Hopper GPU that does not exist, launches do nothing, and CPU tensors stand in for GPU "
    "tensors. The times are those of the host for one forward and backward pass up to each launch, with the same code "
    "as on a GPU; a real launch adds some microseconds. `F.cross_entropy` runs on the CPU, where so few logits take "
    "almost no time. A wait is a call that on a GPU returns only after all previous work is done."
)

CAPTION = (
    "One forward and backward pass of cross-entropy (CE) with or without NTL, for N tokens and a vocabulary of V, of "
    f"which K are number tokens. **All ratios, including those in brackets, are {tables.RATIO}: below 1, ours is "
    "faster or smaller.**"
)
WAYS_TEXT = (
    "On CPUs, times are with kept memory, which the process reuses from step to step; with fresh memory, the default "
    "of PyTorch on Linux for large tensors, they differ. "
)
SMALL_TEXT = "Very small problems are dominated by the cost of calling operations."
MEMORY_TEXT = (
    "Kept memory: memory that a step frees stays with the process and is reused by the next step (with "
    "`MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592` in the environment). Fresh memory: the "
    "allocator maps memory anew at every step, the default of PyTorch on Linux for large tensors. "
)
DISTURBED_TEXT = (
    f"{tables.MARK.strip()} Disturbed: during the measurement, other processes used more than {LIMIT:.0%} of the time "
    "of all cores, even in the least disturbed of several attempts:"
)
HOST_BOUND_TEXT = (
    f"To issue one of these steps, the host needs more than {tables.HOST_BOUND:.0%} of the measured time (a call that "
    "waits for the device counts in full), so a device without other work waits for it:"
)


def write(folder: Path) -> list[Path]:
    return pages(folder).write(README)


def check(folder: Path) -> list[str]:
    return pages(folder).problems(README)


def pages(folder: Path) -> Pages:
    """The pages made from the results of all devices in a folder; with the README section if they are committed."""
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
    return Pages(SECTION, folder, texts, drawn, section(found) if is_committed else None)


def section(found: dict[Path, Records]) -> str:
    """The README's text on speed: a table, its source, and links to the rest."""
    ordered = sorted(found.items(), key=lambda pair: kind_of(pair[1]), reverse=True)  # GPUs first
    ways = WAYS_TEXT if any(of_way(records, KEPT) for records in found.values()) else ""
    table = headline_table([(title(records), kind_of(records), records) for _, records in ordered])
    counts = [line for device in found if (line := headline(load(device, [COUNTS])))]
    missing = not_measured((kind_of(records), records) for records in found.values())
    texts = [text for device, records in ordered for text in (sources(device, records), first_text(device, records))]
    return joined([table, " ".join(filter(None, [CAPTION, ways + SMALL_TEXT, *texts, *counts[:1], missing]))])


def joined(parts: Iterable[str]) -> str:
    """A page made from the non-empty parts."""
    return "\n\n".join(filter(None, parts)) + "\n"


def kind_of(records: Records) -> str:
    return next(iter(records.values()))["environment"]["kind"]


def sources(device: Path, records: Records) -> str:
    """The source of a device's numbers, with links to all of them."""
    where = device.resolve().relative_to(ROOT)
    versions = environments(records)[-1]["versions"]
    return (
        f"{title(records)}, torch {versions['torch']}: medians of interleaved steps. "
        f"All tables, spreads, versions and commands: [report]({where}/report.md), made from the [JSON]({where})."
    )


def device_report(records: Records, device: Path) -> str:
    """The full report of a device."""
    causes = files.read_json(device / CAUSES, {})
    mains = {record["name"]: record for record in of_group(records, "main")}
    hosts = of_group(records, "host")
    parts = [
        f"# Speed: {title(records)}",
        f"Times are for one forward and backward pass. Ratios are {tables.RATIO}: below 1, ours is faster. Peak memory "
        "is the maximum that a step allocates beyond its inputs, including gradients. The gradient error is relative "
        "to float64, in the Frobenius norm. Commands, commits and versions are [at the end](#machine).",
        MEMORY_TEXT + "A page has 4 KiB." if any(record["memory"] for record in records.values()) else "",
        headed(DISTURBED_TEXT, tables.disturbed(records)),
        *(f"## {name}: {tables.problem(record)}\n\n{main_tables(records, name)}" for name, record in mains.items()),
        *(
            headed(f"## {heading}", tables.each_way(records, partial(tables.group_table, group=group)))
            for group, heading in tables.GROUPS.items()
        ),
        headed("Our kernel of loss and gradient in two of these steps, by Nsight Compute:", counted(device)),
        # The host time of calls: without running kernels, and with little to compute.
        headed("## Host time of a call, without running kernels", IDLE if hosts else ""),
        *(f"**{record['name']}**: {tables.problem(record)}\n\n{tables.host_table(record)}" for record in hosts),
        headed("## Small problems on one CPU thread", tables.each_way(records, tables.eager_table)),
        headed("## What the kernels execute", counts_text(load(device, [COUNTS]))),
        *(f"![{plots.TITLES[name]}]({name}.png)" for name in plots.figures(records)),
        headed(HOST_BOUND_TEXT, tables.host_bound(records)),
        headed("Not timed:", tables.not_timed(records)),
        headed("## Targets", tables.target_table(records, kind_of(records), causes)),
        f"## Machine\n\n{provenance(records)}\n\n```json\n{json.dumps(environments(records)[0], indent=2)}\n```",
    ]
    return joined(parts)


def main_tables(records: Records, name: str) -> str:
    """The tables of one of the main workloads."""
    return tables.each_way(records, lambda found: tables.provider_table(found[name]) if name in found else "")


def headed(heading: str, text: str) -> str:
    """A text under its heading; empty if there is no text."""
    return f"{heading}\n\n{text}" if text else ""


def title(records: Records) -> str:
    environment = environments(records)[0]
    threads = f", {environment['threads']} threads" if environment["kind"] == "cpu" else ""
    return f"{environment['device']}{threads}"


def environments(records: Records) -> list[dict[str, Any]]:
    """The environments of the results, newest last; several if families were measured separately."""
    distinct = {json.dumps(record["environment"], sort_keys=True): record["environment"] for record in records.values()}
    return sorted(distinct.values(), key=lambda environment: environment["date"])


def provenance(records: Records) -> str:
    """Command, commit, versions and date of each environment, one per line."""
    found = environments(records)
    return "\n".join(f"- {tables.source_of(environment)}, Python {environment['python']}" for environment in found)
