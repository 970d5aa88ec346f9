"""The data sets of the paper: a reader per format, and splits made from the original downloads.

An answer is a number, or a text that ends in a number (GSM8K).
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ...commands import InputError, Parser, in_one_line, naming, writable
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
    "rjokes": "train.tsv (or none), dev.tsv and test.tsv of github.com/orionw/rJokesData",
}

CALCULATOR = re.compile("<<.*?>>")
"""GSM8K's calculator annotations, such as ``<<48/2=24>>``."""


def read_gsm8k(path: Path) -> list[Pair]:
    """JSON lines with ``question`` and ``answer``; the final number follows ``####``. Drops calculator annotations."""
    pairs = []
    for number, line in lines_of(path):
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON: {error.msg}") from error
        texts = [entry.get(name) for name in ("question", "answer")] if isinstance(entry, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{where}: expected an object with the texts 'question' and 'answer'; got {line[:40]!r}")
        question, answer = texts
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


READERS: dict[str, Callable[[Path], list[Pair]]] = {"pairs": read_pairs, "gsm8k": read_gsm8k, "rjokes": read_rjokes}


def prepare(name: str, source: Path, destination: Path) -> dict[str, int]:
    """Convert an original download to the splits that the configurations read; return the number of pairs per file.

    It reads the whole source before it writes anything, and never overwrites the source.
    """
    if name not in DOWNLOADS:
        raise InputError(f"unknown data set {name!r}; expected one of {', '.join(DOWNLOADS)}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder. It must contain {DOWNLOADS[name]}")
    if destination.resolve() == source.resolve():
        raise InputError(f"{destination} is the folder of the download, which is never overwritten; choose another")
    writable(destination)
    of_name = {"gsm8k": gsm8k_files, "rjokes": rjokes_files}
    files = of_name[name](source) if name in of_name else deepmind_files(name, source)
    for file, entries in files.items():
        path = destination / file
        writable(path.parent)
        with naming(str(path)), (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as opened:
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


def rjokes_files(source: Path) -> dict[str, list[str]]:
    """File -> its lines, checked by their reader. Without train (which is large), dev is trained on, and a random tenth
    of it becomes the validation split.
    """
    lines = {}
    for name in ("train", "dev", "test"):
        path = as_it_is_or_gzipped(source / f"{name}.tsv")
        if name == "train" and not path.is_file():
            continue
        read_rjokes(path)
        lines[name] = [line for _, line in lines_of(path)]
    train, validation = (
        (lines["train"], lines["dev"]) if "train" in lines else without_a_tenth(lines["dev"], source / "dev.tsv")
    )
    return {"train.tsv": train, "validation.tsv": validation, "test.tsv": lines["test"]}


def without_a_tenth(lines: list[str], path: Path) -> tuple[list[str], list[str]]:
    """The lines of a file without a random tenth, and that tenth."""
    if len(lines) < 2:
        raise InputError(f"{path}: a single line, which cannot be split into training and validation")
    chosen = set(random.Random(SEED).sample(range(len(lines)), max(1, len(lines) // 10)))
    kept, tenth = ([line for place, line in enumerate(lines) if (place in chosen) == held] for held in (False, True))
    return kept, tenth


def gsm8k_files(source: Path) -> dict[str, list[str]]:
    """File -> its lines, checked by their reader; a random tenth of train becomes the validation split."""
    lines = {}
    for name in ("train", "test"):
        path = as_it_is_or_gzipped(source / f"{name}.jsonl")
        read_gsm8k(path)
        lines[name] = [line for _, line in lines_of(path)]
    train, validation = without_a_tenth(lines["train"], source / "train.jsonl")
    return {"train.jsonl": train, "validation.jsonl": validation, "test.jsonl": lines["test"]}


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
