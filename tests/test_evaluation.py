"""Answers as numbers: how texts are parsed, errors compared with scikit-learn's, and a Trainer that logs them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, mean_squared_error, median_absolute_error, r2_score
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config
from transformers import T5ForConditionalGeneration as T5

from ntl_kernels import NumberTokens
from ntl_kernels.evaluation import (
    NumberMetrics,
    median_answer,
    number_in,
    number_metrics,
    rating_metrics,
    value_metrics,
    written_numbers,
)
from ntl_kernels.integrations.transformers import NTLSeq2SeqTrainer

ERRORS = {"mae", "mse", "median_error", "r2", "log_mae", "log_r2"}


NUMBERS = {"12": 12.0, "-0.5": -0.5, " 12\n": 12.0, "007": 7.0, "1.0": 1.0, "9" * 400: math.inf}
NUMBERS["0." + "3" * 400] = 1 / 3


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_a_whole_text_that_is_a_number(text: str, value: float) -> None:
    for find in ("whole", "first", "last"):
        assert number_in(text, find) == value
        assert number_in(f"so\n#### 1 #### {text}", find, behind="####") == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "1.", ".5", "+5", "1e5", "1,234", "1.2.3", "1-2", "--5", "- 5", "5 %", "$5", "1 2", "1_0", "0x1"),
        *("−5", "٣", "５", "²", "½", "nan", "inf", "-Infinity", "None", "twelve", "12 apples", "5\0"),
    ],
)
def test_a_whole_text_that_is_no_number(text: str) -> None:
    assert number_in(text) is None
    assert number_in(f"#### {text}", behind="####") is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("The rent is 1,234.50 dollars.", [1234.5]),
        ("It was 1,234,567, now -12.", [1234567, -12]),
        ("between 10-20 or 30–40, at –5 or −6 °C", [10, 20, 30, 40, -5, -6]),
        ("-$5 $-6 -£7.50 US$8 €9", [-5, -6, -7.5, 8, 9]),
        ("(12) and (-13), [x]-14, f(x)-15, 50%-60%", [12, -13, 14, 15, 50, 60]),
        (r"\boxed{-42} and $43$ and **-44**", [-42, 43, -44]),
        (".5 -.25 $.75 word.5 ...6 7. 8", [0.5, -0.25, 0.75, 5, 6, 7, 8]),
        ("2.5e-3 1E+5 1,000e2 3e 4em 5e−6", [2.5e-3, 1e5, 1e5, 3, 4, 5e-6]),
        ("+5 --6 +-7 x=-8 a:-9", [5, 6, 7, -8, -9]),
        ("1,2,3 12,34.5 1,2345 0,5 0,123 1,,2", [1, 2, 3, 12, 34.5, 1, 2345, 0, 5, 0, 123, 1, 2]),
        ("1,234,5 -1,2 -1,234", [1, 234, 5, -1, 2, -1234]),
        ("12% 12kg 3rd 3/4 12:30 2024-05-06", [12, 12, 3, 3, 4, 12, 30, 2024, 5, 6]),
        ("H2O m2 x_1 GPT4 x1,200.5 m^2 10^{23} é5 ٣5", [10]),
        ("5 kg m^-3 s^−2 K^–1, 3 x 10^-5 or 4 x 10^+5 or 6 x^ 7", [5, 3, 10, 4, 10, 6]),
        (r"10^{-5} m^{−2} x^{ -3} x^{n+1} x^{1/2} x^{\frac{1}{2}} 5^(-2) y^( 3 ) 2^3^2", [10, 5, 2]),
        ("m**-3\n2**10\n(x)**(1/2)\ny**{3}\nm⁻³ 10⁻⁵", [2, 10]),
        ("It is**44** or **45** 46, 答案是**47**\n**-48**", [44, 45, 46, 47, -48]),
        ("m^2-5 m^{2}-6 10^{23}7 30^{\\circ} -8 m^2, 9 ^{4 is 10", [5, 6, 10, 7, 30, -8, 9, 10]),
        ("42. See 1.2.3, 192.168.0.1 or 1.2.3,4", [42, 4]),
        ("GPT-4", [4]),
        ("nan inf - $ . , e five ٣ ５ ² ½", []),
        ("", []),
    ],
)
def test_numbers_written_in_a_text(text: str, values: list[float]) -> None:
    assert list(written_numbers(text)) == values
    assert number_in(text, "first") == (values[0] if values else None)
    assert number_in(text, "last") == (values[-1] if values else None)


def test_the_mark_is_the_last_and_none_reads_all() -> None:
    text = "#### 1 so\n#### 2 eggs, of 3"
    assert [number_in(text, find, "####") for find in ("whole", "first", "last")] == [None, 2, 3]
    assert number_in("12", behind="####") == 12 and number_in("12 ####", behind="####") is None
    assert number_in("The answer is 4. Then 5", "first", behind="answer is") == 4


@given(st.integers(-(10**30), 10**30), st.integers(0, 12))
def test_every_way_to_write_a_number_is_read_exactly(number: int, places: int) -> None:
    scaled = number / 10**places
    exact = float(f"{number}e-{places}")
    digits = str(abs(number)).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
    sign, point = ("-" if number < 0 else ""), f".{fraction}" if places else ""
    assert number_in(f"{sign}{whole}{point}") == exact == pytest.approx(scaled)
    for text in (f"{sign}{whole}{point}", f"{sign}{int(whole):,}{point}", f"{sign}${int(whole):,}{point}"):
        for find in ("first", "last"):
            assert number_in(f"It is {text}.", find) == exact, text
    for find in ("first", "last"):
        assert number_in(f"It is {scaled!r}!", find) == scaled


@given(st.text("-−+.,$0123456789eE^{}*(x٣ #", max_size=40))
def test_any_text_has_a_number_or_none(text: str) -> None:
    whole, first, last = (number_in(text, find) for find in ("whole", "first", "last"))
    assert whole is None or first == last == whole
    assert (first is None) == (last is None)
    assert (last is None) or any(digit in text for digit in "0123456789")


HOSTILE = ["1", "1,", "1.", "1,234", ",234", "-", "$-", "-$", "x1", "e", "1e", "^{", ".", ".1", " ", "#", "####"]
HOSTILE += ["^", "^(", "^{1", "^{x{}", "^{ -", "m**", "a**1", "−"]


@pytest.mark.parametrize("text", HOSTILE)
def test_long_texts_take_no_more_than_their_length(text: str) -> None:
    """These are fast. If time grew with the square of the length, one would take minutes."""
    for end in ("", ",5678"):
        long = text * 50_000 + end
        whole, first, last = (number_in(long, find, behind="##") for find in ("whole", "first", "last"))
        assert whole is None or whole == first == last


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"find": "all"}, ValueError, "find must be one of whole, first, last; got 'all'"),
        ({"behind": ""}, ValueError, "behind must not be empty"),
        ({"behind": 4}, TypeError, "behind must be a str or None; got 4"),
    ],
)
def test_readings_that_are_none(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    calls: list[Callable[..., Any]] = [
        lambda **given: number_in("1", **given),
        lambda **given: number_metrics(["1"], ["1"], **given),
        lambda **given: NumberMetrics(SimpleNamespace(batch_decode=None), **given),
    ]
    for call in calls:
        with pytest.raises(error, match=said):
            call(**arguments)
    with pytest.raises(TypeError, match="text must be a str; got None"):
        number_in(None)  # type: ignore[arg-type]


def test_metrics_by_hand() -> None:
    metrics = value_metrics([1.0, 2.0, None, 7.0], [1.0, 4.0, 5.0, 7.0])
    shares, errors = {"number_accuracy": 0.5, "no_number": 0.25}, {"mae": 2 / 3, "mse": 4 / 3, "median_error": 0}
    logs = {"log_mae": (math.log10(5) - math.log10(3)) / 3, "log_r2": metrics["log_r2"]}
    assert metrics == pytest.approx({**shares, **errors, "r2": 1 - 4 / 18, **logs})
    texts = number_metrics(["1", "2", "many", "7", "8"], ["1", "4", "5", "7", "Ann"])
    assert texts == {"number_references": 4.0, **metrics, "run_on": 0.0}
    said = number_metrics(["About 1,200 dollars.", "I do not know"], ["$1,000", "2000 dollars"], find="last")
    assert said["mae"] == 200 and said["no_number"] == 0.5 and said["number_references"] == 2


def signed_log(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.log10(1 + np.abs(values))


@pytest.mark.parametrize("seed", range(20))
def test_errors_are_those_of_scikit_learn(seed: int) -> None:
    """For numbers of any size and sign, offsets, repetitions, and predictions that are not numbers."""
    rng = np.random.default_rng(seed)
    count, scale, offset = rng.integers(2, 200), 10.0 ** rng.integers(-8, 60), 10.0 ** rng.integers(-2, 6)
    references = np.concatenate([[0.0], rng.standard_normal(count) * 10 ** rng.uniform(0, 4, count) + offset]) * scale
    predictions = references * np.where(rng.random(count + 1) < 0.3, 1, rng.normal(1, 0.5, count + 1))
    is_none = rng.random(count + 1) < 0.2
    is_none[:2] = False
    wrong = [None, math.nan, math.inf, -math.inf]
    given = [wrong[i % 4] if none else float(p) for i, (p, none) in enumerate(zip(predictions, is_none, strict=True))]
    found = value_metrics(given, references.tolist())
    guessed, true = predictions[~is_none], references[~is_none]
    log_guessed, log_true = signed_log(guessed), signed_log(true)
    expected = {
        "number_accuracy": np.isclose(guessed, true, 1e-9, 1e-9).sum() / (count + 1),
        "no_number": is_none.mean(),
        "mae": mean_absolute_error(true, guessed),
        "mse": mean_squared_error(true, guessed),
        "median_error": median_absolute_error(true, guessed),
        "r2": r2_score(true, guessed),
        "log_mae": mean_absolute_error(log_true, log_guessed),
        "log_r2": r2_score(log_true, log_guessed),
    }
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12 if scale > 1 else 0)


def test_what_models_answer_makes_no_error_infinite() -> None:
    huge = value_metrics([1e300, 2.0, math.inf], [1.0, 2.0, 3.0])
    assert all(map(math.isfinite, huge.values())) and huge["mae"] == pytest.approx(5e99)
    assert huge["no_number"] == pytest.approx(1 / 3)
    texts = number_metrics(["9" * 400, "9" * 200], ["1", "9" * 400])
    assert texts["no_number"] == 0.5 and texts["run_on"] == 0.5 and texts["mae"] == 0
    assert texts["number_accuracy"] == 0
    for nothing in ([None], [math.inf], [math.nan]):
        found = value_metrics(nothing, [math.inf])
        assert (found["number_accuracy"], found["no_number"]) == (0, 1)
        assert {name for name, value in found.items() if math.isnan(value)} == ERRORS


def test_r2_needs_references_that_differ() -> None:
    for predictions, references in (([1.0], [2.0]), ([1.0, 2.0], [0.1, 0.1]), ([0.1] * 3, [0.1] * 3)):
        found = value_metrics(predictions, references)
        assert {name for name, value in found.items() if math.isnan(value)} == {"r2", "log_r2"}
    assert math.isnan(value_metrics([1.0, 1.0, None], [2.0, 2.0, 3.0])["r2"])
    assert math.isnan(value_metrics([0.0, 0.0], [0.0, 1e-200])["r2"])  # squares that float64 does not hold


def test_right_is_within_rounding() -> None:
    assert value_metrics([0.1 + 0.2, 1e20, 0.0, 1.0], [0.3, 1e20 + 1e5, 1e-10, 1.001])["number_accuracy"] == 0.75
    assert number_metrics(["3.0", "-0", "007"], ["3", "0", "7"])["number_accuracy"] == 1


def test_tensors_and_arrays_are_sequences() -> None:
    values = [1.5, 2.0, 4.0], [1.0, 2.0, 3.0]
    expected = value_metrics(*values)
    assert value_metrics(*map(torch.tensor, values)) == expected == value_metrics(*map(np.array, values))  # type: ignore[arg-type]
    assert all(type(value) is float for value in expected.values())


def test_answers_that_run_on_are_counted() -> None:
    references = ["12", "12", "-12", "so\n#### 7", "0.5", "two"]
    predictions = ["123", "12", "-99.123", "#### 71", "10.5", "22222"]
    assert number_metrics(predictions, references, behind="####")["run_on"] == 3 / 5
    assert number_metrics(["many"] * 6, references, behind="####")["run_on"] == 0


@pytest.mark.parametrize(
    ("prediction", "reference", "runs_on"),
    [
        *[("0.5", ".5", 0), ("007", "7", 0), ("100000", "1e5", 0), ("1,000", "1000", 0), ("1,234", "$123", 1)],
        *[("1e5", "5", 1), ("5e1", "5", 1), ("070", "7", 1), ("-70", "7", 1), ("1e400", "5", 1), ("1e400", "1e300", 0)],
        *[("10", "9.99999999999", 0), ("5", "0.5", 0), ("50", ".5", 1), ("5e-1", "0", 0), ("0.0005", "5e-5", 0)],
    ],
)
def test_numbers_run_on_by_their_values(prediction: str, reference: str, runs_on: int) -> None:
    found = number_metrics([prediction, "1"], [reference, "1"], find="first")
    assert found["run_on"] == runs_on / 2


@pytest.mark.parametrize("huge", [10**400, Fraction(10**400), Decimal("1e400"), torch.tensor(math.inf)])
def test_numbers_beyond_float64_are_infinite(huge: Any) -> None:
    """Like those in texts."""
    found = value_metrics([huge, -huge, 3.0], [1.0, 2.0, huge])
    assert found == value_metrics([math.inf, -math.inf, 3.0], [1.0, 2.0, math.inf])
    assert found["no_number"] == pytest.approx(2 / 3) and found["mae"] == 1e100
    assert value_metrics([2, 3], [huge, -huge])["mae"] == 1e100
    kinds = [Decimal(1), Fraction(1, 2), np.float32(2.0), torch.tensor(4), True]
    assert value_metrics(kinds, kinds[::-1]) == value_metrics([*map(float, kinds)], [*map(float, kinds[::-1])])


@pytest.mark.parametrize("wrong", ["5", b"5", 1j, [1.0], torch.ones(2), np.ones(2), Decimal("sNaN"), object()])
def test_what_is_no_number_is_named(wrong: Any) -> None:
    right, values = [1.0, 2.0], [1.0, wrong]
    for name, pair in (("predictions", (values, right)), ("references", (right, values))):
        with pytest.raises(TypeError, match=f"{name} must be numbers; got {re.escape(repr(wrong))}"):
            value_metrics(*pair)
    with pytest.raises(TypeError, match="references must be numbers; got None"):
        value_metrics([1.0], [None])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("predictions", "references", "error", "said"),
    [
        ([], [], ValueError, "there must be at least one; got 0 predictions, 0 references"),
        (["1"], ["1", "2"], ValueError, "every prediction needs one reference.*; got 1 predictions, 2 references"),
        (["1"], ["It is 1"], ValueError, "no reference is a number with find='whole' and behind=None; the first of 1"),
        (["1"], ["y" * 99], ValueError, re.escape(f"is '{'y' * 60}...'") + "$"),
        ("12", ["1", "2"], TypeError, "predictions must be a sequence of str; got the str '12'"),
        (["1", "2"], "12", TypeError, "references must be a sequence of str; got the str '12'"),
        (["1", 2], ["1", "2"], TypeError, r"predictions must be a sequence of str; predictions\[1\] is 2"),
        (["1"], [None], TypeError, r"references\[0\] is None"),
        (iter(["1"]), ["1"], TypeError, "predictions must be a sequence; got list_iterator"),
    ],
)
def test_wrong_texts_are_named(predictions: Any, references: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        number_metrics(predictions, references)


def test_wrong_values_are_named() -> None:
    with pytest.raises(ValueError, match="got 2 predictions, 1 references"):
        value_metrics([1.0, 2.0], [1.0])
    for metrics in (value_metrics, rating_metrics):
        with pytest.raises(TypeError, match="references must be a sequence; got map"):
            metrics([1.0], map(float, "1"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"references\[1\] is NaN"):
        value_metrics([1.0, 2.0], [1.0, math.nan])


@pytest.mark.parametrize("seed", range(20))
def test_ratings_agree_as_scikit_learn_and_scipy_say(seed: int) -> None:
    """Scales of any range, also below 0, with ratings that do not occur, ties, and predictions with a fraction."""
    rng = np.random.default_rng(seed)
    count, low, size = rng.integers(5, 200), rng.integers(-5, 5), rng.integers(3, 22)
    references = rng.choice(np.arange(low, low + size, rng.integers(1, 3)), count)
    predictions = references + rng.normal(0, 2, count) * (rng.random(count) < 0.7)
    predictions = predictions if seed % 2 else np.round(predictions)
    references[:2], predictions[:2] = [low, low + 2], [low, low + 1]  # not constant
    is_none = rng.random(count) < 0.2
    is_none[:2] = False
    found = rating_metrics([None if none else p for p, none in zip(predictions, is_none, strict=True)], references)  # type: ignore[arg-type]
    guessed, true = predictions[~is_none], references[~is_none]
    whole = np.round(guessed).astype(int)
    scale = range(min(*whole, *true), max(*whole, *true) + 1)  # all of it: scikit-learn's weights are those of places
    assert found == pytest.approx(
        {
            "accuracy": (whole == true).sum() / count,
            "within_one": (abs(whole - true) <= 1).sum() / count,
            "no_number": is_none.mean(),
            "qwk": cohen_kappa_score(whole, true, labels=list(scale), weights="quadratic"),
            "pearson": pearsonr(guessed, true).statistic,
            "spearman": spearmanr(guessed, true).statistic,
            "mae": mean_absolute_error(true, guessed),
        },
        rel=1e-9,
        abs=1e-12,
    )


def test_ratings_by_hand() -> None:
    found = rating_metrics([1, 2.5, -1.2, None, math.inf], [1, 4, -1, 3, 3])  # 2.5 becomes 2
    assert (found["accuracy"], found["within_one"], found["no_number"]) == pytest.approx((0.4, 0.4, 0.4))
    assert found["qwk"] == pytest.approx(1 - 3 * 4 / (3 * 24 - 2 * 2 * 4)) and found["mae"] == pytest.approx(1.7 / 3)
    assert rating_metrics([1, 2, 3], [3, 2, 1])["qwk"] == -1 == rating_metrics([1, 2, 3], [3, 2, 1])["spearman"]
    assert rating_metrics([3, 4], [2.6, 4.4])["accuracy"] == 1  # references are rounded, too
    assert rating_metrics([10**9, 10**9 + 1], [10**9, 10**9 + 1])["qwk"] == 1
    assert rating_metrics([1, 1, 1 + 2**-52], [3, 4, 5])["pearson"] == pytest.approx(0.75**0.5)
    assert rating_metrics([1, 2, 9], [1, 3, 4])["spearman"] == 1 > rating_metrics([1, 2, 9], [1, 3, 4])["pearson"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predictions", "references", "undefined"),
    [
        ([3], [3], {"qwk", "pearson", "spearman"}),
        ([2], [3], {"pearson", "spearman"}),
        ([0.1] * 3, [1, 2, 3], {"pearson", "spearman"}),
        ([1, 2, 3], [0.1] * 3, {"pearson", "spearman"}),
        ([2.1, 1.9], [2, 2], {"qwk", "pearson", "spearman"}),
        ([None, math.nan], [1, 2], {"qwk", "pearson", "spearman", "mae"}),
        ([1e300, 1.0], [1e200, 2.0], set()),
    ],
)
def test_what_ratings_do_not_define_is_nan(predictions: Any, references: Any, undefined: set[str]) -> None:
    found = rating_metrics(predictions, references)
    assert {name for name, value in found.items() if math.isnan(value)} == undefined
    assert found["no_number"] == (predictions[0] is None)
    with pytest.raises(ValueError, match=r"references\[0\] is NaN"):
        rating_metrics([1.0], [math.nan])


def test_the_median_of_answers() -> None:
    assert median_answer(["3", "9", "many", "4"]) == 4
    assert median_answer(["3", "4"]) == 3.5 and median_answer(["many", ""]) is None is median_answer([])
    assert median_answer(["2 or 3", "It is 8. Score: 7 of 10", "Score: 5"], find="first", behind="Score:") == 5
    huge = "1" + "0" * 400
    assert median_answer([huge, f"-{huge}"]) == 0 and median_answer([huge, "3", huge]) == math.inf
    assert median_answer(["1.7e308", "1.5e308"], find="last") == 1.6e308
    with pytest.raises(TypeError, match="texts must be a sequence of str; got the str '34'"):
        median_answer("34")
    with pytest.raises(TypeError, match="texts must be a sequence; got map"):
        median_answer(map(str, range(3)))  # type: ignore[arg-type]


CHARACTERS = [*"0123456789-.,#+= ", "<pad>", "</s>", "<unk>"]  # the first token is a digit
PAD, END = 17, 18


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token per character."""
    raw = Tokenizer(models.WordLevel({token: id for id, token in enumerate(CHARACTERS)}, unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def ids_of(texts: list[str], start: list[int], padding: int) -> np.ndarray:
    """[B, T] as in a Trainer, with some more columns of padding."""
    rows = [[*start, *(CHARACTERS.index(character) for character in text), END] for text in texts]
    return np.array([row + [padding] * (max(map(len, rows)) + 2 - len(row)) for row in rows])


PREDICTIONS, REFERENCES = ["12", "-30.5", "==", "1234", "7"], ["12", "-40.5", "8", "#### 12", "+"]


@pytest.mark.parametrize("wrap", [lambda ids: ids, torch.tensor, lambda ids: (ids, None), lambda ids: ids.tolist()])
@pytest.mark.parametrize("padding", [-100, PAD])
def test_token_ids_become_texts(wrap: Callable[..., Any], padding: int, tokenizer: Any) -> None:
    """Padding of both kinds on both sides, a start token, arrays, tensors, and tuples of outputs."""
    evaluated = SimpleNamespace(
        predictions=wrap(ids_of(PREDICTIONS, [PAD], padding)), label_ids=wrap(ids_of(REFERENCES, [], -100))
    )
    expected = number_metrics(PREDICTIONS, REFERENCES, behind="####")
    assert expected["number_references"] == 4 and expected["run_on"] == 0.25 and expected["no_number"] == 0.25
    assert NumberMetrics(tokenizer, behind="####")(evaluated) == expected
    assert NumberMetrics(tokenizer)(evaluated) == number_metrics(PREDICTIONS, REFERENCES)


def test_batches_add_up_until_the_last(tokenizer: Any) -> None:
    measure = NumberMetrics(tokenizer, behind="####")
    with pytest.raises(ValueError, match="no reference is a number"):
        measure(SimpleNamespace(predictions=ids_of(["12"], [], -100), label_ids=ids_of(["="], [], -100)))
    for _ in range(2):  # nothing remains of the previous evaluation, nor of a failed one
        for start, is_last in ((0, False), (2, False), (4, True)):
            batch = [ids_of(texts[start : start + 2], [], -100) for texts in (PREDICTIONS, REFERENCES)]
            found = measure(SimpleNamespace(predictions=batch[0], label_ids=batch[1]), compute_result=is_last)
            assert found == (number_metrics(PREDICTIONS, REFERENCES, behind="####") if is_last else {})


IDS = np.zeros((2, 3), int)


@pytest.mark.parametrize(
    ("predictions", "labels", "said"),
    [
        (np.zeros((2, 3, 5), np.float32), IDS, r"predictions must be token ids.* got torch.float32 \[2, 3, 5\]"),
        (np.zeros((2, 3), np.float32), IDS, "predictions must be token ids.*predict_with_generate"),
        (np.zeros((2, 3, 5), int), IDS, "predictions must be .*preprocess_logits_for_metrics"),
        (IDS, np.zeros(2), r"label_ids must be token ids, integers \[B, T\]; got torch.float64 \[2\]"),
        (IDS > 0, IDS, "got torch.bool"),
        ((np.zeros((2, 3, 5)), np.zeros(2)), IDS, r"got torch.float64 \[2, 3, 5\]"),
        (IDS, None, "label_ids is None: the evaluation data needs labels"),
    ],
)
def test_what_is_no_token_ids_says_what_to_set(predictions: Any, labels: Any, said: str, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=said):
        NumberMetrics(tokenizer)(SimpleNamespace(predictions=predictions, label_ids=labels))
    with pytest.raises(TypeError, match="tokenizer must have a batch_decode method; got Tokenizer"):
        NumberMetrics(Tokenizer(models.WordLevel({})))


SUMS = [(f"{a}+{b}=", str(a + b)) for a, b in zip(range(20, 30), range(75, 85), strict=True)]


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    def columns(name: str, value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row[name]) for row in rows], True, value)

    return {"input_ids": columns("input_ids", PAD), "labels": columns("labels", -100)}


