"""The data of the experiments: splits of question/answer pairs, read from files or generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...commands import InputError, meant
from .downloads import DOWNLOADS, READERS
from .generated import GENERATORS
from .pairs import Pair, Splits, answered, as_it_is_or_gzipped, sample
from .table import load_table

__all__ = ["Pair", "Splits", "load"]

NEEDED = ("name", "format", "limits")
OPTIONS: dict[str, tuple[str, ...]] = {
    "table": ("file", "target", "columns", "without", "empty_target"),
    **dict.fromkeys(GENERATORS, ()),
    **dict.fromkeys(READERS, ("folder", "files", "empty_target")),
}
"""Format -> its options, besides those that all need, and ``ratings``, which is for the models."""


def load(options: Mapping[str, Any], seed: int) -> Splits:
    """The splits of a data set with these options, cut to its limits (train, validation, test).

    A test split is a file, or parts with a file each, all cut to ``limits["test"]``. ``empty_target``: whether to
    "skip" questions without an answer; otherwise they are an error.
    """
    check(options)
    format, limits = str(options["format"]), options["limits"]
    if format in GENERATORS:
        return GENERATORS[format](limits, seed)
    if format in READERS:
        return load_files(READERS[format], options, seed)
    given = {name: options.get(name) for name in OPTIONS[format]}
    file = given.pop("file")  # 2020 has been read as a number
    return load_table(None if file is None else str(file), **given, limits=limits, seed=seed)


def check(options: Mapping[str, Any]) -> None:
    """Raise if an option is missing, unknown, invalid or not one of the format."""
    for name in NEEDED:
        if name not in options:
            raise InputError(f"dataset.{name} is missing")
    if (format := str(options["format"])) not in OPTIONS:
        raise InputError(f"dataset.format must be one of {', '.join(OPTIONS)}; got {options['format']!r}")
    of_format = {*NEEDED, "ratings", *OPTIONS[format]}
    known = of_format.union(*OPTIONS.values())
    for name in sorted(options.keys() - of_format):
        why = f" with dataset.format={format}" if name in known else meant(name, sorted(known))
        raise InputError(f"dataset has no option {name!r}{why}")
    limits, empty_target = options["limits"], options.get("empty_target")
    if not isinstance(limits, dict) or limits.keys() != {"train", "validation", "test"}:
        raise InputError(f"dataset.limits must have train, validation and test; got {limits!r}")
    for split, limit in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InputError(f"dataset.limits.{split} must be null or a whole number of at least 1; got {limit!r}")
    if empty_target not in (None, "error", "skip"):
        raise InputError(f"dataset.empty_target must be skip, error or null; got {empty_target!r}")


def load_files(reader: Callable[[Path], list[Pair]], options: Mapping[str, Any], seed: int) -> Splits:
    """The splits in files of a folder, by default ``data/NAME``."""
    name, limits, folder, files = str(options["name"]), options["limits"], options.get("folder"), options.get("files")
    asked = files.get("tests") if isinstance(files, dict) else None
    if not (asked and isinstance(asked, dict) and files.keys() == {"train", "validation", "tests"}):
        form = "{train: FILE, validation: FILE, tests: {NAME: FILE}}"
        raise InputError(f"dataset.files must be {form}; got {files!r:.200}")
    base = Path(f"data/{name}" if folder is None else str(folder))

    def read_split(split: str, file: object, limit: int | None) -> list[Pair]:
        if not isinstance(file, (str, int, float)):
            raise InputError(f"dataset.files.{split} must be a file; got {file!r}")
        path = as_it_is_or_gzipped(base / str(file))
        if name in DOWNLOADS and not path.exists():
            raise InputError(
                f"{path}: no such file. Download {DOWNLOADS[name]} and run\n"
                f"  python -m benchmarks.quality prepare {name} DOWNLOADED_FOLDER {base}"
            )
        return sample(answered(reader(path), path, options.get("empty_target")), limit, seed)

    train, validation = (read_split(split, files[split], limits[split]) for split in ("train", "validation"))
    tests, parts, limit = {}, {}, limits["test"]
    for test, file in asked.items():
        if isinstance(file, dict) and file:
            read = [(part, pair) for part in file for pair in read_split(f"tests.{test}.{part}", file[part], limit)]
            parts[test], tests[test] = [part for part, _ in read], [pair for _, pair in read]
        else:
            tests[test] = read_split(f"tests.{test}", file, limit)
    return Splits(train, validation, tests, parts)
