"""Metrics of answers: exact matches, the number metrics of this library, correlations, the paper's accuracy, and BLEU
and ROUGE of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import numpy as np

from ntl_kernels.evaluation import digits_before_point, number_metrics, rating_metrics

from ..commands import InputError
from .data import Splits
from .data.pairs import FINAL, final_value

CORRELATIONS, AGREEMENT = ("pearson", "spearman"), ("qwk", "within_one")
"""What is measured of all numbers, and of ratings besides."""
ROUGE = ("rouge1", "rouge2", "rougeL")
ANYWHERE = re.compile(r"[+-]?\s*\d+(?:\.\d+)?", re.ASCII)
"""A number as the paper's code finds it."""


def answer_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """The share of exact matches, the number metrics where the truth is a number, and the text metrics of all answers
    unless every truth is a number.
    """
    metrics = {"exact_match": sum(p == t for p, t in zip(predictions, truths, strict=True)) / len(truths)}
    values = [(final_value(p), final_value(t)) for p, t in zip(predictions, truths, strict=True)]
    if any(truth is not None for _, truth in values):
        metrics.update(number_metrics(predictions, truths, behind=FINAL))
        metrics.update(agreement(values, CORRELATIONS))
        metrics["paper_accuracy"] = paper_accuracy(predictions, truths)
    if any(truth is None for _, truth in values):
        metrics.update(text_metrics(predictions, truths))
    return metrics


def text_metrics(predictions: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """BLEU of all answers (0 to 100), and the mean F1 of their ROUGE (0 to 1, of stems)."""
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    scorer = RougeScorer(ROUGE, tokenizer=DefaultTokenizer(use_stemmer=True))  # its default, which it would log
    scores = [scorer.score(truth, answer) for truth, answer in zip(truths, predictions, strict=True)]
    bleu = sacrebleu.corpus_bleu(list(predictions), [list(truths)]).score
    return {"bleu": bleu, **{name: float(np.mean([score[name].fmeasure for score in scores])) for name in ROUGE}}


def check_text_metrics(splits: Splits) -> None:
    """Raise if answers will be measured as words and the packages for that are missing."""
    measured = [splits.validation, *splits.tests.values()]
    has_words = any(final_value(pair.answer) is None for pairs in measured for pair in pairs)
    if has_words and not all(map(find_spec, ("sacrebleu", "rouge_score"))):
        raise InputError('answers in words need sacrebleu and rouge-score: pip install -e ".[text]"')


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
