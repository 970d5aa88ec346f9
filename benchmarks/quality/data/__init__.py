"""The data of the experiments: splits of question/answer pairs, read from files or generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...commands import InputError
from .downloads import DOWNLOADS, READERS
from .generated import GENERATORS
from .pairs import Pair, Splits, answered, as_it_is_or_gzipped, sample
from .table import load_table

__all__ = ["Pair", "Splits", "load"]


def load(
    *,
    name: str,
    format: str,
    limits: dict[str, int | None],
    seed: int,
    folder: str | None = None,
    files: dict[str, Any] | None = None,
    file: str | None = None,
    target: str | None = None,
    columns: list[str] | None = None,
    without: list[str] | None = None,
    empty_target: str | None = None,
) -> Splits:
    """The splits of a data set as configured, cut to ``limits`` (train, validation, test).

    A test split is a file, or parts with a file each, all cut to ``limits["test"]``. ``empty_target``: whether to
    "skip" questions without an answer; otherwise they are an error.
    """
    # A name such as 2020 has been read as a number.
    format, folder, file = (each if each is None else str(each) for each in (format, folder, file))
    if not isinstance(limits, dict) or limits.keys() != {"train", "validation", "test"}:
        raise InputError(f"dataset.limits must have train, validation and test; got {limits!r}")
    for split, limit in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InputError(f"dataset.limits.{split} must be null or a whole number of at least 1; got {limit!r}")
    if empty_target not in (None, "error", "skip"):
        raise InputError(f"dataset.empty_target must be skip, error or null; got {empty_target!r}")
    if format == "table":
        return load_table(file, target, columns, without, empty_target, limits, seed)
    if format in GENERATORS:
        return GENERATORS[format](limits, seed)
    if format not in READERS:
        known = ", ".join(["table", *GENERATORS, *READERS])
        raise InputError(f"dataset.format must be one of {known}; got {format!r}")
    base = Path(folder or f"data/{name}")

    def read_split(file: str, limit: int | None) -> list[Pair]:
        path = as_it_is_or_gzipped(base / file)
        if not path.is_file():
            raise InputError(
                f"{path}: no such file. Download {DOWNLOADS[name]} and run\n"
                f"  python -m benchmarks.quality prepare {name} DOWNLOADED_FOLDER {base}"
            )
        return sample(answered(READERS[format](path), path, empty_target), limit, seed)

    train, validation = (read_split(files[split], limits[split]) for split in ("train", "validation"))
    tests, parts = {}, {}
    for test, file in files["tests"].items():
        if isinstance(file, str):
            tests[test] = read_split(file, limits["test"])
        else:
            read = [(part, pair) for part, path in file.items() for pair in read_split(path, limits["test"])]
            parts[test], tests[test] = [part for part, _ in read], [pair for _, pair in read]
    return Splits(train, validation, tests, parts)
