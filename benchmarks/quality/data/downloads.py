"""The data sets of the paper: a reader per format, and splits made from the original downloads.

An answer is a number, a text that ends in a number (GSM8K), or words (MultiRC).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ntl_kernels.evaluation import THOUSANDS

from ...commands import InputError, Parser, in_one_line, naming, writable
from ...files import replacing
from .pairs import FINAL, Pair, as_it_is_or_gzipped, final_value, lines_of, read_pairs

ARITHMETIC_TRAIN, ARITHMETIC_VALIDATION = 33_333, 1_000
"""Pairs per difficulty of the arithmetic subset (Zausinger et al., section 4)."""
SEED = 0
"""Seed of the random validation split."""
DIFFICULTIES = ("train-easy", "train-medium", "train-hard")
CATEGORIES = (
    "algebra__linear_1d",
    "algebra__linear_1d_composed",
    "algebra__linear_2d",
    "algebra__linear_2d_composed",
    "algebra__sequence_next_term",
    "arithmetic__add_or_sub",
    "arithmetic__add_sub_multiple",
    "arithmetic__mul",
    "numbers__div_remainder",
    "numbers__div_remainder_composed",
    "numbers__place_value",
    "numbers__round_number",
    "numbers__round_number_composed",
)
"""Categories of training, validation and interpolation; all their answers are numbers."""
EXTRAPOLATION = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
DOWNLOADS = {
    "arithmetic": "mathematics_dataset-v1.0.tar.gz of github.com/google-deepmind/mathematics_dataset",
    "mathematics_dataset": "mathematics_dataset-v1.0.tar.gz of github.com/google-deepmind/mathematics_dataset",
    "gsm8k": "train.jsonl and test.jsonl of github.com/openai/grade-school-math",
    "multirc": "train.jsonl and val.jsonl of SuperGLUE's MultiRC.zip, super.gluebenchmark.com",
    "rjokes": "train.tsv (or none), dev.tsv and test.tsv of github.com/orionw/rJokesData",
}

CALCULATOR = re.compile("<<.*?>>")
"""GSM8K's calculator annotations, such as ``<<48/2=24>>``."""
DIGITS = re.compile("[0-9]+(?:[.,][0-9]+)*")
"""Everything that may belong to a number."""
FILES: dict[str, tuple[str, str | None, str]] = {
    "gsm8k": ("train.jsonl", None, "test.jsonl"),
    "multirc": ("train.jsonl", None, "val.jsonl"),  # the labels of its test.jsonl are not published
    "rjokes": ("train.tsv", "dev.tsv", "test.tsv"),
}
"""Downloaded files for training, validation (None: a random tenth of the training file) and test."""


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Where a line of JSON is, and what it contains."""
    for number, line in lines_of(path):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number with thousands of digits
            raise InputError(f"{where}: not JSON: {getattr(error, 'msg', error)}") from error
        yield where, entry


def without_thousands(text: str) -> str:
    """A text without thousands separators: "Well, 1,234,567" becomes "Well, 1234567"; "1,2" and "12,34" stay."""
    return DIGITS.sub(lambda run: run[0].replace(",", "") if THOUSANDS.fullmatch(run[0]) else run[0], text)


def read_gsm8k(path: Path) -> list[Pair]:
    """JSON lines with ``question`` and ``answer``; the final number follows ``####``. Drops calculator annotations and
    thousands separators.
    """
    pairs = []
    for where, entry in json_lines(path):
        texts = [entry.get(name) for name in ("question", "answer")] if isinstance(entry, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{where}: expected an object with the texts 'question' and 'answer'; got {entry!r:.40}")
        question, answer = map(without_thousands, (texts[0], CALCULATOR.sub("", texts[1])))
        if FINAL not in answer or final_value(answer) is None:
            raise InputError(f"{where}: the answer has no final number after {FINAL}")
        pairs.append(Pair(question, answer))
    return pairs


def read_rjokes(path: Path) -> list[Pair]:
    """Tab-separated lines of a score and a joke; the score is to be estimated from the joke."""
    pairs = []
    for number, line in lines_of(path):
        score, tab, joke = line.partition("\t")
        if not tab or not score.strip().isascii() or not score.strip().isdigit():
            raise InputError(f"{path}, line {number}: expected a score, a tab and a joke; got {line[:40]!r}")
        pairs.append(Pair(joke.strip(), score.strip()))
    return pairs


def read_multirc(path: Path) -> list[Pair]:
    """JSON lines of a passage and its questions; an answer is all right answers, and empty if there is none."""
    pairs = []
    for where, entry in json_lines(path):
        try:
            passage = entry["passage"]
            for asked in passage["questions"]:
                right = [answer["text"] for answer in asked["answers"] if answer["label"] == 1]
                question = f"{passage['text'].strip()}\n\nQuestion: {asked['question'].strip()}"
                pairs.append(Pair(question, " | ".join(right)))
        except (LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{where}: expected a passage, questions and labelled answers; got {error!r}") from error
    return pairs


READERS: dict[str, Callable[[Path], list[Pair]]] = {
    "pairs": read_pairs,
    "gsm8k": read_gsm8k,
    "multirc": read_multirc,
    "rjokes": read_rjokes,
}


def prepare(name: str, source: Path, destination: Path) -> dict[str, int]:
    """Convert an original download to the splits that the configurations read; return the number of pairs per file.

    It reads the whole source before it writes anything, and never overwrites the source.
    """
    if name not in DOWNLOADS:
        raise InputError(f"unknown data set {name!r}; expected one of {', '.join(DOWNLOADS)}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder. It must contain {DOWNLOADS[name]}")
    writable(destination)
    files = (split_files if name in FILES else deepmind_files)(name, source)
    for path in (destination / file for file in files):
        if path.resolve().parent == source.resolve():
            raise InputError(
                f"{path} is in the folder of the download, which is never overwritten; choose another folder"
            )
    for file, entries in files.items():
        path = destination / file
        write_as = gzip.open if path.suffix == ".gz" else open
        with naming(str(path)), replacing(path) as unfinished, write_as(unfinished, "wt", encoding="utf-8") as opened:
            opened.writelines(f"{entry}\n" for entry in entries)
    return {file: len(entries) for file, entries in files.items()}


def deepmind_files(name: str, source: Path) -> dict[str, list[str]]:
    """File -> its pairs, in two lines each: train and validation of every difficulty, and both tests (of
    mathematics_dataset, a file per category).
    """
    is_arithmetic = name == "arithmetic"
    inner = ("arithmetic__add_sub_multiple",) if is_arithmetic else CATEGORIES
    outer = ("arithmetic__add_sub_multiple_longer",) if is_arithmetic else EXTRAPOLATION
    splits: dict[str, list[str]] = {"train": [], "val": []}
    for difficulty in DIFFICULTIES:
        pairs = read_all(source / difficulty, inner)
        random.Random(SEED).shuffle(pairs)
        pairs = pairs[: ARITHMETIC_TRAIN + ARITHMETIC_VALIDATION] if is_arithmetic else pairs
        held_out = min(ARITHMETIC_VALIDATION, len(pairs) // 10)
        splits["val"] += pairs[:held_out]
        splits["train"] += pairs[held_out:]
    for test, categories in {"interpolate": inner, "extrapolate": outer}.items():
        for category in categories:
            name = f"test_{test}" if is_arithmetic else f"{test}/{category}"
            splits[name] = read_all(source / test, [category])
    return {f"{'arithmetic_' if is_arithmetic else ''}{split}.txt.gz": pairs for split, pairs in splits.items()}


def read_all(folder: Path, categories: Sequence[str]) -> list[str]:
    """The pairs of categories whose answer is a number (mixed_longer also has fractions), in two lines each."""
    files = (folder / f"{category}.txt" for category in categories)
    return ["\n".join(pair) for file in files for pair in read_pairs(file, skip_text=True)]


def split_files(name: str, source: Path) -> dict[str, list[str]]:
    """File -> its lines, checked by their reader. Where the training file is missing (that of rjokes is large), that
    for validation takes its place, and a random tenth of that is for validation.
    """
    train, validation, test = FILES[name]
    if validation and not as_it_is_or_gzipped(source / train).is_file():
        train, validation = validation, None
    lines = {}
    for file in filter(None, (train, validation, test)):
        path = as_it_is_or_gzipped(source / file)
        READERS[name](path)
        lines[file] = [line for _, line in lines_of(path)]
    kept, tenth = (lines[train], lines[validation]) if validation else without_a_tenth(lines[train], source / train)
    splits = {"train": kept, "validation": tenth, "test": lines[test]}
    return {f"{split}{Path(train).suffix}": of_split for split, of_split in splits.items()}


def without_a_tenth(lines: list[str], path: Path) -> tuple[list[str], list[str]]:
    """The lines of a file without a random tenth, and that tenth."""
    if len(lines) < 2:
        raise InputError(f"{path}: a single line, which cannot be split into training and validation")
    chosen = set(random.Random(SEED).sample(range(len(lines)), max(1, len(lines) // 10)))
    kept, tenth = ([line for place, line in enumerate(lines) if (place in chosen) == held] for held in (False, True))
    return kept, tenth


@in_one_line
def main(arguments: list[str]) -> int:
    """``prepare DATASET DOWNLOADED_FOLDER DESTINATION``"""
    parser = Parser(prog="python -m benchmarks.quality prepare")
    parser.add_argument("dataset", choices=DOWNLOADS)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    chosen = parser.parse_args(arguments)
    for split, size in prepare(chosen.dataset, chosen.source, chosen.destination).items():
        print(f"{split}: {size}")
    return 0
