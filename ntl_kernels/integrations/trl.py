"""Supervised fine-tuning with CE + NTL for TRL 0.24 and later: `NTLSFTTrainer`."""

from __future__ import annotations

from ..extras import needs

with needs(__name__, "TRL", "[trl]"):
    from trl import SFTTrainer

from .transformers.stock_trainers import STOCK_TRAINERS
from .transformers.trainer import NTLTrainerMixin


class NTLSFTTrainer(NTLTrainerMixin, SFTTrainer):
    """``trl.SFTTrainer`` with CE + NTL: ``NTLSFTTrainer(model, args, ..., numbers=numbers)``.

    TRL's fused head is not used: a model patched by :func:`apply_ntl_to_model` computes the loss from hidden states,
    any other model from full logits. Logs ``ce``, ``ntl``, ``token_accuracy`` and ``number_mae`` in place of
    SFTTrainer's ``entropy`` and ``mean_token_accuracy``. For the arguments that SFTTrainer does not have, see
    :class:`NTLTrainerMixin`.

    Raises:
        ValueError: ``loss_type`` is not "nll". Also the errors of :class:`NTLTrainerMixin`.
    """

    ntl_stock = STOCK_TRAINERS["SFTTrainer"]
