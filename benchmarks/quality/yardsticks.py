"""Reference errors on a table without a language model: gradient boosting on the same rows and columns.

A token head and a regression head read numbers as digits. Their errors are compared with a method designed for tables,
and with a constant prediction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from ntl_kernels.evaluation import number_in, value_metrics

from .. import files
from ..commands import InputError, Parser, in_one_line, writable
from ..environment import describe
from .configuration import configure, plain
from .data import Pair
from .data.table import columns_used, header_of
from .experiment import load_splits, shortened
from .names import BOOSTED
from .records import YARDSTICKS

CONSTANT = "median of the training answers"

Cells = list[dict[str, str]]


def cells_of(pairs: Sequence[Pair], columns: Sequence[str]) -> Cells:
    """Column -> cell of every question."""
    names = "|".join(map(re.escape, columns))
    cell = re.compile(rf"(?:^|, )({names}) (.*?)(?=, (?:{names}) |, [^,]*\?$)")
    return [dict(cell.findall(pair.question)) for pair in pairs]


def boosted(train: Cells, answers: Sequence[float], test: Cells, columns: Sequence[str]) -> list[float]:
    """Predictions for the test rows by gradient boosting for the absolute error, fitted to the training rows."""
    sides = []
    for name in columns:
        cells = [[row.get(name, "") for row in rows] for rows in (train, test)]
        sides.append(encoded(*cells))
    known, unseen = (np.stack(side, -1) for side in zip(*sides, strict=True))
    model = HistGradientBoostingRegressor(loss="absolute_error", random_state=0).fit(known, answers)
    return [float(value) for value in model.predict(unseen)]


def encoded(train: Sequence[str], test: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """A column's cells as numbers: their values, or alphabetical ranks; NaN for empty or unseen cells."""
    if all(number_in(cell) is not None for cell in train if cell):
        return tuple(np.array([number_in(cell) for cell in cells], dtype=float) for cells in (train, test))
    place = {cell: place for place, cell in enumerate(sorted(set(train)))}
    return tuple(np.array([place.get(cell, np.nan) for cell in cells], dtype=float) for cells in (train, test))


def measure(overrides: Sequence[str]) -> dict[str, Any]:
    """Metrics of both methods on the test rows of a table, in the format of the file stored with the records."""
    config = configure(["dataset=table", *overrides])
    if config.dataset.format != "table":
        raise InputError(f"yardsticks are for dataset=table; got {config.dataset.name}")
    splits = shortened(load_splits(config), config.trainer.max_questions, config.data_seed)
    file, table = Path(str(config.dataset.file)), plain(config.dataset)
    _, columns = columns_used(file, header_of(file), table["target"], table["columns"], table["without"])
    train, test = (cells_of(pairs, columns) for pairs in (splits.train, splits.tests["test"]))
    answers, truths = ([float(pair.answer) for pair in pairs] for pairs in (splits.train, splits.tests["test"]))
    found = {BOOSTED: boosted(train, answers, test, columns), CONSTANT: [median(answers)] * len(truths)}
    return {
        "columns": columns,
        "sizes": {"train": len(train), "test": len(test)},
        "metrics": {name: value_metrics(values, truths) for name, values in found.items()},
        "environment": describe("quality", torch.device("cpu")),
    }


@in_one_line
def main(arguments: Sequence[str]) -> int:
    """``yardsticks OVERRIDE... [--out FOLDER]``"""
    parser = Parser(prog="python -m benchmarks.quality yardsticks", description=__doc__)
    parser.add_argument("overrides", nargs="+", help="options of dataset=table: file, target and columns")
    parser.add_argument("--out", type=Path, default=Path("runs/quality/report"), help="folder of records")
    chosen = parser.parse_args(arguments)
    path = writable(chosen.out) / YARDSTICKS
    files.read_json(path, {})  # what cannot be read is told before the work
    name = configure(["dataset=table", *chosen.overrides]).dataset.name
    measured = measure(chosen.overrides)
    with files.locked(chosen.out):
        found = files.read_json(path, {}) | {name: measured}
        files.write(path, json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    for method, metrics in measured["metrics"].items():
        print(f"{name}, {method}: MAE {metrics['mae']:.4g}, median error {metrics['median_error']:.4g}")
    print(f"JSON: {path}")
    return 0
