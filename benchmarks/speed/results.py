"""The result files: ``<folder>/<device>/<family, "host" or "first">.json``, a record per workload and way of memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from .. import files
from ..commands import InputError
from .memory import FRESH, KEPT
from .workloads import FAMILIES

SCHEMA = 2
FILES = (*FAMILIES, "host", "first")
COUNTS = "counts"
"""The file of records without times: what each provider executes."""
FOLDER = Path(__file__).parents[1] / "results"

SHAPE = {**dict.fromkeys(("name", "family", "group"), str), "memory": (str, NoneType), "also": [str]}
SHAPE |= {"providers": {files.EACH: {"status": str}}, "environment": {"kind": str, "device": str, "date": str}}
"""Field of a record -> its type, for those that every table needs."""

Record = dict[str, Any]
Records = dict[str, Record]
"""Key -> record; for records of a single way of memory, workload name -> record."""
WAYS = (KEPT, None, FRESH)
"""The ways of memory; the first that exists represents a workload. None: on a GPU, or where memory does not matter."""


def key(name: str, memory: str | None) -> str:
    """The key of a record in its file."""
    return f"{name} ({memory} memory)" if memory else name


def add(folder: Path, name: str, records: Sequence[Record], whole: bool = False) -> None:
    """Write records to the file of a name, beside the others there; ``whole`` drops those."""
    path = folder / f"{name}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        known = {} if whole or not path.exists() else read(path)
        files.write(path, dumps(known | {key(record["name"], record["memory"]): record for record in records}))


def dumps(records: Records) -> str:
    """JSON with one line per provider, so that diffs of results are readable."""
    parts = []
    for title, record in records.items():
        plain = {field: value for field, value in record.items() if field != "providers"}
        providers = ",\n".join(members(record["providers"], "   "))
        lines = [*members(plain, "  "), f'  "providers": {{\n{providers}\n  }}']
        parts.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    return f'{{"schema": {SCHEMA}, "workloads": {{\n' + ",\n".join(parts) + "\n}}\n"


def members(entries: Record, indent: str) -> list[str]:
    """A line for each member of a JSON object."""
    return [f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items()]


def read(path: Path) -> Records:
    """The records of a file."""
    content = files.read_json(path)
    if (schema := content.get("schema")) != SCHEMA:
        raise InputError(f"{path}: expected schema {SCHEMA}; got {schema!r}")
    records = content.get("workloads")
    if not isinstance(records, dict) or not records:
        raise InputError(f'{path}: expected "workloads" with records; got {records!r:.40}')
    for title, record in records.items():
        if wrong := files.misfits(record, SHAPE):
            raise InputError(f"{path}: {title!r} is not a record: without {', '.join(wrong)}; got {record!r:.40}")
    return records


def load(folder: Path, files: Sequence[str] = FILES) -> Records:
    """The records in some files of a device, in this order; by default those with times."""
    paths = [folder / f"{name}.json" for name in files]
    return {title: record for path in paths if path.exists() for title, record in read(path).items()}


def of_way(records: Records, memory: str | None) -> Records:
    """The records of one way of memory, by workload."""
    return {record["name"]: record for record in records.values() if record["memory"] == memory}


def preferred(records: Records) -> Records:
    """One record per workload, by its name: with kept memory, if there are several."""
    ordered = [of_way(records, memory) for memory in reversed(WAYS)]
    return {name: record for found in ordered for name, record in found.items()}


def devices(folder: Path) -> list[Path]:
    """The folders that contain results."""
    return sorted({path.parent for name in FILES for path in folder.glob(f"*/{name}.json")})


def percentiles(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The 20th percentile, the median and the 80th."""
    low, median, high = np.percentile(samples, (20, 50, 80)).tolist()
    return low, median, high


def median(entry: Record) -> float:
    """The median time of a provider's entry."""
    return percentiles(entry["samples_s"])[1]


def with_status(record: Record, status: str) -> dict[str, Record]:
    """Provider -> entry, for providers that were, for example, "counted"."""
    return {name: found for name, found in record["providers"].items() if found["status"] == status}


def timed(record: Record) -> dict[str, Record]:
    return with_status(record, "timed")


def medians(record: Record) -> dict[str, float]:
    """Provider -> its median time."""
    return {name: median(found) for name, found in timed(record).items()}


def of_group(records: Records, group: str) -> list[Record]:
    """The records of a group's table that have any timed provider."""
    members = [record for record in records.values() if group in (record["group"], *record["also"])]
    return [record for record in members if timed(record)]
