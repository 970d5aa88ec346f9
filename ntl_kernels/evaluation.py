"""Answers as numbers: which number a generated text gives, and how far such numbers are from the true ones.

- :func:`number_in`: the number that a text is, or that is written in it.
- :func:`number_metrics`: errors of generated texts; :func:`value_metrics`: the same of numbers that are read already.
- :class:`NumberMetrics`: the ``compute_metrics`` of a Hugging Face Trainer that generates.

Nothing but strings is needed for the first three; no library beside torch for the last.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, TypeGuard

import torch

from .tokens.texts import NUMBER

__all__ = ["NumberMetrics", "number_in", "number_metrics", "value_metrics"]

PLACES = ("whole", "first", "last")
PLAIN = re.compile(f"-?{NUMBER.pattern}")
WRITTEN = re.compile(
    r"""(?: (?P<inside> [^\W0-9] | \^\{? )                      # "H2O", "m^2": inside a word, or a power
          | (?P<sign> (?<![\w)\]}%+−–-]) [-+−–] [$€£¥₹]?         # "-5", "-$5"; not "10-5", "GPT-4", "--5"
                    | [$€£¥₹] [-+−–]? )? )                      # "$5", "$-5"
        (?P<digits> (?: (?<![\w.]) \. )? [0-9]+ (?: [.,][0-9]+ )* )
        (?P<exponent> [eE] [-+]? [0-9]+ )?
    """,
    re.VERBOSE,
)
"""Digits in a text, with what belongs to them. Once it has met a digit it cannot fail, so that every character is read
once: a pattern that gave up behind many digits would begin again at each of them."""
THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
DIGITS_BEFORE_POINT = re.compile(r"-?([0-9]*)")
LARGEST = 1e100
"""Errors are taken between values of at most this size, so that their squares and sums stay finite."""
ERRORS = ("mae", "mse", "median_error", "r2", "log_mae", "log_r2")


def number_in(text: str, find: str = "whole", behind: str | None = None) -> float | None:
    """The number that a text is, or that is written in it.

    Args:
        text: an answer. The time it takes is linear in its length.
        find: ``"whole"``: the text, but for spaces around it, is a number: ASCII digits, at most one point between
            them, an optional ``-`` before them. Nothing else is: not ``"+5"``, ``".5"``, ``"5."``, ``"1,234"``,
            ``"1e5"``, ``"5 %"``, ``"nan"`` or ``"٣"``.

            ``"last"``, ``"first"``: that of the numbers written in the text, which are looser. A point is the decimal
            mark. Commas before groups of three digits are left out (``"1,234.50"``); any other comma separates two
            numbers, as in ``"1,2"``. Also a number: ``".5"`` and ``"2.5e-3"``. ``-``, ``−`` or ``–`` is a sign if a
            digit or one of ``$€£¥₹`` follows and no letter, digit, closing bracket or sign precedes: ``"-$5"`` is -5,
            ``"10-20"`` are 10 and 20. Units change nothing: ``"12%"`` and ``"$12k"`` are 12. Fractions, dates and times
            are several numbers. None are digits behind a letter, an underscore or ``^`` (``"H2O"``, ``"m^2"``), digits
            with two points (``"1.2.3"``), digits of other scripts and words.
        behind: a mark, such as GSM8K's ``"####"``: only what stands behind its last occurrence counts; in a text
            without it, all.

    Returns:
        The nearest float64, infinite for a number beyond all of them; None if there is no number.

    Raises:
        TypeError, ValueError: the text is no str, ``find`` none of the three, or the mark is empty.
    """
    check_reading(find, behind)
    if not isinstance(text, str):
        raise TypeError(f"text must be a str; got {text!r}")
    written = written_number(text, find, behind)
    return None if written is None else float(written)


def number_metrics(
    predictions: Sequence[str], references: Sequence[str], find: str = "whole", behind: str | None = None
) -> dict[str, float]:
    """How good the numbers in generated texts are.

    Pairs whose reference is no number are left out. Predictions that are none are left out of the errors, so that a
    model could lower them by giving no number where it is unsure: read ``no_number`` beside them.

    Args:
        predictions: what was generated.
        references: the true answers, as many. They are read as the predictions are.
        find, behind: which number of a text counts, see :func:`number_in`.

    Returns:
        The metrics of :func:`value_metrics`, and

        - ``number_references``: how many references are numbers;
        - ``run_on``: the share of these whose prediction is a number with more digits before the point, as written:
          one that goes on where it should have ended, which makes it wrong by a factor of ten or more.

    Raises:
        TypeError: predictions or references are no sequences of str.
        ValueError: they are empty or differ in length, or no reference is a number.
    """
    check_reading(find, behind)
    check_texts("predictions", predictions)
    check_texts("references", references)
    check_lengths(len(predictions), len(references))
    pairs = [
        (written_number(prediction, find, behind), written)
        for prediction, reference in zip(predictions, references, strict=True)
        if (written := written_number(reference, find, behind)) is not None
    ]
    if not pairs:
        raise ValueError(
            f"no reference is a number, with find={find!r} and behind={behind!r}; the first of {len(references)} is "
            f"{shortened(references[0])!r}"
        )
    guessed = [None if prediction is None else float(prediction) for prediction, _ in pairs]
    runs_on = sum(digits_before_point(prediction) > digits_before_point(reference) for prediction, reference in pairs)
    return {
        "number_references": float(len(pairs)),
        **value_metrics(guessed, [float(reference) for _, reference in pairs]),
        "run_on": runs_on / len(pairs),
    }


def value_metrics(predictions: Sequence[float | None], references: Sequence[float]) -> dict[str, float]:
    """How far numbers are from the true ones, in float64.

    Args:
        predictions: numbers; None, NaN and infinity are none.
        references: the true numbers, as many.

    Returns:
        Shares of all pairs:

        - ``number_accuracy``: they differ by at most 1e-9, or by at most 1e-9 of the larger one;
        - ``no_number``: the prediction is no number.

        Over the pairs whose prediction is a number, in the units of the numbers; NaN if there are none:

        - ``mae``, ``mse``, ``median_error``: mean |error|, mean squared error, median |error|;
        - ``r2``: 1 - (sum of squared errors) / (sum of squares of the references about their mean). 1 is perfect,
          0 what the mean of the references would get. NaN if these references are all alike;
        - ``log_mae``, ``log_r2``: ``mae`` and ``r2`` of sign(v) log10(1 + abs(v)), for numbers of several magnitudes.

        In these, numbers beyond 1e100 count as 1e100, infinite references, too.

    Raises:
        ValueError: they are empty or differ in length, or a reference is NaN.
    """
    check_lengths(len(predictions), len(references))
    for index, reference in enumerate(references):
        if math.isnan(reference):
            raise ValueError(f"references must be numbers; references[{index}] is NaN")
    is_right = [
        is_number(prediction) and math.isclose(prediction, reference, rel_tol=1e-9, abs_tol=1e-9)
        for prediction, reference in zip(predictions, references, strict=True)
    ]
    pairs = number_pairs(predictions, references)
    shares = {
        "number_accuracy": sum(is_right) / len(references),
        "no_number": 1 - len(pairs) / len(references),
    }
    if not pairs:
        return {**shares, **dict.fromkeys(ERRORS, math.nan)}
    errors = [abs(guessed - true) for guessed, true in pairs]
    logs = [(signed_log(guessed), signed_log(true)) for guessed, true in pairs]
    return {
        **shares,
        "mae": mean(errors),
        "mse": mean([error * error for error in errors]),
        "median_error": median(errors),
        "r2": explained_share(pairs),
        "log_mae": mean([abs(guessed - true) for guessed, true in logs]),
        "log_r2": explained_share(logs),
    }


class NumberMetrics:
    """``compute_metrics`` of a Hugging Face Trainer that generates: :func:`number_metrics` of the decoded texts.

    ``Seq2SeqTrainer(..., compute_metrics=NumberMetrics(tokenizer))`` with ``predict_with_generate=True`` logs
    ``eval_mae``, ``eval_no_number`` and so on; ``NTLSeq2SeqTrainer`` likewise, beside its ``eval_number_mae``, which is
    of single number tokens, each predicted from the true ones before it.

    With ``batch_eval_metrics=True`` it keeps the texts, rather than the Trainer the ids, until the last batch. An
    evaluation that was interrupted leaves its texts behind: make a new object then.

    Args:
        tokenizer: anything whose ``batch_decode(ids, skip_special_tokens=True)`` gives texts.
        find, behind: which number of a text counts, see :func:`number_in`.

    Raises:
        TypeError, ValueError: the tokenizer has no ``batch_decode``, or ``find`` or ``behind`` is none. Called: the
            predictions or labels are not token ids [B, T], or as :func:`number_metrics` does.
    """

    def __init__(self, tokenizer: Any, find: str = "whole", behind: str | None = None) -> None:
        check_reading(find, behind)
        if not callable(getattr(tokenizer, "batch_decode", None)):
            raise TypeError(f"tokenizer must have a batch_decode; got {type(tokenizer).__name__}")
        self.tokenizer, self.find, self.behind = tokenizer, find, behind
        self.predictions: list[str] = []
        self.references: list[str] = []

    def __call__(self, evaluated: Any, compute_result: bool = True) -> dict[str, float]:
        """The metrics of an ``EvalPrediction``, and of those since the last result.

        Args:
            evaluated: its ``predictions`` and ``label_ids`` are integers [B, T], arrays or tensors, or tuples that
                begin with them. Ids below 0 (-100) are padding, and special tokens are left out.
            compute_result: False for all but the last batch under ``batch_eval_metrics``: then the result is empty.
        """
        predictions = self.texts_of("predictions", evaluated.predictions)
        references = self.texts_of("label_ids", evaluated.label_ids)
        self.predictions += predictions
        self.references += references
        if not compute_result:
            return {}
        predictions, references = self.predictions, self.references
        self.predictions, self.references = [], []
        return number_metrics(predictions, references, self.find, self.behind)

    def texts_of(self, name: str, ids: Any) -> list[str]:
        """What token ids [B, T] say."""
        texts: list[str] = self.tokenizer.batch_decode(rows_of_ids(name, ids), skip_special_tokens=True)
        return texts


def written_number(text: str, find: str, behind: str | None) -> str | None:
    """The number that is looked for, as ``float`` reads it; None if there is none."""
    if behind is not None:
        text = text.rsplit(behind, 1)[-1]
    if find == "whole":
        text = text.strip()
        return text if PLAIN.fullmatch(text) else None
    numbers = written_numbers(text)
    return next(numbers if find == "first" else iter(deque(numbers, maxlen=1)), None)


def written_numbers(text: str) -> Iterator[str]:
    """Every number that is written in a text, as ``float`` reads it."""
    for found in WRITTEN.finditer(text):
        if found["inside"] is None:
            is_negative = not {"-", "−", "–"}.isdisjoint(found["sign"] or "")
            yield from split_at_commas(f"{'-' if is_negative else ''}{found['digits']}{found['exponent'] or ''}")


def split_at_commas(digits: str) -> list[str]:
    """The numbers in digits, points and commas: one if the commas separate thousands. Two points make none."""
    numbers = [digits.replace(",", "")] if THOUSANDS.fullmatch(digits) else digits.split(",")
    return [number for number in numbers if number.count(".") <= 1]


def digits_before_point(written: str | None) -> int:
    """How many there are in a number; 0 if there is no number."""
    found = DIGITS_BEFORE_POINT.match(written or "")
    assert found is not None
    return len(found[1])


def number_pairs(predictions: Sequence[float | None], references: Sequence[float]) -> list[tuple[float, float]]:
    """(prediction, reference) of the predictions that are numbers, neither beyond :data:`LARGEST`."""
    return [
        (within_largest(prediction), within_largest(reference))
        for prediction, reference in zip(predictions, references, strict=True)
        if is_number(prediction)
    ]


def is_number(prediction: float | None) -> TypeGuard[float]:
    """Whether a prediction counts as a number: one that overflows does not, or it alone would be the error."""
    return prediction is not None and math.isfinite(prediction)


def within_largest(value: float) -> float:
    """The nearest value that is not beyond :data:`LARGEST`."""
    return min(max(float(value), -LARGEST), LARGEST)


def signed_log(value: float) -> float:
    """sign(v) log10(1 + abs(v)), which keeps order and sign."""
    return math.copysign(math.log10(1 + abs(value)), value)


def mean(values: Sequence[float]) -> float:
    """The mean, rounded once."""
    return math.fsum(values) / len(values)


def explained_share(pairs: Sequence[tuple[float, float]]) -> float:
    """R2 of (prediction, reference): which share of the references' variance the predictions explain."""
    centre = mean([true for _, true in pairs])
    variance = math.fsum((true - centre) ** 2 for _, true in pairs)
    unexplained = math.fsum((true - guessed) ** 2 for guessed, true in pairs)
    is_constant = len({true for _, true in pairs}) == 1  # whatever rounding made of their mean
    return math.nan if is_constant or variance == 0 else 1 - unexplained / variance


