"""What the integration has to know about a bare model: where its head is, and what its forward does with labels."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from .frameworks import unwrap_module
from .functions import names_in


def find_head(model: Any) -> Any:
    """The module that makes logits."""
    return unwrap_module(model.get_output_embeddings())


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """The ids that an encoder-decoder model feeds its decoder for labels [..., T]: [..., T].

    By the model's method for it, or else by its module's function, as the model's own forward makes them.

    Raises:
        ValueError: the model has neither.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return prepare(labels)
    for cls in type(model).__mro__:
        shift_right = getattr(sys.modules.get(cls.__module__), "shift_tokens_right", None)
        if shift_right is not None:
            return shift_right(labels, model.config.pad_token_id, model.config.decoder_start_token_id)
    raise ValueError(
        f"{type(model).__name__} does not say how its decoder's inputs come from labels: let the collator put "
        "decoder_input_ids into every batch"
    )


def auxiliary_loss(base: Any, outputs: Any) -> Tensor | None:
    """What a mixture of experts adds to its loss, its factor included."""
    auxiliary = outputs.get("aux_loss") if isinstance(outputs, dict) else None
    if auxiliary is None:
        return None
    coefficient = getattr(base, "router_aux_loss_coef", None)
    if coefficient is None:
        raise ValueError(f"{type(base).__name__} returned an auxiliary loss, but has no router_aux_loss_coef")
    return coefficient * auxiliary


def calls_loss_function(model: Any) -> bool:
    """Whether the model's forward, or one that it derives from, calls ``model.loss_function``."""
    forwards = [cls.__dict__["forward"] for cls in type(model).__mro__ if "forward" in cls.__dict__]
    return hasattr(type(model), "loss_function") and any("loss_function" in names_in(forward) for forward in forwards)
