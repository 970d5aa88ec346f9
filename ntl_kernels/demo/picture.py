"""The picture: a prediction as bars to drag, and what cross-entropy and NTL do to each of them.

The browser draws; every number, and every word that holds one, is computed here with `ntl_kernels` in float64. An arrow
is minus the gradient by a token's logit: the direction in which gradient descent moves it. The curves are the losses if
the likeliest token's probability were another digit's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import KINDS, SOFT, NTLConfig, NTLOutput, check_number
from ..functional import cross_entropy_ntl
from ..statistics import number_statistics
from ..tokens import NumberTokens
from ..tokens.texts import shortened
from .tokenizer import MOST_LETTERS

TOKENS = (*"0123456789", "text")
"""A vocabulary; the last token stands for all that are not numbers."""
NUMBERS = NumberTokens.from_mapping({digit: float(digit) for digit in range(10)}, len(TOKENS))
FIRST = {"heights": [0.01, 0.01, 0.01, 0.4, 0.12, 0.01, 0.01, 0.01, 0.01, 0.4, 0.01], "label": 4}
"""A model torn between 3 and 9, which are not equally far from the label: there NTL's gradient shows."""
PRESETS = {
    "near": [*[0.01] * 3, 0.9, *[0.01] * 7],
    "far": [*[0.01] * 9, 0.9, 0.01],
    "two peaks": FIRST["heights"],
    "a word": [*[0.01] * 10, 0.9],
}
"""Predictions for the label 4 to choose from."""
RATE, LEAST = 1.0, 1e-6
"""The learning rate of a step, and about the least height after it."""
MOST_DIGITS = 6
"""Of a number that is compared digit by digit."""
FLAT = 0.005
"""A gradient below this is printed as 0.00 and has no direction."""


def answer(question: Mapping[str, str], content: bytes) -> dict[str, Any]:
    """What the picture draws for a setting, or {"problem": a sentence} if it is invalid.

    It is JSON: {"heights": one for each of :data:`TOKENS`, of which only the ratios count, "label": the label's place
    among them, "numbers": a number and a guess, as digits, and any options of :class:`~ntl_kernels.NTLConfig`}. The
    question is not used.
    """
    try:
        setting = json.loads(content)
        if not isinstance(setting, dict) or not {"heights", "label"} <= set(setting):
            raise TypeError(f"a setting needs heights and label; got {setting!r}")
        heights, label, numbers = setting.pop("heights"), setting.pop("label"), setting.pop("numbers", ["", ""])
        if not isinstance(heights, list) or len(heights) != len(TOKENS):
            raise ValueError(f"heights must be {len(TOKENS)} numbers above 0; got {heights!r}")
        for height in heights:
            check_number("a height", height, above=0.0)
        if label not in range(len(TOKENS)):
            raise ValueError(f"label must be a whole number from 0 to {len(TOKENS) - 1}; got {label!r}")
        config = NTLConfig(**setting)
        return drawn(heights, int(label), config) | digit_by_digit(numbers, config)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        return {"problem": f"{shortened(str(error), MOST_LETTERS)}."}


