"""Sums to learn, made from a seed: "12+7=19;"."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from ntl_kernels import NumberTokens

CHARACTERS = "0123456789+=;"
VOCAB_SIZE = 51  # padded, and so that no two ranks get the same number of columns
IGNORED = -100


def number_tokens() -> NumberTokens:
    return NumberTokens.from_mapping({digit: float(digit) for digit in range(10)}, VOCAB_SIZE)


def batch(seed: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """(tokens, labels), each [rows, length]: every position predicts the next one; what follows the sum is ignored."""
    rng, lines = random.Random(seed), []
    for _ in range(rows):
        a, b = rng.randrange(1000), rng.randrange(1000)
        text = [CHARACTERS.index(character) for character in f"{a}+{b}={a + b};"]
        lines.append(text + [IGNORED] * (length + 1 - len(text)))
    whole = torch.tensor(lines)
    return whole[:, :-1].clamp_min(0), whole[:, 1:].contiguous()
