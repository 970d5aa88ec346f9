"""Supervised fine-tuning with CE + NTL for TRL 0.24 and later: `NTLSFTTrainer`."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

from ..extras import needs

with needs(__name__, "TRL", "[trl]"):
    from trl import SFTConfig, SFTTrainer

from .transformers.stock_trainers import STOCK_TRAINERS
from .transformers.trainer import NTLTrainerMixin


class NTLSFTTrainer(NTLTrainerMixin, SFTTrainer):
    """``trl.SFTTrainer`` with CE + NTL: ``NTLSFTTrainer(model, args, ..., numbers=numbers)``.

    TRL's fused head is not used: a model patched by :func:`apply_ntl_to_model` computes the loss from hidden states,
    any other model from full logits. Logs ``ce``, ``ntl``, ``token_accuracy`` (also as TRL's ``mean_token_accuracy``)
    and ``number_mae``, but no ``entropy``. Its own arguments are those of :class:`NTLTrainerMixin`.

    Raises:
        ValueError: ``loss_type`` is not "nll" (or "chunked_nll"). Also the errors of :class:`NTLTrainerMixin`.
    """

    ntl_stock = STOCK_TRAINERS["SFTTrainer"]

    def __init__(self, model: Any, args: Any = None, *others: Any, **kwargs: Any) -> None:
        super().__init__(model, without_chunks(args, model), *others, **kwargs)

    def ntl_metrics(self, mode: str) -> dict[str, float]:
        metrics = super().ntl_metrics(mode)
        if "token_accuracy" in metrics:
            self._metrics[mode]["mean_token_accuracy"] = [metrics["token_accuracy"]]
        return metrics


def without_chunks(args: Any, model: Any) -> Any:
    """The arguments with "nll" for "chunked_nll", by which (by default) TRL 1.7 to 1.14 replace the model's forward."""
    if not isinstance(args, SFTConfig):  # TRL would make one, with its default
        name = model if isinstance(model, str) else model.config._name_or_path
        values = {} if args is None else {each.name: getattr(args, each.name) for each in fields(args) if each.init}
        return SFTConfig(**{"output_dir": f"{name.split('/')[-1]}-SFT", **values, "loss_type": "nll"})
    if args.loss_type == "chunked_nll":
        args = copy(args)
        args.loss_type = "nll"
    return args
