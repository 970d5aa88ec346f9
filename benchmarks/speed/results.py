"""The result files: ``<folder>/<device>/<family or "host">.json``, a record per workload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from .workloads import FAMILIES

SCHEMA = 1
FILES = (*FAMILIES, "host")
FOLDER = Path(__file__).parents[1] / "results"

Record = dict[str, Any]
Records = dict[str, Record]
"""Workload name -> record."""


def add(folder: Path, name: str, record: Record, replace: bool) -> None:
    """Put a record into the file of a name, instead of or beside what is there."""
    path = folder / f"{name}.json"
    known = {} if replace or not path.exists() else read(path)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps({**known, record["name"]: record}))


def dumps(records: Records) -> str:
    """JSON with a line per provider, so that a change of results reads well."""
    parts = []
    for name, record in records.items():
        plain = {key: value for key, value in record.items() if key not in ("providers", "name")}
        providers = ",\n".join(members(record["providers"], "   "))
        lines = [*members({"name": name, **plain}, "  "), f'  "providers": {{\n{providers}\n  }}']
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return f'{{"schema": {SCHEMA}, "workloads": {{\n' + ",\n".join(parts) + "\n}}\n"


def members(entries: Record, indent: str) -> list[str]:
    """A line for each member of a JSON object."""
    return [f"{indent}{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()]


def read(path: Path) -> Records:
    """The records of a file."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if content.get("schema") != SCHEMA:
        raise InputError(f"{path}: expected schema {SCHEMA}; got {content.get('schema')!r}")
    return content["workloads"]


def load(folder: Path) -> Records:
    """All records of a device, in the files' order."""
    paths = [folder / f"{name}.json" for name in FILES]
    return {name: record for path in paths if path.exists() for name, record in read(path).items()}


def devices(folder: Path) -> list[Path]:
    """The folders that hold results."""
    return sorted({path.parent for name in FILES for path in folder.glob(f"*/{name}.json")})


def percentiles(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The 20th percentile, the median and the 80th."""
    low, median, high = np.percentile(samples, (20, 50, 80)).tolist()
    return low, median, high


def median(entry: Record) -> float:
    """The median time of a provider's entry."""
    return percentiles(entry["samples_s"])[1]


def timed(record: Record) -> dict[str, Record]:
    """Provider -> entry, of those that were timed."""
    return {name: found for name, found in record["providers"].items() if found["status"] == "timed"}


def medians(record: Record) -> dict[str, float]:
    """Provider -> its median time."""
    return {name: median(found) for name, found in timed(record).items()}


def of_group(records: Records, group: str) -> list[Record]:
    """The workloads of a group on which any provider was timed."""
    return [record for record in records.values() if record["group"] == group and timed(record)]
