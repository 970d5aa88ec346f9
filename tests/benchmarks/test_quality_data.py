"""The experiments' data, tokens and statistics: readers, splits, round trips, metrics, tables."""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.errors import InputError
from benchmarks.quality.codecs import Codec, RTCodec, XValCodec, make_codec, number_tokens, shortest
from benchmarks.quality.data import downloads, generated, load
from benchmarks.quality.data.pairs import Pair, final_value, read_pairs
from benchmarks.quality.metrics import answer_metrics, correlations, text_metrics
from benchmarks.quality.models import squeeze, unsqueeze
from ntl_kernels.evaluation import value_metrics

TEXTS = ["What is 12 + 34.5?", "-7", "Round 1234567 to the nearest 10."] * 5
KINDS = ("plain", "digits", "rt", "xval")
CODECS = {kind: make_codec(kind, TEXTS, 300) for kind in KINDS}
AWKWARD = (
    "a_-_b",
    "x_._y",
    "<eos> 4",
    "[NUM]",
    "<pad><answer>",
    "_8_-1_ 0.8",
    "_sign_3_point_",
    "--5",
    "5-3",
    "1.2.3",
    "",
)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


PAIRS = [Pair("1 + 22", "23"), Pair("Calculate 5 - 9.", "-4"), Pair("0.5 + 1", "1.5")]


def evaluate(question: str) -> int:
    words = question.rstrip(".?").split()
    a, b = (int(word) for word in words if word.isdigit())
    if words[0] == "Subtract":
        return b - a
    return a - b if "-" in words or "minus" in words else a + b


