"""Sampled answers and their median: the effect of decoding alone on estimates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from .data import Pair
from .data.pairs import final_value

Draw = Callable[[Sequence[Pair], int], list[list[str]]]
"""Samples this many answers to each question."""


def split_name(split: str, samples: int) -> str:
    """The name under which the metrics of median answers to a split's questions are stored."""
    return f"{split}_median_of_{samples}"


def median_answers(draw: Draw, samples: int, seed: int) -> Callable[[Sequence[Pair]], list[str]]:
    """A function that answers each question by the median of sampled answers; it restores the global generator."""

    def answer(pairs: Sequence[Pair]) -> list[str]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return [median_answer(drawn) for drawn in draw(pairs, samples)]

    return answer


def median_answer(drawn: Sequence[str]) -> str:
    """The median of the answers that are numbers, in decimals; empty if there is none."""
    values = [value for answer in drawn if (value := final_value(answer)) is not None]
    return in_decimals(statistics.median(values)) if values else ""


def in_decimals(value: float) -> str:
    """A number without an exponent, as in answers."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
