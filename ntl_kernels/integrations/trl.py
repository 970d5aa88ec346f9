"""Supervised fine-tuning with CE + NTL: `NTLSFTTrainer`, for TRL 1.16."""

from __future__ import annotations

from typing import Any

import torch
from trl import SFTTrainer

from .transformers.losses import Count
from .transformers.models import unwrap_model
from .transformers.trainer import NTLTrainerMixin


class NTLSFTTrainer(NTLTrainerMixin, SFTTrainer):
    """``trl.SFTTrainer`` with CE + NTL: ``NTLSFTTrainer(model, args, ..., numbers=numbers)``.

    TRL's fused head is not used: a model patched by :func:`apply_ntl_to_model` computes the loss from hidden states,
    any other one from full logits. Logs ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` where SFTTrainer logs
    ``entropy`` and ``mean_token_accuracy``. See :class:`NTLTrainerMixin` for the arguments beside SFTTrainer's.

    Raises:
        ValueError: a ``loss_type`` other than "nll", besides what :class:`NTLTrainerMixin` raises.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = args[1] if len(args) > 1 else kwargs.get("args")
        loss_type = getattr(config, "loss_type", "nll")
        if loss_type != "nll":  # asked here, since SFTTrainer tokenizes all data first
            raise ValueError(f"NTLSFTTrainer computes loss_type='nll'; got {loss_type!r}")
        super().__init__(*args, **kwargs)
        if self.aux_loss_enabled:  # SFTConfig may have another factor than the model
            unwrap_model(self.model).router_aux_loss_coef = self.router_aux_loss_coef

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """CE + NTL of what SFTTrainer would have given its model."""
        inputs = {**inputs, "use_cache": False}
        if self.aux_loss_enabled:
            inputs["output_router_logits"] = True
        self.count_trained_tokens(inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def count_trained_tokens(self, inputs: dict[str, Any]) -> None:
        """Keep SFTTrainer's ``num_tokens``: every token that is not padding, over all processes."""
        is_training = self.model.training
        if is_training:
            mask = inputs.get("attention_mask")
            length = inputs["labels"].numel() if mask is None else mask.sum()
            local = self.accelerator.gather_for_metrics(torch.as_tensor(length, device=inputs["labels"].device)).sum()
            self._total_train_tokens += int(local.item()) // self._tp_size
        self._metrics["train" if is_training else "eval"]["num_tokens"] = [self._total_train_tokens]