def test_generated_questions_are_right_distinct_and_seeded() -> None:
    pairs = generated.sums(500, digits=2, seed=3)
    assert all(evaluate(pair.question) == int(pair.answer) for pair in pairs)
    assert len({pair.question for pair in pairs}) == 500
    assert pairs == generated.sums(500, digits=2, seed=3) != generated.sums(500, digits=2, seed=4)
    with pytest.raises(InputError, match="101"):
        generated.sums(101, digits=1, seed=0)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_reading_pairs(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    text = "".join(f"{pair.question}\n{pair.answer}\n" for pair in PAIRS)
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert read_pairs(path) == PAIRS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 + 1\n2\n3 + 3\n", "line 3: a question without an answer"),
        ("1 + 1\n2\n3 + 3\nsix\n", "line 4: the answer 'six' is not a number"),
        ("\n2\n", "line 1: an empty question"),
        ("", "empty"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "data.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_pairs(path)


def test_files_that_cannot_be_read_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_pairs(tmp_path / "absent.txt")
    path = tmp_path / "data.txt.gz"
    path.write_text("not gzip")
    with pytest.raises(InputError, match="not a complete gzip file"):
        read_pairs(path)


def passage(*questions: tuple[str, list[tuple[str, int]]]) -> str:
    entries = [{"question": q, "answers": [{"text": t, "label": r} for t, r in answers]} for q, answers in questions]
    return json.dumps({"passage": {"text": "Ann has 2 cats.", "questions": entries}}) + "\n"


def test_gsm8k_keeps_the_reasoning_without_its_calculator(tmp_path: Path) -> None:
    line = {"question": "Eggs?", "answer": "2*600=<<2*600=1200>>1,200 eggs\n#### 1,200"}
    pairs = downloads.read_gsm8k(write(tmp_path / "a.jsonl", json.dumps(line) + "\n"))
    assert pairs == [Pair("Eggs?", "2*600=1200 eggs\n#### 1200")]
    assert final_value(pairs[0].answer) == 1200


def test_rjokes_asks_for_the_score(tmp_path: Path) -> None:
    assert downloads.read_rjokes(write(tmp_path / "a.tsv", "12\tA joke\twith a tab\n")) == [
        Pair("A joke\twith a tab", "12")
    ]


def test_multirc_makes_one_pair_of_a_question(tmp_path: Path) -> None:
    text = passage(("How many?", [("2", 1), ("9", 0), ("two", 1)]), ("Who?", [("Ann", 1)]))
    assert downloads.read_multirc(write(tmp_path / "a.jsonl", text)) == [
        Pair("Ann has 2 cats.\n\nQuestion: How many?", "2 | two"),
        Pair("Ann has 2 cats.\n\nQuestion: Who?", "Ann"),
    ]


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (downloads.read_gsm8k, '{"question": "a", "answer": "#### 1"}\n{"question"\n', "line 2: not JSON"),
        (downloads.read_gsm8k, '{"question": "a"}\n', "line 1: no field 'answer'"),
        (downloads.read_gsm8k, '{"question": "a", "answer": "1"}\n', "line 1: the answer has no final number"),
        (downloads.read_gsm8k, '{"question": "a", "answer": "#### four"}\n', "line 1: the answer has no final number"),
        (
            downloads.read_gsm8k,
            '{"question": null, "answer": "#### 4"}\n',
            "line 1: the field 'question' must be a",
        ),
        (
            downloads.read_multirc,
            '{"passage": {"text": "a", "questions": null}}\n',
            "line 1: the field 'questions' must be a list; got None",
        ),
        (
            downloads.read_multirc,
            passage(("a", [("2", 1)])).replace('"2"', "null"),
            "line 1: the field 'text' must be a text; got None",
        ),
        (downloads.read_rjokes, "1\tok\nmany\tjoke\n", "line 2: expected a score, a tab and a joke; got 'many"),
        (downloads.read_rjokes, "7\n", "line 1: expected"),
        (downloads.read_multirc, "[]\n", "line 1: no field 'passage'"),
        (
            downloads.read_multirc,
            passage(("a", [("2", 1)])) + '{"passage": {"text": "a"}}\n',
            "line 2: no field 'questions'",
        ),
        (read_pairs, "1+1\n2\n2+2\nfour\n", "line 4: the answer 'four' is not a number"),
    ],
)
def test_malformed_lines_are_named(reader: Callable[[Path], Any], text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        reader(write(tmp_path / "data", text))


def deepmind(source: Path, count: int) -> None:
    """Files of DeepMind's categories: number answers, one text answer, and a category that is not used."""
    inner = dict.fromkeys((*downloads.DIFFICULTIES, "interpolate"), downloads.CATEGORIES)
    for folder, categories in {**inner, "extrapolate": downloads.EXTRAPOLATION}.items():
        (source / folder).mkdir()
        for category in (*categories, "calculus__differentiate"):
            lines = "".join(f"{folder} {category} {n}\n{n}\n" for n in range(count))
            write(source / folder / f"{category}.txt", lines + "a fraction?\n1/2\n")


@pytest.mark.parametrize(("name", "categories", "outer"), [("arithmetic", 1, 1), ("mathematics_dataset", 13, 7)])
def test_prepare_splits_deepminds_files(name: str, categories: int, outer: int, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    deepmind(source, 20)
    sizes = downloads.prepare(name, source, target)
    whole = 3 * 20 * categories
    prefix = "arithmetic_" if name == "arithmetic" else ""
    expected = {"train": whole * 9 // 10, "val": whole // 10, "test_interpolate": 20 * categories}
    expected["test_extrapolate"] = 20 * outer
    assert sizes == {f"{prefix}{split}.txt.gz": size for split, size in expected.items()}
    names = list(sizes)
    pairs = {file: read_pairs(target / file) for file in names}
    questions = [pair.question for file in names for pair in pairs[file]]
    assert len(set(questions)) == len(questions)
    assert not any("calculus" in question for question in questions)
    assert downloads.prepare(name, source, tmp_path / "again") == sizes
    assert read_pairs(tmp_path / "again" / names[0]) == pairs[names[0]]
    (source / "train-hard" / "arithmetic__add_sub_multiple.txt").unlink()
    with pytest.raises(InputError, match="arithmetic__add_sub_multiple.txt: no such file"):
        downloads.prepare(name, source, target)


def test_prepare_takes_the_papers_sizes_for_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "ARITHMETIC_TRAIN", 27)
    monkeypatch.setattr(downloads, "ARITHMETIC_VALIDATION", 2)
    deepmind(tmp_path, 30)
    sizes = downloads.prepare("arithmetic", tmp_path, tmp_path / "out")
    assert (sizes["arithmetic_train.txt.gz"], sizes["arithmetic_val.txt.gz"]) == (81, 6)


def test_prepare_never_writes_over_the_download(tmp_path: Path, capsys: Any) -> None:
    """Source and destination may be one folder, by whatever name: nothing may shrink."""
    line = '{"question": "q", "answer": "#### 1"}\n'
    for file in ("train.jsonl", "test.jsonl"):
        write(tmp_path / "x" / file, line * 20)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for source, target in (("x", "x"), ("x", "link"), ("link", "x")):
        assert downloads.main(["gsm8k", str(tmp_path / source), str(tmp_path / target)]) == 2
        assert "never overwritten" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["test.jsonl", "train.jsonl"]
    assert (tmp_path / "x" / "train.jsonl").read_text() == line * 20


def test_prepare_writes_nothing_unless_all_is_well(tmp_path: Path) -> None:
    write(tmp_path / "x" / "train.jsonl", '{"question": "q", "answer": "#### 1"}\n' * 20)
    write(tmp_path / "x" / "test.jsonl", '{"question": "q", "answer": "1"}\n')
    with pytest.raises(InputError, match="test.jsonl, line 1"):
        downloads.prepare("gsm8k", tmp_path / "x", tmp_path / "y")
    assert not list((tmp_path / "y").iterdir())


GOOD = {"gsm8k": '{"question": "q", "answer": "#### 1"}\n', "rjokes": "1\tjoke\n", "multirc": ""}


@pytest.mark.parametrize("name", ["gsm8k", "rjokes", "multirc", "arithmetic"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe1\t\x00", "line 1: not UTF-8 text"),
        (b"a\x00b\n1\n", "line 1: contains a null character"),
    ],
)
def test_files_that_are_no_text_are_named(name: str, content: bytes, said: str, tmp_path: Path, capsys: Any) -> None:
    file = {"gsm8k": "train.jsonl", "rjokes": "train.tsv", "multirc": "train.jsonl"}.get(
        name, "train-easy/arithmetic__add_sub_multiple.txt"
    )
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(content)
    assert downloads.main([name, str(tmp_path), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / file}") and said in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ["gsm8k", "rjokes"])
def test_truncated_archives_are_named(name: str, tmp_path: Path, capsys: Any) -> None:
    suffix = "jsonl" if name == "gsm8k" else "tsv"
    whole = gzip.compress("".join(f"{n}{GOOD[name]}" if name == "rjokes" else GOOD[name] for n in range(5000)).encode())
    (tmp_path / f"train.{suffix}.gz").write_bytes(whole[: len(whole) // 2])
    assert downloads.main([name, str(tmp_path), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"train.{suffix}.gz, line \d+: not a complete gzip file", error) and error.count("\n") == 1


def test_one_line_cannot_be_split(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", GOOD["gsm8k"])
    with pytest.raises(InputError, match="cannot be split"):
        downloads.prepare("gsm8k", tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        (
            "gsm8k",
            {
                "train.jsonl": '{"question": "q%d", "answer": "#### 1"}\n',
                "test.jsonl": '{"question": "q%d", "answer": "#### 1"}\n',
            },
        ),
        ("rjokes", dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), "%d\tjoke\n")),
        ("multirc", dict.fromkeys(("train.jsonl", "val.jsonl"), passage(("q", [("2", 1)])))),
    ],
)
def test_prepare_makes_the_files_that_load_reads(name: str, files: dict[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for file, line in files.items():
        lines = "".join(line % n if "%d" in line else line for n in range(20))
        with gzip.open(source / f"{file}.gz", "wt") as out:
            out.write(lines)
    assert downloads.main([name, str(source), str(target)]) == 0
    suffix = next(iter(files)).rsplit(".")[-1]
    named = {"train": f"train.{suffix}", "validation": f"validation.{suffix}", "tests": {"test": f"test.{suffix}"}}
    none = dict.fromkeys(("train", "validation", "test"))
    shared = {"name": name, "format": name, "folder": str(target), "files": named, "seed": 0}
    splits = load(**shared, limits=none)
    assert (len(splits.train), len(splits.validation), len(splits.tests["test"])) == (
        (20, 20, 20) if name == "rjokes" else (18, 2, 20)
    )
    few = load(**shared, limits={"train": 3, "validation": 1, "test": 2})
    assert (len(few.train), len(few.validation), len(few.tests["test"])) == (3, 1, 2)


def test_missing_data_says_what_to_download_and_where_to_put_it(tmp_path: Path, capsys: Any) -> None:
    limits = dict.fromkeys(("train", "validation", "test"))
    with pytest.raises(InputError, match=r"Download .*rJokesData and run\s+python -m .* prepare rjokes \S+ here"):
        load(name="rjokes", format="rjokes", folder="here", files={"train": "train.tsv"}, limits=limits, seed=0)
    assert downloads.main(["gsm8k", str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "grade-school-math" in capsys.readouterr().err
    assert downloads.main(["gsm8k", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "train.jsonl: no such file" in capsys.readouterr().err


def test_generated_sets_are_seeded_and_disjoint() -> None:
    limits = {"train": 50, "validation": 10, "test": 10}
    for generator in generated.GENERATORS.values():
        first, other = generator(limits, 1), generator(limits, 2)
        assert first == generator(limits, 1) != other
        questions = [p.question for part in (first.train, first.validation, *first.tests.values()) for p in part]
        assert len(set(questions)) == len(questions) >= 70


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "many"])
def test_limits_are_numbers_of_pairs(limit: Any) -> None:
    with pytest.raises(InputError, match="dataset.limits.test must be null or a whole number of at least 1; got"):
        load(name="debug", format="generated", limits={"train": 4, "validation": 2, "test": limit}, seed=0)


def test_products_are_right_and_longer_ones_are_held_out() -> None:
    splits = generated.generated_multiplication({"train": 2000, "validation": 100, "test": 100}, 1)
    for name, pairs in (("train", splits.train), *splits.tests.items()):
        for question, answer in pairs:
            a, b = (int(each) for each in re.findall(r"\d+", question))
            assert a * b == int(answer)
            assert (1000 <= a < 10_000) if name == "extrapolate" else a < 1000
            assert b < 1000
    digits = [len(question.split()[2]) for question, _ in splits.train]
    assert min(digits.count(n) for n in (1, 2, 3)) > 300, "short factors are as common as long ones"


def test_the_mean_of_the_readings_errs_as_the_docstring_says() -> None:
    errors = []
    for question, answer in generated.readings(4000, seed=0):
        seen = question.removeprefix("The readings are ").split(". ")[0].split(", ")
        errors.append(abs(statistics.fmean(map(int, seen)) - int(answer)))
    assert statistics.fmean(errors) == pytest.approx(9.2, rel=0.05)


def test_expressions_are_right_distinct_and_nested() -> None:
    splits = generated.generated_expressions({"train": 800, "validation": 50, "test": 100}, 3)
    for pairs, operands in ((splits.train, {1, 2, 3, 4}), (splits.tests["extrapolate"], {5})):
        counts = set()
        for question, answer in pairs:
            (text,) = re.findall(r"[-(]*\d(?:.*\d)?\)*", question)
            assert eval(text) == int(answer)
            counts.add(len(re.findall(r"\d+", text)))
        assert counts == operands
    every = [*splits.train, *splits.validation, *splits.tests["interpolate"]]
    assert len({pair.question for pair in every}) == 950
    assert any("- (" in pair.question for pair in every) and any(" - -" in pair.question for pair in every)


def test_rents_err_as_the_docstring_says() -> None:
    pairs = generated.rents(4000, 3)
    assert pairs == generated.rents(4000, 3) and pairs != generated.rents(4000, 4)
    tables = generated.SIZES, generated.PLACES, generated.STATES
    errors = []
    for question, answer in pairs:
        rooms = [f" of {name} room" in question for name in generated.ROOMS].index(True)
        extras = [value for name, value in generated.EXTRAS.items() if name and f"{name}. What" in question]
        words = [next(value for name, value in table.items() if name in question) for table in tables]
        errors.append(abs(int(answer) - 400 - 130 * rooms - sum(words) - sum(extras)))
    assert statistics.fmean(errors) == pytest.approx(40 * math.sqrt(2 / math.pi), rel=0.05)


@pytest.mark.parametrize("kind", ["plain", "digits", "rt"])
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_texts_come_back_exactly(kind: str, text: str) -> None:
    codec = CODECS[kind]
    encoded = codec.encode(text)
    assert codec.decode([*encoded.ids, codec.eos, *encoded.ids]) == text
    assert not {codec.pad, codec.eos, codec.mark} & set(encoded.ids)


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
@pytest.mark.parametrize("text", ["What is 12 + 34.5?", "-7", "5 - -3", "to the 12", "a.b 3.1", "9-8, -2", "the"])
def test_tokenizers_that_mark_spaces_keep_them(kind: str, text: str, sentencepiece: str) -> None:
    codec = make_codec(kind, [], 0, sentencepiece)
    encoded = codec.encode(text)
    assert codec.decode([*encoded.ids, codec.eos], [*encoded.values, 1.0]) == text
    if kind == "digits":
        names = codec.tokenizer.convert_ids_to_tokens(encoded.ids)
        assert all(len(name) == 1 for name in names if any(c.isdigit() for c in name))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(("plain", "digits", "rt")),
    st.one_of(st.text(max_size=30), st.text("-.0123456789 _<>a", max_size=30)),
)
def test_every_text_comes_back_exactly(kind: str, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    codec = CODECS[kind]
    assert codec.decode(codec.encode(text).ids) == text


@pytest.mark.parametrize(
    "number", ["0.8", "-0.8", "-12", "007", "-0", "123456789", "0.00000001", "1234567890", "1.123456789"]
)
def test_rt_numbers_come_back_exactly(number: str) -> None:
    codec = CODECS["rt"]
    for text in (number, f"x = {number}.", f"({number})"):
        assert codec.decode(codec.encode(text).ids) == text


def test_rt_tokens_say_digit_and_place() -> None:
    assert number_tokens("-20.8") == ["_sign_", "_2_1_", "_0_0_", "_point_", "_8_-1_"]
    assert number_tokens("1234567890") is None
    codec = CODECS["rt"]
    assert isinstance(codec, RTCodec)
    values = dict(zip(codec.numbers().ids.tolist(), codec.numbers().values.tolist(), strict=True))
    assert [values[token] for token in codec.encode("908").ids] == [9, 0, 8]


@pytest.mark.parametrize("text", ["What is -12.5 + 3?", "5-3", "1234"])
def test_digits_signs_and_points_are_tokens_of_their_own(text: str) -> None:
    codec = CODECS["digits"]
    tokens = codec.tokenizer.convert_ids_to_tokens(codec.encode(text).ids)
    assert [token for token in tokens if any(c in "0123456789.-" for c in token)] == [
        c for c in text if c in "0123456789.-"
    ]
    assert sorted(codec.numbers().values.tolist()) == list(range(10))


def test_xval_keeps_the_value_beside_the_token() -> None:
    codec = CODECS["xval"]
    assert isinstance(codec, XValCodec)
    encoded = codec.encode("a -12.5, [NUM] 3")
    assert [v for t, v in zip(*encoded, strict=True) if t == codec.num] == [-12.5, 3]
    assert codec.decode(*encoded) == "a -12.5, [NUM] 3"
    assert math.isfinite(codec.encode("9" * 400).values[0])
    assert codec.decode([codec.num] * 3, [math.nan, math.inf, -2.0]) == "naninf-2"


@pytest.mark.parametrize(
    ("value", "text"), [(3.00001, "3"), (-0.25, "-0.25"), (2.5, "2.5"), (1e12, "1000000000000"), (math.nan, "nan")]
)
def test_values_are_written_shortly(value: float, text: str) -> None:
    assert shortest(value) == text


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="codec must be plain, digits, rt or xval; got 'words'"):
        make_codec("words", TEXTS, 300)


def test_squeezing_has_an_inverse() -> None:
    values = torch.tensor([0.0, 1.0, -250.0, 1e6, -0.5], dtype=torch.float64)
    assert unsqueeze(squeeze(values)) == pytest.approx(values)


def test_final_values() -> None:
    assert final_value("2 + 2 is 4\n#### -4.5") == -4.5 and final_value("2 + 2\n#### four") is None
    assert final_value(" 12\n") == 12 and final_value("it is 12") is None


def test_answers_have_the_librarys_metrics_and_correlations() -> None:
    metrics = answer_metrics(["1", "2", "so\n#### 7", "many", "x"], ["1", "4", "7", "so\n#### 5", "Ann"])
    truths, guesses = [1.0, 4.0, 7.0, 5.0], [1.0, 2.0, 7.0, None]
    assert value_metrics(guesses, truths).items() <= metrics.items()
    assert metrics["no_number"] == 0.25 and metrics["mae"] == pytest.approx(2 / 3)
    assert metrics["spearman"] == pytest.approx(1) and metrics["pearson"] == pytest.approx(18 / 372**0.5)
    assert answer_metrics(["123", "4"], ["12", "5"])["run_on"] == 0.5


def test_correlations_need_two_values_on_either_side() -> None:
    for guesses, truths in (([3.0, 3.0], [1.0, 2.0]), ([1.0, 2.0], [3.0, 3.0]), ([None, math.inf], [1.0, 2.0])):
        assert all(math.isnan(value) for value in correlations(guesses, truths).values())


def test_text_metrics_and_answers_that_are_no_numbers() -> None:
    assert text_metrics(["the cat sat on it"], ["the cat sat on it"]) == pytest.approx(
        {"exact_match": 1, "bleu": 100, "rouge1": 1, "rougeL": 1}
    )
    assert "mae" not in answer_metrics(["Ann"], ["two cats"])
    mixed = answer_metrics(["2 + 2 is 4\n#### 4", "x"], ["so\n#### 5", "many"])
    assert mixed["mae"] == 1 and mixed["exact_match"] == 0


def test_codecs_of_different_texts_are_not_mixed_up() -> None:
    first, second = (make_codec("plain", [word * 3] * 9, 400) for word in ("hello", "other"))
    assert isinstance(first, Codec)
    assert len(first.encode("hello").ids) < len(second.encode("hello").ids)
