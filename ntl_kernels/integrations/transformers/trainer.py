"""`NTLTrainer`: CE + NTL, exact with gradient accumulation and data parallelism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate.data_loader import BatchSamplerShard, IterableDatasetShard
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer, TrainerCallback

from ...config import NTLConfig, NTLOutput, check_number
from ...tokens import NumberTokens
from .frameworks import FRAMEWORKS, check_arguments, unwrap_model
from .losses import IGNORE_INDEX, Count, LossOptions, choose_targets, logits_of, loss_of_logits, token_mask
from .model_classes import check_own_loss, is_encoder_decoder, shifts_labels
from .models import added_loss, put_decoder_inputs
from .patch import options_on
from .patched import PATCH, Patch
from .stock_trainers import (
    STOCK_TRAINERS,
    StockTrainer,
    check_own_loss_can_run,
    check_stock_arguments,
    has_own_loss,
)

NUM_NUMBERS = "num_numbers_in_batch"
"""The key of a batch that holds the number tokens of its accumulation window."""


class Window(NamedTuple):
    """The denominators of a batch's loss, and over what the loss is summed."""

    num_items: Count | None
    num_numbers: Count | None
    processes: int
    """The number of processes, which average their gradients, over which the loss is a sum."""
    steps: int
    """The number of accumulation steps that are summed; a mean over the batch is divided by it."""

    def counts(self) -> dict[str, Count]:
        """The denominators as keywords of a patched model; empty for a batch on its own."""
        counts = {"num_items_in_batch": self.num_items, NUM_NUMBERS: self.num_numbers}
        return {name: count for name, count in counts.items() if count is not None}


class ForgetAttempt(TrainerCallback):
    """Clears what an aborted attempt of ``auto_find_batch_size`` has added to the next log."""

    def __init__(self, totals: dict[str, Tensor]) -> None:
        self.totals = totals

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.totals.pop("train", None)