@pytest.mark.parametrize(("kind", "in_batches"), [(NTLSeq2SeqTrainer, False), (Seq2SeqTrainer, True)])
def test_a_trainer_that_generates_logs_them(kind: Any, in_batches: bool, tokenizer: Any, tmp_path: Path) -> None:
    """A tiny T5 that adds, evaluated in batches of 4 of 10 rows: the metrics are those of what it generates."""
    sizes = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 1, "decoder_start_token_id": PAD}
    model = T5(T5Config(vocab_size=len(CHARACTERS), eos_token_id=END, pad_token_id=PAD, **sizes))
    answers = iter(answer for _, answer in SUMS)

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Correct answers, but no number for the last question of each batch: as if the model had learnt."""
        texts = [answer for _, answer in zip(input_ids, answers, strict=False)]
        return torch.tensor(ids_of([*texts[:-1], f"={texts[-1]}"], [PAD], PAD))

    model.generate = generate
    given: dict[str, Any] = {"predict_with_generate": True, "batch_eval_metrics": in_batches, "use_cpu": True}
    given |= {"per_device_eval_batch_size": 4, "report_to": "none", "disable_tqdm": True}
    numbers = NumberTokens.from_tokenizer(tokenizer, vocab_size=len(CHARACTERS))
    rows = [
        {"input_ids": tokenizer(question)["input_ids"], "labels": [*tokenizer(answer)["input_ids"], END]}
        for question, answer in SUMS
    ]
    trainer = kind(
        model,
        Seq2SeqTrainingArguments(str(tmp_path), **given),
        eval_dataset=rows,
        data_collator=padded,
        compute_metrics=NumberMetrics(tokenizer),
        **({} if kind is Seq2SeqTrainer else {"numbers": numbers}),
    )
    metrics = trainer.evaluate()
    assert metrics["eval_number_references"] == 10 and metrics["eval_no_number"] == pytest.approx(0.3)
    assert metrics["eval_mae"] == 0 and metrics["eval_r2"] == 1 and metrics["eval_run_on"] == 0
    assert metrics["eval_number_accuracy"] == pytest.approx(0.7) and metrics["eval_loss"] > 0
    assert ("eval_number_mae" in metrics) == (kind is NTLSeq2SeqTrainer)


def test_answers_of_one_token_are_the_values_of_their_bins() -> None:
    """Nothing is decoded; a row without a bin is no number."""
    numbers = NumberTokens.from_mapping({4: 0.0, 5: 0.00001, 6: -2.5, 7: 1234567.0}, 9)
    compute = NumberMetrics(Undecodable(), numbers=numbers)
    rows = [[0, 5, 1], [6, 7, -100], [1, 2, 0], [4, 6, 0]]
    found = compute(SimpleNamespace(predictions=rows, label_ids=[[5], [7], [7], [4]]))
    assert (found["mae"], found["no_number"]) == (pytest.approx(1234569.5 / 3), 1 / 4)
    with pytest.raises(ValueError, match="neither find nor behind"):
        NumberMetrics(Undecodable(), behind="=", numbers=numbers)


class Undecodable:
    def batch_decode(self, *_: Any, **__: Any) -> list[str]:
        raise AssertionError("decoded")