def rows_of_ids(name: str, ids: Any) -> list[list[int]]:
    """The rows of token ids [B, T], or of the first of a tuple, without padding.

    Raises:
        ValueError: there are no labels, or these are no ids, but logits.
    """
    if isinstance(ids, tuple):
        ids = ids[0]
    if ids is None:
        raise ValueError(f"{name} is None: the evaluation's data need labels")
    tensor = torch.as_tensor(ids, device="cpu")
    if tensor.ndim != 2 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(
            f"{name} must be token ids, integers [B, T]; got {tensor.dtype} {list(tensor.shape)}. For a Trainer to "
            "generate, set predict_with_generate=True in Seq2SeqTrainingArguments; any other Trainer gives logits, of "
            "which its preprocess_logits_for_metrics can make ids"
        )
    return [[token for token in row if token >= 0] for row in tensor.tolist()]


def check_reading(find: str, behind: str | None) -> None:
    """Raise unless both say which number of a text counts."""
    if find not in PLACES:
        raise ValueError(f"find must be one of {', '.join(PLACES)}; got {find!r}")
    if behind is not None and not isinstance(behind, str):
        raise TypeError(f"behind must be a str or None; got {behind!r}")
    if behind == "":
        raise ValueError("behind must not be empty; None reads all of a text")


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raise unless these are several texts."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a sequence of str; got the str {shortened(texts)!r}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a sequence of str; {name}[{index}] is {text!r}")


def check_lengths(predictions: int, references: int) -> None:
    """Raise unless there is a prediction for every reference, and one at all."""
    if predictions != references:
        raise ValueError(f"each prediction needs its reference; got {predictions} predictions, {references} references")
    if not references:
        raise ValueError("nothing to measure; got 0 predictions and 0 references")


def shortened(text: str, longest: int = 60) -> str:
    """A text in an error message."""
    return text if len(text) <= longest else f"{text[:longest]}..."
