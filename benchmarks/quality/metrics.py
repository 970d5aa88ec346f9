"""What answers are worth: statistics of well-kept libraries over predictions and truths."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_absolute_error, mean_squared_error, median_absolute_error, r2_score

from .data.pairs import final_text, final_value


def number_metrics(predictions: Sequence[float | None], truths: Sequence[float]) -> dict[str, float]:
    """Errors over the predictions that are numbers; ``no_number`` is the share of those that are not.

    R2 and correlations need two distinct values on either side, and are NaN without.
    """
    pairs = [(p, t) for p, t in zip(predictions, truths, strict=True) if p is not None and math.isfinite(p)]
    no_number = 1 - len(pairs) / len(truths)
    right = sum(math.isclose(p, t, rel_tol=1e-9, abs_tol=1e-9) for p, t in pairs)
    metrics = {"number_accuracy": right / len(truths), "no_number": no_number}
    names = ("mae", "mse", "median_error", "r2", "pearson", "spearman", "log_mae", "log_r2")
    if not pairs:
        return {**metrics, **dict.fromkeys(names, math.nan)}
    guessed, true = (np.clip(np.array(side, dtype=np.float64), -1e100, 1e100) for side in zip(*pairs, strict=True))
    can_compare = len(set(true)) > 1
    can_correlate = can_compare and len(set(guessed)) > 1
    log_guessed, log_true = signed_log(guessed), signed_log(true)
    return {
        **metrics,
        "mae": float(mean_absolute_error(true, guessed)),
        "mse": float(mean_squared_error(true, guessed)),
        "median_error": float(median_absolute_error(true, guessed)),
        "r2": float(r2_score(true, guessed)) if can_compare else math.nan,
        "pearson": float(pearsonr(true, guessed).statistic) if can_correlate else math.nan,
        "spearman": float(spearmanr(true, guessed).statistic) if can_correlate else math.nan,
        "log_mae": float(mean_absolute_error(log_true, log_guessed)),
        "log_r2": float(r2_score(log_true, log_guessed)) if can_compare else math.nan,
    }


def signed_log(values: np.ndarray) -> np.ndarray:
    """sign(v) log10(1 + |v|), which keeps order and sign."""
    return np.sign(values) * np.log10(1 + np.abs(values))


def text_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """Exact match, BLEU (0 to 100) and ROUGE F1 (0 to 1)."""
    scorer = RougeScorer(["rouge1", "rougeL"])
    scores = [scorer.score(truth, prediction) for prediction, truth in zip(predictions, truths, strict=True)]
    return {
        "exact_match": sum(p == t for p, t in zip(predictions, truths, strict=True)) / len(truths),
        "bleu": sacrebleu.corpus_bleu(list(predictions), [list(truths)]).score,
        **{name: sum(score[name].fmeasure for score in scores) / len(scores) for name in ("rouge1", "rougeL")},
    }


def answer_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """Text metrics of all answers, and number metrics of those whose truth is a number."""
    metrics = text_metrics(predictions, truths)
    numeric = [
        (final_value(p), t)
        for p, truth in zip(predictions, truths, strict=True)
        if (t := final_value(truth)) is not None
    ]
    if numeric:
        guesses, values = zip(*numeric, strict=True)
        metrics.update(number_metrics(guesses, values))
        metrics["run_on"] = run_on(predictions, truths)
    return metrics


def run_on(predictions: Sequence[str], truths: Sequence[str]) -> float:
    """Share of the answers with more digits before the point than the true number, among the truths that are numbers.

    A number that goes on where it should have ended is wrong by a factor of ten or more.
    """
    numeric = [(p, t) for p, t in zip(predictions, truths, strict=True) if final_value(t) is not None]
    return sum(whole_digits(p) > whole_digits(t) for p, t in numeric) / len(numeric)


def whole_digits(text: str) -> int:
    """Digits before the point of the number that an answer is; 0 where it is none."""
    final = final_text(text)
    return 0 if final_value(text) is None else len(final.removeprefix("-").partition(".")[0])