def drawn(heights: list[float], label: int, config: NTLConfig) -> dict[str, Any]:
    """Arrows, curves, words and the next step of a setting."""
    logits = torch.tensor(heights, dtype=torch.float64).log()
    output, both = loss_and_gradient(logits, label, config)
    _, alone = loss_and_gradient(logits, label, replace(config, weight=0.0))
    shares = logits.softmax(-1).tolist()
    tokens = list(zip(TOKENS, shares, alone, both, strict=True))
    likely = sorted(range(len(TOKENS)), key=lambda place: -shares[place])
    top, wrong = likely[0], next(place for place in likely if place != label)
    curves = [curve(logits, label, top, each) for each in (replace(config, weight=0.0), config)]
    weight, ntl = f"{config.weight:.2f}", output.ntl.item()
    expected = number_statistics(logits, NUMBERS).expected_value.item()
    step = (logits - RATE * torch.tensor(both, dtype=torch.float64)).softmax(-1).clamp(min=LEAST)
    return {
        "arrows": [[-of_alone, -of_both] for _, _, of_alone, of_both in tokens],
        "spoken": [  # a bar as a screen reader says it
            f"{share:.1%}; cross-entropy {in_words(of_alone)}; cross-entropy + NTL {in_words(of_both)}"
            for _, share, of_alone, of_both in tokens
        ],
        "rows": [[token, f"{share:.1%}", *map(in_arrows, gradients)] for token, share, *gradients in tokens],
        "loss": f"cross-entropy {output.cross_entropy:.3f} + {weight} · NTL {ntl:.3f} = {output.loss:.3f}",
        "sum": f"+ {weight} NTL",
        "expected": expected,
        "mean": f"Expected value {expected:.2f}",
        "curves": curves,
        "at": top,
        "read": f"The losses if the {shares[top]:.0%} of “{TOKENS[top]}” moved to each digit",
        "drawing": "; ".join(
            f"{digit}: cross-entropy {first:.2f}, with NTL {second:.2f}"
            for digit, (first, second) in enumerate(zip(*curves, strict=True))
        ),
        "wrong": f"“{TOKENS[wrong]}”",
        "kinds": [kind_row(kind, logits, label, wrong, config) for kind in KINDS],
        "step": (step / step.sum()).tolist(),
    }


def curve(logits: Tensor, label: int, top: int, config: NTLConfig) -> list[float]:
    """The loss for each digit, if its probability and that of the likeliest token were exchanged."""
    rows = logits.repeat(len(NUMBERS), 1)
    for digit, row in enumerate(rows):
        row[[digit, top]] = logits[[top, digit]]
    labels = torch.full((len(rows),), label)
    losses = cross_entropy_ntl(rows, labels, NUMBERS, config=config, reduction="none")
    assert isinstance(losses, Tensor)
    return losses.tolist()


def kind_row(kind: str, logits: Tensor, label: int, wrong: int, chosen: NTLConfig) -> list[str]:
    """A kind of NTL, its value, and what it alone does to the label's logit and the likeliest wrong one's.

    Of the chosen kind's options, another has the weight and, if it takes it, reweigh; soft_labels label_sigma, or 1.
    """
    config, is_soft = chosen, kind == SOFT
    if kind != chosen.kind:
        sigma = (chosen.label_sigma or 1.0) if is_soft else 0.0
        config = NTLConfig(kind, chosen.weight, chosen.reweigh and not is_soft, label_sigma=sigma)
    output, both = loss_and_gradient(logits, label, config)
    _, alone = loss_and_gradient(logits, label, replace(config, weight=0.0))
    return [kind, f"{output.ntl:.3f}", *(in_arrows(both[place] - alone[place]) for place in (label, wrong))]


def digit_by_digit(numbers: Any, config: NTLConfig) -> dict[str, Any]:
    """The parts of the loss of each digit of a number, if its probability is 0.9 on a guess's and 0.1 on its own."""
    if not isinstance(numbers, list) or [type(each) for each in numbers] != [str, str]:
        raise TypeError(f"numbers must be two texts; got {numbers!r}")
    label, guess = numbers
    if not re.fullmatch(f"[0-9]{{0,{MOST_DIGITS}}}", label) or not re.fullmatch(f"[0-9]{{{len(label)}}}", guess):
        return {"digits": [], "off": f"Write two numbers of equal length: at most {MOST_DIGITS} digits, nothing else."}
    rows = [digit_row(*pair, config) for pair in zip(label, guess, strict=True)]
    if not rows:
        return {"digits": [], "off": ""}
    mean = sum(ntl for *_, ntl in rows) / len(rows)
    off = f"{guess} is {abs(int(label) - int(guess)):,} off {label}; NTL, the mean over its digits, is {mean:.2f}."
    return {"digits": [[own, other, f"{ce:.2f}", f"{ntl:.2f}"] for own, other, ce, ntl in rows], "off": off}


def digit_row(own: str, other: str, config: NTLConfig) -> tuple[str, str, float, float]:
    shares = torch.full((len(TOKENS),), LEAST, dtype=torch.float64)
    shares[int(own)] += 0.1
    shares[int(other)] += 0.9
    output, _ = loss_and_gradient(shares.log(), int(own), config)
    return own, other, output.cross_entropy.item(), output.ntl.item()


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
