"""Answers drawn at random, and the number in their middle: what decoding alone does for an estimate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from .data import Pair
from .data.pairs import final_value

Draw = Callable[[Sequence[Pair], int], list[list[str]]]
"""So many random answers to each question."""


def split_name(split: str, samples: int) -> str:
    """What the metrics of the median answers to a split's questions are filed under."""
    return f"{split}_median_of_{samples}"


def median_answers(draw: Draw, samples: int, seed: int) -> Callable[[Sequence[Pair]], list[str]]:
    """Answers each question by the median of so many drawn ones; the global generator is left as it was."""

    def answer(pairs: Sequence[Pair]) -> list[str]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return [median_answer(drawn) for drawn in draw(pairs, samples)]

    return answer


def median_answer(drawn: Sequence[str]) -> str:
    """The median of those answers that are numbers, in decimals; empty where none is."""
    values = [value for answer in drawn if (value := final_value(answer)) is not None]
    return in_decimals(statistics.median(values)) if values else ""


def in_decimals(value: float) -> str:
    """A number without an exponent, which no answer has."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
