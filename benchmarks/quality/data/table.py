"""Converts a table with a numeric column to questions and answers: "carat 0.23, cut Ideal, price?" and "326"."""

from __future__ import annotations

import csv
import random
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ntl_kernels.evaluation import number_in

from ...errors import InputError
from .pairs import Pair, Splits, lines_of, sample

FEWEST_ROWS = 50
"""With fewer distinct questions, errors are not meaningful."""
MOST_VALIDATION, MOST_TEST = 500, 1000
"""Default numbers of held-out questions; never more than a tenth of the table each."""
IDENTIFIER = re.compile(r"(?:^|[_\W])(?i:id|uuid|guid)$|(?<=[a-z])I[dD]$")
"""Names such as id, customer_id and PassengerId."""

Row = dict[str, str]
"""Column -> cell."""


class Told(NamedTuple):
    """What the questions tell of a row: these columns, or all but the target and those of ``without``."""

    columns: Sequence[str] | None = None
    without: Sequence[str] | None = None


def load_table(
    file: str | None,
    target: str | None,
    told: Told,
    empty_target: str | None,
    limits: dict[str, int | None],
    seed: int,
) -> Splits:
    """The rows of a CSV file, split at random; rows with the same question go into the same split.

    ``empty_target``: what to do with rows without a target; None: refuse the table, "skip": leave them out.
    """
    if file is None or target is None:
        raise InputError("dataset=table needs dataset.file=FILE.csv and dataset.target=COLUMN")
    if empty_target not in (None, "skip"):
        raise InputError(f"dataset.empty_target must be null or skip; got {empty_target!r}")
    pairs = read_table(Path(file), target, told, skips_empty=empty_target == "skip")
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
    """How many questions a split takes; some must be left for training."""
    size = usual if wanted is None else wanted
    if size >= available:
        raise InputError(f"dataset.limits.{name}={size} leaves nothing of {available} questions for training")
    return size


def read_table(path: Path, target: str, told: Told, skips_empty: bool) -> list[Pair]:
    """A pair for every row; empty cells are omitted."""
    lines = [line for _, line in lines_of(path)]
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    rows, pairs = [], []
    try:
        header = [name.strip() for name in next(reader)]
        header[0] = header[0].removeprefix("\ufeff")
        columns = columns_told(path, header, target, told)
        for cells in reader:
            if cells:
                where = f"{path}, line {reader.line_num}"
                rows.append(row_of(cells, header, where))
                if rows[-1][target] or not skips_empty:
                    pairs.append(pair_of(rows[-1], columns, target, where))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    warn_of_identifiers(path, rows, columns)
    return pairs


def columns_told(path: Path, header: Sequence[str], target: str, told: Told) -> list[str]:
    """The columns in the questions; raise unless every selected column exists exactly once."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    for option, names in {"target": [target], **told._asdict()}.items():
        if isinstance(names, str):
            raise InputError(f"dataset.{option} must be a list of columns, [{names}]; got {names}")
        for name in names or []:
            if name not in header:
                raise InputError(f"dataset.{option}: {path} has no column {name!r}; it has {', '.join(header)}")
            if name == target and option != "target":
                raise InputError(f"dataset.{option} contains the target {target!r}, which is to be estimated")
    if None not in told:
        raise InputError("dataset.columns selects columns, and dataset.without all others: give one of the two")
    left = [name for name in header if name not in (target, *(told.without or []))]
    columns = left if told.columns is None else list(told.columns)
    if not columns:
        raise InputError(f"{path}: no column besides the target {target!r} to estimate it from")
    return columns


def warn_of_identifiers(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Warn of columns that are identifiers by their names, or that number the rows."""
    for name in columns:
        if IDENTIFIER.search(name) or numbers_rows([row[name] for row in rows]):
            warnings.warn(
                f"{path}: column {name!r} looks like an identifier, from which nothing can be estimated; leave it out "
                "by dataset.without or dataset.columns",
                stacklevel=2,
            )


def numbers_rows(cells: Sequence[str]) -> bool:
    """Whether cells are consecutive whole numbers, in any order."""
    if not all(cell.isascii() and cell.isdecimal() for cell in cells):
        return False
    values = {int(cell) for cell in cells}
    return len(values) == len(cells) == max(values, default=0) - min(values, default=0) + 1


def row_of(cells: Sequence[str], header: Sequence[str], where: str) -> Row:
    if len(cells) != len(header):
        raise InputError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
    return {name: " ".join(cell.split()) for name, cell in zip(header, cells, strict=True)}


def pair_of(row: Row, columns: Sequence[str], target: str, where: str) -> Pair:
    """The question and the answer of a row."""
    if number_in(row[target]) is None:
        advice = "" if row[target] else " (dataset.empty_target=skip leaves such rows out)"
        raise InputError(f"{where}: {target} must be a plain number such as 12 or -3.5; got {row[target]!r}{advice}")
    known = [f"{name} {row[name]}" for name in columns if row[name]]
    return Pair(f"{', '.join([*known, target])}?", row[target])
