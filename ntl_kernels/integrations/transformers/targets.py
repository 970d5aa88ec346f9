"""What the positions of a batch predict, over what their loss is a mean, and that loss on full logits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import explains_options
from ...config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from ...functional import cross_entropy_ntl
from ...modules import CrossEntropyNTLLoss
from ...tokens import NumberTokens
from ...tokens.values import check_row_weights
from ...tracing import has_values
from .frameworks import unwrap_model
from .models import check_own_loss, entry_of, is_transformers_own, router_factor_of, shifts_labels
from .probes import is_on_host

IGNORE_INDEX = -100
"""The label that Hugging Face collators use for ignored positions."""
NUMBER_WEIGHTS = "number_weights"
"""The column of a batch, and the keyword of a model, with a weight of NTL for each label."""
NUM_NUMBERS = "num_numbers_in_batch"
"""The key of a batch that holds the number tokens of its accumulation window."""
OUR_KEYWORDS = (NUM_NUMBERS, NUMBER_WEIGHTS, "skip_logits")
"""The keywords of a patched model that its own forward does not have."""
OUTPUTS = {"CausalLMOutputWithCrossAttentions": None, "CausalLM": True, "Seq2Seq|MaskedLM|TokenClassif": False}
"""Whether the models that return outputs of a matching class shift labels; None: some do. The first match decides."""
Count = int | float | Tensor
"""A denominator: a number, or a tensor of one element."""


@dataclass(frozen=True)
class NTLOptions:
    """What does not change from batch to batch: the number tokens, the configuration and the options of a loss."""

    numbers: NumberTokens
    config: NTLConfig = DEFAULT_CONFIG
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    shift: bool | None = None
    """Whether position t predicts label t + 1; None where the model's outputs determine it."""

    def __post_init__(self) -> None:
        CrossEntropyNTLLoss(self.numbers, **self.keywords())  # checks the options
        if not isinstance(self.shift, bool | None):
            raise TypeError(f"shift must be True, False or None; got {self.shift!r}")

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of the loss functions."""
        return {"config": self.config, "label_smoothing": self.label_smoothing, "z_loss": self.z_loss}


class Targets(NamedTuple):
    """What the positions of a batch predict."""

    labels: Tensor
    """[B..., T]"""
    number_weights: Tensor | None = None
    """[B..., T] the weight of NTL at each position; None: 1."""

    def to(self, device: Any) -> Targets:
        weights = self.number_weights
        return Targets(self.labels.to(device), None if weights is None else weights.to(device))


class Window(NamedTuple):
    """The options and denominators of a batch's loss, and over how many processes and batches the loss is a sum."""

    options: NTLOptions
    num_items: Count | None = None
    num_numbers: Count | None = None
    processes: int = 1
    """These average their gradients."""
    accumulated: int = 1
    """A mean over the batch is divided by their number."""

    def counts(self) -> dict[str, Count]:
        """The denominators as keywords of a patched model; empty for a batch on its own."""
        counts = {"num_items_in_batch": self.num_items, NUM_NUMBERS: self.num_numbers}
        return {name: count for name, count in counts.items() if count is not None}


def label_names(batch: Any) -> list[str]:
    """The names under which a batch, or the arguments of a model, has labels."""
    return [name for name in ("labels", "shift_labels") if batch.get(name) is not None]


def count_labels(targets: Targets, numbers: NumberTokens) -> Tensor:
    """float32 [2]: how many targets are not ignored, and how many of these are number tokens, each by its weight."""
    return torch.stack([(targets.labels != IGNORE_INDEX).sum().float(), numbers.count(*targets).float()])


def loss_from_logits(logits: Tensor, targets: Targets, window: Window) -> NTLOutput:
    """The loss of full logits [B..., V] and targets of positions [B...], and its parts."""
    targets = targets.to(logits.device)
    keywords = loss_keywords(targets, window)
    return cast(NTLOutput, cross_entropy_ntl(logits, targets.labels, window.options.numbers, **keywords))


def loss_keywords(targets: Targets, window: Window) -> dict[str, Any]:
    """The keywords of the loss functions for targets that are part of a window.

    If only its tokens were counted, the window is assumed to have as many numbers per token as this batch.
    """
    options, counts = window.options, (window.num_items, window.num_numbers)
    num_items, num_numbers = [as_count(count, targets.labels.device) for count in counts]
    if options.config.mean_over == "numbers" and num_items is None and num_numbers is not None:
        raise ValueError(
            "num_numbers_in_batch was passed without num_items_in_batch, the token count of the same batches: pass both"
        )
    if options.config.mean_over == "numbers" and num_items is not None and num_numbers is None:
        tokens, numbers = count_labels(targets, options.numbers)
        has_weight = isinstance(options.config.weight, Tensor) or options.config.weight > 0
        if has_weight and (not (is_on_host(tokens) and has_values(tokens)) or num_items > tokens):
            warn_of_uncounted_numbers()
        num_numbers = numbers * num_items / tokens.clamp(min=1)
    return {
        **options.keywords(),
        "num_tokens": num_items,
        "num_numbers": num_numbers,
        "number_weights": targets.number_weights,
        "return_parts": True,
    }


