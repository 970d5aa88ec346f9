"""`NTLTrainer`: CE + NTL, exact with gradient accumulation and data parallelism."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer, TrainerCallback
from transformers.trainer_pt_utils import find_batch_size

from ...checks import explains_options
from ...config import NTLConfig, NTLOutput, check_number
from ...tokens import NumberTokens
from .counting import Sums, Totals, count_window, sums_of, watch_repetitions, without_repeated_samples
from .forwards import installed_on
from .frameworks import check_arguments, unwrap_model, virtual_tokens
from .models import added_loss, check_own_loss, is_encoder_decoder, known_shift, put_decoder_inputs
from .patched import Patch
from .targets import (
    IGNORE_INDEX,
    NUM_NUMBERS,
    NUMBER_WEIGHTS,
    OUR_KEYWORDS,
    Count,
    NTLOptions,
    Targets,
    Window,
    choose_targets,
    count_labels,
    label_names,
    logits_of,
    loss_from_logits,
    measured_shift,
)

STOCK_TRAINERS = {("transformers", "Trainer"), ("transformers", "Seq2SeqTrainer"), ("trl", "SFTTrainer")}
"""The library and name of the classes whose ``compute_loss`` CE + NTL may replace."""
SPLITS_EVALUATION = Version(transformers.__version__) >= Version("5.16")
"""Whether the Trainer also divides the rows of evaluation batches over the processes of context parallelism."""


Host: Any = object  # to type checkers anything, because the Trainer comes after the mixin in the MRO


class ForgetAttempt(TrainerCallback):
    """Clears what an aborted attempt of ``auto_find_batch_size`` has added to the next log."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.totals.clear()


@dataclass(frozen=True)
class CheckedCollator:
    """A data collator that raises if another one drops the column ``number_weights`` or does not pad uneven rows."""

    collator: Callable[[Any], Any]

    def __call__(self, rows: Any) -> Any:
        is_weighted = any(isinstance(row, Mapping) and NUMBER_WEIGHTS in row for row in rows)
        try:
            batch = self.collator(rows)
        except (RuntimeError, ValueError) as error:
            found = uneven_lengths(rows)
            if not found:
                raise
            self.collator(rows[:1])  # raises if the lengths are not the cause
            name = getattr(self.collator, "__name__", type(self.collator).__name__)
            raise ValueError(
                f"the rows of a batch have {min(found)} to {max(found)} tokens, and {name} does not pad input_ids and "
                "labels: pass data_collator=DataCollatorForSeq2Seq(tokenizer), which pads labels with -100"
            ) from error
        if is_weighted and NUMBER_WEIGHTS not in batch:
            raise ValueError(
                f"the data has a column {NUMBER_WEIGHTS}, but its batches do not: pass a data_collator that "
                "pads it like the labels, with 0, or a WithNumberWeights, which computes it from the padded batch"
            )
        return batch


def uneven_lengths(rows: Any) -> set[int]:
    """The lengths of the rows' inputs, or of their labels, whichever has more of them; empty if both are even."""
    lengths = [
        {len(row[name]) for row in rows if isinstance(row, Mapping) and hasattr(row.get(name), "__len__")}
        for name in ("input_ids", "labels")
    ]
    found = max(lengths, key=len)
    return found if len(found) > 1 else set()


