"""How models transform their head's output before the loss, and the probes that verify it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class LogitTransform(NamedTuple):
    """Logits ``= softcap * tanh(logit_scale * head(h) / softcap)``, or ``logit_scale * head(h)`` without softcap."""

    logit_scale: float = 1.0
    """What the output of the head is multiplied by."""
    softcap: float | None = None
    """The bound that ``tanh`` keeps the logits within; None: no bound."""


def declared(transform: LogitTransform, model: Any) -> LogitTransform:
    return transform


NUM_PROBES = 8


def make_probes(hidden: Tensor) -> Tensor:
    """float32 [1, ..., 1, 8] on the device of hidden [..., H]: small and large values in place of logits."""
    probes = torch.linspace(-6, 6, NUM_PROBES, device=hidden.device, dtype=torch.float32).sinh()
    return probes.view((1,) * (hidden.ndim - 1) + (NUM_PROBES,))


def check_probes(logits: Tensor, hidden: Tensor, transform: LogitTransform, name: str) -> None:
    """Raise unless the model transformed the probes by ``transform``."""
    if logits.shape == make_probes(hidden).shape and probes_match(logits, hidden, transform):
        return
    raise ValueError(
        f"{name} does not turn its head's output into logits by {transform}: it turned {shorten(make_probes(hidden))} "
        f"into {shorten(logits)}; expected {shorten(transformed_probes(hidden, transform))}"
    )


def probes_match(logits: Tensor, hidden: Tensor, transform: LogitTransform) -> Tensor:
    """Whether the model transformed the probes by ``transform``: bool, 0-d, on their device."""
    expected = transformed_probes(hidden, transform)
    return torch.isclose(logits.detach().float(), expected, rtol=1e-2, atol=1e-3).all()


def transformed_probes(hidden: Tensor, transform: LogitTransform) -> Tensor:
    """The expected values of the transformed probes."""
    scaled = transform.logit_scale * make_probes(hidden)
    return scaled if transform.softcap is None else transform.softcap * torch.tanh(scaled / transform.softcap)


def shorten(tensor: Tensor) -> str:
    """The first entries and the shape, for error messages."""
    entries = ", ".join(f"{entry:.4g}" for entry in tensor.detach().flatten()[:8].tolist())
    return f"[{entries}] of shape {tuple(tensor.shape)}"
