"""Compare CE with CE + NTL on one task, by the usual experiments, and print a table with intervals.

Without arguments it runs the main job: estimating rents from descriptions of flats, in two minutes on two cores.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm
from transformers import TrainerCallback
from transformers.utils.logging import set_verbosity_error

from .. import files
from ..commands import InputError, Parser, count, in_one_line, writable
from . import plots, records
from .configuration import check, configure, plain, run_name
from .experiment import load_splits, run, shortened
from .losses import NTL
from .names import METRICS, SHORT, words
from .records import Record, by_dataset, values_of
from .report import FOLDER
from .statistics import compare
from .tables import markdown, spread, told
from .timing import make_trainer
from .training import ARGUMENTS, training_arguments

MAIN_JOB = ("dataset=rents", f"dataset.name={SHORT}", "dataset.limits.validation=200")
TRAINER, BARS = "trainer=quick", "+trainer.arguments.disable_tqdm=false"
PLAIN, OURS = ("loss=ce",), ("loss=ntl_was",)
"""The recommended setting for answers that can only be estimated."""
RECORDED = ("llama", NTL), ("llama", "CE")
SHOWN = ("mae", "median_error", "log_mae", "number_accuracy", "run_on", "bleu", "rougeL")


class Bar(TrainerCallback):
    """One progress bar over the steps of all runs. It appears with the first step, after all errors in the input."""

    def __init__(self, total: int) -> None:
        self.total, self.name = total, ""
        self.bar: tqdm | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar = self.bar or tqdm(total=self.total, unit="step")
        self.bar.set_description(self.name)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.bar is not None
        self.bar.update(1)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def configurations(overrides: Sequence[str], seeds: int) -> list[tuple[str, DictConfig]]:
    """(name, configuration) of CE and of CE + NTL for every seed; overrides of the loss apply to NTL only."""
    if own := [each for each in overrides if each.lstrip("+~").startswith(("seed", "hydra"))]:
        raise InputError(f"compare runs seeds 1, 2, ...; set how many with --seeds, where with --out; got {own[0]}")
    task = [each for each in overrides if not each.lstrip("+~").startswith("loss")]
    ours = [each for each in overrides if each not in task]
    if not any(each.startswith("dataset=") for each in task):
        task = [*MAIN_JOB, *task]
    if not any(each.startswith("trainer=") for each in task) and not configure(task).model.checkpoint:
        task = [TRAINER, *task]
    runs = []
    ours = ours if any(each.startswith("loss=") for each in ours) else [*OURS, *ours]
    for seed in range(1, seeds + 1):
        for loss in (PLAIN, ours):
            chosen = [BARS, *task, *loss, f"seed={seed}"]
            config = configure(chosen)
            check(config)
            if loss is ours and config.loss.name == "ce":
                raise InputError("compare compares CE with another loss; got loss=ce")
            if (steps := training_arguments(config, Path()).max_steps) < 1:
                raise InputError(f"compare needs {ARGUMENTS}.max_steps of at least 1; got {steps}")
            runs.append((run_name(config.dataset.name, config.model.name, config.loss.name, seed, chosen), config))
    return runs


def expected_seconds(config: DictConfig) -> float:
    """The duration of a run on this machine, apart from sampled answers: that of two steps and a few answers, times
    their number."""
    arguments, short = training_arguments(config, Path()), OmegaConf.create(plain(config))
    short.trainer.arguments.update(max_steps=2, eval_strategy="no", save_strategy="no", disable_tqdm=True)
    splits = shortened(load_splits(config), config.trainer.max_questions, config.data_seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer("ce", short, splits, Path(folder))
        trainer.train()  # the first steps are slower
        step = trainer.train().metrics["train_runtime"] / 2
    every = 0 if arguments.eval_strategy == "no" else arguments.eval_steps or arguments.logging_steps
    evaluations = math.ceil((1 if every < 1 else arguments.max_steps) / every) if every else 0
    questions = evaluations * len(splits.validation) + sum(map(len, splits.tests.values()))
    few = splits.validation[: arguments.per_device_eval_batch_size]
    started = time.perf_counter()
    trainer.ask(few, trainer.answer, "rehearsal")
    return arguments.max_steps * step + questions * (time.perf_counter() - started) / len(few)


def train(runs: Sequence[tuple[str, DictConfig]], folder: Path) -> list[Record]:
    """The records of all runs, trained one after another under one progress bar."""
    found = []
    minutes = len(runs) * expected_seconds(runs[0][1]) / 60
    print(f"{len(runs)} runs; about {minutes:.0f} minutes on this machine", file=sys.stderr)
    bar = Bar(sum(config.trainer.arguments.max_steps for _, config in runs))
    with closing(bar):
        for name, config in runs:
            bar.name = f"{config.loss.name}, seed {config.seed}"
            made = run(config, folder / name, bar)
            found.append(records.record_of(made, folder / name))
    return found


def tables(found: Sequence[Record]) -> str:
    """The results of both losses and their difference, split by split."""
    parts = []
    (groups,) = by_dataset(found).values()
    plain, ours = sorted(groups.values(), key=lambda runs: runs[0]["loss"] != "CE")
    for split in records.whole_splits(plain[0]):
        shown = [metric for metric in SHOWN if values_of(plain, split, metric)]
        rows = [[runs[0]["loss"], *(spread(values_of(runs, split, m)) for m in shown)] for runs in (plain, ours)]
        rows.append(["difference", *(told(compare(ours, plain, split, m), m) for m in shown)])
        parts.append(markdown([split, *(METRICS[metric] for metric in shown)], rows))
    return "\n\n".join(parts)


def certainty(seeds: int, is_main_job: bool) -> str:
    """Notes on how reliable the differences are."""
    parts = []
    if seeds < 3:
        parts.append(f"{seeds} seed{'s' * (seeds > 1)}: too few for a meaningful interval (try --seeds 5).")
    else:
        parts.append("Brackets: 95% interval over the pairs; ▼ ▲: it excludes 0; n/m: seeds with a lower value.")
    if is_main_job:
        groups = by_dataset(records.read([FOLDER]))[SHORT]
        ours, plain = (groups[key] for key in RECORDED)
        recorded = compare(ours, plain, "test", "mae")
        parts.append(f"The recorded comparison over more seeds: MAE {told(recorded, 'mae')} seeds.")
    return " ".join(parts)


@in_one_line
def main(arguments: Sequence[str]) -> int:
    """``[compare] [OVERRIDE...] [--seeds N] [--out FOLDER]``"""
    options = "all options: python -m benchmarks.quality --help"
    parser = Parser(prog="python -m benchmarks.quality compare", description=__doc__, epilog=options)
    parser.add_argument("overrides", nargs="*", help="of the experiment; those of the loss apply to NTL only")
    parser.add_argument("--seeds", type=count, default=1, help="pairs of runs (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("runs/quality/compare"), help="folder for runs, plot and JSON")
    chosen = parser.parse_args(arguments)
    set_verbosity_error()
    runs = configurations(chosen.overrides, chosen.seeds)
    found = train(runs, writable(chosen.out))
    plot, data = chosen.out / "comparison.png", chosen.out / "comparison.json"
    ((dataset, groups),) = by_dataset(found).items()
    plots.draw(groups, f"{words(dataset)}: {chosen.seeds} seed{'s' * (chosen.seeds > 1)}", plot, "runs in this folder")
    files.write(data, json.dumps(found, indent=1) + "\n")
    settings = training_arguments(runs[0][1], chosen.out)
    print(
        f"\n{words(dataset)}: {found[0]['sizes']['train']:,} training pairs, {settings.max_steps:,} steps of "
        f"{settings.per_device_train_batch_size}, {found[0]['parameters']:,} parameters, "
        f"{sum(record['seconds'] for record in found):.0f} s\n\n{tables(found)}\n"
    )
    print(certainty(chosen.seeds, is_main_job=not chosen.overrides))
    print(f"Plot: {plot}\nJSON: {data}")
    return 0
