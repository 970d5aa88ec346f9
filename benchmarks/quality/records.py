"""The runs of experiments as records: all that tables and plots need, small enough to be committed.

A record holds the configuration, the environment, the learning curve on the validation split, the metrics of the test
splits and a histogram of the answers' errors. ``runs.jsonl`` holds one record per line.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .metrics import final_value

FILE = "runs.jsonl"
CURVE = ("mae", "r2", "median_error", "exact_match", "no_number", "token_accuracy", "number_mae", "ce", "ntl")
ERROR_BINS = [round(0.1 * edge, 1) for edge in range(81)]
"""Edges over log10(1 + |error|); what is beyond the last one counts in the last bin."""
NAMES = {
    "ce": "CE",
    "ntl_was": "CE + {weight:g} NTL-WAS",
    "ntl_mse": "CE + {weight:g} NTL-MSE",
    "ntl_mae": "CE + {weight:g} NTL-MAE",
    "ntl_huber": "CE + {weight:g} NTL-Huber",
    "number_level": "CE + {weight:g} number-level",
    "ce_mse": "CE + MSE",
    "mse": "MSE",
}
PLAIN = ("ce", "ce_mse", "mse")
"""What has no options of NTL."""

Record = dict[str, Any]
Groups = dict[tuple[str, str], list[Record]]
"""(model, loss) -> its runs, one per seed."""


def record_of(run: Record, folder: Path) -> Record:
    """The record of a run's ``metrics.json`` and of the predictions beside it."""
    log, config = run["log"], run["config"]
    points = [entry for entry in log if "eval_loss" in entry]
    return {
        "dataset": config["dataset"]["name"],
        "model": config["model"]["name"],
        "loss": loss_name(run["loss"], config["loss"]),
        "seed": config["seed"],
        "parameters": run["parameters"],
        "sizes": run["sizes"],
        "seconds": sum(entry.get("train_runtime", 0) for entry in log),
        "curve": [{"step": p["step"], **{k: p[f"eval_{k}"] for k in CURVE if f"eval_{k}" in p}} for p in points],
        "metrics": run["metrics"],
        "errors": {split: error_histogram(folder / f"predictions-{split}.jsonl") for split in run["metrics"]},
        "config": config,
        "environment": run["environment"],
    }


def loss_name(trained_by: str, config: Record) -> str:
    """What a run was trained by, in words; what differs from the defaults of NTL is said."""
    name = NAMES[trained_by].format(weight=config["weight"])
    if trained_by in PLAIN:
        return name
    extras = [] if config["reweigh"] else ["reweigh=False"]
    if config["squash_factor"] is not None:
        extras.append(f"squash_factor={config['squash_factor']:g}")
    return f"{name} ({', '.join(extras)})" if extras else name


def error_histogram(path: Path) -> list[int]:
    """How many answers that are numbers err by how much, over :data:`ERROR_BINS`."""
    errors = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        guess, truth = final_value(entry["answer"]), final_value(entry["truth"])
        if guess is not None and truth is not None:
            errors.append(min(math.log10(1 + abs(guess - truth)), ERROR_BINS[-1]))
    counts: list[int] = np.histogram(errors, ERROR_BINS)[0].tolist()
    return counts


def read(folders: Sequence[Path]) -> list[Record]:
    """Every run at or below the folders: ``metrics.json`` with its predictions, or a line of a ``runs.jsonl``.

    Raises:
        ValueError: there is none below a folder, or two runs differ in nothing that tables show.
    """
    records = []
    for folder in folders:
        found = [record_of(json.loads(path.read_text()), path.parent) for path in sorted(folder.rglob("metrics.json"))]
        for path in sorted(folder.rglob(FILE)):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        if not found:
            raise ValueError(f"{folder}: no metrics.json and no {FILE} at or below it")
        records += found
    records.sort(key=key_of)
    for one, other in itertools.pairwise(records):
        if key_of(one) == key_of(other):
            raise ValueError(f"two runs of {', '.join(map(str, key_of(one)))}: report them apart")
    return records


def key_of(record: Record) -> tuple[str, str, str, int]:
    """What tells a run from every other one of a report."""
    return record["dataset"], record["model"], record["loss"], record["seed"]


def write(records: Iterable[Record], path: Path) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def by_dataset(records: Iterable[Record]) -> dict[str, Groups]:
    """Data set -> (model, loss) -> runs."""
    groups: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record["dataset"]][record["model"], record["loss"]].append(record)
    return groups


def steps_of(runs: Iterable[Record]) -> list[int]:
    """The steps at which every run was measured."""
    measured = [{point["step"] for point in run["curve"]} for run in runs]
    return sorted(set.intersection(*measured)) if measured else []


def at_step(runs: Iterable[Record], step: int, metric: str) -> list[float]:
    """A metric on the validation split after so many steps, a value per run that has it."""
    return [p[metric] for run in runs for p in run["curve"] if p["step"] == step and metric in p]
