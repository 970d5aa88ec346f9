"""Texts as tokens and back, and the metrics of answers."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.quality import ratings
from benchmarks.quality.codec import SCALES, Bins, make_codec
from benchmarks.quality.metrics import CORRELATIONS, agreement, answer_metrics, in_digits, too_short
from ntl_kernels.evaluation import median_answer, value_metrics

TEXTS = ["What is 12 + 34.5?", "-7", "Round 1234567 to the nearest 10."] * 5
KINDS = ("plain", "digits", "triples", "scores", "rt")
CODECS: dict[str, Any] = {kind: make_codec(kind, TEXTS, 300) for kind in KINDS}
XVAL: Any = make_codec("xval", TEXTS, 300)


@pytest.mark.parametrize("text", ["<eos> 4", "<pad><answer>", "--5", "5-3", "1.2.3", "", "What is -12.5 + 3?"])
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_texts_come_back_exactly(kind: str, text: str) -> None:
    codec = CODECS[kind]
    ids = codec.encode(text)
    assert codec.decode([*ids, codec.eos, *ids]) == text
    assert not {codec.pad, codec.eos, *codec.mark} & set(ids)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), st.one_of(st.text(max_size=30), st.text("-.0123456789 _<>a", max_size=30)))
def test_every_text_comes_back_exactly(kind: str, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert CODECS[kind].decode(CODECS[kind].encode(text)) == text


@pytest.mark.parametrize("text", ["What is -12.5 + 3?", "5-3", "1234"])
def test_digits_signs_and_points_are_tokens_of_their_own(text: str) -> None:
    codec = CODECS["digits"]
    tokens = codec.tokenizer.convert_ids_to_tokens(codec.encode(text))
    characters = [c for c in text if c in "0123456789.-"]
    assert [token for token in tokens if any(c in "0123456789.-" for c in token)] == characters
    assert sorted(codec.numbers().values.tolist()) == list(range(10))
    assert len(CODECS["plain"].encode("1234567")) < 7


def test_triples_split_runs_of_digits_after_every_third() -> None:
    codec = CODECS["triples"]
    tokens = codec.tokenizer.convert_ids_to_tokens(codec.encode("8120 81, 007 -12.5 812345 7 years"))
    runs = [token for token in tokens if token[0].isdigit()]
    assert runs == ["812", "0", "81", "007", "12", "5", "812", "345", "7"]
    assert len(codec.numbers(None)) == 1110


def test_ten_and_eleven_are_scores_of_their_own() -> None:
    codec = CODECS["scores"]
    tokens = codec.tokenizer.convert_ids_to_tokens(codec.encode("10 of 11, 101 of 12.10"))
    assert [token for token in tokens if token[0].isdigit()] == ["10", "11", "1", "0", "1", "1", "2", "10"]
    assert codec.numbers().values.tolist() == list(range(12)) and len(codec.numbers().groups) == 1


def test_rt_has_a_token_for_each_digit_and_power() -> None:
    codec = CODECS["rt"]
    tokens = codec.tokenizer.convert_ids_to_tokens(codec.encode("-12.05, 7" + "1" * 21))
    assert tokens[:5] == ["-", "_1_1_", "_2_0_", "_0_-1_", "_5_-2_"] and tokens[-22:] == ["7", *"1" * 21]
    assert len(codec.numbers()) == 320 and codec.numbers().values.unique().tolist() == list(range(10))


@pytest.mark.parametrize(
    ("places", "text"),
    [("12 21", "120"), ("12 20", "102"), ("10 22", "1 200"), ("10 20", "1 2"), ("5-2", "0.05"), ("31 5-1", "30.5")],
)
def test_malformed_numbers_are_summed_by_their_places(places: str, text: str) -> None:
    """As the paper's code reads them; the powers behind each digit."""
    codec = CODECS["rt"]
    ids = [codec.tokenizer.convert_tokens_to_ids(f"_{place[0]}_{place[1:]}_") for place in places.split()]
    assert codec.decode(ids) == text and codec.decode([*codec.encode("x = "), *ids, codec.eos, *ids]) == f"x = {text}"


