"""Records of experiment runs: everything that tables and plots need, small enough to be committed.

A record contains the configuration, the environment, the learning curve on the validation split, the metrics of the
test splits and a histogram of the answers' errors. ``runs.jsonl`` has one record per line.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from .. import files
from ..commands import InputError, naming
from ..environment import without_paths
from ..files import EACH, misfits
from .configuration import METRICS, WITHOUT_EFFECT, differences
from .data.pairs import final_value
from .losses import title
from .metrics import agreement, too_short
from .names import DECODERS, median_of, split_of

FILE, YARDSTICKS = "runs.jsonl", "yardsticks.json"
CURVE = ("mae", "r2", "median_error", "exact_match", "no_number", "token_accuracy", "number_mae", "ce", "ntl")
ERROR_BINS = [round(0.1 * edge, 1) for edge in range(81)]
"""Edges over log10(1 + |error|); larger errors count in the last bin."""

NUMBER = (int, float, NoneType)
SHAPE: dict[str, Any] = {
    **dict.fromkeys(("dataset", "model", "loss"), str),
    **dict.fromkeys(("seed", "parameters"), int),
    "seconds": (int, float),
    "sizes": {"train": int, EACH: int},
    "curve": [{"step": int, EACH: NUMBER}],
    "metrics": {EACH: {EACH: NUMBER}},
    "errors": {EACH: [int]},
    "config": {"dataset": {"name": str}, "model": {"name": str}, "loss": dict},
    "environment": {
        **dict.fromkeys(("device", "python", "commit", "command", "date"), str),
        "threads": int,
        "versions": {"torch": str, "transformers": str},
        "changed_files": [str],
    },
}
"""Field of a record -> its type."""

Record = dict[str, Any]
Key = tuple[str, str]
"""(model, loss)."""
Groups = dict[Key, list[Record]]
"""Its runs, one per seed."""


def record_of(run: Record, folder: Path) -> Record:
    """The record of a run, from its ``metrics.json`` and the predictions next to it."""
    log, config = run["log"], run["config"]
    points = [entry for entry in log if "eval_loss" in entry]
    answers = {split: answered(folder / f"predictions-{split}.jsonl") for split in whole_splits(run)}
    more = {split: too_short(values) for split, values in answers.items()}
    if config["dataset"].get("ratings"):
        more = {split: more[split] | agreement(values) for split, values in answers.items()}
    return {
        "dataset": config["dataset"]["name"],
        "model": config["model"]["name"],
        "loss": title(run["loss"], config["loss"], config["model"].get("codec", "digits")),
        "seed": config["seed"],
        "parameters": run["parameters"],
        "sizes": run["sizes"],
        "seconds": run["seconds"],
        "curve": [{"step": p["step"], **{k: p[f"eval_{k}"] for k in CURVE if f"eval_{k}" in p}} for p in points],
        "metrics": {split: measured | more.get(split, {}) for split, measured in run["metrics"].items()},
        "errors": {split: error_histogram(values) for split, values in answers.items()},
        "config": without_paths(config),
        "environment": run["environment"],
    }


def whole_splits(run: Record) -> list[str]:
    """The splits in the metrics of a run, without parts of splits."""
    return [split for split in run["metrics"] if "/" not in split]


def answered(path: Path) -> list[tuple[float | None, float | None]]:
    """(answer, truth) as numbers, for every question of a file of predictions."""
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [(final_value(entry["answer"]), final_value(entry["truth"])) for entry in entries]


def error_histogram(values: Iterable[tuple[float | None, float | None]]) -> list[int]:
    """A histogram of the errors of answers that are numbers, over :data:`ERROR_BINS`."""
    errors = [abs(guess - truth) for guess, truth in values if guess is not None and truth is not None]
    return np.histogram([min(math.log10(1 + error), ERROR_BINS[-1]) for error in errors], ERROR_BINS)[0].tolist()


def read(folders: Sequence[Path], output: Path | None = None, replace: bool = False) -> list[Record]:
    """All runs: every ``metrics.json`` in or below the folders, the ``runs.jsonl`` of a folder, and that of ``output``,
    where records will be written.

    A record in ``output`` that was made from one of the other runs is read once. One of another run with the same key
    is an error, or left out with ``replace``.
    """
    records: list[Record] = []
    for folder in folders:
        found = [read_run(path) for path in sorted(folder.rglob(METRICS))]
        is_output, path = output is not None and folder.resolve() == output.resolve(), folder / FILE
        if not found and not path.is_file():
            raise InputError(f"{folder}: no {METRICS} in or below it and no {FILE} in it")
        records += found + (read_records(path) if path.is_file() and not is_output else [])
    made = {key_of(record): made_by(record) for record in records}
    kept = read_records(output / FILE) if output is not None and (output / FILE).is_file() else []
    kept = [old for old in kept if not ((key := key_of(old)) in made and (replace or made[key] == made_by(old)))]
    records = sorted(records + kept, key=key_of)
    for one, other in itertools.pairwise(records):
        if key_of(one) == key_of(other):
            is_kept = any(record in kept for record in (one, other))
            raise InputError(
                f"two runs of {', '.join(map(str, key_of(one)))}: report them separately, or distinguish them by "
                f"dataset.name or model.name{f' (--replace drops that in {output})' if is_kept else ''}; they differ "
                f"in {', '.join(unlike(one, other)) or 'nothing'}"
            )
    return records


def read_run(path: Path) -> Record:
    """A run's record."""
    try:
        return whole(record_of(json.loads(path.read_text(encoding="utf-8")), path.parent))
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not the metrics of a run with its predictions next to it: {error!r}") from error


