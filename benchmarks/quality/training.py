"""Training: Trainers that also answer questions, their arguments, checkpoints and stopwatch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import torch
from accelerate.utils import gather_object
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from torch import Tensor
from tqdm import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer import TRAINER_STATE_NAME

from ntl_kernels.integrations.transformers import NTLTrainer
from ntl_kernels.integrations.transformers.targets import Targets
from ntl_kernels.integrations.transformers.trainer import Window

from ..commands import InputError, meant, naming
from .configuration import CONFIGURATION, is_whole
from .data import Pair
from .metrics import answer_metrics
from .models import checkpoints, is_whole_checkpoint, kept, newest_checkpoint, state_of

IGNORE = -100
SECONDS = "seconds_of_training"
ARGUMENTS = "trainer.arguments"
AT_LEAST_1 = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
LEAST = {"max_steps": -1, **dict.fromkeys((*AT_LEAST_1, "eval_accumulation_steps", "save_total_limit"), 1)}
"""The least values of numbers, if not 0."""
ELSEWHERE = {"resume_from_checkpoint": "; use trainer.resume", "do_train": "; use trainer.train", "push_to_hub": ""}
"""Arguments without effect -> what has it."""
BELOW = {"adam_beta1": 1, "adam_beta2": 1}
"""What numbers must be below, if that is not infinity."""


class Stopwatch(TrainerCallback):
    """Logs the seconds of training since the first step of a run, including those before an interruption."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter() - seconds_of(state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.log(state)

    def log(self, state: TrainerState) -> None:
        state.log_history.append({"step": state.global_step, SECONDS: time.perf_counter() - self.started})


def seconds_of(state: TrainerState) -> float:
    """The seconds of training recorded in a log."""
    return max((entry[SECONDS] for entry in state.log_history if SECONDS in entry), default=0.0)


class Answering:
    """A Trainer whose evaluations also generate answers and measure them; ``answers`` holds the last ones.

    Every process answers its share of the questions.
    """

    def __init__(self, *args: Any, answer: Callable[[Sequence[Pair]], list[str]], **kwargs: Any) -> None:
        self.answer = answer
        self.answers: list[str] = []
        self.stopwatch = Stopwatch()
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]
        self.add_callback(self.stopwatch)  # type: ignore[attr-defined]

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's, with the metrics of the answers and the perplexity added."""
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)  # type: ignore[misc]
        pairs = dataloader.dataset
        self.answers = self.ask(pairs, self.answer, metric_key_prefix)
        metrics = answer_metrics(self.answers, [pair.answer for pair in pairs])
        cross_entropy = output.metrics.get(f"{metric_key_prefix}_ce")
        if cross_entropy is not None:
            metrics["perplexity"] = math.exp(min(cross_entropy, 700))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    def restore(self, checkpoint: str, ended: bool) -> None:
        """Load the log and the weights of a checkpoint, or those with which training ``ended`` there."""
        takes_best = ended and self.args.load_best_model_at_end  # type: ignore[attr-defined]
        self._load_from_checkpoint(str(kept(Path(checkpoint), takes_best)))  # type: ignore[attr-defined]
        self.state = state_of(checkpoint)

    @torch.no_grad()
    def ask(self, pairs: Sequence[Pair], answer: Callable[[Sequence[Pair]], list[Any]], split: str) -> list[Any]:
        """The answers to all questions of a split; each process answers every ``world_size``-th."""
        args = self.args  # type: ignore[attr-defined]
        processes, size = args.world_size, args.per_device_eval_batch_size
        questions = pairs[args.process_index :: processes]
        is_silent = args.disable_tqdm or not self.is_world_process_zero()  # type: ignore[attr-defined]
        given: list[Any] = []
        name = f"answers, {split}"
        with tqdm(total=len(questions), desc=name, unit="question", leave=False, disable=is_silent) as bar:
            for start in range(0, len(questions), size):
                given += answer(questions[start : start + size])
                bar.update(len(given) - bar.n)
        answers: list[Any] = [None] * len(pairs)
        for rank, theirs in enumerate(gather_object([given])):
            answers[rank::processes] = theirs
        return answers

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        name = self.args.metric_for_best_model  # type: ignore[attr-defined]
        known = [metric.removeprefix("eval_") for metric in metrics]
        if name is not None and name.removeprefix("eval_") not in known:
            raise InputError(f"{ARGUMENTS}.metric_for_best_model={name}: there is no such metric{meant(name, known)}")
        return super()._determine_best_metric(metrics=metrics, trial=trial)  # type: ignore[misc,no-any-return]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().save_model(*args, **kwargs)  # type: ignore[misc]
        except SafetensorError as error:  # as when the disk is full
            raise InputError(f"{self.args.output_dir}: cannot save the model: {error}") from error  # type: ignore[attr-defined]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.stopwatch.log(self.state)  # type: ignore[attr-defined]
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]


class PlainTrainer(Answering, Trainer):
    """Trains with the loss that the model computes itself."""