@settings(max_examples=100, deadline=None)
@given(st.text("-.,0123456789 _x", max_size=30))
def test_xval_keeps_texts_apart_from_their_numbers(text: str) -> None:
    """Numbers come back by value: written as floats, they lose leading and trailing zeros."""
    codec = XVAL
    ids, values = codec.encode(text), codec.values(text)
    assert [value for token, value in zip(ids, values, strict=True) if token != codec.num] == [1.0] * (
        len(ids) - ids.count(codec.num)
    )
    numbers = r"(?<![0-9.])[0-9]{1,12}(?:\.[0-9]{1,6})?(?![0-9.])"  # exact in a float, and without a run of points
    plain = re.sub(r"[0-9.]+", lambda run: run[0] if re.fullmatch(numbers, run[0]) else "", text)
    again = codec.decode_values(codec.encode(plain), codec.values(plain))
    assert codec.decode_values([codec.num, codec.num], [float("nan"), float("-inf")]) == ""
    assert again == re.sub(numbers, lambda number: in_digits(float(number[0])), plain)


def test_codecs_of_different_texts_are_not_mixed_up() -> None:
    first, second = (make_codec("plain", [word * 3] * 9, 400) for word in ("hello", "other"))
    assert len(first.encode("hello")) < len(second.encode("hello"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint's tokenizer that marks spaces, as SentencePiece ones do."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=list(special.values()), unk_token="<unk>", show_progress=False
    )
    raw.train_from_iterator([*TEXTS, "8, 9 - -3 a.b"], trainer)
    folder = tmp_path_factory.mktemp("sentencepiece")
    PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_that_mark_spaces_keep_them(kind: str, sentencepiece: str) -> None:
    codec = make_codec(kind, [], 0, sentencepiece)
    for text in ("What is 12 + 34.5?", "-7", "5 - -3", "to the 12", "a.b 3.1", "9-8, -2", "the"):
        ids = codec.encode(text)
        assert codec.decode([*ids, codec.eos]) == text
        names = codec.tokenizer.convert_ids_to_tokens(ids)
        most = {"digits": 1, "scores": 2, "triples": 3}.get(kind, math.inf)  # RT's have names of their own
        assert all(len(name) <= most for name in names if any(c.isdigit() for c in name))


def test_answers_have_the_librarys_metrics_and_correlations() -> None:
    metrics = answer_metrics(["1", "2", "so\n#### 7", "many", "x"], ["1", "4", "7", "so\n#### 5", "Ann"])
    truths, guesses = [1.0, 4.0, 7.0, 5.0], [1.0, 2.0, 7.0, None]
    assert value_metrics(guesses, truths).items() <= metrics.items()
    assert metrics["no_number"] == 0.25 and metrics["mae"] == pytest.approx(2 / 3) and metrics["exact_match"] == 0.2
    assert metrics["spearman"] == pytest.approx(1) and metrics["pearson"] == pytest.approx(18 / 372**0.5)
    assert answer_metrics(["123", "4"], ["12", "5"])["run_on"] == 0.5
    assert answer_metrics(["Ann"], ["two cats"])["exact_match"] == 0


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [("x = 5", "5", 1), ("3 4", "4", 1), ("- 5", "-5", 1), ("1.0000001", "1", 1), ("", "1", 0), ("1,234", "1234", 0)],
)
def test_accuracy_as_the_paper_counts(answer: str, truth: str, right: float) -> None:
    assert answer_metrics([answer], [truth])["paper_accuracy"] == right


def test_correlations_need_two_values_on_either_side() -> None:
    for guesses, truths in (([3.0, 3.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0]), ([None, math.inf], [1.0, 2.0])):
        found = agreement(zip(guesses, truths, strict=True), CORRELATIONS)
        assert found.keys() == {"pearson", "spearman"} and all(map(math.isnan, found.values()))


