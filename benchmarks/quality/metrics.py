"""Metrics of answers: the number metrics of this library, and statistics from established other libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sacrebleu
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import pearsonr, spearmanr

from ntl_kernels.evaluation import number_metrics, number_pairs

from .data.pairs import FINAL, final_value


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
    values = [(final_value(p), final_value(t)) for p, t in zip(predictions, truths, strict=True)]
    numeric = [(guess, truth) for guess, truth in values if truth is not None]
    if numeric:
        metrics.update(number_metrics(predictions, truths, behind=FINAL))
        metrics.update(correlations(*zip(*numeric, strict=True)))
    return metrics


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
