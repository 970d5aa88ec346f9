"""Supervised fine-tuning with CE + NTL for TRL 0.24 and later: `NTLSFTTrainer`."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

import torch

from ..extras import needs

with needs(__name__, "TRL", "[trl]"):
    from trl import SFTConfig, SFTTrainer

from .transformers.frameworks import unwrap_model
from .transformers.models import router_factor_of
from .transformers.targets import NUMBER_WEIGHTS
from .transformers.trainer import NTLTrainerMixin


class NTLSFTTrainer(NTLTrainerMixin, SFTTrainer):
    """``trl.SFTTrainer`` with CE + NTL: ``NTLSFTTrainer(model, args, ..., numbers=numbers)``.

    TRL's fused head is not used. Its own arguments and logs are those of :class:`NTLTrainerMixin`; ``token_accuracy``
    is also logged as TRL's ``mean_token_accuracy``, and ``entropy`` is not logged.

    Raises:
        ValueError: ``loss_type`` is not "nll" (or "chunked_nll"), ``activation_offloading`` is on, but there is no
            GPU, or data with ``number_weights`` is to be packed. Also the errors of :class:`NTLTrainerMixin`.
    """

    def __init__(self, model: Any, args: Any = None, *others: Any, **kwargs: Any) -> None:
        args = without_chunks(args, model)
        if args.loss_type != "nll":
            raise ValueError(f"{type(self).__name__} supports only loss_type='nll'; got {args.loss_type!r}")
        if args.activation_offloading and torch.accelerator.current_accelerator() is None:
            raise ValueError(
                "activation_offloading=True moves activations from a GPU (or another accelerator of torch) to the "
                "host, but there is none on this machine"
            )
        super().__init__(model, args, *others, **kwargs)
        if self.aux_loss_enabled and hasattr(self.args, "router_aux_loss_coef"):  # may differ from the model's
            base = unwrap_model(self.model)
            setattr(*(router_factor_of(base) or (base, "router_aux_loss_coef")), self.args.router_aux_loss_coef)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, packing: bool, *others: Any) -> Any:
        if packing and NUMBER_WEIGHTS in (dataset.column_names or next(iter(dataset), ())):
            raise ValueError(f"TRL's packing drops the column {NUMBER_WEIGHTS}: set packing=False")
        return super()._prepare_dataset(dataset, processing_class, args, packing, *others)

    def ntl_prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """TRL's additional inputs. Maintains its ``num_tokens``: tokens other than padding, over all processes."""
        inputs.pop("_prediction_loss_only", None)  # a note from the prediction step of TRL 1.7 to 1.14
        if self.model.training:
            mask = inputs.get("attention_mask")
            length = inputs["labels"].numel() if mask is None else mask.sum()
            counts = self.accelerator.gather_for_metrics(torch.as_tensor(length, device=inputs["labels"].device))
            self._total_train_tokens += int(counts.sum().item()) // getattr(self, "_tp_size", 1)
        self._metrics["train" if self.model.training else "eval"]["num_tokens"] = [self._total_train_tokens]
        return {**inputs, "use_cache": False, **({"output_router_logits": True} if self.aux_loss_enabled else {})}

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
