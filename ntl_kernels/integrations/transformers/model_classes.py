"""The model classes of transformers that are known here: one row of `MODEL_CLASSES` for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .transforms import LogitTransform


def plain(model: Any) -> LogitTransform:
    return LogitTransform()


def gemma(model: Any) -> LogitTransform:
    return LogitTransform(softcap=model.config.final_logit_softcapping)


def recurrent_gemma(model: Any) -> LogitTransform:
    return LogitTransform(softcap=model.config.logits_soft_cap)


def granite(model: Any) -> LogitTransform:
    return LogitTransform(logit_scale=1 / model.config.logits_scaling)


def cohere(model: Any) -> LogitTransform:
    return LogitTransform(logit_scale=model.logit_scale)


class ModelClass(NamedTuple):
    """What is said of a model class and of those that derive from it."""

    transform: Callable[[Any], LogitTransform] | None = None
    """What a model does to its head's output; None for a class that must declare it. The tests hold the others' loss
    and gradients equal to the stock forward's."""
    shifts_labels: bool = True
    """Whether its own loss compares position t with label t + 1. Whoever calls a decoder-only class that does not has
    shifted the labels."""


MODEL_CLASSES: dict[str, ModelClass] = {
    "BartForCausalLM": ModelClass(shifts_labels=False),
    "BigBirdPegasusForCausalLM": ModelClass(shifts_labels=False),
    "BlenderbotForCausalLM": ModelClass(shifts_labels=False),
    "BlenderbotSmallForCausalLM": ModelClass(shifts_labels=False),
    "Cohere2ForCausalLM": ModelClass(cohere),
    "CohereForCausalLM": ModelClass(cohere),
    "CpmAntForCausalLM": ModelClass(shifts_labels=False),
    "FlaubertWithLMHeadModel": ModelClass(shifts_labels=False),
    "GPT2LMHeadModel": ModelClass(plain),
    "GPTJForCausalLM": ModelClass(plain),
    "GPTNeoXForCausalLM": ModelClass(plain),
    "Gemma2ForCausalLM": ModelClass(gemma),
    "Gemma3ForCausalLM": ModelClass(gemma),
    "GemmaForCausalLM": ModelClass(plain),
    "GraniteForCausalLM": ModelClass(granite),
    "GraniteMoeForCausalLM": ModelClass(granite),
    "LlamaForCausalLM": ModelClass(plain),
    "MBartForCausalLM": ModelClass(shifts_labels=False),
    "MT5ForConditionalGeneration": ModelClass(plain),
    "MarianForCausalLM": ModelClass(shifts_labels=False),
    "MistralForCausalLM": ModelClass(plain),
    "MixtralForCausalLM": ModelClass(plain),
    "MvpForCausalLM": ModelClass(shifts_labels=False),
    "Olmo2ForCausalLM": ModelClass(plain),
    "PLBartForCausalLM": ModelClass(shifts_labels=False),
    "PegasusForCausalLM": ModelClass(shifts_labels=False),
    "Phi3ForCausalLM": ModelClass(plain),
    "PhiForCausalLM": ModelClass(plain),
    "ProphetNetForCausalLM": ModelClass(shifts_labels=False),
    "Qwen2ForCausalLM": ModelClass(plain),
    "Qwen2MoeForCausalLM": ModelClass(plain),
    "Qwen3ForCausalLM": ModelClass(plain),
    "Qwen3MoeForCausalLM": ModelClass(plain),
    "RecurrentGemmaForCausalLM": ModelClass(recurrent_gemma),
    "SmolLM3ForCausalLM": ModelClass(plain),
    "T5ForConditionalGeneration": ModelClass(plain),  # it scales before its head
    "TrOCRForCausalLM": ModelClass(shifts_labels=False),
    "UMT5ForConditionalGeneration": ModelClass(plain),
    "WhisperForCausalLM": ModelClass(shifts_labels=False),
    "XLMWithLMHeadModel": ModelClass(shifts_labels=False),
    "XLNetLMHeadModel": ModelClass(shifts_labels=False),
}

TRANSFORMS = {name: row.transform for name, row in MODEL_CLASSES.items() if row.transform is not None}
UNSHIFTED = frozenset(name for name, row in MODEL_CLASSES.items() if not row.shifts_labels)
OUTPUTS: dict[str, bool | None] = {
    "CausalLMOutputWithCrossAttentions": None,  # of models that shift the labels in their loss, and of others
    ".*CausalLM.*": True,
    ".*(Seq2Seq|MaskedLM).*": False,
}
"""Whether a model that returns a type of this name shifts the labels; the first pattern that fits the name counts."""


def find_transform(model: Any) -> Callable[[Any], LogitTransform]:
    """How to read the transform off the model, by its class or one that it derives from."""
    for cls in type(model).__mro__:
        if cls.__name__ in TRANSFORMS:
            return TRANSFORMS[cls.__name__]
    raise ValueError(
        f"{type(model).__name__} is not known to ntl_kernels. If its logits are softcap * tanh(logit_scale * head / "
        "softcap), say so: apply_ntl_to_model(model, numbers, transform=LogitTransform(logit_scale=..., softcap=...)); "
        f"LogitTransform() declares plain logits. Known: {', '.join(TRANSFORMS)}"
    )


def is_encoder_decoder(model: Any) -> bool:
    """Whether the model feeds its decoder the labels, shifted to the right."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def shifts_labels(base: Any) -> bool:
    """Whether position t of a bare model predicts label t + 1, as its own loss has it."""
    names = {cls.__name__ for cls in type(base).__mro__}
    return not (is_encoder_decoder(base) or "MaskedLM" in type(base).__name__ or names & UNSHIFTED)


def outputs_are_causal(outputs: Any) -> bool:
    """Whether outputs of this type come from a model whose position t predicts label t + 1."""
    name = type(outputs).__name__
    is_causal = next((shifts for pattern, shifts in OUTPUTS.items() if re.fullmatch(pattern, name)), None)
    if is_causal is not None:
        return is_causal
    raise ValueError(
        f"{name} does not say whether labels must be shifted: pass model=model, or shift=True (GPT-2 and other causal "
        "models) or False (BartForCausalLM and its like)"
    )