class NTLTrainerMixin:
    """CE + NTL for any class derived from ``transformers.Trainer``: ``class MyTrainer(NTLTrainerMixin, Trainer)``.

    Cross-entropy is divided by the tokens, and NTL by the number tokens (with ``mean_over="tokens"`` also by the
    tokens), of the whole accumulation window on all processes. Gradients therefore equal those of one large batch,
    including when processes share rows (context parallelism). A model patched by :func:`apply_ntl_to_model` computes
    the loss from hidden states, any other model from full logits.

    In addition to ``loss``, the Trainer logs ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` (means over the
    tokens or number tokens since the last log) and ``number_share`` (the share of number tokens among the labels that
    are not ignored). Evaluation reports them with its prefix. Without any number token, ``number_mae`` is NaN and the
    first log warns. ``loss`` is ``ce + weight * ntl`` (plus the mean over batches of what the model adds), however rows
    are divided into batches, in evaluation and over several steps. Without any label, ``eval_loss`` is NaN.

    If the model is patched, a ``compute_loss`` of the class after the mixin runs: it gets both denominators among the
    inputs, and whatever it adds or changes has the same effect as without NTL. If the model is not patched, only the
    ``compute_loss`` of ``transformers`` and of TRL's ``SFTTrainer`` is replaced. For other Trainers put NTL last,
    ``class MyTrainer(TheirTrainer, NTLTrainer)``: their ``super().compute_loss`` is then CE + NTL.

    Args:
        numbers: the number tokens of the model's vocabulary; not needed if the model is patched.
        ntl_config: kind and weight of the Number Token Loss; default: that of the patch, or ``NTLConfig()``.
        z_loss: factor of ``lse ** 2``; default: that of the patch, or 0.
        shift: whether position t predicts label t + 1; default: that of the patch, or as in the model's own loss.
        ntl_weight_schedule: a function that returns the weight of the Number Token Loss for the progress of training,
            from 0 at the first optimizer step towards 1 at the last. It replaces ``ntl_config.weight``; the value is
            logged as ``ntl_weight``. The weight is a tensor on the training device that changes in place, so nothing is
            recompiled. Evaluation uses the current weight.
        *args, **kwargs: the Trainer's arguments, including ``label_smoothing_factor``.

    Raises:
        TypeError, ValueError: options are missing or differ from those of the patch; a ``compute_loss_func``,
            DataParallel (several GPUs in one process), DeepSpeed's sequence parallelism, or ``use_liger_kernel``
            without ``fused_linear_cross_entropy: False`` is used; a ``compute_loss`` would be left out; or the model's
            own loss has parts that cannot be computed from its logits.
    """

    ntl_stock: StockTrainer = STOCK_TRAINERS["Trainer"]
    """The behaviour of the stock Trainer that this class derives from."""

    def __init__(
        self,
        *args: Any,
        numbers: NumberTokens | None = None,
        ntl_config: NTLConfig | None = None,
        z_loss: float | None = None,
        shift: bool | None = None,
        ntl_weight_schedule: Callable[[float], float] | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = args[1] if len(args) > 1 else kwargs.get("args")
        check_stock_arguments(type(self).__name__, self.ntl_stock, arguments)
        self.ntl_given: dict[str, Any] = {"numbers": numbers, "config": ntl_config, "z_loss": z_loss, "shift": shift}
        self.ntl_weight_schedule = ntl_weight_schedule
        self.ntl_weight: Tensor | None = None
        self.ntl_totals: dict[str, Tensor] = {}
        self.ntl_seen: set[str] = set()
        """The modes that have logged metrics: "train", "eval"."""
        self.ntl_eval_counts: tuple[Tensor | None, Tensor | None] = (None, None)
        """The tokens and number tokens of an evaluation batch's complete rows if processes share rows."""
        self.ntl_eval_loss: tuple[Tensor, Tensor] | None = None  # CE + NTL of an evaluation batch, and its tokens
        if kwargs.get("model_init") is None:  # before super().__init__, in which some Trainers tokenize all data
            self.ntl_check_given(args[0] if args else kwargs.get("model"))
        super().__init__(*args, **kwargs)
        check_trainer(self)
        if has_own_loss(type(self), NTLTrainerMixin):
            self.ntl_check_own_loss()
        self.label_smoother = None  # the loss does the label smoothing
        if ntl_weight_schedule is not None:
            self.ntl_set_weight(0.0)
        self.ntl_options()
        # These make the Trainer count tokens and not divide the loss by the accumulation steps (5.17 reads the first).
        # They are set here because TRL sets the first from the class's value of the second.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.add_callback(ForgetAttempt(self.ntl_totals))  # type: ignore[attr-defined]
        self.ntl_stock.begin(self)

    def ntl_check_given(self, model: Any) -> None:
        """Raise if the model is not patched and its options are missing or wrong."""
        if isinstance(model, nn.Module) and options_on(model) is not None:
            return
        if self.ntl_given["numbers"] is None:
            raise ValueError(f"{type(self).__name__} needs numbers=NumberTokens(...), or a patched model")
        LossOptions(**{name: value for name, value in self.ntl_given.items() if value is not None})

    def ntl_patch(self) -> Patch | None:
        """The patch of the model, if it has one."""
        return getattr(unwrap_model(self.model), PATCH, None)  # type: ignore[attr-defined]

    def ntl_options(self) -> LossOptions:
        """The options installed on the model, which must agree with the Trainer's arguments; otherwise the latter."""
        smoothing = self.args.label_smoothing_factor  # type: ignore[attr-defined]
        given: dict[str, Any] = {**self.ntl_given, "label_smoothing": smoothing or None}
        given = {name: value for name, value in given.items() if value is not None}
        installed = options_on(self.model)  # type: ignore[attr-defined]
        if self.ntl_patch() is None:
            check_own_loss(unwrap_model(self.model))  # type: ignore[attr-defined]
        if installed is None:
            self.ntl_check_given(self.model)  # type: ignore[attr-defined]
            if "shift" not in given:
                given["shift"] = shifts_labels(unwrap_model(self.model))  # type: ignore[attr-defined]
            return self.ntl_follow(LossOptions(**given))
        installer, options = installed
        options = self.ntl_follow(options)
        for name, value in given.items():
            if name == "config" and self.ntl_weight is not None:
                value = replace(value, weight=self.ntl_weight)
            if value != getattr(options, name):
                raise ValueError(
                    f"the Trainer was given {name}={value!r}, but {installer} was given {getattr(options, name)!r}"
                )
        patch = self.ntl_patch()
        if patch is not None:
            patch.options = options
        return options

    def ntl_follow(self, options: LossOptions) -> LossOptions:
        """The options with the scheduled weight, if there is a schedule."""
        if self.ntl_weight is None or options.config.weight is self.ntl_weight:
            return options
        return replace(options, config=replace(options.config, weight=self.ntl_weight))

    def ntl_set_weight(self, progress: float) -> None:
        """Set the weight of the Number Token Loss to the schedule's value at this progress."""
        assert self.ntl_weight_schedule is not None
        value = self.ntl_weight_schedule(progress)
        check_number(f"ntl_weight_schedule({progress:g})", value, minimum=0.0)
        if self.ntl_weight is None:
            self.ntl_weight = torch.zeros((), device=self.args.device)  # type: ignore[attr-defined]
        self.ntl_weight.fill_(value)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """The batches of a window, each with the window's count of number tokens, and the window's count of tokens."""
        if self.ntl_weight_schedule is not None:
            self.ntl_set_weight(self.state.global_step / max(self.state.max_steps, 1))  # type: ignore[attr-defined]
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]
        if not batches:
            return batches, None
        num_items, num_numbers = self.ntl_counts(batches, device)
        for batch in batches:
            batch[NUM_NUMBERS] = num_numbers
        return batches, num_items

    def ntl_counts(self, batches: list[Any], device: Any) -> Tensor:
        """[2]: the tokens and number tokens by which a window's loss is divided.

        Processes that share rows, or work on the same rows, all have the complete rows here; they are counted once.
        """
        counts = torch.stack([self.ntl_count(self.ntl_targets(batch)) for batch in batches]).sum(0).to(device)
        shards = cp_size(self)
        if not self.args.average_tokens_across_devices:  # type: ignore[attr-defined]
            return counts / shards  # averaging over the processes of these shards then gives the total
        if self.args.world_size > 1:  # type: ignore[attr-defined]
            counts = self.accelerator.gather(counts[None]).sum(0)  # type: ignore[attr-defined]
        return counts / (shards * self.get_tp_size())  # type: ignore[attr-defined]

    def ntl_count(self, targets: Tensor) -> Tensor:
        """[2]: how many targets are not ignored, and how many of these are number tokens."""
        return torch.stack([token_mask(targets).sum(), self.ntl_options().numbers.count(targets)])

    def ntl_targets(self, batch: Any) -> Tensor:
        """The target of each position of a batch."""
        if not label_names(batch):
            raise ValueError(f"{type(self).__name__} needs labels in every batch; got {', '.join(batch)}")
        labels, shift_labels = batch.get("labels"), batch.get("shift_labels")
        for framework in FRAMEWORKS:
            virtual = framework.virtual_tokens(self.model)  # type: ignore[attr-defined]
            if virtual and shift_labels is not None:
                tokens = f"{virtual} virtual tokens per row"
                raise ValueError(f"the model has {tokens}, for which {framework.name} does not extend shift_labels")
            if virtual:
                labels = F.pad(labels, (virtual, 0), value=IGNORE_INDEX)
        return choose_targets(labels, shift_labels, self.ntl_options().shift)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """CE + NTL: over the window in training, the mean over the batch in evaluation."""
        inputs = {**inputs, **self.ntl_stock.inputs(self)}
        self.ntl_stock.count_batch(self, inputs)
        num_numbers = inputs.pop(NUM_NUMBERS, None)
        targets = self.ntl_targets(inputs)
        is_training = self.model.training  # type: ignore[attr-defined]
        window = self.ntl_window(is_training, (num_items_in_batch, num_numbers))
        if has_own_loss(type(self), NTLTrainerMixin):
            self.ntl_check_own_loss()
            loss, parts, outputs = self.ntl_theirs(model, inputs, window, is_training, return_outputs)
        elif self.ntl_patch() and (is_training or inputs.get("skip_logits")):
            loss, parts, outputs = self.ntl_fused(model, inputs, window)
        else:
            loss, parts, outputs = self.ntl_unfused(model, inputs, targets, window)
        self.ntl_add("train" if is_training else "eval", parts, targets, window)
        return (loss, outputs) if return_outputs else loss

    def ntl_window(self, is_training: bool, counts: tuple[Count | None, Count | None]) -> Window:
        """The denominators of a batch's loss (in training the counts), and over what it is summed."""
        counts = counts if is_training else self.ntl_eval_counts
        if counts[0] is None:
            return Window(*counts, 1, 1)
        if not is_training:
            return Window(*counts, evaluation_shards(self), 1)
        processes = 1
        if self.args.average_tokens_across_devices:  # type: ignore[attr-defined]
            processes = self.accelerator.num_processes // self.get_tp_size()  # type: ignore[attr-defined]
        return Window(*counts, processes, self.current_gradient_accumulation_steps)  # type: ignore[attr-defined]

    def ntl_fused(self, model: Any, inputs: dict[str, Any], window: Window) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of a patched model, from hidden states."""
        run = partial(model, **inputs, **window.counts())
        outputs, parts = self.ntl_run(run, window)
        return (outputs["loss"] if isinstance(outputs, dict) else outputs[0]) * window.processes, parts, outputs

    def ntl_theirs(
        self, model: Any, inputs: dict[str, Any], window: Window, is_training: bool, with_outputs: bool
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) from the next ``compute_loss`` in the MRO, which calls a patched model.

        The Trainer's ``compute_loss``, which it ends in, multiplies by the number of processes. In evaluation a second
        call computes the logits.
        """
        compute_loss, given = super().compute_loss, {**inputs, **window.counts()}  # type: ignore[misc]
        options = {"return_outputs": with_outputs, "num_items_in_batch": window.num_items}
        if is_training:
            result, parts = self.ntl_run(partial(compute_loss, model, given, **options), window)
            loss, outputs = result if with_outputs else (result, None)
            return loss, parts, outputs
        loss, parts = self.ntl_run(partial(compute_loss, model, {**given, "skip_logits": True}), window)
        outputs = compute_loss(model, {**given, "skip_logits": None}, return_outputs=True)[1] if with_outputs else None
        return loss, parts, outputs

    def ntl_run(self, run: Callable[[], Any], window: Window) -> tuple[Any, NTLOutput]:
        """The result of a function that runs the patched model, and the parts of the loss."""
        patch = self.ntl_patch()
        assert patch is not None
        patch.parts, patch.added_factor = None, 1 / (window.processes * window.steps)
        try:
            result = run()
        finally:
            patch.added_factor = 1.0
        if patch.parts is None:
            raise RuntimeError(f"{type(self).__name__}.compute_loss did not run its model with the labels")
        return result, NTLOutput(*patch.parts)

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Tensor, window: Window
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of any model, from full logits.

        CE and NTL are already divided by the denominators of all processes. What the model adds is a mean over this
        batch, which is divided by the number of steps.
        """
        base = unwrap_model(self.model)  # type: ignore[attr-defined]
        labels = inputs.pop("labels", None)
        for name in ("shift_labels", "skip_logits"):
            inputs.pop(name, None)
        if is_encoder_decoder(base):
            put_decoder_inputs(base, inputs, labels)
        outputs = model(**inputs)
        parts = loss_of_logits(logits_of(outputs), targets, self.ntl_options(), window.num_items, window.num_numbers)
        loss, added = parts.loss * window.processes, added_loss(base, outputs, inputs)
        return loss if added is None else loss + added / window.steps, parts, outputs

    def ntl_check_own_loss(self) -> None:
        """Raise if a class after the mixin has a ``compute_loss`` that can neither be replaced nor called."""
        check_own_loss_can_run(type(self), NTLTrainerMixin, self.ntl_patch() is not None, cp_size(self) > 1)

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        """The Trainer's prediction step with our loss. A patched model computes logits only if they are needed."""
        if label_names(inputs):
            inputs = self.ntl_begin_batch(inputs)
            if prediction_loss_only and self.ntl_patch():
                inputs["skip_logits"] = True
        if getattr(self.args, self.ntl_stock.generates, False) and not prediction_loss_only:  # type: ignore[attr-defined]
            evaluated = model
            model = lambda **batch: {"loss": self.compute_loss(evaluated, batch)}  # noqa: E731
        self.ntl_eval_loss = None
        try:
            result = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)  # type: ignore[misc]
        finally:
            self.ntl_eval_counts = (None, None)
        if self.ntl_eval_loss is not None:  # result[0] is what the outermost compute_loss has made of it
            loss, tokens = self.ntl_eval_loss
            self.ntl_totals["eval"][-2] += (loss - result[0].to(loss.device)) * tokens
        return result

    def ntl_begin_batch(self, inputs: Any) -> dict[str, Any]:
        """The inputs of an evaluation batch without the labels of repeated samples, the last over all processes."""
        state, loader = self.accelerator.gradient_state, self.callback_handler.eval_dataloader  # type: ignore[attr-defined]
        inputs = {**inputs}
        if state.end_of_dataloader and state.remainder > 0:
            copies = cp_size(self) * self.get_tp_size()  # type: ignore[attr-defined]
            process, samples = self.accelerator.process_index // copies, len(inputs[label_names(inputs)[0]])  # type: ignore[attr-defined]
            if isinstance(getattr(loader, "batch_sampler", None), BatchSamplerShard):
                samples = loader.total_batch_size * copies // self.accelerator.num_processes  # type: ignore[attr-defined]
            inputs = without_repetitions(inputs, samples, process, state.remainder, partial(collate_last, loader))
        if evaluation_shards(self) > 1:
            tokens, numbers = self.ntl_count(self.ntl_targets(inputs))
            self.ntl_eval_counts = tokens, numbers
        return inputs

    def ntl_add(self, mode: str, parts: NTLOutput, targets: Tensor, window: Window) -> None:
        """Add a batch to the totals for the next log, without waiting for the device."""
        tokens, numbers = self.ntl_count(targets).to(parts.ntl.device)
        ntl = parts.ntl * self.ntl_mean_over(parts.num_tokens, parts.num_numbers)
        loss, share = parts.loss.detach() * window.processes, torch.full_like(parts.ntl, 1 / window.steps)
        if mode == "eval":
            self.ntl_eval_loss, loss, share = (loss, tokens), torch.zeros_like(loss), tokens
        sums = torch.stack(
            [
                parts.cross_entropy * parts.num_tokens,
                ntl,
                self.ntl_options().config.weight * ntl,
                parts.token_accuracy * tokens,
                parts.number_mae * numbers,
                tokens,
                numbers,
                loss,
                share,
            ]
        ).float()
        total = self.ntl_totals.get(mode)
        self.ntl_totals[mode] = sums if total is None else total + sums

    def ntl_mean_over(self, tokens: Any, numbers: Any) -> Any:
        """The denominator of NTL: tokens or numbers."""
        return {"tokens": tokens, "numbers": numbers}[self.ntl_options().config.mean_over]

    def ntl_metrics(self, mode: str) -> dict[str, float]:
        """The means since the last call over all processes; without tokens only a ``loss`` of NaN.

        ``loss`` is what must be added to the Trainer's mean over steps in training, and the whole loss in evaluation.
        """
        nothing = torch.zeros(9, device=self.args.device)  # type: ignore[attr-defined]
        total = self.ntl_totals.pop(mode, nothing)  # every process must gather, even without totals
        total = self.accelerator.gather(total[None]).sum(0)  # type: ignore[attr-defined]
        cross_entropy, ntl, weighted, correct, error, tokens, numbers, loss, share = total.tolist()
        if not tokens > 0:
            return {"loss": math.nan}
        self.ntl_look_for_numbers(mode, numbers)
        over = max(self.ntl_mean_over(tokens, numbers), 1)
        return {
            "loss": cross_entropy / tokens + weighted / over - loss / share,
            "ce": cross_entropy / tokens,
            "ntl": ntl / over,
            "token_accuracy": correct / tokens,
            "number_mae": error / numbers if numbers else math.nan,
            "number_share": numbers / tokens,
        }

    def ntl_look_for_numbers(self, mode: str, count: float) -> None:
        """Warn if the first log of training or evaluation had no number token among its labels."""
        is_first = mode not in self.ntl_seen
        self.ntl_seen.add(mode)
        if count == 0 and is_first and self.is_world_process_zero():  # type: ignore[attr-defined]
            logged = {"train": "training steps", "eval": "evaluation"}[mode]
            warnings.warn(
                f"no label of the first logged {logged} is a number token, so NTL is 0. Likely causes: "
                "the NumberTokens belong to another tokenizer, the numbers are masked (-100) with the prompt, or the "
                "tokenizer splits numbers into tokens that are not in the NumberTokens. Check your labels with "
                "numbers.is_number(labels)",
                stacklevel=2,
            )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's log with the parts of the training loss."""
        if "loss" in logs:
            metrics = self.ntl_metrics("train")
            correction = metrics.pop("loss")
            if math.isfinite(correction):  # otherwise the Trainer's, in which logging_nan_inf_filter leaves steps out
                logs["loss"] += correction
            logs.update(metrics)
            if self.ntl_weight is not None:
                logs["ntl_weight"] = self.ntl_weight.item()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's evaluation loop with the parts of the loss among its metrics."""
        self.ntl_totals.pop("eval", None)
        watch(dataloader)
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.ntl_metrics("eval").items()}
        if f"{metric_key_prefix}_loss" in output.metrics:  # otherwise the data have no labels
            output.metrics.update(metrics)
        return output

    prediction_loop = evaluation_loop  # which use_legacy_prediction_loop chooses in transformers 4


