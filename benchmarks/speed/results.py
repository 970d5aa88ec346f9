"""The result files: ``<folder>/<device>/<family or "host">.json``, a record per workload."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from .workloads import FAMILIES

SCHEMA = 1
FILES = (*FAMILIES, "host")
FOLDER = Path(__file__).parents[1] / "results"


class Refusal(ValueError):
    """What was asked for cannot be done; said before any work, in a line."""


Record = dict[str, Any]
Records = dict[str, Record]
"""Workload name -> record."""


def make_folder(folder: Path) -> Path:
    """The folder, made if need be and tried.

    Raises:
        Refusal: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refusal(f"cannot write results to {folder}: {error.strerror or error}") from error
    return folder


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
        providers = ",\n".join(
            f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in record["providers"].items()
        )
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in {"name": name, **plain}.items()]
        parts.append(
            f" {json.dumps(name)}: {{\n" + ",\n".join([*lines, f'  "providers": {{\n{providers}\n  }}']) + "\n }"
        )
    return f'{{"schema": {SCHEMA}, "workloads": {{\n' + ",\n".join(parts) + "\n}}\n"


def read(path: Path) -> Records:
    """The records of a file.

    Raises:
        Refusal: the file is no JSON or has another schema.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise Refusal(f"{path}: not JSON: {error}") from error
    if content.get("schema") != SCHEMA:
        raise Refusal(f"{path}: expected schema {SCHEMA}; got {content.get('schema')!r}")
    return content["workloads"]


def load(folder: Path) -> Records:
    """All records of a device, in the files' order."""
    paths = [folder / f"{name}.json" for name in FILES]
    return {name: record for path in paths if path.exists() for name, record in read(path).items()}


def devices(folder: Path) -> list[Path]:
    """The folders that hold results."""
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if any((path / f"{name}.json").exists() for name in FILES))


def percentiles(samples: list[float]) -> tuple[float, float, float]:
    """The 20th percentile, the median and the 80th."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return fifths[0], statistics.median(samples), fifths[-1]


def entry(records: Records, workload: str, provider: str) -> Record | None:
    """A provider's entry, if it was timed."""
    found = records.get(workload, {}).get("providers", {}).get(provider)
    return found if found is not None and found["status"] == "timed" else None


def seconds(records: Records, workload: str, provider: str) -> float | None:
    """A provider's median time, if it was timed."""
    found = entry(records, workload, provider)
    return None if found is None else percentiles(found["samples_s"])[1]
