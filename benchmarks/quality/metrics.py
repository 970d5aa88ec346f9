"""Metrics of answers: exact matches, the number metrics of this library, correlations, and the paper's accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from ntl_kernels.evaluation import digits_before_point, number_metrics, rating_metrics

from .data.pairs import FINAL, final_value

CORRELATIONS, AGREEMENT = ("pearson", "spearman"), ("qwk", "within_one")
"""What is measured of all numbers, and of ratings besides."""
ANYWHERE = re.compile(r"[+-]?\s*\d+(?:\.\d+)?", re.ASCII)
"""A number as the paper's code finds it."""


def answer_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """The share of exact matches, and the number metrics where the truth is a number."""
    metrics = {"exact_match": sum(p == t for p, t in zip(predictions, truths, strict=True)) / len(truths)}
    values = [(final_value(p), final_value(t)) for p, t in zip(predictions, truths, strict=True)]
    if any(truth is not None for _, truth in values):
        metrics.update(number_metrics(predictions, truths, behind=FINAL))
        metrics.update(agreement(values, CORRELATIONS))
        metrics["paper_accuracy"] = paper_accuracy(predictions, truths)
    return metrics


def paper_accuracy(predictions: Sequence[str], truths: Sequence[str]) -> float:
    """The accuracy of the paper's code: the last number anywhere in an answer is ``np.isclose`` to the true one.

    It accepts "x = 5" for 5. Unlike there, large numbers are not clipped.
    """
    pairs = [tuple(map(last_number, pair)) for pair in zip(predictions, truths, strict=True)]
    close = [guess is not None and np.isclose(guess, truth) for guess, truth in pairs if truth is not None]
    return float(np.mean(close))


def last_number(text: str) -> float | None:
    found = ANYWHERE.findall(text)
    return float("".join(found[-1].split())) if found else None


def agreement(
    values: Iterable[tuple[float | None, float | None]], names: Sequence[str] = AGREEMENT
) -> dict[str, float]:
    """Some of the metrics of ratings, of (answer, truth) whose truth is a number."""
    pairs = [(guess, truth) for guess, truth in values if truth is not None]
    found = rating_metrics(*zip(*pairs, strict=True))
    return {name: found[name] for name in names}


def too_short(values: Iterable[tuple[float | None, float | None]]) -> dict[str, float]:
    """The share of (answer, truth) whose answer has fewer digits before the decimal point; empty without a truth."""
    numeric = [(guess, truth) for guess, truth in values if truth is not None]
    short = [guess is not None and digits_before_point(guess) < digits_before_point(truth) for guess, truth in numeric]
    return {"too_short": sum(short) / len(short)} if short else {}


def in_digits(value: float | None) -> str:
    """A number written without an exponent; empty for None."""
    return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
