"""One experiment: a data set, a model, a loss and a trainer, put together by Hydra."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from transformers import EarlyStoppingCallback, TrainerCallback

from ..environment import describe
from .data import Pair, Splits, load
from .errors import InputError, writable
from .tasks import make_task
from .training import Answering, checkpoint_of, save_model, training_arguments

CONFIGURATIONS = Path(__file__).parent / "conf"
CONFIGURATION, METRICS = "config.json", "metrics.json"
TIMINGS = ("runtime", "samples_per_second", "steps_per_second")
LONGEST_NAME = 120
IN_EVERY_NAME = ("dataset", "dataset.name", "model", "model.name", "loss", "loss.name", "seed")
WITHOUT_EFFECT = ("device", "trainer.save_model", "trainer.arguments.disable_tqdm", "trainer.arguments.report_to")
"""What changes nothing in what is learned."""


def run_name(dataset: str, model: str, loss: str, seed: int, overrides: Sequence[str]) -> str:
    """The name of a run's folder: what it is, and each override that makes it another run than the defaults."""
    changed = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        goes_on = key == "trainer.resume" and value.lower() == "true"
        if key not in (*IN_EVERY_NAME, *WITHOUT_EFFECT) and not goes_on:
            short = re.sub(r"^(trainer\.arguments|trainer|dataset|model|loss)\.", "", key)
            changed[short] = f"{short}={value.rsplit('/', 1)[-1]}"
    name = "-".join([dataset, model, loss, *sorted(changed.values()), f"seed{seed}"])
    name = re.sub(r"[^\w.=-]+", "_", name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digest}-seed{seed}"


def stem_of(file: str | None) -> str:
    """The name of a table's file, without folder and endings."""
    return "table" if file is None else Path(file).name.split(".")[0]


OmegaConf.register_new_resolver("run_name", run_name, replace=True)
OmegaConf.register_new_resolver("stem", stem_of, replace=True)


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as dictionaries, interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def load_splits(config: DictConfig) -> Splits:
    """The data that a configuration names."""
    options = plain(config.dataset)
    unknown = options.keys() - load.__kwdefaults__.keys() - {"name", "format", "limits"}
    if unknown:
        raise InputError(f"dataset has no option {sorted(unknown)[0]!r}")
    return load(**options, seed=config.data_seed)


def check(config: DictConfig) -> None:
    """Raise where the options that are not checked by their users cannot work."""
    for name in ("seed", "data_seed"):
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            raise InputError(f"{name} must be a whole number from 0 to 2**32 - 1; got {value!r}")
    patience = config.trainer.early_stopping
    if patience is not None and (isinstance(patience, bool) or not isinstance(patience, int) or patience < 1):
        raise InputError(f"trainer.early_stopping must be null or a number of evaluations; got {patience!r}")


def claim(folder: Path, config: DictConfig) -> None:
    """Make the folder this configuration's own.

    Raises:
        InputError: the folder cannot be written, or holds a run of another configuration.
    """
    writable(folder)
    wanted, path = plain(config), folder / CONFIGURATION
    found = json.loads(path.read_text()) if path.exists() else wanted
    different = sorted(key for key in differences(found, wanted) if key not in (*WITHOUT_EFFECT, "trainer.resume"))
    if different:
        raise InputError(f"{folder} holds a run with another {', '.join(different)}; choose another hydra.run.dir")
    if int(os.environ.get("RANK", 0)) == 0:
        path.write_text(json.dumps(wanted, indent=2) + "\n")


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The keys at which two configurations differ, with dots between levels."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(one.keys() | other.keys())
    return [each for key in keys for each in differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]


def evaluate(trainer: Answering, splits: Splits, folder: Path) -> dict[str, dict[str, float]]:
    """Metrics of every test split; the answers go to ``predictions-SPLIT.jsonl``."""
    results = {}
    for name, pairs in splits.tests.items():
        measured = trainer.evaluate(pairs, metric_key_prefix=name)
        own = {key.removeprefix(f"{name}_"): value for key, value in measured.items() if key.startswith(f"{name}_")}
        results[name] = {key: value for key, value in own.items() if key not in TIMINGS}
        if trainer.is_world_process_zero():
            write_answers(folder / f"predictions-{name}.jsonl", pairs, trainer.answers)
    return results


def write_answers(path: Path, pairs: list[Pair], answers: list[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for pair, answer in zip(pairs, answers, strict=True):
            file.write(json.dumps({"question": pair.question, "truth": pair.answer, "answer": answer}) + "\n")


def run(config: DictConfig, folder: Path, callbacks: Sequence[TrainerCallback] = ()) -> dict[str, Any]:
    """Train and evaluate one configuration; writes ``metrics.json``, predictions and, if asked for, checkpoints.

    ``trainer.resume``: true or a checkpoint's path; goes on training, or evaluates it where nothing is trained.

    Raises:
        InputError: data or checkpoints missing or malformed, an option that cannot work, or a folder that holds a run
            of another configuration.
    """
    check(config)
    claim(folder, config)
    arguments = training_arguments(config, folder)
    splits = load_splits(config)
    checkpoint = checkpoint_of(config.trainer.resume, folder)
    task = make_task(config, splits)
    patience = config.trainer.early_stopping
    trainer = task.trainer(
        model=task.model,
        args=arguments,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        data_collator=task.collate,
        callbacks=[*callbacks, *([EarlyStoppingCallback(patience)] if patience else [])],
        **task.trainer_arguments,
    )
    seconds = 0.0
    if config.trainer.train:
        trainer.train(resume_from_checkpoint=checkpoint)
        seconds = trainer.stopwatch.seconds()
    elif checkpoint:
        trainer._load_from_checkpoint(checkpoint)
    if config.trainer.save_model:
        save_model(trainer, task.codec.tokenizer, folder / "model")
    log = list(trainer.state.log_history)
    result = {
        "config": plain(config),
        "loss": task.loss,
        "environment": describe("quality", arguments.device, torch.get_num_threads()),
        "sizes": {"train": len(splits.train), **{name: len(pairs) for name, pairs in splits.tests.items()}},
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "seconds": seconds,
        "log": log,
        "metrics": evaluate(trainer, splits, folder),
    }
    if trainer.is_world_process_zero():
        (folder / METRICS).write_text(json.dumps(result, indent=2) + "\n")
    return result


@hydra.main(config_path=str(CONFIGURATIONS), config_name="experiment", version_base="1.3")
def main(config: DictConfig) -> None:
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        result = run(config, folder)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    for split, metrics in result["metrics"].items():
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"{split}: {shown}")
    print(f"Metrics and predictions: {folder}")
