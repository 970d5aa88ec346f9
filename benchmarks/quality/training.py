"""How models are trained: the Trainers, which all give answers, their arguments, checkpoints and clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from tqdm import tqdm
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import get_last_checkpoint

from ntl_kernels.integrations.transformers import NTLTrainer
from ntl_kernels.integrations.transformers.trainer import Window
from ntl_kernels.ntloss import NumberLevelLoss

from ..errors import InputError, naming
from .data import Pair
from .metrics import answer_metrics
from .overrides import ARGUMENTS, meant, training_argument_names

IGNORE = -100
SECONDS = "seconds_of_training"
AT_LEAST_ONE = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")


class Stopwatch(TrainerCallback):
    """Seconds of training since its first step, including those before an interruption, from the Trainer's log."""

    def __init__(self) -> None:
        self.before, self.started = 0.0, time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = max((entry[SECONDS] for entry in state.log_history if SECONDS in entry), default=0.0)
        self.started = time.perf_counter()

    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.started


class EndsWithItsCheckpoint(TrainerCallback):
    """Ends a resumed run at once if its checkpoint has all of its steps. The Trainer alone would train another one."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > state.max_steps:
            raise InputError(
                f"trainer.resume: the checkpoint was trained for {state.global_step} steps, more than the "
                f"{state.max_steps} of this run"
            )
        control.should_training_stop |= state.global_step == state.max_steps


class Patience(EarlyStoppingCallback):
    """Early stopping that counts on where the checkpoint of a resumed run stopped counting."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience


class Answering:
    """A Trainer whose evaluations ask for answers, too, and measure them; ``answers`` keeps the last ones.

    Every process answers its share of the questions. Checkpoints hold tensors that have several names once, since
    safetensors refuses them otherwise.
    """

    def __init__(
        self,
        *args: Any,
        answer: Callable[[Sequence[Pair]], list[str]],
        shows_answering: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """``shows_answering``: a progress bar over the questions; None: where the Trainer shows its own bars."""
        self.answer = answer
        self.shows_answering = shows_answering
        self.answers: list[str] = []
        self.stopwatch = Stopwatch()
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)  # type: ignore[attr-defined]
        for callback in (self.stopwatch, EndsWithItsCheckpoint()):
            self.add_callback(callback)  # type: ignore[attr-defined]

    def get_batch_samples(self, *args: Any) -> Any:
        """The Trainer's, but nothing where training has ended: it looks only after a step."""
        if self.control.should_training_stop:  # type: ignore[attr-defined]
            return [], None
        return super().get_batch_samples(*args)  # type: ignore[misc]

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's, with the metrics of the answers and the perplexity among its own."""
        output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)  # type: ignore[misc]
        pairs = dataloader.dataset
        self.answers = self.ask(pairs, self.answer, metric_key_prefix)
        metrics = answer_metrics(self.answers, [pair.answer for pair in pairs])
        cross_entropy = output.metrics.get(f"{metric_key_prefix}_ce")
        if cross_entropy is not None:
            metrics["perplexity"] = math.exp(min(cross_entropy, 700))
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        return output

    @torch.no_grad()
    def ask(self, pairs: Sequence[Pair], answer: Callable[[Sequence[Pair]], list[str]], split: str) -> list[str]:
        """The answers to all questions of a split; a process asks for every ``world_size``-th."""
        args = self.args  # type: ignore[attr-defined]
        processes, size = args.world_size, args.per_device_eval_batch_size
        share = pairs[args.process_index :: processes]
        is_shown = not args.disable_tqdm if self.shows_answering is None else self.shows_answering
        is_silent = not (is_shown and self.is_world_process_zero())  # type: ignore[attr-defined]
        own: list[str] = []
        with tqdm(total=len(share), desc=f"answers, {split}", unit="question", leave=False, disable=is_silent) as bar:
            for start in range(0, len(share), size):
                own += answer(share[start : start + size])
                bar.update(len(own) - bar.n)
        answers = [""] * len(pairs)
        for rank, theirs in enumerate(gather_object([own])):
            answers[rank::processes] = theirs
        return answers

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        state = self.state  # type: ignore[attr-defined]
        state.log_history.append({"step": state.global_step, SECONDS: self.stopwatch.seconds()})
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        state = self.model.state_dict() if state_dict is None else state_dict  # type: ignore[attr-defined]
        first = {(tensor.data_ptr(), tensor.shape): name for name, tensor in reversed(state.items())}
        super()._save(output_dir, {name: state[name] for name in first.values()})  # type: ignore[misc]


