"""Converts a table with a numeric column to questions and answers: "carat 0.23, cut Ideal, price?" and "326"."""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ntl_kernels.evaluation import number_in
from ntl_kernels.tokens.texts import shortened

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
    target: object,
    columns: object,
    without: object,
    empty_target: str | None,
    limits: dict[str, int | None],
    seed: int,
) -> Splits:
    """The rows of a CSV file, split at random; rows with the same question go into the same split.

    ``columns``: the columns in the questions; None: all but the target and those of ``without``. Each column is its
    name, which may have been read as a number or a truth value: 2020, true.
    """
    if file is None or target is None:
        raise InputError("dataset=table needs dataset.file=FILE.csv and dataset.target=COLUMN")
    path = Path(file)
    pairs = answered([pair for _, pair in read_table(path, target, columns, without)], path, empty_target)
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


def read_table(path: Path, target: object, columns: object, without: object = None) -> Iterator[tuple[Row, Pair]]:
    """(its cells in the columns of the question, its pair) for every row; the question omits empty cells."""
    rows = rows_of(path)
    header = next(rows)[1]
    answer, used = columns_used(path, header, target, columns, without)
    for where, cells in rows:
        row = row_of(cells, header, where)
        yield {name: row[name] for name in used}, pair_of(row, used, answer, where)


def rows_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(place, cells) of the rows that are not blank; the first are the names of the columns."""
    reader = csv.reader((f"{line}\n" for _, line in lines_of(path)), strict=True)
    found = False
    try:
        for cells in filter(None, reader):
            yield f"{path}, line {reader.line_num}", cells if found else [name.strip() for name in cells]
            found = True
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    if not found:
        raise InputError(f"{path}: the file has no header")


def columns_used(
    path: Path, header: Sequence[str], target: object, columns: object, without: object = None
) -> tuple[str, list[str]]:
    """The target, and the columns in the questions; raise unless every selected column exists exactly once."""
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    if columns is not None and without is not None:
        raise InputError("dataset.columns and dataset.without exclude each other; choose columns with one of them")
    (answer,), left_out = named(path, header, "target", [target]), named(path, header, "without", without or [])
    others = [name for name in header if name not in {answer, *left_out}]
    used = others if columns is None else named(path, header, "columns", columns)
    if answer in used:
        raise InputError(f"dataset.columns contains the target {answer!r}, which is to be estimated")
    if not used:
        raise InputError(f"{path}: no column is left besides the target {answer!r} to estimate it from")
    return answer, used


def named(path: Path, header: Sequence[str], option: str, given: object) -> list[str]:
    """The names of the columns that an option gives; raise if it is not a list, or there is no such column."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"dataset.{option} must be a list of columns, [{given}]; got {given}")
    found, known = [], set(header)
    for each in given:
        name = each if isinstance(each, str) else written(each, header)
        if name not in known:
            raise InputError(f"dataset.{option}: {path} has no column {name!r}{shortened(meant(name, header), 500)}")
        found.append(name)
    return found


def written(value: object, header: Sequence[str]) -> str:
    """The column whose name the configuration reads as a value: "2020" as 2020, "true" as True."""

    def is_read_so(name: str) -> bool:
        with suppress(ValueError):
            return name.lower() == str(value).lower() or (not isinstance(value, bool) and float(name) == value)
        return False

    exact = str(value)
    return exact if exact in header else next(filter(is_read_so, header), exact)


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
