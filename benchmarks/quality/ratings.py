"""Ratings: answers that are one of a few scores, whose probabilities follow exactly from a few forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .data import Pair
from .data.pairs import final_value


def scores_of(pairs: Sequence[Pair]) -> list[str]:
    """The distinct answers, in the order of their values."""
    return sorted({pair.answer for pair in pairs}, key=lambda score: final_value(score) or 0.0)


def choices(sequences: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Prefix -> the tokens that follow it in different sequences; only prefixes with several such tokens."""
    following: dict[tuple[int, ...], list[int]] = {}
    for sequence in sequences:
        for place, token in enumerate(sequence):
            known = following.setdefault(tuple(sequence[:place]), [])
            known += [] if token in known else [token]
    return {prefix: tokens for prefix, tokens in following.items() if len(tokens) > 1}


def probabilities(answers: Sequence[Sequence[int]], logits_after: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
    """[B, A] in float64: the probability of each answer, if every token is chosen among those that lead to an answer.

    ``logits_after(prefix)``: the logits [B, V] of the token that follows the first tokens of an answer.
    """
    columns: list[Tensor | float] = [0.0] * len(answers)
    for prefix, tokens in choices(answers).items():
        chosen = logits_after(prefix)[:, tokens].double().log_softmax(-1)
        for place, answer in enumerate(answers):
            if tuple(answer[: len(prefix)]) == prefix:
                columns[place] = columns[place] + chosen[:, tokens.index(answer[len(prefix)])]
    return torch.stack(columns, -1).exp()