def as_count(count: Count | None, device: Any) -> Count | None:
    """The count; if it is a tensor, 0-d and on this device."""
    if not isinstance(count, Tensor):
        return count
    if count.numel() != 1:
        raise ValueError(
            f"num_items_in_batch and num_numbers_in_batch must have one element; got shape {tuple(count.shape)} "
            "(torch.nn.DataParallel is not supported: launch one process per GPU with torchrun)"
        )
    return count.detach().reshape(()).to(device)


@torch.compiler.assume_constant_result
def warn_of_uncounted_numbers() -> bool:
    """Warn that a window's numbers were not counted; in compiled code when it is traced."""
    warn_once(
        "num_items_in_batch was passed without num_numbers_in_batch. With gradient accumulation or several processes, "
        "the effective weight of NTL is then lambda times the share of tokens that are in batches with numbers. Use "
        "NTLTrainer, which counts the numbers, or NTLConfig(mean_over='tokens'), which does not need the count"
    )
    return True


@cache
def warn_once(message: str) -> None:
    """Give this warning, once in a process."""
    warnings.warn(message, stacklevel=3)


@explains_options
def ntl_loss_function(
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool = True,
) -> Callable[..., Tensor]:
    """A function for ``model.loss_function`` that computes CE + NTL on full logits, in training and in evaluation.

    Prefer :func:`set_ntl_loss_function`, which installs it and checks that the model calls it. A plain assignment is
    silently ignored on a PEFT wrapper, on T5 and under TRL's SFTTrainer.

    Cross-entropy is divided by ``num_items_in_batch`` if it is passed, and NTL by ``num_numbers_in_batch``. With the
    first alone, as the stock Trainer passes it, each batch's mean NTL is weighted by the batch's share of the tokens:
    NTL is too small by the share of tokens in batches without numbers, which is warned about once. Use
    :class:`NTLTrainer`, which counts the numbers, or ``NTLConfig(mean_over="tokens")``, which does not need the count.
    ``number_weights`` are shifted like the labels.

    Args:
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`.
        shift: shift the labels by one position, as causal models need; False for masked language models.

    Examples:
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> loss_function = ntl_loss_function(numbers)
        >>> loss = loss_function(logits=model(input_ids=ids).logits, labels=ids)
    """
    return partial(model_loss, options=NTLOptions(numbers, config, label_smoothing, z_loss, shift))


def model_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int | None = None,
    num_items_in_batch: Count | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: Tensor | None = None,
    num_numbers_in_batch: Count | None = None,
    number_weights: Tensor | None = None,
    *,
    options: NTLOptions,
    **_: Any,
) -> Tensor:
    """The loss of logits [B..., T, V] and labels [B..., T], with the signature of a model's ``loss_function``."""
    if ignore_index != IGNORE_INDEX:
        raise ValueError(f"ignored labels must be {IGNORE_INDEX}; got ignore_index={ignore_index}")
    targets = choose_targets(labels, shift_labels, options.shift, number_weights)
    return loss_from_logits(logits, targets, Window(options, num_items_in_batch, num_numbers_in_batch)).loss


def measured_shift(model: Any, inputs: dict[str, Any], forward: Callable[..., Any] | None = None) -> bool:
    """Whether position t predicts label t + 1 in a model's own loss of these inputs, by ``forward`` instead of the
    model's.

    It is compared with the cross-entropy of the logits, shifted and not, plus what the model is known to add.
    """
    base = unwrap_model(model)
    name, shift = type(base).__name__, shifts_labels(base)
    if torch.compiler.is_compiling():
        return shift_or_raise(shift, name)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = (forward or model)(**inputs)
    finally:
        for module, mode in modes:
            module.training = mode
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
    if shift is None and is_transformers_own(base) and shift_by_outputs(outputs) is False:
        return False
    if not isinstance(loss, Tensor):
        return shift_or_raise(shift, name)
    added = entry_of(base).adds(base, outputs, inputs) if isinstance(outputs, dict) else 0.0
    own, logits = float(loss - added), logits_of(outputs).flatten(0, -2).to(loss.dtype)
    pair = [choose_targets(inputs.get("labels"), inputs.get("shift_labels"), shift) for shift in (True, False)]
    found = [F.cross_entropy(logits, each.to(logits.device).labels.flatten()).item() for each in pair]
    errors, gap = [abs(own - each) for each in found], abs(found[0] - found[1])
    fits = min(errors) <= max(1e-5, 2 * torch.finfo(loss.dtype).eps) * abs(own)
    if fits and min(errors) < gap / 4:
        return errors[0] < errors[1]
    raise ValueError(
        f"{name}'s own loss in the first batch is {own:.7g}, and the cross-entropy of its logits {found[0]:.7g} "
        f"with shifted labels, {found[1]:.7g} without: {'too close' if fits else 'it has other parts'}. Pass "
        "shift=True (position t predicts label t + 1) or shift=False to train CE + NTL of the logits"
    )


