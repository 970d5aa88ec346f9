"""The picture: a prediction as bars to drag, and what cross-entropy and NTL do to each of them.

The browser draws; every number, and every word that holds one, is computed here with `ntl_kernels` in float64. An arrow
is minus the gradient by a token's logit: the direction in which gradient descent moves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import NTLConfig, NTLOutput, check_number
from ..functional import cross_entropy_ntl
from ..tokens import NumberTokens

TOKENS = (*"0123456789", "text")
"""A vocabulary; the last token stands for all that are not numbers."""
NUMBERS = NumberTokens.from_mapping({digit: float(digit) for digit in range(10)}, len(TOKENS))
FIRST = {"heights": [0.01, 0.01, 0.01, 0.4, 0.12, 0.01, 0.01, 0.01, 0.01, 0.4, 0.01], "label": 4}
"""A model torn between 3 and 9, which are not equally far from the label: there NTL's gradient shows."""
FLAT = 0.005
"""A gradient below this is printed as 0.00 and has no direction."""


def answer(question: Mapping[str, str], content: bytes) -> dict[str, Any]:
    """What the picture draws for a setting, or {"problem": a sentence} if it is invalid.

    It is JSON: {"heights": one for each of :data:`TOKENS`, of which only the ratios count, "label": the label's place
    among them, and any options of :class:`~ntl_kernels.NTLConfig`}. The question is not used.
    """
    try:
        setting = json.loads(content)
        if not isinstance(setting, dict) or not {"heights", "label"} <= set(setting):
            raise TypeError(f"a setting needs heights and label; got {setting!r}")
        heights, label = setting.pop("heights"), setting.pop("label")
        if not isinstance(heights, list) or len(heights) != len(TOKENS):
            raise ValueError(f"heights must be {len(TOKENS)} numbers above 0; got {heights!r}")
        for height in heights:
            check_number("a height", height, above=0.0)
        if label not in range(len(TOKENS)):
            raise ValueError(f"label must be a whole number from 0 to {len(TOKENS) - 1}; got {label!r}")
        return drawn(heights, int(label), NTLConfig(**setting))
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        return {"problem": f"{error}."}


def drawn(heights: list[float], label: int, config: NTLConfig) -> dict[str, Any]:
    """Arrows and words of a setting."""
    logits = torch.tensor(heights, dtype=torch.float64).log()
    shares = logits.softmax(-1).tolist()
    output, both = loss_and_gradient(logits, label, config)
    _, alone = loss_and_gradient(logits, label, replace(config, weight=0.0))
    tokens = list(zip(TOKENS, shares, alone, both, strict=True))
    weight, ntl = f"{config.weight:.2f}", output.ntl.item()
    return {
        "arrows": [[-of_alone, -of_both] for _, _, of_alone, of_both in tokens],
        "spoken": [  # a bar as a screen reader says it
            f"{share:.1%}; cross-entropy {in_words(of_alone)}; cross-entropy + NTL {in_words(of_both)}"
            for _, share, of_alone, of_both in tokens
        ],
        "rows": [[token, f"{share:.1%}", *map(in_arrows, gradients)] for token, share, *gradients in tokens],
        "loss": f"cross-entropy {output.cross_entropy:.3f} + {weight} · NTL {ntl:.3f} = {output.loss:.3f}",
        "sum": f"+ {weight} NTL",
    }


def loss_and_gradient(logits: Tensor, label: int, config: NTLConfig) -> tuple[NTLOutput, list[float]]:
    """The parts of the loss of logits [V], and its gradient by each of them."""
    rows = logits[None].clone().requires_grad_()
    output = cross_entropy_ntl(rows, torch.tensor([label]), NUMBERS, config=config, return_parts=True)
    assert isinstance(output, NTLOutput)
    return output, torch.autograd.grad(output.loss, rows)[0][0].tolist()


def in_words(gradient: float) -> str:
    if abs(gradient) < FLAT:
        return "leaves it"
    return f"{'pushes it down' if gradient > 0 else 'pulls it up'} by {abs(gradient):.2f}"


def in_arrows(gradient: float) -> str:
    arrow = "" if abs(gradient) < FLAT else "↓ " if gradient > 0 else "↑ "
    return f"{arrow}{abs(gradient):.2f}"