class PlainTrainer(Answering, Trainer):
    """Trains with the loss that the model computes itself."""


class TokenTrainer(Answering, NTLTrainer):
    """Trains with CE + NTL."""


class NumberLevelTrainer(TokenTrainer):
    """Trains with CE + the number-level loss on full logits; NTL itself is only measured."""

    def __init__(self, *args: Any, number_loss: NumberLevelLoss, weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number_loss, self.weight = number_loss, weight

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Tensor, window: Window
    ) -> tuple[Tensor, Any, Any]:
        loss, parts, outputs = super().ntl_unfused(model, inputs, targets, window)
        share = 1.0 if window.num_items is None else (targets != IGNORE).sum() / window.num_items
        number_loss = self.weight * share * self.number_loss(outputs.logits, targets)
        return loss + window.processes * number_loss, parts, outputs


def token_scores(logits: Tensor, labels: tuple[Tensor, ...]) -> Tensor:
    """[B, T, 2] from logits [B, T, V] and labels [B, T] (the first of a tuple): cross-entropy, and whether the largest
    logit is the label's. :func:`token_metrics` needs them, for models that compute their loss themselves.
    """
    losses = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels[0], reduction="none")
    return torch.stack([losses, (logits.argmax(-1) == labels[0]).float()], -1)


def token_metrics(evaluated: EvalPrediction) -> dict[str, float]:
    """Means of :func:`token_scores` over the labels."""
    scores = evaluated.predictions[evaluated.label_ids[0] != IGNORE]
    return dict(zip(("ce", "token_accuracy"), scores.mean(0).tolist(), strict=True))


def training_arguments(config: DictConfig, folder: Path) -> TrainingArguments:
    """The Trainer's arguments as configured; early stopping also needs the best checkpoint."""
    options: dict[str, Any] = OmegaConf.to_container(config.trainer.arguments, resolve=True)  # type: ignore[assignment]
    if config.trainer.early_stopping:
        options = {"load_best_model_at_end": True, "metric_for_best_model": "loss", **options}
    check_device(config.device)
    check_arguments(options)
    with naming(ARGUMENTS):
        arguments = TrainingArguments(
            str(folder), seed=config.seed, remove_unused_columns=False, use_cpu=config.device == "cpu", **options
        )
    check_reporters(arguments.report_to)
    return arguments


def check_reporters(names: list[str]) -> None:
    """Raise if a reporter is unknown or lacks its library, before the data are read and the model is made."""
    with naming(f"{ARGUMENTS}.report_to", ImportError, RuntimeError):
        for reporter in get_reporting_integration_callbacks(names):
            # A __del__ of their own would print a traceback after an __init__ that failed (MLflow, Neptune).
            type(reporter.__name__, (reporter,), {"__del__": lambda _: None})()


def check_device(device: object) -> None:
    """Raise unless this machine has the device; the Trainer would silently use another one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    available = ["cpu", *([accelerator.type] if accelerator else [])]
    if device not in available:
        raise InputError(f"device must be available on this machine ({', '.join(available)}); got {device!r}")


def check_arguments(options: dict[str, Any]) -> None:
    """Raise if an argument is unknown, or is not a number although its default is one."""
    known = training_argument_names()
    for name, value in options.items():
        if name not in known:
            raise InputError(
                f"{ARGUMENTS} has no option {name!r}{meant(name, [f'{ARGUMENTS}.{each}' for each in known])}"
            )
        usual = getattr(TrainingArguments, name, None)
        is_number = isinstance(usual, Real) and not isinstance(usual, bool)
        if is_number and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InputError(f"{ARGUMENTS}.{name} must be a number; got {value!r}")
        if name in AT_LEAST_ONE and value < 1:
            raise InputError(f"{ARGUMENTS}.{name} must be at least 1; got {value!r}")
    if options.get("max_steps", 0) < 1 and "num_train_epochs" not in options:
        raise InputError(f"{ARGUMENTS}.max_steps must be at least 1; got {options.get('max_steps')!r}")


def checkpoint_of(resume: bool | str, folder: Path) -> str | None:
    """The checkpoint to resume from: a path, the newest one in the run's folder, or None."""
    if not resume:
        return None
    found = get_last_checkpoint(str(folder)) if resume is True else str(resume)
    if found is None or not Path(found).is_dir():
        raise InputError(f"trainer.resume={resume}: no checkpoint at {found or folder}")
    return found
