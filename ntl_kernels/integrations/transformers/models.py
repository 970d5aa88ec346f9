"""What a model does with labels besides comparing its logits with them, where no probe can find it out."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from torch import Tensor
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss


def mask_padding(model: Any, ids: Tensor) -> Tensor:
    return (ids != model.config.pad_token_id).to(ids.dtype)


def mask_padding_but_the_first(model: Any, ids: Tensor) -> Tensor:
    mask = ids.ne(model.config.pad_token_id).float()
    mask[:, 0] = 1
    return mask


Added = Tensor | float
"""What a model's forward adds to its cross-entropy."""


def router_loss(model: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """The router loss of a mixture of experts, times its factor."""
    auxiliary = outputs.get("aux_loss")
    if auxiliary is None:
        return 0.0
    if not isinstance(auxiliary, Tensor):  # transformers 5.0 finds no router logits of DBRX and returns 0
        raise ValueError(
            f"{type(model).__name__} returned {auxiliary!r} as router loss, because it did not find its router logits; "
            "its own loss also fails. Use a newer version of transformers, or output_router_logits=False"
        )
    holder = router_factor_of(model)
    if holder is None:
        raise ValueError(f"{type(model).__name__} returned an auxiliary loss, but has no router_aux_loss_coef")
    return getattr(*holder) * auxiliary


def router_factor_of(model: Any) -> tuple[Any, str] | None:
    """The object and attribute from which the forward of a mixture of experts reads the factor of its router loss."""
    text_config = getattr(getattr(model, "config", None), "text_config", None)
    names = ("router_aux_loss_coef", "aux_loss_coef", "moe_loss_weight")  # the last is DBRX's in transformers 4
    holders = (*((model, name) for name in names), (text_config, "router_aux_loss_coef"))
    found = [(holder, name) for holder, name in holders if hasattr(holder, name)]
    return found[0] if found else None


def switch_router_losses(model: Any, outputs: Any, given: dict[str, Any]) -> Added:
    if outputs.get("encoder_aux_loss") is None:
        return 0.0
    z_loss = outputs["encoder_z_loss"] + outputs["decoder_z_loss"]
    balance = outputs["encoder_aux_loss"] + outputs["decoder_aux_loss"]
    return model.router_z_loss_coef * z_loss + model.router_aux_loss_coef * balance


def nllb_router_losses(model: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """The router losses of NLLB-MoE, whose forward computes them only with labels."""
    if outputs.get("encoder_router_logits") is None:
        return 0.0
    if not hasattr(model, "num_experts"):
        raise ValueError(
            f"the router loss of {type(model).__name__} in transformers 4 uses its encoder's routers instead of its "
            "decoder's, a bug that is not reproduced here: use transformers 5, or output_router_logits=False"
        )
    balance: Any = function_beside(model, "load_balancing_loss_func")
    encoder, decoder = [
        balance(outputs[f"{side}_router_logits"], model.num_experts, top_k=2, attention_mask=given.get(mask))
        for side, mask in (("encoder", "attention_mask"), ("decoder", "decoder_attention_mask"))
    ]
    return model.router_aux_loss_coef * (encoder + decoder)


def function_beside(model: Any, name: str) -> Callable[..., Any] | None:
    """The function of this name in the module of the model's class or of one of its base classes."""
    functions = [getattr(sys.modules.get(cls.__module__), name, None) for cls in type(model).__mro__]
    found = [function for function in functions if function is not None]
    return found[0] if found else None


def bamba_z_loss(model: Any) -> str:
    if not model.z_loss_coefficient:
        return ""
    return (
        "adds a z-loss over all positions of its logits: set model.z_loss_coefficient = 0 and pass z_loss to the "
        "Number Token Loss"
    )


def prophetnet_ngrams(model: Any) -> str:
    if model.config.ngram > 1 and not model.disable_ngram_loss:
        return "also trains on the logits of n-grams: set model.disable_ngram_loss = True"
    if model.config.eps:
        return "smooths its labels itself: set model.config.eps = 0 and pass label_smoothing to the Number Token Loss"
    return ""


def rag_marginals(model: Any) -> str:
    return "sums the probabilities of a label over documents, so its loss cannot be computed from the logits alone"


def paligemma_masks(model: Any) -> str:
    if "labels" not in inspect.signature(type(model.model).forward).parameters:
        return ""
    return "computes other attention masks without labels in transformers 4: use transformers 5"


class ModelClass(NamedTuple):
    """What no probe can find out about a model class and its subclasses."""

    decoder_mask: Callable[[Any, Tensor], Tensor] | None = None
    """Returns the mask of the decoder inputs that its forward creates when it derives them from labels."""
    adds: Callable[[Any, Any, dict[str, Any]], Added] = router_loss
    """Returns what its forward adds to the cross-entropy, from the outputs and arguments of a call without labels."""
    more: Callable[[Any], str] = lambda model: ""
    """Returns a description of parts of its own loss that CE + NTL of its logits would drop, or ""."""


MODEL_CLASSES: dict[str, ModelClass] = {
    **dict.fromkeys(("RagSequenceForGeneration", "RagTokenForGeneration"), ModelClass(more=rag_marginals)),
    **dict.fromkeys(
        ("ProphetNetForCausalLM", "ProphetNetForConditionalGeneration"), ModelClass(more=prophetnet_ngrams)
    ),
    "BambaForCausalLM": ModelClass(more=bamba_z_loss),
    "EncoderDecoderModel": ModelClass(decoder_mask=mask_padding),
    "NllbMoeForConditionalGeneration": ModelClass(adds=nllb_router_losses),
    "PaliGemmaForConditionalGeneration": ModelClass(more=paligemma_masks),
    "Pix2StructForConditionalGeneration": ModelClass(decoder_mask=mask_padding_but_the_first),
    "SwitchTransformersForConditionalGeneration": ModelClass(adds=switch_router_losses),
}


def entry_of(model: Any) -> ModelClass:
    """The entry of the model's class or of one of its base classes; an empty entry for an unknown class."""
    for cls in type(model).__mro__:  # torch 2.8 cannot compile `next` with a default
        if cls.__name__ in MODEL_CLASSES:
            return MODEL_CLASSES[cls.__name__]
    return ModelClass()


def check_own_loss(base: Any) -> None:
    """Raise if a bare model's own loss has parts that CE + NTL of its logits would drop."""
    more = entry_of(base).more(base)
    if more:
        raise ValueError(f"{type(base).__name__} {more}")


def train_on_logits(base: Any) -> str:
    """What to use for a bare model instead of :func:`apply_ntl_to_model`."""
    advice = "train on full logits with NTLTrainer or NTLSeq2SeqTrainer(..., numbers=numbers)"
    if is_encoder_decoder(base):
        return advice
    return f"{advice} or, if its forward calls its loss_function, set_ntl_loss_function(model, numbers)"


def is_encoder_decoder(model: Any) -> bool:
    """Whether the model feeds its decoder the labels, shifted to the right."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def shifts_labels(base: Any) -> bool | None:
    """Whether position t of a bare model predicts label t + 1 in its own loss; None if its forward computes it itself,
    so that only a measurement can tell."""
    if is_encoder_decoder(base):
        return False
    if "loss_function" not in forward_code(base).co_names:
        return None
    return LOSS_MAPPING.get(getattr(base, "loss_type", None), ForCausalLMLoss) is ForCausalLMLoss


def known_shift(base: Any) -> bool | None:
    """The same, but None also where the model's loss may have other parts, which only a measurement can rule out."""
    return shifts_labels(base) if is_transformers_own(base) else None


def is_transformers_own(base: Any) -> bool:
    """Whether the forward of a bare model's class is one of transformers'. The loss of another may have any parts."""
    return Path(transformers.__file__).parent in Path(forward_code(base).co_filename).parents


def forward_code(base: Any) -> Any:
    """The code of the forward of a bare model's class, inside decorators."""
    return inspect.unwrap(type(base).forward).__code__


def put_decoder_inputs(model: Any, given: dict[str, Any], labels: Tensor) -> None:
    """Add the decoder inputs that a model derives from labels [B..., T] to a forward's arguments, if they have none."""
    if given.get("decoder_input_ids") is not None or given.get("decoder_inputs_embeds") is not None:
        return
    ids = given["decoder_input_ids"] = decoder_inputs(model, labels)
    mask = entry_of(model).decoder_mask
    if mask is not None and given.get("decoder_attention_mask") is None:
        given["decoder_attention_mask"] = mask(model, ids)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """The decoder input ids [B..., T] for labels [B..., T], by the model's method or function that its forward uses."""
    for method in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, method):
            return getattr(model, method)(labels)
    shift_right = function_beside(model, "shift_tokens_right")
    if shift_right is not None and len(inspect.signature(shift_right).parameters) == 3:
        config = getattr(model.config, "text_config", model.config)  # Florence2's; transformers 4 has None outside it
        return shift_right(labels, config.pad_token_id, config.decoder_start_token_id)
    raise ValueError(
        f"it is unknown how {type(model).__name__} derives its decoder's inputs from labels: have the collator put "
        "decoder_input_ids into every batch"
    )


def added_loss(base: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """What the forward of a bare model would add to the cross-entropy, times its factors.

    ``outputs`` are those of a call with the arguments ``given`` without labels; a loss among them is of other labels.
    """
    if not isinstance(outputs, dict):
        return 0.0
    other = outputs.get("loss")
    return entry_of(base).adds(base, outputs, given) + (0.0 if other is None else other)