def read_records(path: Path) -> list[Record]:
    """The records of a ``runs.jsonl``."""
    with naming(str(path)):
        lines = list(enumerate(path.read_bytes().split(b"\n"), 1))
    lines = [(place, line) for place, line in lines if line.strip()]
    found = []
    for place, line in lines:
        try:
            found.append(whole(json.loads(line)))
        except (RecursionError, ValueError) as error:
            without = f"delete this line to go on with the other {len(lines) - 1}"
            raise InputError(f"{path}, line {place}: not a record: {error}; {without}") from error
    return found


def whole(record: Any) -> Record:
    """The record; raise a ValueError if it lacks a field."""
    if wrong := misfits(record, SHAPE):
        raise ValueError(f"without {', '.join(wrong)}")
    return record


def key_of(record: Record) -> tuple[str, str, str, int]:
    """The key that identifies a run in a report."""
    return record["dataset"], record["model"], record["loss"], record["seed"]


def made_by(record: Record) -> tuple[Any, Any]:
    """What identifies the process that made a record; the runs of a sweep may share the environment, with its time."""
    return record["environment"], record["config"]


def unlike(one: Record, other: Record, models: bool = True) -> list[str]:
    """The options in which two runs differ, except those that pairs need not share (such as loss and seed).

    The loss decides the head: MSE trains a regression head, the others a token head. A table may be compressed.
    """
    ignored = ["loss", "seed", "trainer.name", "trainer.resume", "dataset.folder", "dataset.files", *WITHOUT_EFFECT]
    tables = {Path(run["config"]["dataset"].get("file") or "").name.removesuffix(".gz") for run in (one, other)}
    ignored += ["dataset.file"] if len(tables) == 1 else []
    ignored += [] if models else ["model"]
    ignored += ["model.head"] if "MSE" in (one["loss"], other["loss"]) else []
    found = differences(one["config"], other["config"])
    return [key for key in found if not any(f"{key}.".startswith(f"{name}.") for name in ignored)]


def write(records: Iterable[Record], path: Path) -> None:
    files.write(path, "".join(json.dumps(record) + "\n" for record in records))


def by_dataset(records: Iterable[Record]) -> dict[str, Groups]:
    """Data set -> (model, loss) -> runs."""
    groups: dict[str, Groups] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record["dataset"]][record["model"], record["loss"]].append(record)
    return groups


def splits_of(groups: Groups) -> list[str]:
    """The names of the test splits with greedy answers."""
    splits = {split for runs in groups.values() for run in runs for split in whole_splits(run)}
    decoded = {split_of(split, decoder) for split in splits for decoder in DECODERS}
    return sorted(splits - set(median_splits(groups).values()) - decoded)


def median_splits(groups: Groups) -> dict[str, str]:
    """Test split -> the name of its medians of sampled answers, if there are any."""
    runs = [run for group in groups.values() for run in group]
    found = {split for run in runs for split in run["metrics"]}
    samples = {run["config"].get("samples", 0) for run in runs}
    pairs = [(split, split_of(split, median_of(count))) for split in sorted(found) for count in sorted(samples)]
    return {split: median for split, median in pairs if median in found}


def is_rated(groups: Groups) -> bool:
    """Whether the answers are ratings."""
    return any(run["config"]["dataset"].get("ratings") for runs in groups.values() for run in runs)


def steps_of(runs: Iterable[Record]) -> list[int]:
    """The steps at which all runs were evaluated."""
    measured = [{point["step"] for point in run["curve"]} for run in runs]
    return sorted(set.intersection(*measured)) if measured else []


def value_of(run: Record, where: str | int, metric: str) -> float | None:
    """A metric on a test split, or on the validation split after a number of steps."""
    measured = run["metrics"] if isinstance(where, str) else {point["step"]: point for point in run["curve"]}
    return measured.get(where, {}).get(metric)


def values_of(runs: Iterable[Record], where: str | int, metric: str) -> list[float]:
    """The metric of every run that has it."""
    return [value for run in runs if (value := value_of(run, where, metric)) is not None]
