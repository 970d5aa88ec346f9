"""What each provider executes, from the records of `counts`: the report's table and the README's line."""

from __future__ import annotations

from collections import Counter

from ..table import Table
from .idle import WARP
from .results import Record, Records
from .tables import label, source_of

HEADLINE = "counts-50257-bf16"
"""The workload of the README's line: rows of this V are not whole vectors, so they start anywhere."""
WIDTHS = ("16", "8", "4", "2")
VECTOR = 16
"""Bytes per lane of the widest access."""
PEERS = {"liger-kernel": "Liger", "unsloth": "Unsloth", "flash-linear-attention": "flash-linear-attention"}
TEXT = (
    "**These are counts, not times.** Triton compiles the kernels of every package for a Hopper GPU, and an emulator "
    "(`tests/emulator`) executes their PTX, forward and backward. How fast that is on a GPU also depends on latencies, "
    "caches, clocks and on how many programs run at a time, none of which is counted. Every loss and every gradient "
    "was right: compared with `F.cross_entropy` in float64, or, for ours, which also computes NTL, with our reference."
)
COLUMNS_TEXT = (
    "Per row, over the kernels with at least a program per row: bytes read from and written to global memory, in "
    "brackets as a multiple of the row's logits; loads and stores by width, in which neighbouring lanes at the same "
    "place count once; PTX instructions of a lane per 16 bytes of logits; exponentials, divisions and other special "
    "functions per logit. Barriers (per program), registers (per thread) and instructions that spill are of each of "
    "these kernels, in the order of their launches. Triton launches, torch operators that start a kernel or a copy, "
    "and waits for the device are of the whole call."
)


def row_kernels(record: Record, entry: Record) -> list[Record]:
    """The kernels with at least a program per row."""
    return [kernel for kernel in entry["kernels"] if kernel["programs"] >= record["rows"]]


def accesses(record: Record, entry: Record, kind: str) -> Counter[str]:
    """Width in bytes -> accesses by all programs of the kernels of rows. ``kind`` is "loads" or "stores"."""
    found: Counter[str] = Counter()
    for kernel in row_kernels(record, entry):
        found.update(kernel[kind])
    return found


def bytes_of(record: Record, entry: Record, kind: str) -> float:
    """Bytes that the accesses of a row move."""
    return sum(int(width) * count for width, count in accesses(record, entry, kind).items()) / record["rows"]


def counted(record: Record) -> dict[str, Record]:
    """Provider -> entry, for providers that were counted."""
    return {name: entry for name, entry in record["providers"].items() if entry["status"] == "counted"}


def counts_table(records: Records) -> str:
    """A line per workload and provider; empty if nothing was counted."""
    header = ["V", "dtype", "", "bytes read", "bytes written"]
    header += [f"{kind} of {' / '.join(WIDTHS)} bytes" for kind in ("loads", "stores")]
    header += ["instructions per 16 bytes", "special functions per logit", "barriers"]
    header += ["registers", "spills", "launches", "torch operators", "waits"]
    rows = [counts_row(record, name) for record in records.values() for name in counted(record)]
    return Table(header, rows).markdown()


def counts_row(record: Record, name: str) -> list[str]:
    entry = record["providers"][name]
    kernels = row_kernels(record, entry)
    logits = record["rows"] * record["vocab"]
    instructions = sum(kernel["instructions"] for kernel in kernels) * WARP * VECTOR
    return [
        str(record["vocab"]),
        record["dtype"],
        label(record, name),
        *(multiple(record, bytes_of(record, entry, kind)) for kind in ("loads", "stores")),
        *(by_width(record, accesses(record, entry, kind)) for kind in ("loads", "stores")),
        f"{instructions / record['logits_bytes']:.0f}",
        f"{sum(kernel['special'] for kernel in kernels) / logits:.2f}",
        *(" + ".join(f"{kernel[field]:g}" for kernel in kernels) for field in ("barriers", "registers", "spills")),
        str(sum(kernel["launches"] for kernel in entry["kernels"])),
        str(entry["operators"]),
        str(entry["host_waits"]),
    ]


def multiple(record: Record, size: float) -> str:
    """Bytes per row, and as a multiple of the row's logits."""
    return f"{size:,.0f} ({size * record['rows'] / record['logits_bytes']:.2f})"


def by_width(record: Record, found: Counter[str]) -> str:
    """Accesses per row, by the widths of the heading."""
    return " / ".join(f"{found[width] / record['rows']:,.0f}" for width in WIDTHS)


def counts_source(records: Records) -> str:
    """Command, commit and versions of the newest counts."""
    environment = max((record["environment"] for record in records.values()), key=lambda found: found["date"])
    versions = environment["versions"]
    packages = [f"{name} {versions[package]}" for package, name in PEERS.items() if versions[package]]
    return ", ".join([source_of(environment), *packages]) + "."


def headline(records: Records) -> str:
    """The README's line: ours beside Liger; empty unless both were counted."""
    record = records.get(HEADLINE)
    entries = counted(record) if record else {}
    if not record or not {"ours_given", "liger_ce"} <= set(entries):
        return ""
    ours, liger = (moved(record, entries[name]) for name in ("ours_given", "liger_ce"))
    return (
        f"Memory accesses per row of V = {record['vocab']}, {record['dtype']}, counted on an emulated GPU, forward + "
        f"backward (counts, not times): ours, with NTL, {ours}; Liger, without, {liger}."
    )


def moved(record: Record, entry: Record) -> str:
    """Bytes and accesses of a row, in words."""
    read, written = (bytes_of(record, entry, kind) for kind in ("loads", "stores"))
    count = sum(sum(accesses(record, entry, kind).values()) for kind in ("loads", "stores")) / record["rows"]
    return f"reads {read:,.0f} bytes and writes {written:,.0f} in {count:,.0f} accesses"