def shift_or_raise(shift: bool | None, name: str, other_remedy: str = "") -> bool:
    """Whether labels are shifted; raise if it is unknown (None) for the class of this name."""
    if shift is not None:
        return shift
    raise ValueError(
        f"{name} does not indicate whether labels must be shifted: pass {other_remedy}shift=True (GPT-2 and "
        "other causal models) or shift=False (BartForCausalLM, masked language models and similar)"
    )


def shift_by_outputs(outputs: Any) -> bool | None:
    """Whether models that return this class of outputs shift labels; None if some do."""
    told = [shifts for pattern, shifts in OUTPUTS.items() if re.search(pattern, type(outputs).__name__)]
    return told[0] if told else None


def choose_targets(
    labels: Tensor | None, shift_labels: Tensor | None, shift: bool | None, number_weights: Tensor | None = None
) -> Targets:
    """The target of each position [B..., T]; with ``shift`` that of t is label t + 1, and the last has none.

    ``number_weights`` [B..., T] belong to ``labels``, and are shifted like them, or to ``shift_labels`` alone.
    """
    given = shift_labels if labels is None else labels
    if given is None:
        raise ValueError("the loss needs labels or shift_labels, but got neither")
    if number_weights is not None:
        check_row_weights(NUMBER_WEIGHTS, number_weights, given)
        number_weights = shifted(number_weights, 0) if shift and labels is not None else number_weights
    if shift_labels is not None:
        return Targets(shift_labels, number_weights)
    return Targets(shifted(given, IGNORE_INDEX) if shift else given, number_weights)


def shifted(values: Tensor, last: int) -> Tensor:
    """The value of position t + 1 at position t [B..., T], and ``last`` at the last."""
    return F.pad(values[..., 1:], (0, 1), value=last)


@explains_options
def ntl_compute_loss_func(
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    model: Any = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool | None = None,
    aux_loss_coef: float | None = None,
) -> Callable[..., Tensor]:
    """A ``compute_loss_func`` for the stock ``Trainer`` that computes CE + NTL on full logits.

    Args:
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        model: the model to be trained; it determines the defaults of ``shift`` and ``aux_loss_coef``.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`; the Trainer's own
            ``label_smoothing_factor`` has no effect.
        shift: whether position t predicts label t + 1; default: as in the model's own loss, or by the type of its
            outputs.
        aux_loss_coef: the factor of the auxiliary loss of mixture-of-experts models, which the Trainer does not add.

    Returns:
        ``function(outputs, labels, num_items_in_batch=None)``, with the denominators of :func:`ntl_loss_function`. The
        Trainer removes the labels from the inputs, so encoder-decoder models need ``decoder_input_ids`` among them. It
        does not pass ``number_weights``.

    Raises:
        ValueError: the outputs have no logits, a type that does not indicate whether labels must be shifted, or
            auxiliary losses without a given factor or of encoder and decoder; or the model's own loss needs more than
            logits.

    Examples:
        >>> numbers = NumberTokens.from_tokenizer(tokenizer, model=model)
        >>> loss_func = ntl_compute_loss_func(numbers, model=model)
        >>> trainer = transformers.Trainer(model, args, train_dataset=rows, compute_loss_func=loss_func)
    """
    if model is not None:
        base = unwrap_model(model)
        check_own_loss(base)
        shift = shifts_labels(base) if shift is None else shift
        holder = router_factor_of(base)
        aux_loss_coef = getattr(*holder) if aux_loss_coef is None and holder is not None else aux_loss_coef
    options = NTLOptions(numbers, config, label_smoothing, z_loss, shift)
    return partial(trainer_loss, options=options, aux_loss_coef=aux_loss_coef)


def trainer_loss(
    outputs: Any,
    labels: Tensor | None,
    num_items_in_batch: Count | None = None,
    *,
    options: NTLOptions,
    aux_loss_coef: float | None,
) -> Tensor:
    """The loss of a model's outputs, with the signature of a Trainer's ``compute_loss_func``."""
    name, shift = type(outputs).__name__, options.shift
    shift = shift_or_raise(shift_by_outputs(outputs), name, "model=model, ") if shift is None else shift
    targets = choose_targets(labels, None, shift)
    loss = loss_from_logits(logits_of(outputs), targets, Window(options, num_items_in_batch)).loss
    added = outputs if isinstance(outputs, dict) else {}
    if added.get("encoder_router_logits") is not None:
        raise ValueError(
            f"{name} has router losses of an encoder and a decoder, which a compute_loss_func cannot "
            "compute: use NTLTrainer(..., numbers=numbers)"
        )
    auxiliary = added.get("aux_loss")
    if auxiliary is None:
        return loss
    if aux_loss_coef is None:
        raise ValueError(
            "the model returned an auxiliary loss: pass its factor, ntl_compute_loss_func(aux_loss_coef=...)"
        )
    return loss + aux_loss_coef * auxiliary.to(loss.device)


def logits_of(outputs: Any) -> Tensor:
    """The logits of a model called without labels."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs[0]
    if not isinstance(logits, Tensor):
        raise ValueError(f"the model returned no logits; got {type(outputs).__name__} with {list(outputs)}")
    return logits
