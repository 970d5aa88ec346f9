"""What is known about the models of transformers: one entry of `MODEL_CLASSES` per class, and what follows from it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class LogitTransform(NamedTuple):
    """Logits ``= softcap * tanh(logit_scale * head(h) / softcap)``, or ``logit_scale * head(h)`` without softcap."""

    logit_scale: float = 1.0
    """What the output of the head is multiplied by."""
    softcap: float | None = None
    """The bound that ``tanh`` keeps the logits within; None: no bound."""


def mask_padding(model: Any, ids: Tensor) -> Tensor:
    return (ids != model.config.pad_token_id).to(ids.dtype)


def mask_padding_but_the_first(model: Any, ids: Tensor) -> Tensor:
    mask = ids.ne(model.config.pad_token_id).float()
    mask[:, 0] = 1
    return mask


Added = Tensor | float | None
"""What a model's forward adds to its cross-entropy; None for nothing."""


def router_loss(model: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """The router loss of a mixture of experts, times its factor."""
    auxiliary = outputs.get("aux_loss")
    if auxiliary is None:
        return None
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
        return None
    z_loss = outputs["encoder_z_loss"] + outputs["decoder_z_loss"]
    balance = outputs["encoder_aux_loss"] + outputs["decoder_aux_loss"]
    return model.router_z_loss_coef * z_loss + model.router_aux_loss_coef * balance


def nllb_router_losses(model: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """The router losses of NLLB-MoE, whose forward computes them only with labels."""
    if outputs.get("encoder_router_logits") is None:
        return None
    if not hasattr(model, "num_experts"):
        raise ValueError(
            f"the router loss of {type(model).__name__} in transformers 4 uses its encoder's routers instead of its "
            "decoder's, a bug that is not reproduced here: use transformers 5, or output_router_logits=False"
        )
    balance = function_beside(model, "load_balancing_loss_func")
    assert balance is not None
    sides = (("encoder", given.get("attention_mask")), ("decoder", given.get("decoder_attention_mask")))
    losses = [
        balance(outputs[f"{side}_router_logits"], model.num_experts, top_k=2, attention_mask=mask)
        for side, mask in sides
    ]
    return model.router_aux_loss_coef * (losses[0] + losses[1])


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


class ModelClass(NamedTuple):
    """What is known about a model class and its subclasses."""

    transform: Callable[[Any], LogitTransform] | None = None
    """Returns how a model transforms its head's output; None if the caller must declare it."""
    shifts_labels: bool = True
    """Whether its own loss compares position t with label t + 1."""
    decoder_mask: Callable[[Any, Tensor], Tensor] | None = None
    """Returns the mask of the decoder inputs that its forward creates when it derives them from labels."""
    adds: Callable[[Any, Any, dict[str, Any]], Added] = router_loss
    """Returns what its forward adds to the cross-entropy, from the outputs and arguments of a call without labels."""
    more: Callable[[Any], str] = lambda model: ""
    """Returns a description of parts of its own loss that CE + NTL of its logits would drop, or ""."""


SOFTCAP = ModelClass(lambda model: LogitTransform(softcap=model.config.final_logit_softcapping))
SCALED = ModelClass(lambda model: LogitTransform(logit_scale=model.logit_scale))
DIVIDED = ModelClass(lambda model: LogitTransform(logit_scale=1 / model.config.logits_scaling))
PLAIN = ModelClass(lambda model: LogitTransform())
PLAIN_DECODERS = (
    *("GPTJ", "GPTNeoX", "Gemma", "Llama", "Mistral", "Mixtral", "Olmo2", "Phi", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3"),
    *("Qwen3Moe", "SmolLM3"),
)
"""Families whose ``ForCausalLM`` has the output of its head as logits."""
UNSHIFTED_DECODERS = (
    *("Bart", "BigBirdPegasus", "Blenderbot", "BlenderbotSmall", "CpmAnt", "MBart", "Marian", "Mvp", "PLBart"),
    *("Pegasus", "TrOCR", "Whisper"),
)
"""Families whose ``ForCausalLM`` compares position t with label t."""

MODEL_CLASSES: dict[str, ModelClass] = {
    **{f"{family}ForCausalLM": PLAIN for family in PLAIN_DECODERS},
    **{f"{family}ForConditionalGeneration": PLAIN for family in ("MT5", "T5", "UMT5")},  # they scale before their head
    "GPT2LMHeadModel": PLAIN,
    **{f"{family}ForCausalLM": ModelClass(shifts_labels=False) for family in UNSHIFTED_DECODERS},
    **dict.fromkeys(
        ("FlaubertWithLMHeadModel", "XLMWithLMHeadModel", "XLNetLMHeadModel"), ModelClass(shifts_labels=False)
    ),
    **dict.fromkeys(("RagSequenceForGeneration", "RagTokenForGeneration"), ModelClass(more=rag_marginals)),
    **dict.fromkeys(("Gemma2ForCausalLM", "Gemma3ForCausalLM"), SOFTCAP),
    **dict.fromkeys(("CohereForCausalLM", "Cohere2ForCausalLM"), SCALED),
    **dict.fromkeys(("GraniteForCausalLM", "GraniteMoeForCausalLM"), DIVIDED),
    "BambaForCausalLM": ModelClass(more=bamba_z_loss),
    "EncoderDecoderModel": ModelClass(decoder_mask=mask_padding),
    "NllbMoeForConditionalGeneration": ModelClass(adds=nllb_router_losses),
    "Pix2StructForConditionalGeneration": ModelClass(decoder_mask=mask_padding_but_the_first),
    "ProphetNetForCausalLM": ModelClass(shifts_labels=False, more=prophetnet_ngrams),
    "ProphetNetForConditionalGeneration": ModelClass(more=prophetnet_ngrams),
    "RecurrentGemmaForCausalLM": ModelClass(lambda model: LogitTransform(softcap=model.config.logits_soft_cap)),
    "SwitchTransformersForConditionalGeneration": ModelClass(adds=switch_router_losses),
}
SHIFTS: dict[str, bool | None] = {
    "CausalLMOutputWithCrossAttentions": None,  # of models that shift labels in their loss, and others
    ".*(CausalLM|LMHead|ForConditionalGeneration|GenerationDecoder|VisionText2Text|ProteinText2Text).*": True,
    ".*(Seq2Seq|MaskedLM|TokenClassif).*": False,
}
"""Whether a model shifts labels, by its class, loss type or type of outputs; the first matching pattern decides."""


def what_is_known(model: Any) -> ModelClass:
    """The entry of the model's class or of one of its base classes; an empty entry for an unknown class."""
    for cls in type(model).__mro__:  # torch 2.8 cannot compile `next` with a default
        if cls.__name__ in MODEL_CLASSES:
            return MODEL_CLASSES[cls.__name__]
    return ModelClass()


def transform_of(model: Any) -> LogitTransform:
    """How a model of a known class transforms its head's output, by its current configuration."""
    transform = what_is_known(model).transform
    if transform is not None:
        return transform(model)
    known = ", ".join(name for name, row in MODEL_CLASSES.items() if row.transform is not None)
    raise ValueError(
        f"{type(model).__name__} is not known to ntl_kernels. If its logits are softcap * tanh(logit_scale * head / "
        "softcap), declare it: apply_ntl_to_model(model, numbers, transform=LogitTransform(logit_scale=..., "
        "softcap=...)); LogitTransform() declares plain logits. Otherwise train on full logits: NTLTrainer(..., "
        f"numbers=numbers). Known classes: {known}"
    )


def check_own_loss(base: Any) -> None:
    """Raise if a bare model's own loss has parts that CE + NTL of its logits would drop."""
    more = what_is_known(base).more(base)
    if more:
        raise ValueError(f"{type(base).__name__} {more}")


def check_no_bias(base: Any) -> None:
    """Raise if a bare model's own forward adds to the output of its head, which no transform describes."""
    if hasattr(base, "final_logits_bias"):
        raise ValueError(
            f"{type(base).__name__} adds final_logits_bias to the output of its head, so its loss needs logits: "
            f"{train_on_logits(base)}"
        )


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
    """Whether position t of a bare model predicts label t + 1 in its own loss; None if this is unknown.

    The first class in the MRO that is known or has a telling name decides.
    """
    if is_encoder_decoder(base):
        return False
    for cls in type(base).__mro__:
        known = MODEL_CLASSES.get(cls.__name__)
        shift = shifts_by_name(cls.__name__) if known is None else known.shifts_labels
        if shift is not None:
            return shift
    return shifts_by_name(getattr(base, "loss_type", None) or "")


def shifts_by_name(name: str) -> bool | None:
    """Whether this name of a class or loss type implies that labels are shifted; None if it implies neither."""
    return next((shifts for pattern, shifts in SHIFTS.items() if re.fullmatch(pattern, name)), None)


def told_or_raise(shift: bool | None, name: str, other_remedy: str = "") -> bool:
    """Whether labels are shifted; raise if it is unknown (None) for the class of this name."""
    if shift is not None:
        return shift
    raise ValueError(
        f"{name} does not indicate whether labels must be shifted: pass {other_remedy}shift=True (GPT-2 and "
        "other causal models) or shift=False (BartForCausalLM, masked language models and similar)"
    )


def put_decoder_inputs(model: Any, given: dict[str, Any], labels: Tensor) -> None:
    """Add the decoder inputs that a model derives from labels [B..., T] to a forward's arguments, if they have none."""
    if given.get("decoder_input_ids") is not None or given.get("decoder_inputs_embeds") is not None:
        return
    ids = given["decoder_input_ids"] = decoder_inputs(model, labels)
    mask = what_is_known(model).decoder_mask
    if mask is not None and given.get("decoder_attention_mask") is None:
        given["decoder_attention_mask"] = mask(model, ids)


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """The decoder input ids [B..., T] for labels [B..., T], by the model's method or function that its forward uses."""
    for method in ("prepare_decoder_input_ids_from_labels", "_shift_right"):
        if hasattr(model, method):
            return getattr(model, method)(labels)
    shift_right = function_beside(model, "shift_tokens_right")
    if shift_right is not None:
        config = getattr(model.config, "text_config", model.config)  # Florence2's; transformers 4 has None outside it
        return shift_right(labels, config.pad_token_id, config.decoder_start_token_id)
    raise ValueError(
        f"it is unknown how {type(model).__name__} derives its decoder's inputs from labels: have the collator put "
        "decoder_input_ids into every batch"
    )


def added_loss(base: Any, outputs: Any, given: dict[str, Any]) -> Added:
    """What the forward of a bare model would add to the cross-entropy, times its factors; None for nothing.

    ``outputs`` are those of a call with the arguments ``given`` without labels; a loss among them is of other labels.
    """
    if not isinstance(outputs, dict):
        return None
    added, other = what_is_known(base).adds(base, outputs, given), outputs.get("loss")
    return other if added is None else added if other is None else added + other
