"""Supervised fine-tuning with CE + NTL: `NTLSFTTrainer`, for TRL 0.24 and later."""

from __future__ import annotations

from ..extras import needs

with needs(__name__, "TRL", "[trl]"):
    from trl import SFTTrainer

from .transformers.stock_trainers import STOCK_TRAINERS
from .transformers.trainer import NTLTrainerMixin


class NTLSFTTrainer(NTLTrainerMixin, SFTTrainer):
    """``trl.SFTTrainer`` with CE + NTL: ``NTLSFTTrainer(model, args, ..., numbers=numbers)``.

    TRL's fused head is not used: a model patched by :func:`apply_ntl_to_model` computes the loss from hidden states,
    any other one from full logits. Logs ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` where SFTTrainer logs
    ``entropy`` and ``mean_token_accuracy``. See :class:`NTLTrainerMixin` for the arguments beside SFTTrainer's.

    Raises:
        ValueError: a ``loss_type`` other than "nll", besides what :class:`NTLTrainerMixin` raises.
    """

    ntl_stock = STOCK_TRAINERS["SFTTrainer"]
