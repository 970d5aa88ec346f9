"""Markdown tables of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .providers import PROVIDERS
from .results import Record, Records, percentiles, seconds
from .targets import Target, targets_of

LABELS = {(provider.family, provider.name): provider.label for provider in PROVIDERS}
OBJECTIVES = {
    (provider.family, provider.name): {"ce": "CE", "ce+ntl": "CE + NTL", "ntl": "NTL", None: "a bound"}[
        provider.objective
    ]
    for provider in PROVIDERS
}
HOST_BOUND = 0.8
"""Of the measured time: a host that takes longer to issue a step may keep the device waiting."""
HOST = {
    "host": "Host time of a call whose kernels do not run",
    "eager": "Small problems on one CPU thread",
}
"""Group -> heading, with tables of their own."""
GROUPS = {
    "launch": "Few rows, where launches dominate",
    "hidden": "From hidden states, other problems",
    "ntl": "The Number Token Loss alone",
    "step": "A training step of a small Llama",
    "vocabulary-fp32": "Vocabularies, fp32",
    "vocabulary-bf16": "Vocabularies, bf16",
    "labels": "Number tokens, shares of number labels, ignored rows",
    "rows": "Numbers of rows",
    "threads": "Threads",
}
"""Group -> heading, in the report's order; the workloads of "main" have tables of their own, before these."""


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table, with numbers set to the right."""
    header, rows = list(header), [list(row) for row in rows]
    are_numbers = [all(is_number(row[column]) for row in rows) for column in range(len(header))]
    lines = [header, ["---:" if right else "---" for right in are_numbers], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def is_number(cell: str) -> bool:
    return not cell or cell.lstrip("≤≥- ")[:1].isdigit() or cell == "-"


def label(record: Record, provider: str) -> str:
    return LABELS.get((record["family"], provider), provider)


def objective(record: Record, provider: str) -> str:
    return OBJECTIVES.get((record["family"], provider), "")


def timed(record: Record) -> dict[str, Any]:
    """Provider -> entry, of those that were timed."""
    return {name: found for name, found in record["providers"].items() if found["status"] == "timed"}


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.3g}" if value < 0.1 else f"{value * 1e3:.0f}"


def microseconds(value: float) -> str:
    return f"{value * 1e6:.3g}" if value < 1e-3 else f"{value * 1e6:.0f}"


def scaled(value: float) -> str:
    """A time with its unit."""
    return f"{microseconds(value)} us" if value < 1e-3 else f"{milliseconds(value)} ms"


def megabytes(count: float) -> str:
    return f"{count / 2**20:.1f}" if count < 100 * 2**20 else f"{count / 2**20:.0f}"


def problem(record: Record) -> str:
    """The size of a workload in words."""
    words = [
        f"N = {record['rows']}",
        *([f"H = {record['hidden']}"] if record["hidden"] else []),
        f"V = {record['vocab']}",
    ]
    words += [record["dtype"], f"K = {record['numbers']}", f"{record['number_share']:.0%} number labels"]
    return ", ".join([*words, *([f"{record['ignored_share']:.0%} ignored"] if record["ignored_share"] else [])])


def provider_table(record: Record) -> str:
    """Everything measured of each provider on one workload."""
    entries = timed(record)
    ours = percentiles(entries["ours"]["samples_s"])[1] if "ours" in entries else None
    columns: dict[str, Callable[[str, Any], str]] = {
        "": lambda name, _: label(record, name),
        "computes": lambda name, _: objective(record, name),
        "median ms": lambda _, found: milliseconds(percentiles(found["samples_s"])[1]),
        "20 to 80 %": lambda _, found: "{} to {}".format(*map(milliseconds, percentiles(found["samples_s"])[::2])),
    }
    if ours is not None:
        columns["time / ours"] = lambda _, found: f"{percentiles(found['samples_s'])[1] / ours:.2f}"
    if record["family"] == "logits":
        columns["GB/s"] = lambda _, found: f"{rate(record, found):.1f}"
        if "copy" in entries:
            copy = rate(record, entries["copy"])
            columns["of copy"] = lambda _, found: f"{rate(record, found) / copy:.0%}"
    if "matmuls" in entries:
        products = percentiles(entries["matmuls"]["samples_s"])[1]
        columns["time / matmuls"] = lambda _, found: f"{percentiles(found['samples_s'])[1] / products:.2f}"
    columns["peak MiB"] = lambda _, found: megabytes(found["peak_bytes"])
    if any("host_s" in found for found in entries.values()):
        columns["host ms"] = lambda _, found: milliseconds(found["host_s"]) if "host_s" in found else ""
    counts = {"operators": "operators", "launches": "launches", "copies": "copies", "host_waits": "host waits"}
    for key, heading in counts.items():
        if any(key in found for found in entries.values()):
            columns[heading] = lambda _, found, key=key: str(found.get(key, ""))
    columns["gradient error"] = lambda _, found: f"{found['gradient_error']:.0e}" if "gradient_error" in found else ""
    return table(columns, ([cell(name, found) for cell in columns.values()] for name, found in entries.items()))


def rate(record: Record, found: Any) -> float:
    """GB/s, counting one read and one write of the logits."""
    return 2 * record["logits_bytes"] / percentiles(found["samples_s"])[1] / 1e9


def group_table(records: Records, group: str) -> str | None:
    """Median times of a group's workloads side by side, and as multiples of ours."""
    members = [record for record in records.values() if record["group"] == group and timed(record)]
    if not members:
        return None
    names = list(dict.fromkeys(name for record in members for name in timed(record)))
    header = ["median ms (time / ours)", *(f"{label(members[0], name)}" for name in names)]
    return table(
        header, ([workload_cell(record), *(time_cell(records, record, name) for name in names)] for record in members)
    )


