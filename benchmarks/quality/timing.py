"""The time that the Number Token Loss adds to a training step, measured by the Trainer's timer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from tqdm import tqdm
from transformers import Trainer
from transformers.utils.logging import set_verbosity_error

from ntl_kernels.integrations.transformers import remove_ntl_from_model

from ..commands import Parser, count, in_one_line, writable
from ..environment import describe
from ..speed.results import percentiles
from .configuration import configure
from .experiment import load_splits
from .tasks import make_task
from .training import training_arguments

LOSSES = {"stock": "ce", "ce": "ce", "ntl": "ntl_was"}
"""Contestant -> loss. ``stock`` is the stock Trainer and the model's own cross-entropy, the others NTLTrainer."""
TITLES = {"stock": "stock Trainer, CE", "ce": "NTLTrainer, CE", "ntl": "NTLTrainer, CE + NTL-WAS"}


def make_trainer(name: str, config: DictConfig, folder: Path) -> Trainer:
    """The Trainer of a contestant; all have the same weights and see the same batches."""
    splits = load_splits(config)
    task = make_task(config, splits)
    shared = {"args": training_arguments(config, folder), "train_dataset": splits.train, "data_collator": task.collate}
    if name == "stock":
        remove_ntl_from_model(task.model)
        return Trainer(task.model, **shared)
    return task.trainer(task.model, **shared, **task.trainer_arguments)


def measure(overrides: list[str], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step in every round, from ``train_runtime``: collator, forward, backward and optimizer.

    A round trains each contestant for ``steps`` steps, in an order that rotates from round to round.
    """
    fixed = ["trainer=curve", f"trainer.arguments.max_steps={steps}", "trainer.arguments.eval_strategy=no"]
    fixed += [f"trainer.arguments.logging_steps={steps + 1}", "+trainer.arguments.disable_tqdm=true"]
    seconds: dict[str, list[float]] = {name: [] for name in LOSSES}
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            name: make_trainer(name, configure([*fixed, *overrides, f"loss={loss}"]), Path(folder, name))
            for name, loss in LOSSES.items()
        }
        names = list(trainers)
        for trainer in trainers.values():
            trainer.train()  # warm-up
        for number in tqdm(range(rounds), desc="rounds"):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(trainers[name].train().metrics["train_runtime"] / steps)
    return seconds


def spread(values: np.ndarray) -> dict[str, float]:
    return dict(zip(("low", "median", "high"), percentiles(values), strict=True))


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Milliseconds per step of each contestant, and the ratios of CE + NTL to both cross-entropies, by round."""
    each = {name: np.array(values) for name, values in seconds.items()}
    return {
        "milliseconds": {name: spread(1e3 * values) for name, values in each.items()},
        "ratios": {base: spread(each["ntl"] / each[base]) for base in ("stock", "ce")},
    }


@in_one_line
def main(arguments: list[str]) -> int:
    """``time [OVERRIDE...] [--rounds N] [--steps N] [--out FILE]``"""
    parser = Parser(prog="python -m benchmarks.quality time", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="options, as for an experiment")
    parser.add_argument("--rounds", type=count, default=30, help="default: 30")
    parser.add_argument("--steps", type=count, default=20, help="steps of each contestant in a round (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("runs/quality/timing.json"))
    chosen = parser.parse_args(arguments)
    set_verbosity_error()
    device = torch.device("cuda" if "device=cuda" in chosen.overrides else "cpu")
    writable(chosen.out.parent)
    seconds = measure(chosen.overrides, chosen.rounds, chosen.steps)
    environment = describe("quality", device)
    result = {"environment": environment, "overrides": chosen.overrides, "steps": chosen.steps}
    result |= {"seconds": seconds, **summary(seconds)}
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, value in result["milliseconds"].items():
        print(f"{TITLES[name]:26s} {value['median']:8.1f} ms per step ({value['low']:.1f} to {value['high']:.1f})")
    for base, value in result["ratios"].items():
        print(f"CE + NTL / {TITLES[base]}: {value['median']:.4f} ({value['low']:.4f} to {value['high']:.4f})")
    print(f"JSON: {chosen.out}")
    return 0