@pytest.mark.parametrize(
    ("sampled", "expected"),
    [
        (["3", "1", "2"], "2"),
        (["1", "2", "10", "400"], "6"),
        (["1", "2"], "1.5"),
        (["-7.25", "no", "", "4x"], "-7.25"),
        (["no", ""], ""),
        (["0", "100", "0"], "0"),
        (["100000000000000000000", "100000000000000000000"], "100000000000000000000"),
        (["0.1", "0.2"], "0.15"),
    ],
)
def test_the_median_of_the_answers_that_are_numbers(sampled: list[str], expected: str) -> None:
    assert in_digits(median_answer(sampled)) == expected


def test_probabilities_of_answers_are_products_over_their_tokens() -> None:
    """0, 1 and 10, in digits: 9 ends an answer. After 0, nothing is left to choose."""
    end, logits = 9, torch.zeros(2, 10, dtype=torch.float64)
    asked = []

    def logits_after(begun: tuple[int, ...]) -> torch.Tensor:
        asked.append(begun)
        logits[1, 0] = math.log(3.0)
        return logits

    found = ratings.probabilities([[0, end], [1, end], [1, 0, end]], logits_after)
    torch.testing.assert_close(found, torch.tensor([[1 / 2, 1 / 4, 1 / 4], [3 / 4, 1 / 16, 3 / 16]]).double())
    assert asked == [(), (1,)]


def test_agreement_of_ratings() -> None:
    found = agreement([(7.0, 8.0), (3.4, 3.0), (None, 5.0), (9.0, 9.0), (1.0, None)])
    assert found["within_one"] == 0.75 and found["qwk"] == pytest.approx(1 - 3 / 119)


def test_numbers_that_ended_too_early_are_counted() -> None:
    """A fraction is no shorter than its whole part, and what is no number is counted elsewhere."""
    ended = [(2.0, 275.0), (-27.0, -275.0), (275.0, 2.0), (999.0, 998.5), (None, 275.0), (2.0, None)]
    assert too_short(ended) == {"too_short": 2 / 5}
    assert too_short([(2.0, None)]) == {}


@pytest.mark.parametrize("scale", SCALES)
def test_bins_cover_the_range_of_answers(scale: str) -> None:
    """An answer comes back as the centre of its bin, near it; what is beyond the range as the nearest bin."""
    torch.manual_seed(0)
    values = (10 ** (4 * torch.rand(400, dtype=torch.float64))).tolist()
    codec, answers = make_codec("digits", TEXTS, 300), [in_digits(value) for value in values]
    codec.answer_with(bins := Bins(answers, 50, scale))
    ids = [codec.encode_answer(answer) for answer in answers]
    found = [float(codec.decode([*each, codec.eos])) for each in ids]
    assert all(len(each) == 1 for each in ids) and sorted(bins.centres) == bins.centres
    counts = torch.tensor(ids).unique(return_counts=True)[1]
    widest = {"linear": 1e4 / 50 / 2, "log": 10 ** (4 / 50) - 1, "quantile": 9}[scale]
    if scale == "quantile":
        assert counts.min() >= 7 and counts.max() <= widest
    else:
        sizes = values if scale == "log" else [1.0] * 400
        pairs = zip(found, values, sizes, strict=True)
        assert max(abs(one - other) / size for one, other, size in pairs) <= 1.001 * widest
    ends = codec.encode_answer("0.5"), codec.encode_answer("99999")
    assert ends == ([codec.bin_ids[0]], [codec.bin_ids[-1]])
    numbers, centres = codec.numbers(), codec.centres()
    assert numbers.ids.tolist() == centres.ids.tolist() == codec.bin_ids
    assert numbers.values[-1] == pytest.approx(9.8) and centres.values.tolist() == pytest.approx(bins.centres, rel=1e-6)
    assert codec.decode(codec.encode("<bin3> 12")) == "<bin3> 12"


def test_bins_need_numbers_and_logarithms_need_positive_ones() -> None:
    with pytest.raises(ValueError, match="bins need answers that are numbers; got 'six'"):
        Bins(["1", "six"], 4, "linear")
    with pytest.raises(ValueError, match="scale=log needs answers above 0; got -2"):
        Bins(["1", "-2"], 4, "log")
