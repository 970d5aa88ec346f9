"""What the integration needs to know about a bare model: where its head is, and what its forward does with labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .frameworks import unwrap_module
from .functions import names_in
from .model_classes import Added, function_beside, is_encoder_decoder, what_is_known


def find_head(model: Any) -> Any:
    """The module that computes the logits."""
    return unwrap_module(model.get_output_embeddings())


def put_decoder_inputs(model: Any, given: dict[str, Any], labels: Tensor) -> None:
    """Add to a forward's arguments the decoder inputs that an encoder-decoder model derives from labels [..., T].

    Does nothing if the caller passed decoder inputs.
    """
    if given.get("decoder_input_ids") is not None or given.get("decoder_inputs_embeds") is not None:
        return
    ids = given["decoder_input_ids"] = decoder_inputs(model, labels)
    mask = what_is_known(model).decoder_mask
    if mask is not None and given.get("decoder_attention_mask") is None:
        given["decoder_attention_mask"] = mask(model, ids)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """The decoder input ids [..., T] of an encoder-decoder model for labels [..., T].

    They are computed by the model's method, or else by the function in its module, that its own forward uses.

    Raises:
        ValueError: the model has neither.
    """
    for method in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, method):
            return getattr(model, method)(labels)
    shift_right = function_beside(model, "shift_tokens_right")
    if shift_right is not None:
        config = getattr(model.config, "text_config", model.config)  # Florence2's; transformers 4 has None outside it
        return shift_right(labels, config.pad_token_id, config.decoder_start_token_id)
    raise ValueError(
        f"{type(model).__name__} does not say how its decoder's inputs come from labels: let the collator put "
        "decoder_input_ids into every batch"
    )


def added_loss(base: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """What the forward of a bare model would add to the cross-entropy, times its factors; None for nothing.

    Args:
        base: the bare model.
        outputs: the outputs of a call without labels. A loss among them is computed from other arguments.
        given: the arguments of the call.
    """
    if not isinstance(outputs, dict):
        return None
    added, other = what_is_known(base).adds(base, outputs, given), outputs.get("loss")
    return other if added is None else added if other is None else added + other


def calls_loss_function(model: Any) -> bool:
    """Whether the forward of the model's class or of a base class calls ``model.loss_function``."""
    return hasattr(type(model), "loss_function") and "loss_function" in names_in_forwards(model)


def names_in_forwards(model: Any) -> set[str]:
    """The names in the forward of the model's class and of its base classes."""
    return set().union(*(names_in(vars(cls)["forward"]) for cls in type(model).__mro__ if "forward" in vars(cls)))


def writes_cross_entropy(base: Any) -> bool:
    """Whether a bare model's forward computes its cross-entropy itself instead of calling ``loss_function``."""
    names = names_in_forwards(base)
    return bool(names & {"CrossEntropyLoss", "cross_entropy"}) and "loss_function" not in names


def check_forward_serves_hidden_states(base: Any) -> None:
    """Raise if a bare model's own forward needs the logits of its head to compute its loss."""
    name = type(base).__name__
    if hasattr(base, "final_logits_bias"):
        reason = f"{name} adds final_logits_bias to the output of its head"
    elif not is_encoder_decoder(base) and writes_cross_entropy(base):
        reason = f"{name} computes its cross-entropy inside its forward"
    else:
        return
    raise ValueError(f"{reason}, so its loss needs logits: {train_on_logits(base)}")


def train_on_logits(base: Any) -> str:
    """What to use for a bare model instead of :func:`apply_ntl_to_model`."""
    advice = "train on full logits with NTLTrainer or NTLSeq2SeqTrainer(..., numbers=numbers)"
    return f"{advice} or set_ntl_loss_function(model, numbers)" if calls_loss_function(base) else advice
