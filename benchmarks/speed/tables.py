"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..published import commit_of
from ..table import Table
from . import neighbours
from .memory import FRESH, KEPT
from .providers import PROVIDERS
from .results import WAYS, Record, Records, median, medians, of_group, of_way, percentiles, timed
from .targets import Target, targets_of

LABELS = {(provider.family, provider.name): provider.label for provider in PROVIDERS}
WORDS = {"ce": "CE", "ce+ntl": "CE + NTL", "ntl": "NTL", None: "a bound"}
OBJECTIVES = {(provider.family, provider.name): WORDS[provider.objective] for provider in PROVIDERS}
HOST_BOUND = 0.8
"""Share of the measured time; if the host needs more to issue a step, the device may wait for it."""
MARK = " †"
"""Printed after the name of a workload that other processes disturbed."""
RATIO = "ours / theirs"
MEMORY = {KEPT: "Kept memory", FRESH: "Fresh memory"}
GROUPS = {
    "load": "While another process keeps all cores busy",
    "launch": "Few rows, where launches dominate",
    "hidden": "From hidden states, other problem sizes",
    "ntl": "The Number Token Loss alone",
    "step": "A training step of a small Llama",
    "vocabulary-fp32": "Vocabularies, fp32",
    "vocabulary-bf16": "Vocabularies, bf16",
    "labels": "Number tokens, shares of number labels, ignored rows",
    "bins": "Ordered tokens: every label is one of K adjacent ids",
    "rows": "Number of rows",
    "threads": "Threads",
    "first": "A GPU's first times",
}
"""Group -> heading, in the report's order; "main", "host" and "eager" have tables of other kinds."""
Columns = dict[str, Callable[[str, Record], str]]
"""Heading -> function that returns the cell for a provider's name and entry."""


def is_disturbed(record: Record) -> bool:
    return neighbours.disturbs(record["others_share"])


def each_way(records: Records, table: Callable[[Records], str]) -> str:
    """A table for each way of memory with records, under its name."""
    tables = {way: table(of_way(records, way)) for way in WAYS}
    return "\n\n".join(f"**{MEMORY[way]}**\n\n{text}" if way else text for way, text in tables.items() if text)


def label(record: Record, provider: str) -> str:
    return LABELS.get((record["family"], provider), provider)


def objective(record: Record, provider: str) -> str:
    return OBJECTIVES.get((record["family"], provider), "")


def source_of(environment: dict[str, Any]) -> str:
    """Command, date, commit and versions of a result."""
    versions = environment["versions"]
    return (
        f"`{environment['command']}`: {environment['date']}, {commit_of(environment)}, "
        f"torch {versions['torch']}, Triton {versions['triton']}"
    )


def three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def milliseconds(seconds: float) -> str:
    return three_digits(seconds * 1e3)


def microseconds(seconds: float) -> str:
    return three_digits(seconds * 1e6)


def scaled(value: float) -> str:
    """A time with its unit."""
    return f"{microseconds(value)} µs" if value < 1e-3 else f"{milliseconds(value)} ms"


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.1f}" if count < 100 * 2**20 else f"{count / 2**20:.0f}"


def problem(record: Record) -> str:
    """The size of a workload as text."""
    hidden = [f"H = {record['hidden']}"] if record["hidden"] else []
    ignored = [f"{record['ignored_share']:.0%} ignored"] if record["ignored_share"] else []
    counts = [f"K = {record['numbers']}", f"{record['number_share']:.0%} number labels"]
    threads = [f"{record['threads']} thread" + "s" * (record["threads"] > 1)] if record["threads"] else []
    size = [f"N = {record['rows']}", *hidden, f"V = {record['vocab']}", record["dtype"]]
    return ", ".join([*size, *counts, *ignored, *threads])


def table_of(record: Record, columns: Columns) -> str:
    """A line for each provider that was timed, without empty columns."""
    found = timed(record)
    return Table.of(columns, found, found.values()).filled().markdown()


def times(record: Record, unit: str, written: Callable[[float], str]) -> Columns:
    """The columns that every table of providers starts with."""
    return {
        MARK.strip() * is_disturbed(record): lambda name, _: label(record, name),
        "computes": lambda name, _: objective(record, name),
        f"median {unit}": lambda _, found: written(median(found)),
        "20th to 80th percentile": lambda _, found: "{} to {}".format(
            *map(written, percentiles(found["samples_s"])[::2])
        ),
    }


def over(ours: float, theirs: float) -> str:
    """Ours / theirs: below 1, ours is faster or smaller."""
    return f"{ours / theirs:.2f}"


def compared(ours: Record) -> Columns:
    """The column of our time divided by that of each provider."""
    return {RATIO: lambda _, found: over(median(ours), median(found))}


def provider_table(record: Record) -> str:
    """All measurements of each provider on one workload."""
    entries = timed(record)
    columns = times(record, "ms", milliseconds)
    if "ours" in entries:
        columns |= compared(entries["ours"])
    if record["family"] == "logits":
        columns["GB/s"] = lambda _, found: f"{rate(record, found):.1f}"
        if "copy" in entries:
            columns["of copy"] = lambda _, found: f"{rate(record, found) / rate(record, entries['copy']):.0%}"
    if "matmuls" in entries:
        columns["time / matmuls"] = lambda _, found: over(median(found), median(entries["matmuls"]))
    columns["pages mapped"] = lambda _, found: str(found.get("faults", ""))
    columns["peak MiB"] = lambda _, found: mebibytes(found["peak_bytes"])
    columns["host ms"] = lambda _, found: milliseconds(found["host_s"]) if "host_s" in found else ""
    for field in ("operators", "launches", "copies", "host_waits"):
        columns[field.replace("_", " ")] = lambda _, found, field=field: str(found.get(field, ""))
    columns["gradient error"] = lambda _, found: f"{found['gradient_error']:.0e}" if "gradient_error" in found else ""
    return table_of(record, columns)