class NTLTrainer(NTLTrainerMixin, Trainer):
    """``transformers.Trainer`` with CE + NTL: ``NTLTrainer(model, args, ..., numbers=numbers)``.

    For the arguments that the Trainer does not have, see :class:`NTLTrainerMixin`.
    """


class NTLSeq2SeqTrainer(NTLTrainerMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with CE + NTL: ``NTLSeq2SeqTrainer(model, args, ..., numbers=numbers)``.

    With ``predict_with_generate``, evaluation also reports the loss and metrics of CE + NTL. For the arguments that the
    Seq2SeqTrainer does not have, see :class:`NTLTrainerMixin`.
    """

    ntl_stock = STOCK_TRAINERS["Seq2SeqTrainer"]


def label_names(batch: Any) -> list[str]:
    """The names under which a batch has labels."""
    return [name for name in ("labels", "shift_labels") if batch.get(name) is not None]


def without_repetitions(
    batch: Any, samples: int, process: int, remainder: int, collate_own: Callable[[int], Any]
) -> Any:
    """A process's last batch without the labels of repetitions, the samples beyond ``remainder`` over all processes.

    If a row is not a sample, as with padding-free collators, the batch is made anew without them.
    """
    own, names = min(max(remainder - process * samples, 0), samples), label_names(batch)
    if own == samples or not names:
        return batch
    if own > 0 and len(batch[names[0]]) != samples:
        return collate_own(own)
    kept = {name: torch.cat([batch[name][:own], torch.full_like(batch[name][own:], IGNORE_INDEX)]) for name in names}
    return {**batch, **kept}


class Watched:
    """A batch sampler or a stream that counts its items and keeps the last."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Iterator[Any]:
        self.count, self.has_ended = 0, False
        for item in self.inside:
            self.count, self.last = self.count + 1, item
            yield [*item] if isinstance(item, list) else item  # accelerate appends to a batch of indices
        self.has_ended = True

    def __len__(self) -> int:
        return len(self.inside)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle asks for some before there is anything inside
            raise AttributeError(name)
        return getattr(self.inside, name)


def watch(loader: Any) -> None:
    """Make known which samples accelerate repeats so that several processes have the same number of batches."""
    batches, stream = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    if isinstance(batches, BatchSamplerShard) and not isinstance(batches.batch_sampler, Watched):
        batches.batch_sampler = Watched(batches.batch_sampler)
    if isinstance(stream, IterableDatasetShard) and not isinstance(stream.dataset, Watched):
        stream.dataset = Watched(stream.dataset)
        loader.base_dataloader.collate_fn = partial(collate_stream, stream, loader.collate_fn)


def collate_stream(stream: Any, collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Samples of a watched stream as a batch; in the last one, accelerate repeats samples after the stream's end."""
    batch, count = collate(samples), len(samples)
    if not stream.dataset.has_ended:
        return batch
    remainder = stream.dataset.count % (count * stream.num_processes)
    return without_repetitions(batch, count, stream.process_index, remainder, lambda own: collate(samples[:own]))


def collate_last(loader: Any, count: int) -> Any:
    """The last ``count`` samples of a watched loader as a batch."""
    return loader.collate_fn([loader.dataset[index] for index in loader.batch_sampler.batch_sampler.last[-count:]])


def cp_size(trainer: Any) -> int:
    """How many processes share the rows of a batch, from the Trainer or, in transformers 4, from accelerate."""
    if hasattr(trainer, "get_cp_size"):
        return int(trainer.get_cp_size())
    config = getattr(trainer.accelerator, "parallelism_config", None)
    return 1 if config is None else int(config.cp_size)


def evaluation_shards(trainer: Any) -> int:
    """The same in evaluation, where older Trainers (such as transformers 5.0) give every process complete rows."""
    splits = "_prepare_context_parallel_inputs" in Trainer.prediction_step.__code__.co_names
    return cp_size(trainer) if splits else 1


def check_trainer(trainer: Any) -> None:
    """Raise if the Trainer would compute another loss or compute this one incorrectly."""
    name = type(trainer).__name__
    if trainer.compute_loss_func is not None:
        raise ValueError(f"{name} computes the loss itself, but got a compute_loss_func")
    check_arguments(name, trainer.args)