class NTLTrainerMixin(Host):
    """CE + NTL for any class derived from ``transformers.Trainer``: ``class MyTrainer(NTLTrainerMixin, Trainer)``.

    Cross-entropy is divided by the tokens, and NTL by the numbers (with ``mean_over="tokens"`` by the tokens), of the
    whole accumulation window on all processes, so gradients equal those of one large batch. A model patched by
    :func:`apply_ntl_to_model` computes the loss from hidden states; any other model computes it from full logits.

    Batches may have ``number_weights`` [B, T]: a weight of NTL for each label, 1 by default, which is shifted like the
    labels (see :func:`ntl_kernels.cross_entropy_ntl`).

    Logs ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` (means over the tokens or number tokens since the last
    log) and ``number_share`` (the share of number tokens among the labels that are not ignored). ``loss`` is
    ``ce + weight * ntl`` plus the mean over batches of what the model adds. Evaluation reports all with its prefix.
    Without any number token, ``number_mae`` is NaN and the first log warns; without any label, ``eval_loss`` is NaN.

    A ``compute_loss`` of the class after the mixin runs only if the model is patched; it gets both denominators among
    the inputs. For other models put NTL last, ``class MyTrainer(TheirTrainer, NTLTrainer)``: their
    ``super().compute_loss`` is then CE + NTL.

    Args:
        numbers: the number tokens of the model's vocabulary; not needed if the model is patched.
        ntl_config: kind and weight of the Number Token Loss; default: that of the patch, or ``NTLConfig()``.
        z_loss: factor of ``lse ** 2``; default: that of the patch, or 0.
        shift: whether position t predicts label t + 1; default: that of the patch, or as in the model's own loss.
        ntl_weight_schedule: a function that returns the weight of the Number Token Loss, instead of that in
            ``ntl_config``, for the progress of training, from 0 at the first optimizer step towards 1 at the last. It
            is logged as ``ntl_weight``. Evaluation uses the current weight.
        *args, **kwargs: the Trainer's arguments, including ``label_smoothing_factor``.

    Raises:
        TypeError, ValueError: options are missing or differ from those of the patch; a ``compute_loss_func``,
            DataParallel, DeepSpeed's sequence parallelism or Liger's fused cross-entropy is used; a ``compute_loss``
            would be left out; or the model's own loss has parts that cannot be computed from its logits.

    Examples:
        >>> class MyTrainer(NTLTrainerMixin, transformers.Trainer): ...
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> trainer = MyTrainer(model, args, train_dataset=rows, numbers=numbers)
    """

    @explains_options
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
        given = {"numbers": numbers, "config": ntl_config, "z_loss": z_loss, "shift": shift}
        self.ntl_given: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.ntl_weight_schedule = ntl_weight_schedule
        self.ntl_weight: Tensor | None = None
        self.ntl_totals = {"train": Totals(), "eval": Totals()}
        self.ntl_logged: set[str] = set()
        """Which of the two have been logged with tokens."""
        self.ntl_eval_counts: tuple[Any, ...] = ()
        """If processes share the rows of an evaluation batch: its tokens, its number tokens and these processes."""
        self.ntl_evaluated: Sums | None = None
        """The sums of the current evaluation batch."""
        if kwargs.get("model_init") is None:  # before super().__init__, in which some Trainers tokenize all data
            self.ntl_check_given(args[0] if args else kwargs.get("model"))
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None:
            raise ValueError(f"{type(self).__name__} computes the loss itself, but got a compute_loss_func")
        check_arguments(type(self).__name__, self.args)
        self.ntl_check_own_loss()
        self.label_smoother = None  # the loss does the label smoothing
        if ntl_weight_schedule is not None:
            self.ntl_set_weight(0.0)
        self.ntl_options()
        # These make the Trainer count tokens and not divide the loss by the accumulation steps (5.17 reads the first).
        # They are set here because TRL sets the first from the class's value of the second.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.add_callback(ForgetAttempt(self.ntl_totals["train"]))

    def ntl_check_given(self, model: Any) -> None:
        """Raise if the model is not patched and its options are missing or wrong."""
        if isinstance(model, nn.Module) and installed_on(model) is not None:
            return
        if "numbers" not in self.ntl_given:
            raise ValueError(f"{type(self).__name__} needs numbers=NumberTokens(...), or a patched model")
        NTLOptions(**self.ntl_given)

    def ntl_patch(self) -> Patch | None:
        """The patch of the model, if it has one."""
        installed = installed_on(self.model)
        return installed if isinstance(installed, Patch) else None

    def ntl_options(self, batch: Any = None) -> NTLOptions:
        """The options installed on the model, which must agree with the Trainer's arguments; otherwise the latter.

        If it is unknown whether labels are shifted, a batch is needed to find out.
        """
        given, base, installed = {**self.ntl_given}, unwrap_model(self.model), installed_on(self.model)
        if self.args.label_smoothing_factor:
            given["label_smoothing"] = self.args.label_smoothing_factor
        if not isinstance(installed, Patch):
            check_own_loss(base)
        if installed is None:
            self.ntl_check_given(self.model)
            options = NTLOptions(**{"shift": known_shift(base), **given})
        else:
            options = installed.options
        if options.shift is None and batch is not None:
            if "shift" not in given:
                inputs = {name: value for name, value in batch.items() if name not in OUR_KEYWORDS}
                self.ntl_given["shift"] = measured_shift(self.model_wrapped, self._prepare_inputs(inputs))
            options = replace(options, shift=self.ntl_given["shift"])
        if self.ntl_weight is not None and options.config.weight is not self.ntl_weight:
            options = replace(options, config=replace(options.config, weight=self.ntl_weight))
        if installed is None:
            return options
        for name, value in given.items():
            if name == "config" and self.ntl_weight is not None:
                value = replace(value, weight=self.ntl_weight)
            if value != getattr(options, name):
                raise ValueError(
                    f"the Trainer was given {name}={value!r}, but {installed.installer} was given "
                    f"{getattr(options, name)!r}"
                )
        installed.options = options
        return options

    def ntl_set_weight(self, progress: float) -> None:
        """Set the weight of the Number Token Loss to the schedule's value; in place, so that nothing is recompiled."""
        assert self.ntl_weight_schedule is not None
        value = self.ntl_weight_schedule(progress)
        check_number(f"ntl_weight_schedule({progress:g})", value, minimum=0.0)
        if self.ntl_weight is None:
            self.ntl_weight = torch.zeros((), device=self.args.device)
        self.ntl_weight.fill_(value)

    def _set_signature_columns_if_needed(self) -> None:
        """The Trainer's names of columns that reach the collator, and ours."""
        super()._set_signature_columns_if_needed()
        columns = cast(list[str], self._signature_columns)
        if NUMBER_WEIGHTS not in columns:
            columns.append(NUMBER_WEIGHTS)

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's data loader, for training or evaluation, whose collator must not drop our column."""
        given: Any = self.data_collator
        self.data_collator: Any = CheckedCollator(given)
        try:
            return super()._get_dataloader(*args, **kwargs)
        finally:
            self.data_collator = given

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """The batches of a window, each with the window's count of number tokens, and the window's count of tokens."""
        if self.ntl_weight_schedule is not None:
            self.ntl_set_weight(self.state.global_step / max(self.state.max_steps, 1))
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        options, averages = self.ntl_options(batches[0]), self.args.average_tokens_across_devices
        num_items, num_numbers = count_window(
            [self.ntl_targets(batch, options) for batch in batches],
            options.numbers,
            device,
            # without an average, dividing by the processes of these rows gives their total after averaging gradients
            copies=cp_size(self) * (self.get_tp_size() if averages else 1),
            gather=self.accelerator.gather if averages and self.args.world_size > 1 else None,
        )
        for batch in batches:
            batch[NUM_NUMBERS] = num_numbers
        return batches, num_items

    def ntl_targets(self, batch: Any, options: NTLOptions) -> Targets:
        """The target of each position of a batch."""
        if not label_names(batch):
            raise ValueError(
                f"{type(self).__name__} needs labels in every batch; got {', '.join(batch)}. For a causal model they "
                "are the input_ids, with -100 where there is no loss (padding, prompts)"
            )
        labels, shift_labels, weights = (batch.get(name) for name in ("labels", "shift_labels", NUMBER_WEIGHTS))
        virtual = virtual_tokens(self.model)
        if virtual and not (shift_labels is weights is None):
            raise ValueError(
                f"the model has {virtual} virtual tokens per row, for which PEFT does not extend shift_labels or "
                f"{NUMBER_WEIGHTS}"
            )
        if weights is not None and cp_size(self) > 1:
            raise ValueError(f"context parallelism does not split {NUMBER_WEIGHTS} over the processes")
        if virtual:
            labels = F.pad(labels, (virtual, 0), value=IGNORE_INDEX)
        return choose_targets(labels, shift_labels, options.shift, weights)

    def ntl_prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the model for a batch; Trainers with inputs and counts of their own override it."""
        return inputs

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """CE + NTL: over the window in training, the mean over the batch in evaluation."""
        inputs = self.ntl_prepare({**inputs})
        num_numbers = inputs.pop(NUM_NUMBERS, None)
        options, is_training = self.ntl_options(inputs), self.model.training
        targets = self.ntl_targets(inputs, options)
        window = self.ntl_window(options, is_training, num_items_in_batch, num_numbers)
        self.ntl_check_own_loss()
        if not is_stock(owner_of_loss(type(self))):
            loss, parts, outputs = self.ntl_theirs(model, inputs, window, is_training, return_outputs)
        elif self.ntl_patch() and (is_training or inputs.get("skip_logits")):
            loss, parts, outputs = self.ntl_fused(model, inputs, window)
        else:
            loss, parts, outputs = self.ntl_unfused(model, inputs, targets, window)
        sums = sums_of(parts, targets, window)
        self.ntl_totals["train" if is_training else "eval"].add(sums)
        self.ntl_evaluated = None if is_training else sums
        return (loss, outputs) if return_outputs else loss

    def ntl_window(
        self, options: NTLOptions, is_training: bool, num_items: Count | None, num_numbers: Count | None
    ) -> Window:
        """The denominators of a batch's loss (in training the given counts), and over what it is summed."""
        if not is_training:
            return Window(options, *self.ntl_eval_counts)
        if num_items is None:
            return Window(options, None, num_numbers)
        averages = self.args.average_tokens_across_devices
        processes = self.accelerator.num_processes // self.get_tp_size() if averages else 1
        return Window(options, num_items, num_numbers, processes, self.current_gradient_accumulation_steps)

    def ntl_fused(self, model: Any, inputs: dict[str, Any], window: Window) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of a patched model, from hidden states."""
        outputs, parts = self.ntl_run(partial(model, **inputs, **window.counts()), window)
        return (outputs["loss"] if isinstance(outputs, dict) else outputs[0]) * window.processes, parts, outputs

    def ntl_theirs(
        self, model: Any, inputs: dict[str, Any], window: Window, is_training: bool, with_outputs: bool
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) from the next ``compute_loss`` in the MRO, which calls a patched model.

        It ends in the Trainer's, which multiplies by the processes. In evaluation a second call computes the logits.
        """
        compute_loss, given = super().compute_loss, {**inputs, **window.counts()}
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
        patch = cast(Patch, self.ntl_patch())
        patch.parts, patch.added_factor = None, 1 / (window.processes * window.accumulated)
        try:
            result = run()
        finally:
            patch.added_factor = 1.0
        if patch.parts is None:
            raise RuntimeError(f"{type(self).__name__}.compute_loss did not run its model with the labels")
        return result, NTLOutput(*patch.parts)

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Targets, window: Window
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of any model, from full logits. What it adds to CE + NTL is a mean over this batch."""
        base = unwrap_model(self.model)
        labels, *_ = [inputs.pop(name, None) for name in ("labels", "shift_labels", "skip_logits", NUMBER_WEIGHTS)]
        if is_encoder_decoder(base):
            put_decoder_inputs(base, inputs, targets.labels if labels is None else labels)
        outputs = model(**inputs)
        parts = loss_from_logits(logits_of(outputs), targets, window)
        loss = parts.loss * window.processes + added_loss(base, outputs, inputs) / window.accumulated
        return loss, parts, outputs

    def ntl_check_own_loss(self) -> None:
        """Raise if a class after the mixin has a ``compute_loss`` that can neither be replaced nor called.

        With a patched model it can be called, unless it was written for TRL's Trainer, which needs other outputs.
        """
        cls = type(self)
        owner, stock = owner_of_loss(cls), next(base for base in cls.__mro__ if is_stock(base))
        is_callable = stock.__module__.startswith("transformers.") and cp_size(self) == 1
        if not is_stock(owner) and not (is_callable and self.ntl_patch()):
            raise ValueError(
                f"{cls.__name__} would leave out {owner.__name__}.compute_loss: put the Number Token Loss after it in "
                f"the base classes, class {cls.__name__}({owner.__name__}, NTL{stock.__name__})"
                f"{', or patch the model with apply_ntl_to_model' if is_callable else ''}"
            )

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        """The Trainer's prediction step with our loss. A patched model computes logits only if they are needed."""
        if label_names(inputs):
            inputs = self.ntl_begin_batch({**inputs})
            if prediction_loss_only and self.ntl_patch():
                inputs["skip_logits"] = True
        if getattr(self.args, "predict_with_generate", False) and not prediction_loss_only:  # requests only the loss
            evaluated = model  # generate() refuses names that the model does not know
            weights = {name: inputs.pop(name).to(self.args.device) for name in (NUMBER_WEIGHTS,) if name in inputs}
            model = lambda **batch: {"loss": self.compute_loss(evaluated, {**batch, **weights})}  # noqa: E731
        self.ntl_evaluated = None
        try:
            result = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        finally:
            self.ntl_eval_counts = ()
        if self.ntl_evaluated is not None:  # result[0] is the outermost compute_loss's result
            loss, tokens = self.ntl_evaluated.losses, self.ntl_evaluated.tokens
            self.ntl_totals["eval"].add(Sums(additions=(result[0].to(loss.device) - loss) * tokens))
        # Seq2SeqTrainer gathers the samples that accelerate repeats too, because a sample may have several answers.
        if isinstance(self, Seq2SeqTrainer) and find_batch_size(result[1]) == find_batch_size(inputs):
            self.gather_function = self.accelerator.gather_for_metrics
        return result

    def ntl_begin_batch(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of an evaluation batch without the labels of repeated samples."""
        loader, copies = self.callback_handler.eval_dataloader, cp_size(self) * self.get_tp_size()
        inputs = without_repeated_samples(inputs, loader, self.accelerator, copies)
        shards = cp_size(self) if SPLITS_EVALUATION else 1  # older Trainers give every process complete rows
        if shards > 1:
            options = self.ntl_options(inputs)
            self.ntl_eval_counts = *count_labels(self.ntl_targets(inputs, options), options.numbers), shards
        return inputs

    def ntl_metrics(self, mode: str) -> dict[str, float]:
        """The means since the last call over all processes; without tokens only a ``loss`` of NaN.

        In training, ``loss`` is what must be added to the Trainer's mean over steps.
        """
        sums = self.ntl_totals[mode].take(self.args.device, self.accelerator.gather)
        if not sums.tokens > 0:
            return {"loss": math.nan}
        if not sums.numbers and mode not in self.ntl_logged and self.is_world_process_zero():
            logged = {"train": "training steps", "eval": "evaluation"}[mode]
            warnings.warn(
                f"no label of the first logged {logged} is a number token, so NTL is 0. Likely causes: "
                "the NumberTokens belong to another tokenizer, the numbers are masked (-100) with the prompt, or the "
                "tokenizer splits numbers into tokens that are not in the NumberTokens. Check your labels with "
                f"numbers.is_number(labels), and {NUMBER_WEIGHTS}, if you have any, for 0",
                stacklevel=2,
            )
        self.ntl_logged.add(mode)
        other = -sums.losses / sums.windows if mode == "train" else sums.additions / sums.tokens
        return {"loss": sums.loss() + other, **sums.means()}

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
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, dataloader: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """The Trainer's evaluation loop with the parts of the loss among its metrics."""
        self.ntl_totals["eval"].clear()
        watch_repetitions(dataloader)
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(dataloader, *args, **kwargs)
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

    With ``predict_with_generate``, evaluation also reports loss and metrics, and on several processes, these and the
    predictions count no row twice (those of ``Seq2SeqTrainer`` do). See :class:`NTLTrainerMixin`.
    """


def cp_size(trainer: Any) -> int:
    """How many processes share the rows of a batch, from the Trainer or, in transformers 4, from accelerate."""
    if hasattr(trainer, "get_cp_size"):
        return int(trainer.get_cp_size())
    config = getattr(trainer.accelerator, "parallelism_config", None)
    return 1 if config is None else int(config.cp_size)


def is_stock(cls: type) -> bool:
    """Whether a class is a library's Trainer, whose ``compute_loss`` CE + NTL may replace."""
    return (cls.__module__.split(".")[0], cls.__name__) in STOCK_TRAINERS


def owner_of_loss(cls: type) -> type:
    """The class after the mixin in the MRO that provides ``compute_loss``."""
    behind = cls.__mro__[cls.__mro__.index(NTLTrainerMixin) + 1 :]
    return next(owner for owner in behind if "compute_loss" in vars(owner))
