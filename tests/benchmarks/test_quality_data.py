"""The experiments' data: generated sets, files, downloads, and any CSV file as questions and answers."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import statistics
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from benchmarks.commands import InputError
from benchmarks.quality import metrics
from benchmarks.quality.configuration import configure, plain
from benchmarks.quality.data import downloads, generated, load
from benchmarks.quality.data.pairs import Pair, Splits, read_pairs
from benchmarks.quality.data.table import columns_used
from benchmarks.quality.experiment import load_splits, metrics_of_parts, shortened
from benchmarks.quality.metrics import answer_metrics
from benchmarks.quality.records import whole_splits

ALL = {"train": None, "validation": None, "test": None}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_generated_sets_are_seeded_and_disjoint() -> None:
    limits = {"train": 50, "validation": 10, "test": 10}
    for generator in generated.GENERATORS.values():
        first, other = generator(limits, 1), generator(limits, 2)
        assert first == generator(limits, 1) != other
        questions = [p.question for part in (first.train, first.validation, *first.tests.values()) for p in part]
        assert len(set(questions)) == len(questions) >= 70


def test_sums_are_right_and_distinct() -> None:
    def evaluate(question: str) -> int:
        words = question.rstrip(".?").split()
        a, b = (int(word) for word in words if word.isdigit())
        return b - a if words[0] == "Subtract" else a - b if "-" in words or "minus" in words else a + b

    pairs = generated.sums(500, digits=2, seed=3)
    assert all(evaluate(pair.question) == int(pair.answer) for pair in pairs)
    assert len({pair.question for pair in pairs}) == 500
    with pytest.raises(InputError, match="101"):
        generated.sums(101, digits=1, seed=0)
    with pytest.raises(InputError, match="too few products of 999 and 999 numbers for 600000 questions"):
        generated.generated_products({"train": 599_998, "validation": 1, "test": 1}, 0)


def test_expressions_and_products_are_right_and_distinct() -> None:
    limits = {"train": 800, "validation": 50, "test": 100}
    splits, products = generated.generated_expressions(limits, 3), generated.generated_products(limits, 3)
    sums = (splits.train, {1, 2, 3, 4}), (splits.tests["extrapolate"], {5})
    for pairs, operands in (*sums, (products.train, {2}), (products.tests["extrapolate"], {2})):
        counts = set()
        for question, answer in pairs:
            (text,) = re.findall(r"[-(]*\d(?:.*\d)?\)*", question)
            assert eval(text) == int(answer)
            counts.add(len(re.findall(r"\d+", text)))
        assert counts == operands
    for pairs, digits in ((products.train, {1, 2, 3}), (products.tests["extrapolate"], {4})):
        assert {len(pair.question.split()[2]) for pair in pairs} == digits
    every = [*splits.train, *splits.validation, *splits.tests["interpolate"]]
    assert len({pair.question for pair in every}) == 950
    assert any("- (" in pair.question for pair in every) and any(" - -" in pair.question for pair in every)


def test_estimates_err_as_the_docstrings_say() -> None:
    errors = []
    for question, answer in generated.readings(4000, seed=0):
        seen = question.removeprefix("The readings are ").split(". ")[0].split(", ")
        errors.append(abs(statistics.fmean(map(int, seen)) - int(answer)))
    assert statistics.fmean(errors) == pytest.approx(9.2, rel=0.05)
    tables = generated.SIZES, generated.PLACES, generated.STATES
    errors = []
    for question, answer in generated.rents(4000, 3):
        rooms = [f" of {name} room" in question for name in generated.ROOMS].index(True)
        extras = [value for name, value in generated.EXTRAS.items() if name and f"{name}. What" in question]
        words = [next(value for name, value in table.items() if name in question) for table in tables]
        errors.append(abs(int(answer) - 400 - 130 * rooms - sum(words) - sum(extras)))
    assert statistics.fmean(errors) == pytest.approx(40 * math.sqrt(2 / math.pi), rel=0.05)


def test_gsm8k_keeps_the_reasoning_without_its_calculator_and_thousands_separators(tmp_path: Path) -> None:
    line = {"question": "1,000 eggs, 2?", "answer": "Well, 2*600=<<2*600=1200>>1,200, or so\n#### 1,200"}
    pairs = downloads.read_gsm8k(write(tmp_path / "a.jsonl", json.dumps(line) + "\n"))
    assert pairs == [Pair("1000 eggs, 2?", "Well, 2*600=1200, or so\n#### 1200")]
    for text in ("1,2", "12,34", "1,2345", "1,000,50", "0,123", "1234,567", "1.5,000", "a, b,c"):
        assert downloads.without_thousands(text) == text
    assert downloads.without_thousands("$1,234,567.50,") == "$1234567.50,"


@given(st.lists(st.integers(0, 10**10) | st.sampled_from(["Well", "x1", "3.25"]), min_size=1), st.sampled_from("s.?"))
def test_only_thousands_separators_vanish(words: list[int | str], end: str) -> None:
    texts = [", ".join(f"{word:{comma}}" if isinstance(word, int) else word for word in words) for comma in (",", "")]
    assert downloads.without_thousands(texts[0] + end) == texts[1] + end


def multirc(*questions: tuple[str, list[tuple[str, int]]], text: str = " A hen laid 2 eggs. ") -> str:
    asked = [{"question": q, "answers": [{"text": a, "label": n} for a, n in answers]} for q, answers in questions]
    return json.dumps({"idx": 0, "passage": {"text": text, "questions": asked}}) + "\n"


def test_multirc_is_read_as_by_the_paper(tmp_path: Path) -> None:
    lines = multirc((" Who? \n", [("a hen", 1), ("a cow", 0), ("The hen", 1)]), ("How many?", [("2", 1)]))
    path = write(tmp_path / "a.jsonl", lines + multirc(("Why?", [("who knows", 0)]), text="B."))
    assert downloads.read_multirc(path) == [
        Pair("A hen laid 2 eggs.\n\nQuestion: Who?", "a hen | The hen"),
        Pair("A hen laid 2 eggs.\n\nQuestion: How many?", "2"),
        Pair("B.\n\nQuestion: Why?", ""),
    ]


def test_prepare_makes_the_files_that_load_reads(tmp_path: Path, capsys: Any) -> None:
    """Of MultiRC: a tenth of the passages for validation, and the labelled val as test."""
    source, target = tmp_path / "source", tmp_path / "target"
    both = ("Who?", [("a hen", 1)]), ("Why?", [("no", 0)])
    for file in ("train.jsonl.gz", "val.jsonl.gz"):
        write(source / file, "".join(multirc(*both, text=f"Text {n}.") for n in range(20)))
    assert downloads.main(["multirc", str(source), str(target)]) == 0
    config = configure(["dataset=multirc", f"dataset.folder={target}"])
    with pytest.raises(InputError, match=r"train.jsonl: 18 of 36 questions have no .*'Text \d+.*Why\?'.*=skip leaves"):
        load_splits(config)
    config.dataset.empty_target = "skip"
    assert list(map(len, parts_of(load_splits(config)))) == [18, 2, 20]
    assert "train.jsonl: 18 of 36 questions have no answer and are left out\n" in capsys.readouterr().err
    config.dataset.limits.train = 3
    assert len(load_splits(config).train) == 3
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "test.jsonl").symlink_to(source / "val.jsonl.gz")
    for destination in ("link", "linked"):
        assert downloads.main(["multirc", str(source), str(tmp_path / destination)]) == 2
        assert "never overwritten" in capsys.readouterr().err


def test_answers_in_words_are_measured_as_by_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, truths = ["the hen lays an egg", "12", ""], ["a hen laid eggs", "12", "no"]
    found = answer_metrics(answers, truths)
    assert found["bleu"] == sacrebleu.corpus_bleu(answers, [truths]).score > 0
    for name in ("rouge1", "rouge2", "rougeL"):
        scores = map(RougeScorer([name], use_stemmer=True).score, truths, answers)
        assert found[name] == pytest.approx(statistics.fmean(score[name].fmeasure for score in scores))
    assert found["exact_match"] == 1 / 3 and found["mae"] == 0 and "mae" not in answer_metrics(["a"], ["b"])
    assert "bleu" not in answer_metrics(["a", "#### 1"], ["1", "so\n#### 1"])
    monkeypatch.setattr(metrics, "find_spec", lambda name: None if name == "rouge_score" else name)
    metrics.check_text_metrics(Splits([], [], {"test": [Pair("?", "1"), Pair("?", "so\n#### 1")]}))
    with pytest.raises(InputError, match=r'^answers in words need .* rouge-score: pip install -e ".\[text\]"$'):
        metrics.check_text_metrics(Splits([], [Pair("?", "a hen")], {}))


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (read_pairs, b"1 + 1\n2\n3 + 3\n", "line 3: a question without an answer"),
        (read_pairs, b"1 + 1\n2\n3 + 3\nsix\n", "line 4: the answer 'six' is not a number"),
        (read_pairs, b"\n2\n", "line 1: an empty question"),
        (read_pairs, b"\xff\xfe1\t", "not a text file in UTF-8"),
        (downloads.read_gsm8k, b'{"question": "a", "answer": "#### 1"}\n{"question"\n', "line 2: not JSON"),
        (downloads.read_gsm8k, b"[" * 100_000, "line 1: not JSON"),
        (downloads.read_multirc, b"1" * 5000, "line 1: not JSON"),
        (downloads.read_gsm8k, b'{"question": "a"}\n', "line 1: expected an object with the texts"),
        (downloads.read_gsm8k, b"[]\n", "line 1: expected an object"),
        (downloads.read_multirc, re.sub(', "label": .', "", multirc(("?", [("a", 1)]))).encode(), "line 1: .*'label'"),
        (downloads.read_multirc, b'{"passage": "a"}\n', "line 1: expected a passage, questions and labelled answers"),
        (downloads.read_rjokes, b"1\tok\nmany\tjoke\n", "line 2: expected a score, a tab and a joke; got 'many"),
        (downloads.read_gsm8k, b'{"question": "a", "answer": "#### four"}\n', "line 1: the answer has no final number"),
    ],
)
def test_malformed_files_and_lines_are_named(reader: Any, text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(text)
    with pytest.raises(InputError, match=f"{path}.*{said}"):
        reader(path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a text file in UTF-8: embedded null byte"):
        read_pairs(tmp_path / "a\0b")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=f"{path}: not a text file in UTF-8: a folder, a pipe or a device"):
            read_pairs(path)
    whole = write(tmp_path / "data.txt.gz", "1 + 1\n2\n" * 9999).read_bytes()
    for content in (b"not gzip", whole[: len(whole) // 2]):
        (tmp_path / "data.txt.gz").write_bytes(content)
        with pytest.raises(InputError, match=r"data.txt.gz: not a text file"):
            read_pairs(tmp_path / "data.txt.gz")


def deepmind(source: Path, count: int) -> None:
    """Files of DeepMind's categories: number answers, one text answer, and a category that is not used."""
    inner = dict.fromkeys((*downloads.DIFFICULTIES, "interpolate"), downloads.CATEGORIES)
    for folder, categories in {**inner, "extrapolate": downloads.EXTRAPOLATION}.items():
        for category in (*categories, "calculus__differentiate"):
            lines = "".join(f"{folder} {category} {n}\n{n}\n" for n in range(count))
            write(source / folder / f"{category}.txt", lines + "a fraction?\n1/2\n")


