"""One experiment of the paper's pipeline: a data set, a model, a loss and a trainer, put together by Hydra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from transformers import EarlyStoppingCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from ..environment import describe
from .arithmetic import DataError, Pair
from .codecs import Codec
from .datasets import Splits, load
from .tasks import make_task
from .trainers import Answering

CONFIGURATIONS = Path(__file__).parent / "conf"
TIMINGS = ("runtime", "samples_per_second", "steps_per_second")


def load_splits(config: DictConfig) -> Splits:
    """The data that a configuration names."""
    return load(**OmegaConf.to_container(config.dataset, resolve=True), seed=config.data_seed)  # type: ignore[arg-type]


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


def save_model(trainer: Answering, codec: Codec, folder: Path) -> None:
    """Weights, configuration and tokenizer, as ``model.checkpoint`` reads them."""
    trainer.save_model(str(folder))
    if trainer.is_world_process_zero():
        codec.tokenizer.save_pretrained(folder)


def training_arguments(config: DictConfig, folder: Path) -> TrainingArguments:
    """The Trainer's arguments, as configured; early stopping also needs the best checkpoint to be kept."""
    options: dict[str, Any] = OmegaConf.to_container(config.trainer.arguments, resolve=True)  # type: ignore[assignment]
    if config.trainer.early_stopping:
        options = {"load_best_model_at_end": True, "metric_for_best_model": "loss", **options}
    return TrainingArguments(
        str(folder), seed=config.seed, remove_unused_columns=False, use_cpu=config.device == "cpu", **options
    )


def checkpoint_of(resume: bool | str, folder: Path) -> str | None:
    """The checkpoint to go on from: a path, the newest one of the run's folder, or none.

    Raises:
        DataError: there is none.
    """
    if not resume:
        return None
    found = get_last_checkpoint(str(folder)) if resume is True else str(resume)
    if found is None or not Path(found).is_dir():
        raise DataError(f"trainer.resume={resume}: no checkpoint at {found or folder}")
    return found


def run(config: DictConfig, folder: Path) -> dict[str, Any]:
    """Train and evaluate one configuration; writes ``metrics.json``, predictions and, if asked for, checkpoints.

    ``trainer.resume``: true or a checkpoint's path; goes on training, or evaluates it where nothing is trained.

    Raises:
        DataError: data or checkpoints missing or malformed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits = load_splits(config)
    checkpoint = checkpoint_of(config.trainer.resume, folder)
    task = make_task(config, splits)
    arguments = training_arguments(config, folder)
    patience = config.trainer.early_stopping
    trainer = task.trainer(
        model=task.model,
        args=arguments,
        train_dataset=splits.train,
        eval_dataset=splits.validation,
        data_collator=task.collate,
        callbacks=[EarlyStoppingCallback(patience)] if patience else None,
        **task.trainer_arguments,
    )
    if config.trainer.train:
        trainer.train(resume_from_checkpoint=checkpoint)
    elif checkpoint:
        trainer._load_from_checkpoint(checkpoint)
    if config.trainer.save_model:
        save_model(trainer, task.codec, folder / "model")
    log = list(trainer.state.log_history)
    result = {
        "config": OmegaConf.to_container(config, resolve=True),
        "loss": task.loss,
        "environment": describe("quality", arguments.device, torch.get_num_threads()),
        "sizes": {"train": len(splits.train), **{name: len(pairs) for name, pairs in splits.tests.items()}},
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "log": log,
        "metrics": evaluate(trainer, splits, folder),
    }
    if trainer.is_world_process_zero():
        (folder / "metrics.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


@hydra.main(config_path=str(CONFIGURATIONS), config_name="experiment", version_base="1.3")
def main(config: DictConfig) -> None:
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        result = run(config, folder)
    except DataError as error:
        raise SystemExit(f"error: {error}") from error
    for split, metrics in result["metrics"].items():
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"{split}: {shown}")
    print(f"Metrics and predictions: {folder}")
