"""The time and the memory that the Number Token Loss adds to a training step of the Trainer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor
from tqdm import tqdm
from transformers import Trainer
from transformers.utils.logging import set_verbosity_error

from ntl_kernels.integrations.transformers import remove_ntl_from_model

from .. import files
from ..commands import InputError, Parser, count, in_one_line, writable_file
from ..environment import describe
from ..speed.measure import observe
from ..speed.results import percentiles
from .configuration import check, configure
from .data import Pair, Splits
from .experiment import load_splits
from .losses import ntl_config
from .names import CONTESTANTS
from .tasks import Collate, make_task
from .training import ARGUMENTS, IGNORE, training_arguments

LOSSES = {"stock": "ce", "logits": "ntl_was", "ce": "ce", "ntl": "ntl_was"}
"""Contestant -> loss. ``stock`` is the stock Trainer and the model's own cross-entropy, the others NTLTrainer: with the
loss from the stock model's logits, or from hidden states (``apply_ntl_to_model``)."""
USED = ("dataset", "model", "device", "seed", "data_seed", f"{ARGUMENTS}.")
"""Options that affect a step."""


def configured(overrides: Sequence[str], steps: int) -> dict[str, DictConfig]:
    """The configuration of each contestant; raise if an override is of an option that is set here or has no effect."""
    fixed = {"max_steps": steps, "logging_steps": steps + 1, "eval_strategy": "no", "eval_on_start": "false"}
    fixed |= {"disable_tqdm": "true"}
    for override in overrides:
        option = override.lstrip("+~").partition("=")[0]
        if not option.startswith(USED) or option.removeprefix(f"{ARGUMENTS}.") in fixed:
            raise InputError(f"time takes {', '.join(USED)}*, except {', '.join(fixed)}; got {override}")
    chosen = ["trainer=curve", *(f"++{ARGUMENTS}.{name}={value}" for name, value in fixed.items())]
    found = {name: configure([*chosen, *overrides, f"loss={loss}"]) for name, loss in LOSSES.items()}
    for config in found.values():
        check(config)
    return found


def make_trainer(name: str, config: DictConfig, splits: Splits, folder: Path, all_tokens: bool = False) -> Trainer:
    """The Trainer of a contestant; all have the same weights and see the same batches. ``all_tokens``: those of
    questions are labels, too."""
    task = make_task(config, splits)
    collate = partial(labelled_everywhere, task.collate) if all_tokens else task.collate
    shared = {"args": training_arguments(config, folder), "train_dataset": splits.train, "data_collator": collate}
    if name in ("stock", "logits"):
        remove_ntl_from_model(task.model)
    if name == "stock":
        return Trainer(task.model, **shared)
    if name == "logits":
        shared |= {"numbers": task.codec.numbers(), "ntl_config": ntl_config(config.loss)}
    return task.trainer(task.model, **shared, **task.trainer_arguments)


def labelled_everywhere(collate: Collate, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """A decoder's batch with a label at every token."""
    batch = collate(pairs)
    return {**batch, "labels": batch["input_ids"].where(batch["attention_mask"] == 1, IGNORE)}


def peak_bytes(trainer: Trainer) -> int:
    """The peak memory of forward and backward beyond weights and optimizer."""
    batch = trainer.data_collator(trainer.train_dataset[: trainer.args.per_device_train_batch_size])

    def step(index: int) -> None:
        trainer.model.zero_grad()
        trainer.training_step(trainer.model, dict(batch))

    trainer.model.zero_grad()
    return observe(step, trainer.args.device)["peak_bytes"]


def measure(overrides: list[str], rounds: int, steps: int, all_tokens: bool = False) -> dict[str, Any]:
    """Seconds of a step in every round, from ``train_runtime``: collator, forward, backward and optimizer; and peaks of
    memory.

    A round trains each contestant for ``steps`` steps, in an order that rotates from round to round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in LOSSES}
    configurations = configured(overrides, steps)
    splits = load_splits(configurations["stock"])
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            name: make_trainer(name, config, splits, Path(folder, name), all_tokens)
            for name, config in configurations.items()
        }
        names = list(trainers)
        for trainer in trainers.values():
            trainer.train()  # warm-up
        for number in tqdm(range(rounds), desc="rounds"):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds[name].append(trainers[name].train().metrics["train_runtime"] / steps)
        peaks = {name: peak_bytes(trainer) for name, trainer in trainers.items()}
    return {"seconds": seconds, "peak_bytes": peaks}


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
    """``time [OVERRIDE...] [--rounds N] [--steps N] [--all-tokens] [--out FILE]``"""
    parser = Parser(prog="python -m benchmarks.quality time", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="options, as for an experiment")
    parser.add_argument("--rounds", type=count, default=30, help="default: 30")
    parser.add_argument("--steps", type=count, default=20, help="steps of each contestant in a round (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("runs/quality/timing.json"))
    parser.add_argument("--all-tokens", action="store_true", help="the loss on questions, too (decoders)")
    chosen = parser.parse_args(arguments)
    set_verbosity_error()
    device = torch.device("cuda" if "device=cuda" in chosen.overrides else "cpu")
    writable_file(chosen.out)
    measured = measure(chosen.overrides, chosen.rounds, chosen.steps, chosen.all_tokens)
    environment = describe("quality", device)
    result = {"environment": environment, "overrides": chosen.overrides, "steps": chosen.steps}
    result |= {"all_tokens": chosen.all_tokens, **measured, **summary(measured["seconds"])}
    files.write(chosen.out, json.dumps(result, indent=1) + "\n")
    for name, value in result["milliseconds"].items():
        time = f"{value['median']:8.1f} ms per step ({value['low']:.1f} to {value['high']:.1f})"
        print(f"{CONTESTANTS[name]:44s} {time}, {result['peak_bytes'][name] / 2**20:,.0f} MiB")
    for base, value in result["ratios"].items():
        print(f"CE + NTL / {CONTESTANTS[base]}: {value['median']:.4f} ({value['low']:.4f} to {value['high']:.4f})")
    print(f"JSON: {chosen.out}")
    return 0
