"""Reference errors on a table without a language model: gradient boosting on the same rows and columns.

A token head and a regression head read numbers as digits. Their errors are compared with a method designed for tables,
and with a constant prediction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from sklearn.ensemble import HistGradientBoostingRegressor

from ntl_kernels.evaluation import number_in, value_metrics
from ntl_kernels.tokens.texts import shortened as cut

from .. import files
from ..commands import InputError, Parser, in_one_line, writable
from ..environment import describe
from .configuration import check, configure, plain
from .data.table import Row, read_table
from .experiment import load_splits, shortened
from .names import BOOSTED
from .records import YARDSTICKS

CONSTANT = "median of the training answers"


def boosted(train: Sequence[Row], answers: Sequence[float], test: Sequence[Row]) -> list[float]:
    """Predictions for the test rows by gradient boosting for the absolute error, fitted to the training rows."""
    sides = [encoded(*([row[name] for row in rows] for rows in (train, test))) for name in train[0]]
    known, unseen = (np.stack(side, -1) for side in zip(*sides, strict=True))
    model = HistGradientBoostingRegressor(loss="absolute_error", random_state=0).fit(known, answers)
    return [float(value) for value in model.predict(unseen)]


def encoded(train: Sequence[str], test: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """A column's cells as numbers: their values, NaN for empty ones; or alphabetical ranks, NaN for unseen ones."""
    if any(train) and all(number_in(cell) is not None for cell in train if cell):
        return valued(train), valued(test)
    place = {cell: place for place, cell in enumerate(sorted(set(train)))}
    return tuple(np.array([place.get(cell, np.nan) for cell in cells], dtype=float) for cells in (train, test))


def valued(cells: Sequence[str]) -> np.ndarray:
    """The numbers in cells, NaN where there is none."""
    values = np.array([number_in(cell) for cell in cells], dtype=float)
    if (beyond := np.isinf(values)).any():
        raise InputError(f"numbers must fit float64, up to 1.8e308; got {cut(cells[beyond.argmax()], 50)}")
    return values


def measure(config: DictConfig) -> dict[str, Any]:
    """Metrics of both methods on the test rows of a table, in the format of the file stored with the records."""
    if config.dataset.get("format") != "table":
        raise InputError(f"yardsticks are for dataset=table; got {config.dataset.name}")
    splits = shortened(load_splits(config), config.trainer.max_questions, config.data_seed)
    table, sides = plain(config.dataset), (splits.train, splits.tests["test"])
    read = read_table(Path(str(table["file"])), table["target"], table.get("columns"), table.get("without"))
    row_of = {pair.question: row for row, pair in read}
    train, test = ([row_of[pair.question] for pair in pairs] for pairs in sides)
    answers, truths = (valued([pair.answer for pair in pairs]).tolist() for pairs in sides)
    found = {BOOSTED: boosted(train, answers, test), CONSTANT: [median(answers)] * len(truths)}
    return {
        "columns": list(train[0]),
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
    config = configure(["dataset=table", *chosen.overrides])
    check(config)
    path = writable(chosen.out) / YARDSTICKS
    files.read_json(path, {})  # what cannot be read is told before the work
    name, measured = config.dataset.name, measure(config)
    with files.locked(chosen.out):
        found = files.read_json(path, {}) | {name: measured}
        files.write(path, json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    for method, metrics in measured["metrics"].items():
        print(f"{name}, {method}: MAE {metrics['mae']:.4g}, median error {metrics['median_error']:.4g}")
    print(f"JSON: {path}")
    return 0
