"""Converts a table with a numeric column to questions and answers: "carat 0.23, cut Ideal, price?" and "326"."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from ntl_kernels.evaluation import number_in

from ...errors import InputError
from .pairs import Pair, Splits, lines_of, sample

FEWEST_ROWS = 50
"""With fewer distinct questions, errors are not meaningful."""
MOST_VALIDATION, MOST_TEST = 500, 1000
"""Default numbers of held-out questions; never more than a tenth of the table each."""


def load_table(
    file: str | None, target: str | None, columns: Sequence[str] | None, limits: dict[str, int | None], seed: int
) -> Splits:
    """The rows of a CSV file, split at random; rows with the same question go into the same split.

    ``columns`` are the columns in the questions; by default all columns except the target.
    """
    if file is None or target is None:
        raise InputError("dataset=table needs dataset.file=FILE.csv and dataset.target=COLUMN")
    pairs = read_table(Path(file), target, columns)
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


def read_table(path: Path, target: str, columns: Sequence[str] | None) -> list[Pair]:
    """A pair for every row; empty cells are omitted."""
    lines = [line for _, line in lines_of(path)]
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        header[0] = header[0].removeprefix("\ufeff")
        check_columns(path, header, target, columns)
        told = [name for name in header if name != target] if columns is None else list(columns)
        pairs = []
        for row in reader:
            if row:
                pairs.append(pair_of(row, header, told, target, f"{path}, line {reader.line_num}"))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    return pairs


def check_columns(path: Path, header: Sequence[str], target: str, columns: Sequence[str] | None) -> None:
    """Raise unless every selected column exists exactly once."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    for option, names in (("target", [target]), ("columns", columns or [])):
        for name in names:
            if name not in header:
                raise InputError(f"dataset.{option}: {path} has no column {name!r}; it has {', '.join(header)}")
    if columns is not None and target in columns:
        raise InputError(f"dataset.columns contains the target {target!r}, which is to be estimated")
    if (len(header) < 2 and columns is None) or (columns is not None and not columns):
        raise InputError(f"{path}: no column besides the target {target!r} to estimate it from")


def pair_of(row: Sequence[str], header: Sequence[str], told: Sequence[str], target: str, where: str) -> Pair:
    """The question and the answer of a row."""
    if len(row) != len(header):
        raise InputError(f"{where}: {len(row)} cells, but the header has {len(header)}")
    cells = {name: " ".join(cell.split()) for name, cell in zip(header, row, strict=True)}
    if number_in(cells[target]) is None:
        raise InputError(f"{where}: {target} must be a plain number such as 12 or -3.5; got {cells[target]!r}")
    known = [f"{name} {cells[name]}" for name in told if cells[name]]
    return Pair(f"{', '.join([*known, target])}?", cells[target])