@pytest.mark.parametrize("name", ["arithmetic", "mathematics_dataset"])
def test_prepare_splits_deepminds_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 pairs per category and difficulty, a tenth for validation; arithmetic takes 17 of the 20."""
    is_small, source, target = name == "arithmetic", tmp_path / "source", tmp_path / "target"
    monkeypatch.setattr(downloads, "ARITHMETIC_TRAIN", 15)
    monkeypatch.setattr(downloads, "ARITHMETIC_VALIDATION", 2 if is_small else 1000)
    deepmind(source, 20)
    sizes = downloads.prepare(name, source, target)
    files = plain(configure([f"dataset={name}"]).dataset.files)
    parts = [[test] if is_small else list(test.values()) for test in files["tests"].values()]
    train, validation = (3 * 16, 3) if is_small else (3 * 18 * 13, 3 * 2 * 13)
    expected = {files["train"]: train, files["validation"]: validation, **dict.fromkeys(chain(*parts), 20)}
    assert sizes == {f"{file}.gz": size for file, size in expected.items()}
    assert list(map(len, parts)) == ([1, 1] if is_small else [13, 7])
    questions = [pair.question for file in sizes for pair in read_pairs(target / file)]
    assert len(set(questions)) == len(questions) and not any("calculus" in question for question in questions)
    (source / "train-hard" / "arithmetic__add_sub_multiple.txt").unlink()
    with pytest.raises(InputError, match="arithmetic__add_sub_multiple.txt: no such file"):
        downloads.prepare(name, source, target)


def test_prepare_trains_on_the_jokes_of_dev_without_the_large_file(tmp_path: Path) -> None:
    for file in ("dev.tsv.gz", "test.tsv.gz"):
        write(tmp_path / file, "".join(f"{n % 12}\tjoke {n}\n" for n in range(20)))
    assert list(downloads.prepare("rjokes", tmp_path, tmp_path / "a").values()) == [18, 2, 20]
    parts = [set((tmp_path / "a" / file).read_text().splitlines()) for file in ("train.tsv", "validation.tsv")]
    assert len(set.union(*parts)) == 20
    write(tmp_path / "train.tsv", "3\tA hen.\n")
    assert downloads.prepare("rjokes", tmp_path, tmp_path / "b")["validation.tsv"] == 20


def test_prepare_writes_nothing_unless_all_is_well(tmp_path: Path) -> None:
    write(tmp_path / "x" / "train.jsonl", '{"question": "q", "answer": "#### 1"}\n' * 20)
    write(tmp_path / "x" / "test.jsonl", '{"question": "q", "answer": "1"}\n')
    with pytest.raises(InputError, match="test.jsonl, line 1"):
        downloads.prepare("gsm8k", tmp_path / "x", tmp_path / "y")
    for file in ("test.jsonl", "train.jsonl"):
        write(tmp_path / "x" / file, '{"question": "q", "answer": "#### 1"}\n')
    with pytest.raises(InputError, match="cannot be split"):
        downloads.prepare("gsm8k", tmp_path / "x", tmp_path / "y")
    assert not list((tmp_path / "y").iterdir())


def test_missing_data_says_what_to_download_and_where_to_put_it(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(InputError, match=r"Download .*grade-school-math and run\s+python -m .* prepare gsm8k \S+ here"):
        load_splits(configure(["dataset=gsm8k", "dataset.folder=here"]))
    with pytest.raises(InputError, match=r"^here/train.jsonl: no such file$"):
        load_splits(configure(["dataset=gsm8k", "dataset.folder=here", "dataset.name=own"]))
    for folder, said in (("none", "grade-school-math"), (".", "train.jsonl: no such file")):
        assert downloads.main(["gsm8k", str(tmp_path / folder), str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err


def test_parts_of_a_split_are_measured_from_its_answers(tmp_path: Path) -> None:
    write(tmp_path / "in/a.txt", "1 + 1\n2\n2 + 2\n4\n3 + 3\n6\n")
    write(tmp_path / "b.txt", "5 + 5\n10\n6 + 6\n12\n")
    tests = {"one": "b.txt", "both": {"a": "in/a.txt", "b": "b.txt"}}
    files = {"train": "b.txt", "validation": "b.txt", "tests": tests}
    shared: dict[str, Any] = {"name": "arithmetic", "format": "pairs", "folder": str(tmp_path), "files": files}
    splits = load({**shared, "limits": ALL}, seed=0)
    truths, answers = [pair.answer for pair in splits.tests["both"]], ["2", "5", "no", "10", "11"]
    assert truths == ["2", "4", "6", "10", "12"] and metrics_of_parts("one", splits, ["10", "12"]) == {}
    first, second = (answer_metrics(answers[part], truths[part]) for part in (slice(3), slice(3, None)))
    assert metrics_of_parts("both", splits, answers) == {"both/a": first, "both/b": second}
    short = shortened(splits, 4, seed=0)
    of_part = dict(zip(map(str, splits.tests["both"]), splits.parts["both"], strict=True))
    assert len(short.tests["both"]) == 4 and short.parts["both"] == [of_part[str(each)] for each in short.tests["both"]]
    assert whole_splits({"metrics": dict.fromkeys(["one", "both", "both/a"])}) == ["one", "both"]
    assert load({**shared, "limits": {**ALL, "test": 1}}, seed=0).parts == {"both": ["a", "b"]}


@pytest.mark.parametrize("limit", [0, 2.5, True, "many"])
def test_limits_are_numbers_of_pairs(limit: Any) -> None:
    with pytest.raises(InputError, match="dataset.limits.test must be null or a whole number of at least 1; got"):
        load({"name": "debug", "format": "generated", "limits": {**ALL, "test": limit}}, seed=0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("+dataset.file=x", "dataset has no option 'file' with dataset.format=generated"),
        ("dataset=table +dataset.folder=x", "dataset has no option 'folder' with dataset.format=table"),
        ("dataset=gsm8k +dataset.target=x", "dataset has no option 'target' with dataset.format=gsm8k"),
        ("+dataset.seed=5", "dataset has no option 'seed'; expected one of columns, empty_target, file, "),
        ("dataset.format=pairs", r"dataset.files must be \{train: FILE, validation: FILE, tests: .*; got None"),
        ("dataset=gsm8k ~dataset.files.train", r"dataset.files must be .*; got \{'validation': "),
        ("dataset=gsm8k dataset.files.train=null", "dataset.files.train must be a file; got None"),
        ("dataset=gsm8k dataset.files.tests.test=[x]", r"dataset.files.tests.test must be a file; got \['x'\]"),
        ("dataset=gsm8k +dataset.files.tests.t={}", r"dataset.files.tests.t must be a file; got \{\}"),
        ("dataset=gsm8k +dataset.files.tests.t={a:5}", "5: no such file"),
    ],
)
def test_options_that_a_data_set_does_not_read_are_refused(overrides: str, said: str, tmp_path: Path) -> None:
    for file in ("train", "validation", "test"):
        write(tmp_path / f"{file}.jsonl", '{"question": "q", "answer": "#### 1"}\n')
    more = [f"dataset.folder={tmp_path}"] if "gsm8k" in overrides else []
    with pytest.raises(InputError, match=said):
        load_splits(configure(["dataset=debug"] * ("dataset=" not in overrides) + overrides.split() + more))


# Tables

HEADER = "carat,cut,price"
ROWS = [f"0.{n},{'Ideal' if n % 2 else 'Fair, so'!r},{300 + n}".replace("'", '"') for n in range(100, 160)]


def table(*rows: str, header: str = HEADER) -> str:
    return "".join(f"{line}\n" for line in (header, *rows))


def load_table(file: Path, target: str | None = "price", seed: int = 0, limits: Any = (), **options: Any) -> Any:
    options |= {"name": "stones", "format": "table", "file": file, "target": target, "limits": {**ALL, **dict(limits)}}
    return load(options, seed)


def parts_of(splits: Any) -> list[list[Pair]]:
    return [splits.train, splits.validation, splits.tests["test"]]


def test_rows_become_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "stones.csv.gz", table(*ROWS))
    parts = parts_of(load_table(path))
    pairs = {pair.question: pair.answer for part in parts for pair in part}
    assert list(map(len, parts)) == [48, 6, 6] and len(pairs) == 60
    assert pairs["carat 0.101, cut Ideal, price?"] == "401"
    assert pairs["carat 0.102, cut Fair, so, price?"] == "402"
    chosen = [pair.question for part in parts_of(load_table(path, columns=["cut", "carat"])) for pair in part]
    assert "cut Ideal, carat 0.101, price?" in chosen
    assert load_table(path, without=["cut"]) == load_table(path, columns=["carat"])
    plain = write(tmp_path / "numbers.csv", table(*ROWS, header="\ufeff\n\n1e3,TRUE,2020"))
    for columns, target in (([1000.0, True], 2020), (["1e3", "TRUE"], "2020")):
        questions = [pair.question for part in parts_of(load_table(plain, target, columns=columns)) for pair in part]
        assert "1e3 0.101, TRUE Ideal, 2020?" in questions
    header = [f"c{n}" for n in range(40_000)]
    assert columns_used(path, [*header, "y"], "y", None) == ("y", header)


def test_empty_cells_are_not_told_and_rows_without_a_target_left_out_on_request(tmp_path: Path, capsys: Any) -> None:
    path, rows = tmp_path / "a.csv", [f"{n}.5,{'' if n == 7 else 'red'},{n}" for n in range(60)]
    splits = load_table(write(path, table(*rows)))
    assert "carat 7.5, price?" in {pair.question for part in parts_of(splits) for pair in part}
    write(path, table("9.9,red,", *rows, "8.8,, "))
    assert load_table(path, empty_target="skip") == splits
    assert capsys.readouterr().err == f"{path}: 2 of 62 questions have no answer and are left out\n"


def test_splits_are_reproducible_and_share_no_question(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", table(*[f"{n % 80},x,{n}" for n in range(240)]))
    first = load_table(path)
    assert first == load_table(path) != load_table(path, seed=1)
    asked = [{pair.question for pair in part} for part in parts_of(first)]
    assert sum(map(len, asked)) == len(set.union(*asked)) == 80
    assert sum(map(len, parts_of(first))) == 240, "no row is lost"


def test_limits_say_how_much_is_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", table(*[f"{n}.5,x,{n}" for n in range(100)]))
    splits = load_table(path, limits={"train": 20, "validation": 15, "test": 30})
    assert list(map(len, parts_of(splits))) == [20, 15, 30]
    for limits in ({"test": 100}, {"test": 60, "validation": 40}):
        with pytest.raises(InputError, match="leaves none"):
            load_table(path, limits=limits)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (table(*ROWS), {"target": "weight"}, "dataset.target: .* no column 'weight'; expected one of carat, cut,"),
        (table(*ROWS), {"columns": ["carat", "colour"]}, "dataset.columns: .* no column 'colour'"),
        (table(*ROWS), {"columns": ["price"]}, "dataset.columns contains the target 'price'"),
        (table(*ROWS), {"columns": []}, "no column is left besides the target"),
        (table(*ROWS), {"columns": "cut"}, r"dataset.columns must be a list of columns, \[cut\]; got cut"),
        (table(*ROWS[1:]), {"target": "cut"}, "line 2: cut must be a plain number such as 12 or -3.5; got 'Ideal'"),
        (table("1,x,2", "1,x,1e5"), {}, "line 3: price must be a plain number .* got '1e5'"),
        (table("1,x,"), {}, "1 of 1 questions have no answer, such as 'carat 1, cut x, price.'; .*empty_target=skip"),
        (table("1,x,"), {"empty_target": "drop"}, "dataset.empty_target must be skip, error or null; got 'drop'"),
        (table(*ROWS), {"without": ["cat"]}, "dataset.without: .* no column 'cat': did you mean carat"),
        (table(*ROWS), {"without": ["carat", "cut"]}, "no column is left besides the target"),
        (table(*ROWS), {"without": ["cut"], "columns": ["cut"]}, "dataset.columns and dataset.without exclude each"),
        (table("1,x"), {}, "line 2: 2 cells, but the header has 3"),
        (table(*ROWS[1:20:2]), {}, "10 distinct rows; at least 50 are needed"),
        (table("1,2,3", header="a,a,price"), {}, "two columns are called 'a'"),
        (table('1,"x,3'), {}, "line 2: not CSV"),
        ("", {}, "the file is empty"),
        ("\n\n", {}, "the file has no header"),
        (table(*ROWS), {"columns": 5}, r"dataset.columns must be a list of columns, \[5\]; got 5"),
        (table(*ROWS), {"target": 2020}, "dataset.target: .* no column '2020'; expected one of"),
        (table(*ROWS), {"target": None}, "needs dataset.file=FILE.csv and dataset.target=COLUMN"),
    ],
)
def test_tables_that_cannot_work_are_refused_in_one_line(
    text: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        load_table(write(tmp_path / "a.csv", text), **options)
    assert "\n" not in str(caught.value)
