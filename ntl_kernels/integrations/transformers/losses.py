"""Targets, denominators, and the loss on full logits for the stock ``Trainer``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ...config import DEFAULT_CONFIG, NTLConfig, NTLOutput
from ...functional import cross_entropy_ntl
from ...modules import CrossEntropyNTLLoss
from ...tokens import NumberTokens
from .estimates import Estimate
from .frameworks import unwrap_model
from .model_classes import check_own_loss, outputs_are_causal, router_factor_of, shifts_labels

IGNORE_INDEX = -100
"""What Hugging Face collators put where no loss is wanted."""

Count = int | float | Tensor
"""A denominator: a number, or a tensor of one element."""


@dataclass(frozen=True)
class LossOptions:
    """The loss, less what changes from batch to batch."""

    numbers: NumberTokens
    config: NTLConfig = DEFAULT_CONFIG
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    estimate: Estimate = field(default_factory=Estimate, repr=False, compare=False)

    def __post_init__(self) -> None:
        CrossEntropyNTLLoss(self.numbers, **self.keywords())  # which checks them

    def keywords(self) -> dict[str, Any]:
        """As keywords of the loss functions."""
        return {"config": self.config, "label_smoothing": self.label_smoothing, "z_loss": self.z_loss}


def shift_left(labels: Tensor) -> Tensor:
    """The targets of a causal model: position t predicts labels [..., t + 1], the last one nothing."""
    return F.pad(labels[..., 1:], (0, 1), value=IGNORE_INDEX)


def token_mask(targets: Tensor) -> Tensor:
    """Where targets [...] count, bool [...]."""
    return targets != IGNORE_INDEX


def denominators(
    targets: Tensor, options: LossOptions, num_items: Count | None, num_numbers: Count | None
) -> dict[str, Count | None]:
    """The loss functions' ``num_tokens`` and ``num_numbers`` for targets [...] of a larger window.

    A window of ``num_items`` tokens whose numbers nobody counted is taken to have as many numbers per token as this
    batch, so that its mean NTL weighs as much as its share of the tokens. A mean over tokens needs no such count.

    Raises:
        ValueError: numbers without tokens, or a count of several elements.
    """
    num_items, num_numbers = as_count(num_items, targets), as_count(num_numbers, targets)
    config = options.config
    if config.mean_over == "tokens":
        return {"num_tokens": num_items, "num_numbers": num_numbers}
    if num_items is None and num_numbers is not None:
        raise ValueError(
            "num_numbers_in_batch came without num_items_in_batch, the count of tokens of the same batches: give both"
        )
    if num_items is not None and num_numbers is None:
        tokens, numbers = token_mask(targets).sum(), options.numbers.count(targets)
        has_weight = isinstance(config.weight, Tensor) or config.weight > 0
        num_numbers = options.estimate.numbers_of_window(num_items, tokens, numbers, warns=has_weight)
    return {"num_tokens": num_items, "num_numbers": num_numbers}


def as_count(count: Count | None, like: Tensor) -> Count | None:
    """The count, as a 0-d tensor on the device of ``like`` if it is a tensor, else as a Python number."""
    if isinstance(count, np.generic):
        return count.item()
    if not isinstance(count, Tensor):
        return count
    if count.numel() != 1:
        raise ValueError(
            f"num_items_in_batch and num_numbers_in_batch must have one element; got shape {tuple(count.shape)} "
            "(torch.nn.DataParallel is not supported: launch one process per GPU with torchrun)"
        )
    return count.detach().reshape(()).to(like.device)


def loss_of_logits(
    logits: Tensor,
    targets: Tensor,
    options: LossOptions,
    num_items: Count | None = None,
    num_numbers: Count | None = None,
) -> NTLOutput:
    """The loss of full logits [..., V] and targets [...], and its parts."""
    targets = targets.to(logits.device)
    counts = denominators(targets, options, num_items, num_numbers)
    keywords: dict[str, Any] = {**options.keywords(), **counts, "return_parts": True}
    output = cross_entropy_ntl(logits, targets, options.numbers, **keywords)
    assert isinstance(output, NTLOutput)
    return output


def ntl_loss_function(
    numbers: NumberTokens,
    config: NTLConfig = DEFAULT_CONFIG,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    shift: bool = True,
) -> Callable[..., Tensor]:
    """A ``model.loss_function``: CE + NTL on full logits, in training and in evaluation.

    :func:`set_ntl_loss_function` puts it on a model, and looks that the model calls it, which an assignment to a PEFT
    wrapper, to T5 or before TRL's SFTTrainer does without a word.

    With ``num_items_in_batch``, cross-entropy is divided by it, NTL by ``num_numbers_in_batch``. The stock Trainer
    counts no numbers: the mean NTL of each batch then weighs as much as the batch has of the window's tokens, which
    makes NTL too small by the share of tokens in batches without numbers, and warns once. :class:`NTLTrainer` counts
    them; ``NTLConfig(mean_over="tokens")`` needs no such count.

    Args:
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`.
        shift: labels are unshifted, as causal models get them; False for masked language models.
    """
    return partial(model_loss, options=LossOptions(numbers, config, label_smoothing, z_loss), shift=shift)


def model_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int | None = None,
    num_items_in_batch: Count | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: Tensor | None = None,
    num_numbers_in_batch: Count | None = None,
    *,
    options: LossOptions,
    shift: bool,
    **_: Any,
) -> Tensor:
    """The loss of logits [..., T, V] with labels [..., T] in the form in which models call their loss function."""
    if ignore_index != IGNORE_INDEX:
        raise ValueError(f"labels that do not count must be {IGNORE_INDEX}; got ignore_index={ignore_index}")
    targets = choose_targets(labels, shift_labels, shift)
    return loss_of_logits(logits, targets, options, num_items_in_batch, num_numbers_in_batch).loss


def choose_targets(labels: Tensor | None, shift_labels: Tensor | None, shift: bool) -> Tensor:
    """What each position is to predict."""
    if shift_labels is not None:
        return shift_labels
    if labels is None:
        raise ValueError("the loss needs labels or shift_labels; got neither")
    return shift_left(labels) if shift else labels


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
    """A ``compute_loss_func`` for the stock ``Trainer``: CE + NTL on full logits.

    Args:
        numbers: the number tokens of the model's vocabulary.
        config: kind and weight of the Number Token Loss.
        model: the model to be trained, which says the default of ``shift`` and ``aux_loss_coef``.
        label_smoothing, z_loss: as for :func:`ntl_kernels.cross_entropy_ntl`; the Trainer's own
            ``label_smoothing_factor`` has no effect beside a ``compute_loss_func``.
        shift: whether position t predicts label t + 1; default: as the model's own loss has it, or without ``model``
            as the type of its output says (causal models: yes; encoder-decoder and masked language models: no).
        aux_loss_coef: the factor of the auxiliary loss of mixtures of experts, which the Trainer leaves out.

    Returns:
        ``function(outputs, labels, num_items_in_batch=None)``. The Trainer removes the labels from the model's inputs,
        so encoder-decoder models need ``decoder_input_ids`` from the collator. With ``num_items_in_batch``, CE is
        divided by it; of NTL, :func:`ntl_loss_function` says what happens.

    Raises:
        ValueError: outputs without logits, of a type that does not say whether labels are shifted, or with an
            auxiliary loss whose factor is not given, or with router losses of an encoder and a decoder; a model whose
            own loss has parts that do not follow from its logits.
    """
    options = LossOptions(numbers, config, label_smoothing, z_loss)
    if model is not None:
        base = unwrap_model(model)
        check_own_loss(base)
        shift = shifts_labels(base) if shift is None else shift
        holder = router_factor_of(base)
        aux_loss_coef = getattr(*holder) if aux_loss_coef is None and holder is not None else aux_loss_coef
    return partial(trainer_loss, options=options, shift=shift, aux_loss_coef=aux_loss_coef)


def trainer_loss(
    outputs: Any,
    labels: Tensor | None,
    num_items_in_batch: Count | None = None,
    *,
    options: LossOptions,
    shift: bool | None,
    aux_loss_coef: float | None,
) -> Tensor:
    """The loss of a model's outputs in the form in which the Trainer calls its ``compute_loss_func``."""
    shift = outputs_are_causal(outputs) if shift is None else shift
    targets = choose_targets(labels, None, shift)
    loss = loss_of_logits(logits_of(outputs), targets, options, num_items_in_batch).loss
    if not isinstance(outputs, dict):
        return loss
    if outputs.get("encoder_router_logits") is not None:
        raise ValueError(
            f"{type(outputs).__name__} has router losses of an encoder and a decoder, which a compute_loss_func cannot "
            "compute: use NTLTrainer(..., numbers=numbers)"
        )
    auxiliary = outputs.get("aux_loss")
    if auxiliary is None:
        return loss
    if aux_loss_coef is None:
        raise ValueError(
            "the model returned an auxiliary loss: say its factor, ntl_compute_loss_func(aux_loss_coef=...)"
        )
    return loss + aux_loss_coef * auxiliary.to(loss.device)


def logits_of(outputs: Any) -> Tensor:
    """The logits of a model called without labels."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs[0]
    if not isinstance(logits, Tensor):
        raise ValueError(f"the model returned no logits; got {type(outputs).__name__} with {list(outputs)}")
    return logits
