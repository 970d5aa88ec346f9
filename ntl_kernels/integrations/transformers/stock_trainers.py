"""What the Trainers from which ours are derived do of their own: one row of `STOCK_TRAINERS` for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .frameworks import unwrap_model


def nothing(trainer: Any) -> None: ...


def no_inputs(trainer: Any) -> dict[str, Any]:
    return {}


def no_count(trainer: Any, inputs: dict[str, Any]) -> None: ...


class StockTrainer(NamedTuple):
    """What is said of a Trainer; empty where it does no such thing."""

    loss_arguments: tuple[tuple[str, Any], ...] = ()
    """Arguments that choose a loss of its own, each with the one value that CE + NTL is for."""
    generates: str = ""
    """The argument with which its evaluation generates and only asks its model for the loss."""
    begin: Callable[[Any], None] = nothing
    """What to set on a new Trainer."""
    inputs: Callable[[Any], dict[str, Any]] = no_inputs
    """What it gives its model beside the batch."""
    count_batch: Callable[[Any, dict[str, Any]], None] = no_count
    """What it counts of every batch for its log."""


def set_sft_auxiliary_factor(trainer: Any) -> None:
    """SFTConfig may have another factor of the auxiliary loss than the model. (TRL 0.24's has none.)"""
    if trainer.aux_loss_enabled and hasattr(trainer, "router_aux_loss_coef"):
        unwrap_model(trainer.model).router_aux_loss_coef = trainer.router_aux_loss_coef


def sft_inputs(trainer: Any) -> dict[str, Any]:
    return {"use_cache": False, **({"output_router_logits": True} if trainer.aux_loss_enabled else {})}


def count_sft_tokens(trainer: Any, inputs: dict[str, Any]) -> None:
    """Keep SFTTrainer's ``num_tokens``: every token that is not padding, over all processes."""
    is_training = trainer.model.training
    if is_training:
        mask = inputs.get("attention_mask")
        length = inputs["labels"].numel() if mask is None else mask.sum()
        local = trainer.accelerator.gather_for_metrics(torch.as_tensor(length, device=inputs["labels"].device)).sum()
        trainer._total_train_tokens += int(local.item()) // getattr(trainer, "_tp_size", 1)
    trainer._metrics["train" if is_training else "eval"]["num_tokens"] = [trainer._total_train_tokens]


STOCK_TRAINERS: dict[str, StockTrainer] = {
    "Trainer": StockTrainer(generates="predict_with_generate"),  # also what a class of a user's own is derived from
    "Seq2SeqTrainer": StockTrainer(generates="predict_with_generate"),
    "SFTTrainer": StockTrainer(
        loss_arguments=(("loss_type", "nll"),),
        begin=set_sft_auxiliary_factor,
        inputs=sft_inputs,
        count_batch=count_sft_tokens,
    ),
}


def check_loss_arguments(name: str, stock: StockTrainer, args: Any) -> None:
    """Raise if a Trainer's arguments (None for its defaults) choose another loss than the one that CE + NTL is for."""
    for argument, value in stock.loss_arguments:
        given = getattr(args, argument, value)
        if given != value:
            raise ValueError(f"{name} computes {argument}={value!r}; got {given!r}")
