"""The data sets of the paper: a reader per format, and splits made from the original downloads.

An answer is a number, a text that ends in a number (GSM8K), or text (MultiRC).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...arguments import Parser
from ...errors import InputError, in_one_line, naming, writable
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
    "rjokes": "train.tsv, dev.tsv and test.tsv of github.com/orionw/rJokesData",
    "multirc": "train.jsonl and val.jsonl of SuperGLUE's MultiRC",
}


CALCULATOR = re.compile("<<.*?>>")
"""GSM8K's calculator annotations, such as ``<<48/2=24>>``."""
NAMES_OF_TYPES = {str: "text", list: "list", dict: "object", int: "whole number"}


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, object) of every line of a JSON-lines file."""
    for number, line in lines_of(path):
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON: {error.msg}") from error


def field_of(entry: Any, name: str, kind: type, where: str) -> Any:
    """An entry's field; a missing field, or a value of another type, raises an error that names the line."""
    if not isinstance(entry, dict) or name not in entry:
        raise InputError(f"{where}: no field {name!r}")
    if not isinstance(entry[name], kind):
        raise InputError(f"{where}: the field {name!r} must be a {NAMES_OF_TYPES[kind]}; got {entry[name]!r:.40}")
    return entry[name]


def read_gsm8k(path: Path) -> list[Pair]:
    """JSON lines with ``question`` and ``answer``; the final number follows ``####``. Drops calculator annotations."""
    pairs = []
    for where, entry in json_lines(path):
        question, answer = (field_of(entry, name, str, where) for name in ("question", "answer"))
        answer = CALCULATOR.sub("", answer).replace(",", "")
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
    """JSON lines with a passage and its questions. Each question is a pair, whose answer joins the correct answers."""
    pairs = []
    for where, entry in json_lines(path):
        passage = field_of(entry, "passage", dict, where)
        text = field_of(passage, "text", str, where)
        for question in field_of(passage, "questions", list, where):
            asked = field_of(question, "question", str, where)
            answers = field_of(question, "answers", list, where)
            right = [field_of(a, "text", str, where) for a in answers if field_of(a, "label", int, where) == 1]
            pairs.append(Pair(f"{text}\n\nQuestion: {asked}", " | ".join(right)))
    return pairs


READERS: dict[str, Callable[[Path], list[Pair]]] = {
    "pairs": read_pairs,
    "gsm8k": read_gsm8k,
    "rjokes": read_rjokes,
    "multirc": read_multirc,
}


ORIGINS: dict[str, dict[str, str | None]] = {
    "gsm8k": {"train.jsonl": None, "test.jsonl": "test.jsonl"},
    "rjokes": {"train.tsv": "train.tsv", "dev.tsv": "validation.tsv", "test.tsv": "test.tsv"},
    "multirc": {"train.jsonl": None, "val.jsonl": "test.jsonl"},
}
"""Data set -> downloaded file -> file of a split; None if it is split into training and validation."""


def prepare(name: str, source: Path, destination: Path) -> dict[str, int]:
    """Convert an original download to the splits that the configurations read; return the number of pairs per file.

    It reads the whole source before it writes anything, and never overwrites the source.
    """
    if name not in DOWNLOADS:
        raise InputError(f"unknown data set {name!r}; expected one of {', '.join(DOWNLOADS)}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder. It must contain {DOWNLOADS[name]}")
    writable(destination)
    files = line_files(name, source) if name in ORIGINS else deepmind_files(name, source)
    originals = [path for path in source.rglob("*") if path.is_file()]
    for file in files:
        target = destination / file
        if target.exists() and any(target.samefile(original) for original in originals):
            raise InputError(f"{target} is a file of the download, which is never overwritten; choose another folder")
    for file, entries in files.items():
        path = destination / file
        with naming(str(path)), (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as opened:
            opened.writelines(f"{entry}\n" for entry in entries)
    return {file: len(entries) for file, entries in files.items()}


def deepmind_files(name: str, source: Path) -> dict[str, list[str]]:
    """File -> its pairs, in two lines each: train and validation of every difficulty, and both tests."""
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
    splits["test_interpolate"] = read_all(source / "interpolate", inner)
    splits["test_extrapolate"] = read_all(source / "extrapolate", outer)
    return {f"{'arithmetic_' if is_arithmetic else ''}{split}.txt.gz": pairs for split, pairs in splits.items()}


def read_all(folder: Path, categories: Sequence[str]) -> list[str]:
    """The pairs of categories whose answer is a number (mixed_longer also has fractions), in two lines each."""
    files = (folder / f"{category}.txt" for category in categories)
    return ["\n".join(pair) for file in files for pair in read_pairs(file, skip_text=True)]


def line_files(name: str, source: Path) -> dict[str, list[str]]:
    """File -> its lines, checked by their reader; without a validation split, a random tenth of train is used."""
    files: dict[str, list[str]] = {}
    for origin, target in ORIGINS[name].items():
        path = as_it_is_or_gzipped(source / origin)
        READERS[name](path)
        lines = [line for _, line in lines_of(path)]
        if target:
            files[target] = lines
            continue
        if len(lines) < 2:
            raise InputError(f"{path}: a single line, which cannot be split into training and validation")
        chosen = set(random.Random(SEED).sample(range(len(lines)), max(1, len(lines) // 10)))
        for index, line in enumerate(lines):
            split = "validation" if index in chosen else "train"
            files.setdefault(f"{split}{Path(origin).suffix}", []).append(line)
    return files


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