class TokenTrainer(Answering, NTLTrainer):
    """Trains with CE + NTL."""


class AddedLossTrainer(TokenTrainer):
    """Trains with CE + another loss on full logits, a mean over the labels; NTL itself is only measured."""

    def __init__(self, *args: Any, added: Callable[[Tensor, Tensor], Tensor], weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.added, self.weight = added, weight

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Targets, window: Window
    ) -> tuple[Tensor, Any, Any]:
        loss, parts, outputs = super().ntl_unfused(model, inputs, targets, window)
        share = 1.0 if window.num_items is None else (targets.labels != IGNORE).sum() / window.num_items
        added = self.weight * share * self.added(outputs.logits, targets.labels)
        return loss + window.processes * added, parts, outputs


def training_arguments(config: DictConfig, folder: Path) -> TrainingArguments:
    """The Trainer's arguments as configured."""
    options: dict[str, Any] = OmegaConf.to_container(config.trainer.arguments, resolve=True)  # type: ignore[assignment]
    options["report_to"] = options.get("report_to") or "none"
    check_device(config.device)
    check_arguments(options)
    options |= {name: float(options[name]) for name in BELOW if name in options}  # torch wants both betas as floats
    with naming(ARGUMENTS):
        return TrainingArguments(
            str(folder), seed=config.seed, remove_unused_columns=False, use_cpu=config.device == "cpu", **options
        )


def check_device(device: object) -> None:
    """Raise unless this machine has the device; the Trainer would silently use another one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    available = ["cpu", *([accelerator.type] if accelerator else [])]
    if device not in available:
        raise InputError(f"device must be available on this machine ({', '.join(available)}); got {device!r}")


def check_arguments(options: dict[str, Any]) -> None:
    """Raise if an argument has another type or is out of range, or if the length of training is not set."""
    for name in ELSEWHERE.keys() & options.keys():
        raise InputError(f"{ARGUMENTS}.{name} has no effect here{ELSEWHERE[name]}")
    kinds = {field.name: get_args(field.type) or (field.type,) for field in fields(TrainingArguments)}
    for name, value in options.items():
        kind, least = [get_origin(each) or each for each in kinds.get(name, ())], LEAST.get(name, 0)
        is_right, expected = type(value) in kind, " or ".join(sorted(getattr(each, "__name__", "") for each in kind))
        if name.endswith("_kwargs"):
            is_right, expected = isinstance(value, dict), "a mapping"
        elif bool in kind:
            expected = "true or false"
        elif int in kind:
            is_right, expected = is_whole(value, least), f"a whole number of at least {least}"
        elif float in kind:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            most = BELOW.get(name, math.inf)
            is_right = is_number and least <= value < most
            expected = f"a number of at least {least}" + f" and below {most}" * (name in BELOW)
        is_known = kind and all(isinstance(each, type) for each in kind)
        if is_known and not is_right and not (value is None and NoneType in kind):
            raise InputError(f"{ARGUMENTS}.{name} must be {expected}; got {value!r}")
    wanted = options["report_to"]
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if name not in ("none", "all", *get_available_reporting_integrations()):
            raise InputError(f"{ARGUMENTS}.report_to={name}: no such package is installed (pip install {name})")
    if options.get("max_steps", 0) < 1 and "num_train_epochs" not in options:
        raise InputError(f"{ARGUMENTS}.max_steps must be at least 1; got {options.get('max_steps')!r}")


def checkpoint_of(trainer: DictConfig, folder: Path) -> str | None:
    """The checkpoint to resume from: a path, or the newest whole one in the run's folder; None to start."""
    if not (resume := trainer.resume):
        return None
    found = newest_checkpoint(folder) if resume is True else Path(resume)
    if found is None and trainer.train and (folder / CONFIGURATION).is_file():
        print(f"{folder}: this run ended before its first checkpoint; it starts again", file=sys.stderr)
        return None
    if found is None or not is_whole_checkpoint(found):
        raise InputError(f"trainer.resume={resume}: no checkpoint at {found or folder}")
    return str(found)


def forget_others(folder: Path, checkpoint: str | None) -> None:
    """Make the checkpoints in a folder that do not lead to this one, from which training starts, no longer whole.

    A run that is cut off then goes on from what it has written itself, not from an earlier attempt.
    """
    is_here = checkpoint is not None and Path(checkpoint).resolve().parent == folder.resolve()
    done = state_of(checkpoint).global_step if is_here else 0
    for step, path in checkpoints(folder).items():
        if step > done:
            (path / TRAINER_STATE_NAME).unlink(missing_ok=True)


def is_trained(checkpoint: str, max_steps: int) -> bool:
    """Whether a checkpoint has all steps of a run (without ``max_steps``: of the run that saved it). The Trainer would
    train one more step.
    """
    state = state_of(checkpoint)
    return state.global_step >= (max_steps if max_steps > 0 else state.max_steps)
