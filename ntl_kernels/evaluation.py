"""Evaluation of whole numbers: parse the numbers in generated texts and compare them with the true ones.

:func:`number_metrics`, :func:`value_metrics` and :func:`rating_metrics` work on plain strings and floats;
:class:`NumberMetrics` is the ``compute_metrics`` of a Hugging Face Trainer that generates. All of it needs only torch.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from decimal import Decimal
from statistics import fmean, median
from typing import Any

import torch

from .tokens import NumberTokens
from .tokens.texts import NUMBER, shortened
from .tokens.values import is_integral

__all__ = ["NumberMetrics", "median_answer", "number_in", "number_metrics", "rating_metrics", "value_metrics"]

PLACES = ("whole", "first", "last")
PLAIN = re.compile(f"-?{NUMBER.pattern}")
POWER = re.compile(
    r"(?:\^|(?<=[A-Za-z0-9)\]}])\*\*(?!\s|[^*\n]*\*\*)) ?"  # "m**2"; not "is**44**" or "**44** 5"
    r"(?:\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|[{(]? ?[-+]? ?[0-9]+(?:[.,][0-9]+)*)"
)
"""A power: "^-3", "^{n + 1}", "**(1/2)". A search that fails ends at the next operator, so the time stays linear."""
WRITTEN = re.compile(
    r"""(?: (?P<inside> [^\W0-9] )                           # "H2O": inside a word
          | (?P<sign> (?<![\w)\]}%+-]) [-+] [$€£¥₹]?         # "-5", "-$5"; not "10-5", "GPT-4", "--5"
                    | [$€£¥₹] [-+]? )? )                    # "$5", "$-5"
        (?P<digits> (?: (?<![\w.]) \. )? [0-9]+ (?: [.,][0-9]+ )* )
        (?P<exponent> [eE] [-+]? [0-9]+ )?
    """,
    re.VERBOSE,
)
"""Digits in a text with their sign, currency and exponent. The pattern cannot fail after its first digit, so every
character is read once: a pattern that failed after many digits would start again at each of them."""
THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
LARGEST = 1e100
"""Values are clipped to this magnitude, so that the squares and sums of errors stay finite."""


def number_in(text: str, find: str = "whole", behind: str | None = None) -> float | None:
    """Parse the number in a text.

    Args:
        text: the text, such as a generated answer. Parsing takes time linear in its length.
        find: which number to return.

            ``"whole"``: the whole text, apart from surrounding spaces, must be a number: ASCII digits with at most one
            decimal point between them and an optional leading ``-``. ``"+5"``, ``".5"``, ``"5."``, ``"1,234"``,
            ``"1e5"``, ``"5 %"``, ``"nan"`` and ``"٣"`` are not numbers.

            ``"first"``, ``"last"``: the first or last number anywhere in the text, by looser rules. ``".5"`` and
            ``"2.5e-3"`` are also numbers. Commas before groups of three digits are ignored (``"1,234.50"``); any other
            comma separates two numbers (``"1,2"``). ``-``, ``−`` or ``–`` is a sign if it is followed by a digit or one
            of ``$€£¥₹`` and not preceded by a letter, digit, closing bracket or sign: ``"-$5"`` is -5, and ``"10-20"``
            is 10 and 20. Units are ignored: ``"12%"`` and ``"$12k"`` are 12. Fractions, dates and times are several
            numbers. Not numbers: digits after a letter or an underscore (``"H2O"``), exponents (``"m^2"``, ``"s^-1"``,
            ``"10^{-5}"``, ``"10**6"``), digits with two points (``"1.2.3"``), digits of other scripts, and words.
        behind: a marker, such as GSM8K's ``"####"``: if the text has it, only what follows the last one is searched.

    Returns:
        The nearest float64 (infinity if the number is larger than any float64), or None if there is no number.

    Raises:
        TypeError, ValueError: ``text`` is not a str, ``find`` is not one of these three, or the marker is empty.

    Examples:
        >>> number_in("The rent is $1,234.50 a month.", find="first")
        1234.5
        >>> number_in("12 + 30 = 42 #### 42", behind="####")
        42.0
    """
    check_reading(find, behind)
    if not isinstance(text, str):
        raise TypeError(f"text must be a str; got {text!r}")
    if behind is not None:
        text = text.rsplit(behind, 1)[-1]
    if find == "whole":
        text = text.strip()
        return float(text) if PLAIN.fullmatch(text) else None
    numbers = written_numbers(text)
    return next(numbers if find == "first" else iter(deque(numbers, maxlen=1)), None)


def median_answer(texts: Sequence[str], find: str = "whole", behind: str | None = None) -> float | None:
    """The median of the numbers in several answers to one question, such as samples at temperature 1.

    Of all answers, the median of a model's distribution has the smallest expected absolute error.

    Args:
        texts: the answers. Those without a number are left out; of an even count, it is the mean of the middle two.
        find, behind: which number of a text to use, see :func:`number_in`.

    Returns:
        The median, or None if no answer has a number.

    Raises:
        TypeError: the answers are not a sequence of str.

    Examples:
        >>> median_answer(["Score: 7", "Score: 9", "Score: 8", "no idea"], find="last")
        8.0
    """
    check_texts("texts", texts)
    halves = [value / 2 for text in texts if (value := number_in(text, find, behind)) is not None]
    middle = 2 * median(halves) if halves else None  # a sum of two numbers may not fit float64
    return 0.0 if middle is not None and math.isnan(middle) else middle  # of inf and -inf: each is beyond float64


def number_metrics(
    predictions: Sequence[str], references: Sequence[str], find: str = "whole", behind: str | None = None
) -> dict[str, float]:
    """Errors of the numbers in generated texts.

    Pairs whose reference contains no number are skipped. Predictions without a number do not enter the errors, so a
    model could lower its errors by answering without a number when it is unsure: report ``no_number`` alongside them.

    Args:
        predictions: the generated texts.
        references: the true answers, one per prediction. They are parsed like the predictions.
        find, behind: which number of a text to use, see :func:`number_in`.

    Returns:
        The metrics of :func:`value_metrics`, and

        - ``number_references``: how many references are numbers;
        - ``run_on``: the share of these references whose prediction has more digits before the decimal point, however
          both are written (``"1e5"`` for 5, not ``"007"`` for 7): a number that did not end where it should have.

    Raises:
        TypeError: predictions or references are not sequences of str.
        ValueError: they are empty or differ in length, or no reference is a number.

    Examples:
        >>> metrics = number_metrics(["41", "about 30"], ["42", "30"])
        >>> metrics["mae"], metrics["no_number"]
        (1.0, 0.5)
    """
    check_texts("predictions", predictions)
    check_texts("references", references)
    check_lengths(predictions, references)
    pairs = [
        (number_in(prediction, find, behind), true)
        for prediction, reference in zip(predictions, references, strict=True)
        if (true := number_in(reference, find, behind)) is not None
    ]
    if not pairs:
        raise ValueError(
            f"no reference is a number with find={find!r} and behind={behind!r}; the first of {len(references)} is "
            f"{shortened(references[0], 60)!r}"
        )
    runs_on = sum(guess is not None and digits_before_point(guess) > digits_before_point(true) for guess, true in pairs)
    return {
        "number_references": float(len(pairs)),
        **value_metrics(*zip(*pairs, strict=True)),
        "run_on": runs_on / len(pairs),
    }


def value_metrics(predictions: Sequence[float | None], references: Sequence[float]) -> dict[str, float]:
    """Errors of predicted numbers, computed in float64.

    Args:
        predictions: numbers; None, NaN and infinity count as no number. A number beyond float64 is infinite.
        references: the true numbers, one per prediction.

    Returns:
        Shares of all pairs:

        - ``number_accuracy``: prediction and reference differ by at most 1e-9, or by at most 1e-9 of the larger one;
        - ``no_number``: the prediction is not a number.

        Over the pairs whose prediction is a number, in the units of the numbers; NaN if there are none:

        - ``mae``, ``mse``, ``median_error``: mean |error|, mean squared error, median |error|;
        - ``r2``: 1 - (sum of squared errors) / (sum of squared deviations of the references from their mean). 1 is
          perfect; always predicting the mean of the references scores 0. NaN if these references are all equal;
        - ``log_mae``, ``log_r2``: ``mae`` and ``r2`` of sign(v) log10(1 + abs(v)), for numbers that span several
          orders of magnitude.

        For these metrics, numbers beyond 1e100, including infinite references, are clipped to 1e100.

    Raises:
        TypeError: a prediction or reference is not a number.
        ValueError: the sequences are empty or differ in length, or a reference is NaN.

    Examples:
        >>> metrics = value_metrics([41.0, 30.0, None], [42.0, 30.0, 7.0])
        >>> metrics["mae"], metrics["median_error"]
        (0.5, 0.5)
    """
    unclipped = number_pairs(predictions, references)
    pairs = [(within_largest(guessed), within_largest(true)) for guessed, true in unclipped]
    right = sum(math.isclose(guessed, true, rel_tol=1e-9, abs_tol=1e-9) for guessed, true in unclipped)
    errors = absolute_errors(pairs)
    logs = [(signed_log(guessed), signed_log(true)) for guessed, true in pairs]
    return {
        "number_accuracy": right / len(references),
        "no_number": 1 - len(pairs) / len(references),
        "mae": fmean(errors),
        "mse": fmean([error * error for error in errors]),
        "median_error": median(errors),
        "r2": explained_share(pairs),
        "log_mae": fmean(absolute_errors(logs)),
        "log_r2": explained_share(logs),
    }


def rating_metrics(predictions: Sequence[float | None], references: Sequence[float]) -> dict[str, float]:
    """Agreement of predicted ratings with the true ones, on a scale of whole numbers such as 1 to 10.

    Args:
        predictions: ratings, or expected ones with a fraction; None, NaN and infinity count as no number.
        references: the true ratings, one per prediction.

    Returns:
        Shares of all pairs, after rounding to whole ratings (halves to the even one):

        - ``accuracy``: the ratings are equal;
        - ``within_one``: they differ by at most 1;
        - ``no_number``: the prediction is not a number.

        Over the pairs whose prediction is a number:

        - ``qwk``: quadratic weighted kappa of the rounded ratings, 1 - (mean squared difference of the pairs) / (mean
          squared difference of every prediction and every reference). 1 is perfect, 0 is chance; NaN if all ratings
          are equal. Ratings that do not occur make no difference;
        - ``pearson``, ``spearman``: correlations, ties with their average rank; NaN if a side has only one value;
        - ``mae``: mean |error|; NaN if no prediction is a number.

    Raises:
        TypeError, ValueError: as for :func:`value_metrics`.

    Examples:
        >>> metrics = rating_metrics([7, 3.4, None, 9], [8, 3, 5, 9])
        >>> metrics["accuracy"], metrics["within_one"], round(metrics["qwk"], 3)
        (0.5, 0.75, 0.975)
    """
    pairs = [(within_largest(guessed), within_largest(true)) for guessed, true in number_pairs(predictions, references)]
    whole = [(round(guessed), round(true)) for guessed, true in pairs]
    ranks = zip(*map(average_ranks, zip(*pairs, strict=True)), strict=True)
    return {
        "accuracy": sum(guessed == true for guessed, true in whole) / len(references),
        "within_one": sum(abs(guessed - true) <= 1 for guessed, true in whole) / len(references),
        "no_number": 1 - len(pairs) / len(references),
        "qwk": quadratic_kappa(whole),
        "pearson": correlation(pairs),
        "spearman": correlation(list(ranks)),
        "mae": fmean(absolute_errors(pairs)),
    }


class NumberMetrics:
    """``compute_metrics`` for a Hugging Face Trainer that generates: :func:`number_metrics` of the decoded texts.

    ``Seq2SeqTrainer(..., compute_metrics=NumberMetrics(tokenizer))`` with ``predict_with_generate=True`` logs
    ``eval_mae``, ``eval_no_number`` and so on; ``eval_number_mae`` of ``NTLSeq2SeqTrainer`` measures single tokens.
    With ``batch_eval_metrics=True`` this object stores the decoded texts until the last batch, so that the Trainer
    need not store the ids. After an interrupted evaluation, create a new object: this one still stores its texts.

    Args:
        tokenizer: any object whose ``batch_decode(ids, skip_special_tokens=True)`` returns texts.
        find, behind: which number of a text to use, see :func:`number_in`.
        numbers: for answers that are one token each (bins, locations, scores): a row counts as the value of its first
            token among these, and is not decoded.

    Raises:
        TypeError, ValueError: the tokenizer has no ``batch_decode``, or ``find`` or ``behind`` is invalid. When
            called: the predictions or labels are not token ids [B, T], or an error of :func:`number_metrics`.

    Examples:
        >>> from transformers import EvalPrediction
        >>> compute_metrics = NumberMetrics(tokenizer, find="last")
        >>> metrics = compute_metrics(EvalPrediction(predictions=[[3, 4]], label_ids=[[3, 5]]))
    """

    def __init__(
        self,
        tokenizer: Any,
        find: str = "whole",
        behind: str | None = None,
        numbers: NumberTokens | None = None,
    ) -> None:
        check_reading(find, behind)
        if not callable(getattr(tokenizer, "batch_decode", None)):
            raise TypeError(f"tokenizer must have a batch_decode method; got {type(tokenizer).__name__}")
        if numbers is not None and (find, behind) != ("whole", None):
            raise ValueError(
                "with numbers, an answer is a token, in which nothing is found: give neither find nor behind"
            )
        self.tokenizer, self.find, self.behind = tokenizer, find, behind
        self.values = None if numbers is None else dict(zip(numbers.ids.tolist(), numbers.values.tolist(), strict=True))
        self.predictions: list[str] = []
        self.references: list[str] = []

    def __call__(self, evaluated: Any, compute_result: bool = True) -> dict[str, float]:
        """The metrics of an ``EvalPrediction`` and of all batches stored since the last result.

        Args:
            evaluated: its ``predictions`` and ``label_ids`` are integers [B, T], as arrays or tensors, or tuples that
                begin with such an array or tensor. Negative ids (-100) are padding; special tokens are skipped.
            compute_result: under ``batch_eval_metrics``, False for all batches but the last; the result is then empty.
        """
        given = [rows_of_ids(name, getattr(evaluated, name)) for name in ("predictions", "label_ids")]
        predictions, references = map(self.texts_of, given)
        self.predictions += predictions
        self.references += references
        if not compute_result:
            return {}
        predictions, references = self.predictions, self.references
        self.predictions, self.references = [], []
        return number_metrics(predictions, references, self.find, self.behind)

    def texts_of(self, rows: Any) -> list[str]:
        """The texts of rows of ids; with ``numbers``, the value of the first one in a row, or nothing."""
        if self.values is None:
            return list(self.tokenizer.batch_decode(rows, skip_special_tokens=True))
        return [next((written(self.values[id]) for id in row if id in self.values), "") for row in rows]


def written(value: float) -> str:
    """A float32 without an exponent."""
    return format(Decimal(f"{value:.9g}"), "f")


def written_numbers(text: str) -> Iterator[float]:
    """All numbers in a text."""
    text = POWER.sub("}", text.replace("−", "-").replace("–", "-"))  # "}", so that the "-" of "m^2-5" is not a sign
    for found in WRITTEN.finditer(text):
        if found["inside"] is None:
            sign = "-" if "-" in (found["sign"] or "") else ""
            digits = f"{sign}{found['digits']}{found['exponent'] or ''}"
            numbers = [digits.replace(",", "")] if THOUSANDS.fullmatch(digits) else digits.split(",")
            yield from (float(number) for number in numbers if number.count(".") <= 1)


def digits_before_point(value: float) -> int:
    """How many digits a number has before its decimal point, at least 1; two for 9.9999999999, which counts as 10."""
    return 1 + math.floor(math.log10(max(abs(within_largest(value)), 1)) + 1e-9)


def float64_of(name: str, value: Any) -> float:
    """The nearest float64, infinite for an int or fraction beyond float64."""
    try:
        return value.__float__()  # not float(value), which would parse a str
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # e.g. of several elements
        raise TypeError(f"{name} must be numbers; got {value!r}") from error


def number_pairs(predictions: Sequence[float | None], references: Sequence[float]) -> list[tuple[float, float]]:
    """(prediction, reference) in float64 for all predictions that are numbers; raise unless all references are.

    An infinite prediction does not count as a number: it alone would determine the error.
    """
    check_lengths(predictions, references)
    guessed = [math.nan if guess is None else float64_of("predictions", guess) for guess in predictions]
    true = [float64_of("references", reference) for reference in references]
    for index, reference in enumerate(true):
        if math.isnan(reference):
            raise ValueError(f"references must be numbers; references[{index}] is NaN")
    return [pair for pair in zip(guessed, true, strict=True) if math.isfinite(pair[0])]


def within_largest(value: float) -> float:
    """The value clipped to :data:`LARGEST`."""
    return min(max(float(value), -LARGEST), LARGEST)


def signed_log(value: float) -> float:
    """sign(v) log10(1 + abs(v)), which preserves order and sign."""
    return math.copysign(math.log10(1 + abs(value)), value)


def absolute_errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """|error| of each (prediction, reference); a single NaN if there are none, so that all of their statistics are."""
    return [abs(guessed - true) for guessed, true in pairs] or [math.nan]


def explained_share(pairs: Sequence[tuple[float, float]]) -> float:
    """R2 of (prediction, reference) pairs: the share of the references' variance that the predictions explain."""
    references = [true for _, true in pairs]
    if len(set(references)) <= 1:  # independent of rounding in their mean
        return math.nan
    centre = fmean(references)
    variance = math.fsum((true - centre) ** 2 for true in references)
    unexplained = math.fsum((true - guessed) ** 2 for guessed, true in pairs)
    return 1 - unexplained / variance if variance else math.nan