def host_table(record: Record) -> str:
    """Host time, launches and waits of each provider on one workload, compared with the first of them."""
    entries = timed(record)
    medians = {name: percentiles(found["samples_s"])[1] for name, found in entries.items()}
    first = next(iter(medians))
    header = ["", "computes", "median us", "20 to 80 %", f"time / {label(record, first)}"]
    header += ["Triton launches", "waits for the device", "torch operators"]
    rows = [
        [
            label(record, name),
            objective(record, name),
            microseconds(medians[name]),
            "{} to {}".format(*map(microseconds, percentiles(found["samples_s"])[::2])),
            f"{medians[name] / medians[first]:.2f}",
            *(str(found[key]) for key in ("launches", "host_waits", "operators")),
        ]
        for name, found in entries.items()
    ]
    return table(header, rows)


def eager_table(records: Records) -> str | None:
    """Ours beside F.cross_entropy where calls cost more than arithmetic."""
    members = [record for record in records.values() if record["group"] == "eager" and timed(record)]
    rows = []
    for record in members:
        both = [seconds(records, record["name"], name) for name in ("ours", "torch_ce")]
        ratio = "" if None in both else f"{both[0] / both[1]:.2f}"
        times = ["" if time is None else microseconds(time) for time in both]
        rows.append([f"{record['rows']} x {record['vocab']}", record["dtype"], *times, ratio])
    return (
        table(["logits", "dtype", "ours, us", "F.cross_entropy, us", "ours / F.cross_entropy"], rows) if rows else None
    )


def workload_cell(record: Record) -> str:
    return f"{record['name']}: N = {record['rows']}, V = {record['vocab']}"


def time_cell(records: Records, record: Record, name: str) -> str:
    value, ours = seconds(records, record["name"], name), seconds(records, record["name"], "ours")
    if value is None:
        return ""
    return milliseconds(value) + (f" ({value / ours:.2f})" if ours is not None and name != "ours" else "")


def target_table(records: Records, kind: str, causes: dict[str, str]) -> str | None:
    """Target, measured, met or missed, and why missed."""
    rows = [target_row(target, records, causes) for target in targets_of(kind) if target.workload in records]
    return table(["target", "workload", "limit", "measured", "", "cause"], rows) if rows else None


def target_row(target: Target, records: Records, causes: dict[str, str]) -> list[str]:
    value = target.value(records)
    sign = "≥" if target.is_share else "≤"
    start = [target.claim, target.workload, f"{sign} {target.limit:.3g}"]
    if value is None:
        return [*start, "-", "not measured", ""]
    is_met = target.is_met(value)
    return [*start, f"{value:.3g}", "met" if is_met else "**missed**", "" if is_met else causes.get(target.key, "")]


def not_timed(records: Records) -> list[str]:
    """A line for each provider and reason why it has no time, with the workloads it happened on."""
    return by_workload(
        (f"{label(record, name)} ({details['status']}: {details['reason']})", record["name"])
        for record in records.values()
        for name, details in record["providers"].items()
        if details["status"] != "timed"
    )


def host_bound(records: Records) -> list[str]:
    """A line for each provider whose host is not clearly faster than its step, with the workloads where that is so."""
    return by_workload(
        (label(record, name), record["name"])
        for record in records.values()
        for name, found in timed(record).items()
        if record["clock"] == "device" and found.get("host_s", 0.0) > HOST_BOUND * percentiles(found["samples_s"])[1]
    )


def by_workload(found: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text, with the workloads that it is said of."""
    lines: dict[str, list[str]] = {}
    for text, workload in found:
        lines.setdefault(text, []).append(workload)
    return [f"{text}: {', '.join(workloads)}" for text, workloads in lines.items()]
