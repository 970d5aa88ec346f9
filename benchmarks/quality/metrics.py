"""Metrics of answers: exact matches, the number metrics of this library, and correlations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scipy.stats import pearsonr, spearmanr

from ntl_kernels.evaluation import digits_before_point, number_metrics, number_pairs

from .data.pairs import FINAL, final_value


def answer_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """The share of exact matches, and the number metrics where the truth is a number."""
    metrics = {"exact_match": sum(p == t for p, t in zip(predictions, truths, strict=True)) / len(truths)}
    values = [(final_value(p), final_value(t)) for p, t in zip(predictions, truths, strict=True)]
    numeric = [(guess, truth) for guess, truth in values if truth is not None]
    if numeric:
        metrics.update(number_metrics(predictions, truths, behind=FINAL))
        metrics.update(correlations(*zip(*numeric, strict=True)))
    return metrics


def too_short(values: Iterable[tuple[float | None, float | None]]) -> dict[str, float]:
    """The share of (answer, truth) whose answer has fewer digits before the decimal point; empty without a truth."""
    numeric = [(guess, truth) for guess, truth in values if truth is not None]
    short = [guess is not None and digits_before_point(guess) < digits_before_point(truth) for guess, truth in numeric]
    return {"too_short": sum(short) / len(short)} if short else {}


def correlations(predictions: Sequence[float | None], truths: Sequence[float]) -> dict[str, float]:
    """Pearson and Spearman correlation over the predictions that are numbers; NaN if a side has only one value."""
    pairs = number_pairs(predictions, truths)
    if not pairs or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return {"pearson": math.nan, "spearman": math.nan}
    guessed, true = zip(*pairs, strict=True)
    return {
        "pearson": float(pearsonr(true, guessed).statistic),
        "spearman": float(spearmanr(true, guessed).statistic),
    }


def in_digits(value: float | None) -> str:
    """A number written without an exponent; empty for None."""
    return "" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
