"""The specific behaviour of the Trainers that ours derive from: one entry of `STOCK_TRAINERS` per Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .frameworks import unwrap_model
from .model_classes import router_factor_of


def nothing(trainer: Any) -> None: ...


def no_inputs(trainer: Any) -> dict[str, Any]:
    return {}


def no_count(trainer: Any, inputs: dict[str, Any]) -> None: ...


class StockTrainer(NamedTuple):
    """What is known about a Trainer; fields that do not apply are empty."""

    loss_arguments: tuple[tuple[str, Any], ...] = ()
    """Arguments that select one of its own losses, each with the only value that CE + NTL supports."""
    offloads: str = ""
    """The argument that offloads activations from a GPU to the host, which fails without a GPU."""
    generates: str = ""
    """The argument that makes its evaluation generate and ask its model only for the loss."""
    begin: Callable[[Any], None] = nothing
    """What to set on a new Trainer."""
    inputs: Callable[[Any], dict[str, Any]] = no_inputs
    """The inputs that it passes to its model in addition to the batch."""
    count_batch: Callable[[Any, dict[str, Any]], None] = no_count
    """What it counts in every batch for its log. It may remove what is no input of the model."""


def set_sft_auxiliary_factor(trainer: Any) -> None:
    """Use the auxiliary loss factor of SFTConfig, which may differ from the model's. (TRL 0.24 has none.)"""
    if trainer.aux_loss_enabled and hasattr(trainer.args, "router_aux_loss_coef"):
        base = unwrap_model(trainer.model)
        setattr(*(router_factor_of(base) or (base, "router_aux_loss_coef")), trainer.args.router_aux_loss_coef)


def sft_inputs(trainer: Any) -> dict[str, Any]:
    return {"use_cache": False, **({"output_router_logits": True} if trainer.aux_loss_enabled else {})}


def count_sft_tokens(trainer: Any, inputs: dict[str, Any]) -> None:
    """Maintain SFTTrainer's ``num_tokens``: the number of tokens other than padding, over all processes."""
    inputs.pop("_prediction_loss_only", None)  # a note from the prediction step of TRL 1.7 to 1.14
    is_training = trainer.model.training
    if is_training:
        mask = inputs.get("attention_mask")
        length = inputs["labels"].numel() if mask is None else mask.sum()
        local = trainer.accelerator.gather_for_metrics(torch.as_tensor(length, device=inputs["labels"].device)).sum()
        trainer._total_train_tokens += int(local.item()) // getattr(trainer, "_tp_size", 1)
    trainer._metrics["train" if is_training else "eval"]["num_tokens"] = [trainer._total_train_tokens]


STOCK_TRAINERS: dict[str, StockTrainer] = {
    "Trainer": StockTrainer(generates="predict_with_generate"),  # also the base of user-defined Trainers
    "Seq2SeqTrainer": StockTrainer(generates="predict_with_generate"),
    "SFTTrainer": StockTrainer(
        loss_arguments=(("loss_type", "nll"),),
        offloads="activation_offloading",
        begin=set_sft_auxiliary_factor,
        inputs=sft_inputs,
        count_batch=count_sft_tokens,
    ),
}


def check_stock_arguments(name: str, stock: StockTrainer, args: Any) -> None:
    """Raise if a Trainer's arguments (None for its defaults) are not supported.

    This is the case if they select another loss, or offload activations from a GPU although there is none.
    """
    if getattr(args, stock.offloads, False) and torch.accelerator.current_accelerator() is None:
        raise ValueError(
            f"{stock.offloads}=True moves activations from a GPU (or another accelerator of torch) to the host, but "
            "there is none on this machine"
        )
    for argument, value in stock.loss_arguments:
        given = getattr(args, argument, value)
        if given != value:
            raise ValueError(f"{name} supports only {argument}={value!r}; got {given!r}")


def owner_of_loss(cls: type, mixin: type) -> type:
    """The class after the mixin in the MRO that provides ``compute_loss``."""
    behind = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    return next(owner for owner in behind if "compute_loss" in vars(owner))


def library_of(cls: type) -> str:
    return cls.__module__.split(".")[0]


def is_stock(cls: type) -> bool:
    """Whether a class is a library's Trainer, whose ``compute_loss`` CE + NTL may replace."""
    return cls.__name__ in STOCK_TRAINERS and library_of(cls) in ("transformers", "trl")


def has_own_loss(cls: type, mixin: type) -> bool:
    """Whether a class after the mixin in the MRO has its own ``compute_loss``."""
    return not is_stock(owner_of_loss(cls, mixin))


def check_own_loss_can_run(cls: type, mixin: type, is_patched: bool, shares_rows: bool) -> None:
    """Raise if the ``compute_loss`` of a class after the mixin in the MRO can neither be replaced nor called.

    It can be called with a patched model, whose forward computes CE + NTL, if it was written for the Trainers of
    transformers. One for TRL's Trainer needs other outputs of the model.
    """
    owner, stock = owner_of_loss(cls, mixin), next(base for base in cls.__mro__ if is_stock(base))
    is_callable = library_of(stock) == "transformers" and not shares_rows
    if is_callable and is_patched:
        return
    raise ValueError(
        f"{cls.__name__} would leave out {owner.__name__}.compute_loss: put the Number Token Loss after it in the base "
        f"classes, class {cls.__name__}({owner.__name__}, NTL{stock.__name__})"
        f"{', or patch the model with apply_ntl_to_model' if is_callable else ''}"
    )
