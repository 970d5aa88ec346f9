"""What the models do to the head's output before the loss, and the probes that prove it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class LogitTransform(NamedTuple):
    """Logits ``= softcap * tanh(logit_scale * head(h) / softcap)``, or ``logit_scale * head(h)`` without softcap."""

    logit_scale: float = 1.0
    softcap: float | None = None


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


def declared(transform: LogitTransform, model: Any) -> LogitTransform:
    return transform


TRANSFORMS: dict[str, Callable[[Any], LogitTransform]] = {
    "Cohere2ForCausalLM": cohere,
    "CohereForCausalLM": cohere,
    "GPT2LMHeadModel": plain,
    "GPTJForCausalLM": plain,
    "GPTNeoXForCausalLM": plain,
    "Gemma2ForCausalLM": gemma,
    "Gemma3ForCausalLM": gemma,
    "GemmaForCausalLM": plain,
    "GraniteForCausalLM": granite,
    "GraniteMoeForCausalLM": granite,
    "LlamaForCausalLM": plain,
    "MT5ForConditionalGeneration": plain,
    "MistralForCausalLM": plain,
    "MixtralForCausalLM": plain,
    "Olmo2ForCausalLM": plain,
    "Phi3ForCausalLM": plain,
    "PhiForCausalLM": plain,
    "Qwen2ForCausalLM": plain,
    "Qwen2MoeForCausalLM": plain,
    "Qwen3ForCausalLM": plain,
    "Qwen3MoeForCausalLM": plain,
    "RecurrentGemmaForCausalLM": recurrent_gemma,
    "SmolLM3ForCausalLM": plain,
    "T5ForConditionalGeneration": plain,
    "UMT5ForConditionalGeneration": plain,
}
"""Classes whose loss and gradients the tests hold equal to the stock forward's. T5 scales before its head."""


NUM_PROBES = 8


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


def make_probes(hidden: Tensor) -> Tensor:
    """float32 [1, ..., 1, 8] on the device of hidden [..., H], small and large, that stand in for logits."""
    probes = torch.linspace(-6, 6, NUM_PROBES, device=hidden.device, dtype=torch.float32).sinh()
    return probes.view((1,) * (hidden.ndim - 1) + (NUM_PROBES,))


def check_probes(logits: Tensor, hidden: Tensor, transform: LogitTransform, name: str) -> None:
    """Raise unless the model did to the probes what ``transform`` says."""
    if logits.shape == make_probes(hidden).shape and probes_match(logits, hidden, transform):
        return
    raise ValueError(
        f"{name} does not turn its head's output into logits by {transform}: it made {shorten(logits)} of "
        f"{shorten(make_probes(hidden))}, which should have become {shorten(transformed_probes(hidden, transform))}"
    )


def probes_match(logits: Tensor, hidden: Tensor, transform: LogitTransform) -> Tensor:
    """Whether the model did to the probes what ``transform`` says: bool, 0-d, on their device."""
    expected = transformed_probes(hidden, transform)
    return torch.isclose(logits.detach().float(), expected, rtol=1e-2, atol=1e-3).all()


def transformed_probes(hidden: Tensor, transform: LogitTransform) -> Tensor:
    """What the probes should have become."""
    scaled = transform.logit_scale * make_probes(hidden)
    return scaled if transform.softcap is None else transform.softcap * torch.tanh(scaled / transform.softcap)


def shorten(tensor: Tensor) -> str:
    """A few entries, for messages."""
    entries = ", ".join(f"{entry:.4g}" for entry in tensor.detach().flatten()[:8].tolist())
    return f"[{entries}] of shape {tuple(tensor.shape)}"