def quadratic_kappa(pairs: Sequence[tuple[int, int]]) -> float:
    """Quadratic weighted kappa of (prediction, reference) pairs, exact but for one division."""
    guessed, true = [guess for guess, _ in pairs], [true for _, true in pairs]
    squares = sum(value * value for value in (*guessed, *true))
    of_all = len(pairs) * squares - 2 * sum(guessed) * sum(true)  # over every prediction with every reference
    of_pairs = len(pairs) * sum((guess - true) ** 2 for guess, true in pairs)
    return 1 - of_pairs / of_all if of_all else math.nan


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Pearson correlation of pairs; NaN if a side has only one value, which is independent of rounding in its mean."""
    if not pairs or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return math.nan
    values = torch.tensor(pairs, dtype=torch.float64, device="cpu")
    return torch.corrcoef((values - values[0]).T)[0, 1].item()  # differences lose no digits to a common offset


def average_ranks(values: Sequence[float]) -> list[float]:
    """The ranks of values from 1, ties with their average."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + 1 + bisect_right(ordered, value)) / 2 for value in values]


def rows_of_ids(name: str, ids: Any) -> list[list[int]]:
    """The rows of token ids [B, T], or of the first of a tuple, without padding."""
    if isinstance(ids, tuple):
        ids = ids[0]
    if ids is None:
        raise ValueError(f"{name} is None: the evaluation data needs labels")
    tensor = torch.as_tensor(ids, device="cpu")
    if tensor.ndim != 2 or not is_integral(tensor):
        raise ValueError(
            f"{name} must be token ids, integers [B, T]; got {tensor.dtype} {list(tensor.shape)}. To make a "
            "Seq2SeqTrainer generate, set predict_with_generate=True in Seq2SeqTrainingArguments; other Trainers pass "
            "logits, which preprocess_logits_for_metrics can turn into ids"
        )
    return [[token for token in row if token >= 0] for row in tensor.tolist()]


def check_reading(find: str, behind: str | None) -> None:
    """Raise unless both are valid."""
    if find not in PLACES:
        raise ValueError(f"find must be one of {', '.join(PLACES)}; got {find!r}")
    if behind is not None and not isinstance(behind, str):
        raise TypeError(f"behind must be a str or None; got {behind!r}")
    if behind == "":
        raise ValueError("behind must not be empty; pass None to search the whole text")


def check_texts(name: str, texts: Sequence[str]) -> None:
    """Raise unless ``texts`` is a sequence of str, which can be read more than once."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a sequence of str; got the str {shortened(texts, 60)!r}")
    check_sized(name, texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a sequence of str; {name}[{index}] is {text!r}")


def check_sized(name: str, given: Any) -> None:
    """Raise for a generator and other objects without a length."""
    if not hasattr(given, "__len__"):
        raise TypeError(f"{name} must be a sequence; got {type(given).__name__}")


def check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise unless there are as many predictions as references, and at least one."""
    check_sized("predictions", predictions)
    check_sized("references", references)
    got = f"got {len(predictions)} predictions, {len(references)} references"
    if len(predictions) != len(references) or not len(references):
        raise ValueError(f"every prediction needs one reference, and there must be at least one; {got}")
