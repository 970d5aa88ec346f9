"""`NTLTrainer`: CE + NTL, exact over gradient accumulation and data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer

from ...config import NTLConfig, NTLOutput, check_number
from ...tokens import NumberTokens
from .frameworks import FRAMEWORKS, check_arguments, unwrap_model
from .losses import IGNORE_INDEX, Count, LossOptions, choose_targets, logits_of, loss_of_logits, number_mask, token_mask
from .model_classes import is_encoder_decoder, shifts_labels
from .models import auxiliary_loss, decoder_inputs
from .patch import options_on
from .patched import PATCH, Patch
from .stock_trainers import STOCK_TRAINERS, StockTrainer, check_loss_arguments

NUM_NUMBERS = "num_numbers_in_batch"
"""The key under which batches carry the number tokens of their accumulation window."""


class EvalBatch(NamedTuple):
    """What an evaluation batch of this process is divided by."""

    rows: int
    """How many of its rows are no repetitions, with which the last batch is filled up to serve all processes."""
    counts: tuple[Tensor | None, Tensor | None]
    """The tokens and number tokens of its whole rows, if processes share the rows, else None."""


class NTLTrainerMixin:
    """CE + NTL for any class derived from ``transformers.Trainer``: ``class MyTrainer(NTLTrainerMixin, Trainer)``.

    Cross-entropy is divided by the tokens, NTL by the number tokens of the whole accumulation window on all processes,
    so that gradients equal those of one large batch, also when processes share rows (context parallelism). A model
    patched by :func:`apply_ntl_to_model` computes the loss from hidden states; any other one gives full logits. In
    evaluation the loss is the mean over each batch.

    ``log`` gets ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` (means over the tokens, or number tokens, since
    the last log) beside ``loss``; evaluation gets them with its prefix.

    Args:
        numbers: the number tokens of the model's vocabulary; not needed if the model is patched.
        ntl_config: kind and weight of the Number Token Loss; default: the patch's, else ``NTLConfig()``.
        z_loss: factor of ``lse ** 2``; default: the patch's, else 0.
        ntl_weight_schedule: the weight of the Number Token Loss as a function of progress, from 0 at the first
            optimizer step towards 1 at the last, in place of ``ntl_config.weight``; logged as ``ntl_weight``. The
            weight is a tensor on the training device that changes in place: nothing recompiles. Evaluation has the
            weight of its moment.
        *args, **kwargs: the Trainer's. ``label_smoothing_factor`` of its arguments is honoured.

    Raises:
        TypeError, ValueError: options missing or not those of the patch, a ``compute_loss_func``, DataParallel (several
            GPUs in one process), DeepSpeed's sequence parallelism, or ``use_liger_kernel`` without
            ``fused_linear_cross_entropy: False``.
    """

    ntl_stock: StockTrainer = STOCK_TRAINERS["Trainer"]
    """What the Trainer does that this class is derived from."""

    def __init__(
        self,
        *args: Any,
        numbers: NumberTokens | None = None,
        ntl_config: NTLConfig | None = None,
        z_loss: float | None = None,
        ntl_weight_schedule: Callable[[float], float] | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = args[1] if len(args) > 1 else kwargs.get("args")
        check_loss_arguments(type(self).__name__, self.ntl_stock, arguments)
        self.ntl_given: dict[str, Any] = {"numbers": numbers, "config": ntl_config, "z_loss": z_loss}
        self.ntl_weight_schedule = ntl_weight_schedule
        self.ntl_weight: Tensor | None = None
        self.ntl_totals: dict[str, Tensor] = {}
        self.ntl_eval_batch: EvalBatch | None = None
        if kwargs.get("model_init") is None:  # some Trainers tokenize all data before they look at the rest
            self.ntl_check_given(args[0] if args else kwargs.get("model"))
        super().__init__(*args, **kwargs)
        check_trainer(self)
        self.label_smoother = None  # the loss smooths its labels itself
        if ntl_weight_schedule is not None:
            self.ntl_set_weight(0.0)
        self.ntl_options()
        # The Trainer then counts tokens and does not divide the loss by the accumulation steps: 5.17 asks the first of
        # these. They are set here since TRL reads the second off the class to write the first.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.ntl_stock.begin(self)

    def ntl_check_given(self, model: Any) -> None:
        """Raise if the model is not patched and the options for it are missing or wrong."""
        if isinstance(model, nn.Module) and options_on(model) is not None:
            return
        if self.ntl_given["numbers"] is None:
            raise ValueError(f"{type(self).__name__} needs numbers=NumberTokens(...), or a patched model")
        LossOptions(**{name: value for name, value in self.ntl_given.items() if value is not None})

    def ntl_patch(self) -> Patch | None:
        """The patch of the model, if it has one."""
        return getattr(unwrap_model(self.model), PATCH, None)  # type: ignore[attr-defined]

    def ntl_options(self) -> LossOptions:
        """Those on the model, which must not contradict what the Trainer was given, else the latter."""
        smoothing = self.args.label_smoothing_factor  # type: ignore[attr-defined]
        given: dict[str, Any] = {**self.ntl_given, "label_smoothing": smoothing or None}
        given = {name: value for name, value in given.items() if value is not None}
        installed = options_on(self.model)  # type: ignore[attr-defined]
        if installed is None:
            self.ntl_check_given(self.model)  # type: ignore[attr-defined]
            return self.ntl_follow(LossOptions(**given))
        installer, options = installed
        options = self.ntl_follow(options)
        for name, value in given.items():
            if name == "config" and self.ntl_weight is not None:
                value = replace(value, weight=self.ntl_weight)
            if value != getattr(options, name):
                raise ValueError(f"the Trainer was given {name}={value!r}, {installer} {getattr(options, name)!r}")
        patch = self.ntl_patch()
        if patch is not None:
            patch.options = options
        return options

    def ntl_follow(self, options: LossOptions) -> LossOptions:
        """The options with the weight of the schedule, if there is one."""
        if self.ntl_weight is None or options.config.weight is self.ntl_weight:
            return options
        return replace(options, config=replace(options.config, weight=self.ntl_weight))

    def ntl_set_weight(self, progress: float) -> None:
        """Give the Number Token Loss the schedule's weight at this share of the training."""
        assert self.ntl_weight_schedule is not None
        value = self.ntl_weight_schedule(progress)
        check_number(f"ntl_weight_schedule({progress:g})", value, minimum=0.0)
        if self.ntl_weight is None:
            self.ntl_weight = torch.zeros((), device=self.args.device)  # type: ignore[attr-defined]
        self.ntl_weight.fill_(value)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """The batches of a window, each with the count of its number tokens, and the count of its tokens."""
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
        """[2]: the tokens and number tokens that a window's loss is divided by.

        Processes that share rows, or work on the same ones, all have the whole rows here, and count them once.
        """
        counts = torch.stack([self.ntl_count(self.ntl_targets(batch)) for batch in batches]).sum(0).to(device)
        shards = cp_size(self)
        if not self.args.average_tokens_across_devices:  # type: ignore[attr-defined]
            return counts / shards  # the mean over the processes of these shards is then the whole
        if self.args.world_size > 1:  # type: ignore[attr-defined]
            counts = self.accelerator.gather(counts[None]).sum(0)  # type: ignore[attr-defined]
        return counts / (shards * self.get_tp_size())  # type: ignore[attr-defined]

    def ntl_count(self, targets: Tensor) -> Tensor:
        """[2]: how many targets are tokens that count, and how many of these are numbers."""
        return torch.stack([token_mask(targets).sum(), number_mask(targets, self.ntl_options().numbers).sum()])

    def ntl_targets(self, batch: Any) -> Tensor:
        """What each position of a batch is to predict."""
        if not has_labels(batch):
            raise ValueError(f"{type(self).__name__} needs labels in every batch; got {', '.join(batch)}")
        labels, shift_labels = batch.get("labels"), batch.get("shift_labels")
        for framework in FRAMEWORKS:
            virtual = framework.virtual_tokens(self.model)  # type: ignore[attr-defined]
            if virtual and shift_labels is not None:
                tokens = f"{virtual} virtual tokens per row"
                raise ValueError(f"the model has {tokens}, which {framework.name} does not add to shift_labels")
            if virtual:
                labels = F.pad(labels, (virtual, 0), value=IGNORE_INDEX)
        base = unwrap_model(self.model)  # type: ignore[attr-defined]
        return choose_targets(labels, shift_labels, shifts_labels(base))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """CE + NTL: over the window in training, the mean over the batch in evaluation."""
        inputs = {**inputs, **self.ntl_stock.inputs(self)}
        self.ntl_stock.count_batch(self, inputs)
        num_numbers = inputs.pop(NUM_NUMBERS, None)
        targets = self.ntl_targets(inputs)
        is_training = self.model.training  # type: ignore[attr-defined]
        batch = self.ntl_eval_batch or EvalBatch(targets.shape[0], (None, None))
        counts = (num_items_in_batch, num_numbers) if is_training else batch.counts
        run = self.ntl_fused if self.ntl_patch() and (is_training or inputs.get("skip_logits")) else self.ntl_unfused
        loss, parts, outputs = run(model, inputs, targets, *counts)
        if counts[0] is not None:
            loss = self.ntl_scale(loss, outputs, is_training)
        self.ntl_add("train" if is_training else "eval", loss, batch.rows, parts, targets)
        return (loss, outputs) if return_outputs else loss

    def ntl_fused(
        self, model: Any, inputs: dict[str, Any], targets: Tensor, num_items: Count | None, num_numbers: Count | None
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of a patched model, from hidden states."""
        counts = {"num_items_in_batch": num_items, NUM_NUMBERS: num_numbers}
        outputs = model(**inputs, **{name: count for name, count in counts.items() if count is not None})
        patch = self.ntl_patch()
        assert patch is not None and patch.parts is not None
        return outputs["loss"] if isinstance(outputs, dict) else outputs[0], NTLOutput(*patch.parts), outputs

    def ntl_unfused(
        self, model: Any, inputs: dict[str, Any], targets: Tensor, num_items: Count | None, num_numbers: Count | None
    ) -> tuple[Tensor, NTLOutput, Any]:
        """(loss, parts, outputs) of any model, from full logits."""
        base = unwrap_model(self.model)  # type: ignore[attr-defined]
        labels = inputs.pop("labels", None)
        for name in ("shift_labels", "skip_logits"):
            inputs.pop(name, None)
        if is_encoder_decoder(base) and not {"decoder_input_ids", "decoder_inputs_embeds"} & set(inputs):
            inputs["decoder_input_ids"] = decoder_inputs(base, labels)
        outputs = model(**inputs)
        parts = loss_of_logits(logits_of(outputs), targets, self.ntl_options(), num_items, num_numbers)
        auxiliary = auxiliary_loss(base, outputs)
        return parts.loss if auxiliary is None else parts.loss + auxiliary, parts, outputs

    def ntl_scale(self, loss: Tensor, outputs: Any, is_training: bool) -> Tensor:
        """The loss as it adds up over the accumulation steps and is averaged over processes.

        CE and NTL are sums over the denominators of all processes that share them already. An auxiliary loss is a mean
        over this batch: it becomes the mean over the steps.
        """
        auxiliary = auxiliary_loss(unwrap_model(self.model), outputs)  # type: ignore[attr-defined]
        processes, steps = 1, 1
        if not is_training:
            processes = evaluation_shards(self)
        elif self.args.average_tokens_across_devices:  # type: ignore[attr-defined]
            processes = self.accelerator.num_processes // self.get_tp_size()  # type: ignore[attr-defined]
        if auxiliary is None:
            return loss * processes
        if is_training:
            steps = self.current_gradient_accumulation_steps  # type: ignore[attr-defined]
        return (loss - auxiliary) * processes + auxiliary / steps

    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        """The Trainer's, with our loss. A patched model need not make logits that nobody asks for."""
        if has_labels(inputs):
            inputs = self.ntl_begin_batch(inputs)
            if prediction_loss_only and self.ntl_patch():
                inputs["skip_logits"] = True
        if getattr(self.args, self.ntl_stock.generates, False) and not prediction_loss_only:  # type: ignore[attr-defined]
            evaluated = model
            model = lambda **batch: {"loss": self.compute_loss(evaluated, batch)}  # noqa: E731
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)  # type: ignore[misc]
        finally:
            self.ntl_eval_batch = None

    def ntl_begin_batch(self, inputs: Any) -> dict[str, Any]:
        """The inputs of an evaluation batch, whose rows that are repetitions have no labels."""
        rows = len(next(inputs[name] for name in ("labels", "shift_labels") if inputs.get(name) is not None))
        own = self.ntl_own_rows(rows)
        inputs = {**inputs}
        for name in ("labels", "shift_labels"):
            if own < rows and inputs.get(name) is not None:
                inputs[name] = torch.cat([inputs[name][:own], torch.full_like(inputs[name][own:], IGNORE_INDEX)])
        tokens = numbers = None
        if evaluation_shards(self) > 1:
            tokens, numbers = self.ntl_count(self.ntl_targets(inputs))
        self.ntl_eval_batch = EvalBatch(own, (tokens, numbers))
        return inputs

    def ntl_own_rows(self, rows: int) -> int:
        """How many of this process's rows are no repetitions: of all processes' rows the last ones are."""
        state = self.accelerator.gradient_state  # type: ignore[attr-defined]
        if not state.end_of_dataloader or state.remainder <= 0:
            return rows
        copies = cp_size(self) * self.get_tp_size()  # type: ignore[attr-defined]
        before = self.accelerator.process_index // copies * rows  # type: ignore[attr-defined]
        return min(max(state.remainder - before, 0), rows)

    def ntl_add(self, mode: str, loss: Tensor, rows: int, parts: NTLOutput, targets: Tensor) -> None:
        """Add a batch to what the next log reports, without waiting for the device."""
        device = parts.ntl.device
        tokens, numbers = self.ntl_count(targets).to(device)
        sums = torch.stack(
            [
                parts.cross_entropy * parts.num_tokens,
                parts.ntl * parts.num_numbers,
                parts.token_accuracy * tokens,
                parts.number_mae * numbers,
                tokens,
                numbers,
                loss.detach() * rows,
                torch.full((), rows, device=device),
            ]
        ).float()
        total = self.ntl_totals.get(mode)
        self.ntl_totals[mode] = sums if total is None else total + sums

    def ntl_metrics(self, mode: str) -> dict[str, float]:
        """The means since the last call, over all processes: of the parts if a token counted, of the loss if a row."""
        nothing = torch.zeros(8, device=self.args.device)  # type: ignore[attr-defined]
        total = self.ntl_totals.pop(mode, nothing)  # every process gathers, even one that has nothing
        total = self.accelerator.gather(total[None]).sum(0)  # type: ignore[attr-defined]
        cross_entropy, ntl, correct, error, tokens, numbers, loss, rows = total.tolist()
        metrics = {}
        if tokens > 0:
            metrics = {
                "ce": cross_entropy / tokens,
                "ntl": ntl / max(numbers, 1),
                "token_accuracy": correct / tokens,
                "number_mae": error / max(numbers, 1),
            }
        if mode == "eval" and rows > 0:
            metrics["loss"] = loss / rows
        return metrics

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's, with the parts of the training loss beside it."""
        if "loss" in logs:
            logs.update(self.ntl_metrics("train"))
            if self.ntl_weight is not None:
                logs["ntl_weight"] = self.ntl_weight.item()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The Trainer's, with the parts of the loss among its metrics."""
        self.ntl_totals.pop("eval", None)
        arguments = dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        output = super().evaluation_loop(*arguments)  # type: ignore[misc]
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.ntl_metrics("eval").items()}
        output.metrics.update(metrics)
        return output


class NTLTrainer(NTLTrainerMixin, Trainer):
    """``transformers.Trainer`` with CE + NTL: ``NTLTrainer(model, args, ..., numbers=numbers)``.

    See :class:`NTLTrainerMixin` for the arguments beside the Trainer's.
    """


class NTLSeq2SeqTrainer(NTLTrainerMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with CE + NTL: ``NTLSeq2SeqTrainer(model, args, ..., numbers=numbers)``.

    With ``predict_with_generate``, too, the evaluation's loss and metrics are those of CE + NTL. See
    :class:`NTLTrainerMixin` for the arguments beside the Seq2SeqTrainer's.
    """

    ntl_stock = STOCK_TRAINERS["Seq2SeqTrainer"]


def has_labels(batch: Any) -> bool:
    """Whether a batch says what to predict."""
    return batch.get("labels") is not None or batch.get("shift_labels") is not None


def cp_size(trainer: Any) -> int:
    """How many processes share the rows of a batch: by the Trainer or, where transformers 4 has no word, accelerate."""
    if hasattr(trainer, "get_cp_size"):
        return int(trainer.get_cp_size())
    config = getattr(trainer.accelerator, "parallelism_config", None)
    return 1 if config is None else int(config.cp_size)


def evaluation_shards(trainer: Any) -> int:
    """The same in evaluation, where older Trainers (that of transformers 5.0 is one) give every process whole rows."""
    splits = "_prepare_context_parallel_inputs" in Trainer.prediction_step.__code__.co_names
    return cp_size(trainer) if splits else 1


def check_trainer(trainer: Any) -> None:
    """Raise if the Trainer would compute another loss, or this one wrongly."""
    name = type(trainer).__name__
    if trainer.compute_loss_func is not None:
        raise ValueError(f"{name} computes the loss itself; got a compute_loss_func")
    check_arguments(name, trainer.args)
