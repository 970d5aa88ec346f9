"""What the Trainers from which ours are derived do of their own: one row of `STOCK_TRAINERS` for each."""

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
    """What is said of a Trainer; empty where it does no such thing."""

    loss_arguments: tuple[tuple[str, Any], ...] = ()
    """Arguments that choose a loss of its own, each with the one value that CE + NTL is for."""
    offloads: str = ""
    """The argument with which it moves activations from a GPU to the host; without a GPU it fails there."""
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
        base = unwrap_model(trainer.model)
        setattr(*(router_factor_of(base) or (base, "router_aux_loss_coef")), trainer.router_aux_loss_coef)


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
        offloads="activation_offloading",
        begin=set_sft_auxiliary_factor,
        inputs=sft_inputs,
        count_batch=count_sft_tokens,
    ),
}


def check_stock_arguments(name: str, stock: StockTrainer, args: Any) -> None:
    """Raise if a Trainer's arguments (None for its defaults) choose what it cannot do.

    That is another loss than the one that CE + NTL is for, or activations that leave a GPU where there is none.
    """
    if getattr(args, stock.offloads, False) and torch.accelerator.current_accelerator() is None:
        raise ValueError(
            f"{stock.offloads}=True moves activations from a GPU (or another accelerator of torch) to the host, and "
            "there is none here"
        )
    for argument, value in stock.loss_arguments:
        given = getattr(args, argument, value)
        if given != value:
            raise ValueError(f"{name} computes {argument}={value!r}; got {given!r}")


def owner_of_loss(cls: type, mixin: type) -> type:
    """The class behind the mixin whose ``compute_loss`` comes next."""
    behind = cls.__mro__[cls.__mro__.index(mixin) + 1 :]
    return next(owner for owner in behind if "compute_loss" in vars(owner))


def library_of(cls: type) -> str:
    return cls.__module__.split(".")[0]


def is_stock(cls: type) -> bool:
    """Whether it is a Trainer of a library whose ``compute_loss`` CE + NTL stands for."""
    return cls.__name__ in STOCK_TRAINERS and library_of(cls) in ("transformers", "trl")


def has_own_loss(cls: type, mixin: type) -> bool:
    """Whether a class behind the mixin computes a loss in its own way."""
    return not is_stock(owner_of_loss(cls, mixin))


def check_own_loss_can_run(cls: type, mixin: type, is_patched: bool, shares_rows: bool) -> None:
    """Raise if the ``compute_loss`` of a class behind the mixin can neither be replaced nor be called.

    It is called with a patched model, whose forward computes CE + NTL, if it is made for the Trainers of transformers:
    that of TRL's wants other outputs of the model.
    """
    owner, stock = owner_of_loss(cls, mixin), next(base for base in cls.__mro__ if is_stock(base))
    is_callable = library_of(stock) == "transformers" and not shares_rows
    if is_callable and is_patched:
        return
    raise ValueError(
        f"{cls.__name__} would leave out {owner.__name__}.compute_loss: put the Number Token Loss behind it, "
        f"class {cls.__name__}({owner.__name__}, NTL{stock.__name__})"
        f"{', or patch the model by apply_ntl_to_model' if is_callable else ''}"
    )