def rate(record: Record, found: Record) -> float:
    """GB/s, counting one read and one write of the logits."""
    return 2 * record["logits_bytes"] / median(found) / 1e9


def group_table(records: Records, group: str) -> str:
    """Median times of a group's workloads side by side, with ours / theirs; empty if there are none.

    A workload with its own table appears here with the providers of the other workloads.
    """
    members = sorted(of_group(records, group), key=lambda record: record["vocab"])
    first = [record for record in members if record["group"] == group]
    labels = {name: label(record, name) for record in first for name in timed(record)}
    rows = []
    for record in members if first else []:
        workload = f"{record['name']}{MARK * is_disturbed(record)}: {problem(record)}"
        rows.append([workload, *(time_cell(medians(record), name) for name in labels)])
    return Table([f"median ms ({RATIO})", *labels.values()], rows).markdown()


def time_cell(times: dict[str, float], name: str) -> str:
    """A provider's time, if there is one, and ours / theirs."""
    if name not in times:
        return ""
    ratio = f" ({over(times['ours'], times[name])})" if "ours" in times and name != "ours" else ""
    return milliseconds(times[name]) + ratio


def host_table(record: Record) -> str:
    """Host time, launches and waits of each provider on one workload."""
    ours = next((entry for name, entry in timed(record).items() if name.startswith("ours")), None)
    columns = times(record, "µs", microseconds) | (compared(ours) if ours else {})
    counts = {"Triton launches": "launches", "waits for the device": "host_waits", "torch operators": "operators"}
    for heading, field in counts.items():
        columns[heading] = lambda _, found, field=field: str(found[field])
    return table_of(record, columns)


def eager_table(records: Records) -> str:
    """Ours compared with F.cross_entropy where calls cost more than arithmetic."""
    rows = []
    for record in of_group(records, "eager"):
        times = medians(record)
        cells = [microseconds(times[name]) if name in times else "" for name in ("ours", "torch_ce")]
        ratio = over(times["ours"], times["torch_ce"]) if all(cells) else ""
        size = f"{record['rows']} x {record['vocab']}" + MARK * is_disturbed(record)
        rows.append([size, record["dtype"], *cells, ratio])
    return Table(["logits", "dtype", "ours, µs", "F.cross_entropy, µs", RATIO], rows).markdown()


def target_table(records: Records, kind: str, causes: dict[str, str]) -> str:
    """Targets with the measured value, met or missed, and the cause if missed."""
    measured = [target for target in targets_of(kind) if target.record in records]
    rows = [target_row(target, records, causes) for target in measured]
    return Table(["target", "workload", "limit", "measured", "", "cause"], rows).markdown()


def missed(records: Records, kind: str) -> set[str]:
    """The keys of the missed targets."""
    values = {target: target.value(records) for target in targets_of(kind)}
    return {target.key for target, value in values.items() if value is not None and not target.is_met(value)}


def target_row(target: Target, records: Records, causes: dict[str, str]) -> list[str]:
    value = target.value(records)
    sign = "≥" if target.is_share else "≤"
    start = [target.claim, target.record, f"{sign} {target.limit:.3g}"]
    if value is None:
        return [*start, "-", "not measured", ""]
    is_met = target.is_met(value)
    chosen = target.other(records) if len(target.others) > 1 else None
    fastest = f" ({label(records[target.record], chosen[1])})" if chosen else ""
    return [
        *start,
        f"{value:.3g}{fastest}",
        "met" if is_met else "**missed**",
        "" if is_met else causes.get(target.key, ""),
    ]


def not_timed(records: Records) -> str:
    """A line for each provider without a time or counts and the reason, with the workloads concerned."""
    return by_workload(
        (f"{label(record, name)} ({details['status']}: {details['reason']})", record["name"])
        for record in records.values()
        for name, details in record["providers"].items()
        if "reason" in details
    )


def host_bound(records: Records) -> str:
    """A line for each provider whose host time is not clearly below its step time, with the workloads concerned."""
    return by_workload(
        (label(record, name), record["name"])
        for record in records.values()
        for name, found in timed(record).items()
        if record["clock"] == "device" and found.get("host_s", 0.0) > HOST_BOUND * median(found)
    )


def disturbed(records: Records) -> str:
    """A line for each workload that other processes disturbed."""
    return "\n".join(
        f"- {title}: {record['others_share']:.0%}" for title, record in records.items() if is_disturbed(record)
    )


def by_workload(found: Iterable[tuple[str, str]]) -> str:
    """A line for each text, with the workloads it applies to."""
    lines: dict[str, dict[str, None]] = {}
    for text, workload in found:
        lines.setdefault(text, {})[workload] = None  # listed once, even if measured several times
    return "\n".join(f"- {text}: {', '.join(workloads)}" for text, workloads in lines.items())
