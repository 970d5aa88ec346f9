"""One experiment: a data set, a model, a loss and a trainer, composed by Hydra."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from transformers import ProgressCallback, TrainerCallback

from ntl_kernels.evaluation import median_answer

from .. import files
from ..commands import WRONG_INPUT, InputError, Parser, writable
from ..environment import describe
from .configuration import CONFIGURATIONS, METRICS, MODEL, check, claim, explaining, finished, is_first_rank, plain
from .data import Pair, Splits, load
from .data.pairs import FINAL, sample
from .metrics import answer_metrics, check_text_metrics, in_digits
from .names import median_of, split_of
from .tasks import Decode, Decoded, Sample, make_task
from .training import ARGUMENTS, Answering, checkpoint_of, forget_others, is_trained, seconds_of, training_arguments

Predictions = dict[str, tuple[Sequence[Pair], Sequence[str]]]
"""Split -> its questions with their answers, and those of the model."""
TIMINGS = ("model_preparation_time", "runtime", "samples_per_second", "steps_per_second")


def load_splits(config: DictConfig) -> Splits:
    """The data of a configuration."""
    splits = load(plain(config.dataset), config.data_seed)
    check_text_metrics(splits)
    return splits


def evaluate(trainer: Answering, splits: Splits, predictions: Predictions) -> dict[str, dict[str, float]]:
    """Metrics of every test split and of its parts; the answers are added to the predictions."""
    results = {}
    for name, pairs in splits.tests.items():
        measured = trainer.evaluate(pairs, metric_key_prefix=name)
        metrics = {key.removeprefix(f"{name}_"): value for key, value in measured.items() if key.startswith(f"{name}_")}
        results[name] = {key: value for key, value in metrics.items() if key not in TIMINGS}
        predictions[name] = pairs, trainer.answers
        results |= metrics_of_parts(name, splits, trainer.answers)
    return results


def metrics_of_parts(split: str, splits: Splits, answers: Sequence[str]) -> dict[str, dict[str, float]]:
    """SPLIT/PART -> metrics of the answers to its questions; empty for a split without parts."""
    parts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    if split in splits.parts:
        for part, pair, answer in zip(splits.parts[split], splits.tests[split], answers, strict=True):
            parts[f"{split}/{part}"].append((answer, pair.answer))
    return {name: answer_metrics(*zip(*both, strict=True)) for name, both in parts.items()}


def medians_of(sample: Sample, count: int, seed: int) -> Decode:
    """The median of ``count`` sampled answers to each question."""

    def decode(pairs: Sequence[Pair]) -> list[Decoded]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            answers = sample(pairs, count)
        return [Decoded({median_of(count): in_digits(median_answer(each, behind=FINAL))}) for each in answers]

    return decode


def evaluate_decoded(
    trainer: Answering, decode: Decode, splits: Splits, predictions: Predictions
) -> dict[str, dict[str, float]]:
    """The same for other answers than greedy ones, as separate splits; of a median with an interval, its coverage."""
    results: dict[str, dict[str, float]] = {}
    for split, pairs in splits.tests.items():
        decoded = trainer.ask(pairs, decode, f"{split}, decoded")
        for decoder in decoded[0].answers:
            name, answers = split_of(split, decoder), [row.answers[decoder] for row in decoded]
            results[name] = answer_metrics(answers, [pair.answer for pair in pairs])
            predictions[name] = pairs, answers
        covered = [row.is_covered for row in decoded if row.is_covered is not None]
        if covered:
            results[split_of(split, "median")]["coverage"] = sum(covered) / len(covered)
    return results


def write_results(folder: Path, result: dict[str, Any], predictions: Predictions) -> None:
    """Write ``metrics.json`` and, with one line of JSON per question, ``predictions-SPLIT.jsonl``.

    Earlier metrics stay with their own predictions, or go.
    """
    (folder / METRICS).unlink(missing_ok=True)
    for split, (pairs, answers) in predictions.items():
        entries = [
            {"question": question, "truth": truth, "answer": answer}
            for (question, truth), answer in zip(pairs, answers, strict=True)
        ]
        files.write(folder / f"predictions-{split}.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))
    files.write(folder / METRICS, json.dumps(result, indent=2) + "\n")


def shortened(splits: Splits, questions: int | None, seed: int) -> Splits:
    """The splits with at most this many questions for evaluation, chosen at random; None for all."""
    validation = sample(splits.validation, questions, seed)
    tests = {name: sample(pairs, questions, seed) for name, pairs in splits.tests.items()}
    parts = {name: sample(of_questions, questions, seed) for name, of_questions in splits.parts.items()}
    return splits._replace(validation=validation, tests=tests, parts=parts)


def run(config: DictConfig, folder: Path, progress: TrainerCallback | None = None) -> dict[str, Any]:
    """Train and evaluate one configuration; write ``metrics.json``, predictions and, if configured, checkpoints.

    ``trainer.resume``: true (the newest whole checkpoint in the folder) or a checkpoint's path; training continues from
    it, or it is evaluated if nothing is left to train. A finished run is not repeated: true then returns what its
    ``metrics.json`` holds. Only one process, with its ranks, runs in a folder. ``progress`` is shown in place of the
    Trainer's own bar.
    """
    check(config)
    writable(folder)
    with files.locked(folder, wait=False) if is_first_rank() else nullcontext():
        if config.trainer.resume is True and (result := finished(config, folder)):
            print(f"{folder}: this run is finished", file=sys.stderr)
            return result
        checkpoint = checkpoint_of(config.trainer, folder)
        claim(folder, config)
        if config.trainer.train and is_first_rank():
            forget_others(folder, checkpoint)
        return run_from(checkpoint, config, folder, progress)


def run_from(
    checkpoint: str | None, config: DictConfig, folder: Path, progress: TrainerCallback | None
) -> dict[str, Any]:
    """:func:`run` from a checkpoint, or from the start."""
    arguments = training_arguments(config, folder)
    splits = shortened(load_splits(config), config.trainer.max_questions, config.data_seed)
    task = make_task(config, splits)
    if config.samples and task.sample is None:
        raise InputError(f"samples={config.samples} needs a model whose answers are tokens; {task.loss} trains a value")
    try:
        trainer = task.trainer(
            model=task.model,
            args=arguments,
            train_dataset=splits.train,
            eval_dataset=splits.validation,
            data_collator=task.collate,
            processing_class=task.codec.tokenizer,  # saved with every checkpoint
            **task.trainer_arguments,
        )
    except ValueError as error:  # of arguments that do not go together
        raise InputError(f"{ARGUMENTS}: {error}") from error
    if progress is not None:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(progress)
    if checkpoint and (not config.trainer.train or is_trained(checkpoint, arguments.max_steps)):
        trainer.restore(checkpoint, ended=config.trainer.train)
    elif config.trainer.train:
        trainer.train(resume_from_checkpoint=checkpoint)
    if config.trainer.save_model:
        whole = files.replacing(folder / MODEL)
        with whole if trainer.is_world_process_zero() else nullcontext(folder / MODEL) as path:
            trainer.save_model(str(path))
    predictions: Predictions = {}
    metrics = evaluate(trainer, splits, predictions)
    if config.samples:
        metrics |= evaluate_decoded(trainer, medians_of(task.sample, config.samples, config.seed), splits, predictions)
    if task.decode is not None:
        metrics |= evaluate_decoded(trainer, task.decode, splits, predictions)
    result = {
        "config": plain(config),
        "loss": task.loss,
        "environment": describe("quality", arguments.device),
        "sizes": {"train": len(splits.train), **{name: len(pairs) for name, pairs in splits.tests.items()}},
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "seconds": seconds_of(trainer.state),
        "log": list(trainer.state.log_history),
        "metrics": metrics,
    }
    if trainer.is_world_process_zero():
        write_results(folder, result, predictions)
    return result


@hydra.main(config_path=str(CONFIGURATIONS), config_name="experiment", version_base="1.3")
def run_configured(config: DictConfig) -> None:
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        result = run(config, folder)
    except InputError as error:  # printed here, because Hydra would add a line
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(WRONG_INPUT) from error
    for split, metrics in result["metrics"].items():
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"{split}: {shown}")
    print(f"Metrics and predictions: {folder}")


def main(arguments: list[str]) -> int:
    """``OPTION=VALUE... [-m]``, which Hydra reads from ``sys.argv``."""
    chosen = Parser(add_help=False, parents=[get_args_parser()]).parse_args(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its errors and exits
    logging.raiseExceptions = False  # whoever reads Hydra's log may have enough
    with explaining(chosen.overrides):
        run_configured()
    return 0
