"""Converts a table with a numeric column to questions and answers: "carat 0.23, cut Ideal, price?" and "326"."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from ntl_kernels.evaluation import number_in

from ...commands import InputError, meant
from .pairs import Pair, Splits, answered, lines_of, sample

FEWEST_ROWS = 50
"""With fewer distinct questions, errors are not meaningful."""
MOST_VALIDATION, MOST_TEST = 500, 1000
"""Default numbers of held-out questions; never more than a tenth of the table each."""

Row = dict[str, str]
"""Column -> cell."""


def load_table(
    file: str | None,
    target: str | None,
    columns: Sequence[str] | None,
    without: Sequence[str] | None,
    empty_target: str | None,
    limits: dict[str, int | None],
    seed: int,
) -> Splits:
    """The rows of a CSV file, split at random; rows with the same question go into the same split.

    ``columns``: the columns in the questions; None: all but the target and those of ``without``.
    """
    if file is None or target is None:
        raise InputError("dataset=table needs dataset.file=FILE.csv and dataset.target=COLUMN")
    pairs = answered(read_table(Path(file), target, columns, without), Path(file), empty_target)
    questions = sorted({pair.question for pair in pairs})
    if len(questions) < FEWEST_ROWS:
        raise InputError(f"{file}: {len(questions)} distinct rows; at least {FEWEST_ROWS} are needed")
    random.Random(seed).shuffle(questions)
    tenth = len(questions) // 10
    test = held_out(limits["test"], min(tenth, MOST_TEST), len(questions), "test")
    validation = held_out(limits["validation"], min(tenth, MOST_VALIDATION), len(questions) - test, "validation")
    place = dict.fromkeys(questions[:test], "test") | dict.fromkeys(questions[test : test + validation], "validation")
    parts: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for pair in pairs:
        parts[place.get(pair.question, "train")].append(pair)
    return Splits(sample(parts["train"], limits["train"], seed), parts["validation"], {"test": parts["test"]})


def held_out(wanted: int | None, usual: int, available: int, name: str) -> int:
    """The size of a split; some questions must be left for training."""
    size = usual if wanted is None else wanted
    if size >= available:
        raise InputError(f"dataset.limits.{name}={size} leaves none of the {available} questions for training")
    return size


def read_table(
    path: Path, target: str, columns: Sequence[str] | None, without: Sequence[str] | None = None
) -> list[Pair]:
    """A pair for every row; empty cells are omitted."""
    lines = [line for _, line in lines_of(path)]
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    pairs = []
    try:
        header = [name.strip() for name in next(reader)]
        header[0] = header[0].removeprefix("\ufeff")
        used = columns_used(path, header, target, columns, without)
        for cells in reader:
            if cells:
                where = f"{path}, line {reader.line_num}"
                pairs.append(pair_of(row_of(cells, header, where), used, target, where))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    return pairs


def columns_used(
    path: Path, header: Sequence[str], target: str, columns: Sequence[str] | None, without: Sequence[str] | None
) -> list[str]:
    """The columns in the questions; raise unless every selected column exists exactly once."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    if columns is not None and without is not None:
        raise InputError("dataset.columns and dataset.without exclude each other; choose columns with one of them")
    for option, names in {"target": [target], "columns": columns, "without": without}.items():
        if isinstance(names, str):
            raise InputError(f"dataset.{option} must be a list of columns, [{names}]; got {names}")
        for name in names or []:
            if name not in header:
                raise InputError(f"dataset.{option}: {path} has no column {name!r}{meant(name, header)}")
    used = [name for name in header if name not in (target, *(without or []))] if columns is None else list(columns)
    if target in used:
        raise InputError(f"dataset.columns contains the target {target!r}, which is to be estimated")
    if not used:
        raise InputError(f"{path}: no column is left besides the target {target!r} to estimate it from")
    return used


def row_of(cells: Sequence[str], header: Sequence[str], where: str) -> Row:
    if len(cells) != len(header):
        raise InputError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
    return {name: " ".join(cell.split()) for name, cell in zip(header, cells, strict=True)}


def pair_of(row: Row, columns: Sequence[str], target: str, where: str) -> Pair:
    """The question and the answer of a row, which may be empty."""
    if row[target] and number_in(row[target]) is None:
        raise InputError(f"{where}: {target} must be a plain number such as 12 or -3.5; got {row[target]!r}")
    known = [f"{name} {row[name]}" for name in columns if row[name]]
    return Pair(f"{', '.join([*known, target])}?", row[target])
