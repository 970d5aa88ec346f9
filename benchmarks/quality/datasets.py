"""The data sets of the paper's experiments: a reader for each format, and the splits made of the original downloads.

A split is a list of question/answer pairs; an answer is a number, a text that ends in one (GSM8K), or text (MultiRC).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .arithmetic import DataError, Pair, generate, read

ARITHMETIC_TRAIN, ARITHMETIC_VALIDATION = 33_333, 1_000
"""Pairs per difficulty of the arithmetic subset (Zausinger et al., section 4)."""
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
"""Of training, validation and interpolation; all are answered by numbers."""
EXTRAPOLATION = (
    "arithmetic__add_or_sub_big",
    "arithmetic__add_sub_multiple_longer",
    "arithmetic__mixed_longer",
    "arithmetic__mul_big",
    "arithmetic__mul_div_multiple_longer",
    "numbers__place_value_big",
    "numbers__round_number_big",
)
GENERATED_SIZES = {"train": 4000, "validation": 200, "test": 200}
DOWNLOADS = {
    "arithmetic": "mathematics_dataset-v1.0.tar.gz of github.com/google-deepmind/mathematics_dataset",
    "mathematics_dataset": "mathematics_dataset-v1.0.tar.gz of github.com/google-deepmind/mathematics_dataset",
    "gsm8k": "train.jsonl and test.jsonl of github.com/openai/grade-school-math",
    "rjokes": "train.tsv, dev.tsv and test.tsv of github.com/orionw/rJokesData",
    "multirc": "train.jsonl and val.jsonl of SuperGLUE's MultiRC",
}


class Splits(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    tests: dict[str, list[Pair]]


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of every line of a text file, gzipped or not."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip("\n")


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, object) of every line of a JSON-lines file."""
    for number, line in lines_of(path):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error.msg}") from error


def field_of(entry: Any, name: str, path: Path, number: int) -> Any:
    """An entry's field, whose absence is an error that names the line."""
    if not isinstance(entry, dict) or name not in entry:
        raise DataError(f"{path}, line {number}: no field {name!r}")
    return entry[name]


def read_gsm8k(path: Path) -> list[Pair]:
    """JSON lines with ``question`` and ``answer``; the final number follows ``####``. Calculator marks are dropped."""
    pairs = []
    for number, entry in json_lines(path):
        question, answer = (str(field_of(entry, name, path, number)) for name in ("question", "answer"))
        if "####" not in answer:
            raise DataError(f"{path}, line {number}: the answer has no final number behind ####")
        pairs.append(Pair(question, without_calculator(answer).replace(",", "")))
    return pairs


def without_calculator(text: str) -> str:
    """A GSM8K answer without its ``<<48/2=24>>`` marks."""
    parts = text.split("<<")
    return parts[0] + "".join(part.split(">>", 1)[-1] for part in parts[1:])


def read_rjokes(path: Path) -> list[Pair]:
    """Tab-separated lines of a score and a joke; the score is to be estimated from the joke."""
    pairs = []
    for number, line in lines_of(path):
        score, tab, joke = line.partition("\t")
        if not tab or not score.strip().isascii() or not score.strip().isdigit():
            raise DataError(f"{path}, line {number}: expected a score, a tab and a joke; got {line[:40]!r}")
        pairs.append(Pair(joke.strip(), score.strip()))
    return pairs


def read_multirc(path: Path) -> list[Pair]:
    """JSON lines with a passage and its questions. A question makes a pair: its answer is the right ones, joined."""
    pairs = []
    for number, entry in json_lines(path):
        passage = field_of(entry, "passage", path, number)
        text = field_of(passage, "text", path, number)
        for question in field_of(passage, "questions", path, number):
            asked = field_of(question, "question", path, number)
            answers = field_of(question, "answers", path, number)
            right = [field_of(a, "text", path, number) for a in answers if field_of(a, "label", path, number) == 1]
            pairs.append(Pair(f"{text}\n\nQuestion: {asked}", " | ".join(right)))
    return pairs


READERS: dict[str, Callable[[Path], list[Pair]]] = {
    "pairs": read,
    "gsm8k": read_gsm8k,
    "rjokes": read_rjokes,
    "multirc": read_multirc,
}


def load(
    name: str, format: str, folder: str | None, files: dict[str, Any], limits: dict[str, int | None], seed: int
) -> Splits:
    """The splits of a data set, cut to ``limits`` (train, validation, test).

    Raises:
        DataError: a missing file (the message says what to download and where to put it) or a malformed line.
    """
    if format in GENERATORS:
        return GENERATORS[format](limits, seed)
    reader, base = READERS[format], Path(folder or "data") / ("" if folder else name)

    def read_split(file: str, limit: int | None) -> list[Pair]:
        path = next((path for path in (base / file, base / f"{file}.gz") if path.is_file()), base / file)
        if not path.is_file():
            raise DataError(
                f"{path}: no such file. Download {DOWNLOADS[name]} and run\n"
                f"  python -m benchmarks.quality prepare {name} DOWNLOADED_FOLDER {base}"
            )
        return sample(reader(path), limit, seed)

    return Splits(
        read_split(files["train"], limits["train"]),
        read_split(files["validation"], limits["validation"]),
        {test: read_split(file, limits["test"]) for test, file in files["tests"].items()},
    )


def split_sizes(limits: dict[str, int | None]) -> tuple[int, int, int]:
    """(train, validation, test) of a generated data set."""
    train, validation, test = (limits[name] or size for name, size in GENERATED_SIZES.items())
    return train, validation, test


def generated_sums(limits: dict[str, int | None], seed: int) -> Splits:
    """Sums and differences of two-digit numbers, and a test on three-digit ones."""
    train, validation, test = split_sizes(limits)
    pairs = generate(train + validation + test, 2, seed)
    tests = {"interpolate": pairs[train + validation :], "extrapolate": generate(test, 3, seed)}
    return Splits(pairs[:train], pairs[train : train + validation], tests)


def generated_readings(limits: dict[str, int | None], seed: int) -> Splits:
    """Noisy readings of a quantity, which can be estimated but not known."""
    train, validation, test = split_sizes(limits)
    pairs = readings(train + validation + test, seed)
    return Splits(pairs[:train], pairs[train : train + validation], {"test": pairs[train + validation :]})


def readings(count: int, seed: int) -> list[Pair]:
    """Three readings of an integer below 1,000, with Gaussian errors of standard deviation 20, and the integer.

    The error of their mean has standard deviation 11.5, hence MAE 9.2: no answer is right more than by luck, and near
    ones are what can be learned.
    """
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        truth = rng.randrange(1000)
        seen = ", ".join(str(round(rng.gauss(truth, 20.0))) for _ in range(3))
        pairs.append(Pair(f"The readings are {seen}. Estimate the value.", str(truth)))
    return pairs


OPERANDS, OPERAND_SHARES = (1, 2, 3, 4), (0.03, 0.47, 0.3, 0.2)
LIMITS, NEGATIVE_SHARE = (10, 10, 30, 100), 0.3
TEMPLATES = ("{}", "Calculate {}.", "Evaluate {}.", "What is {}?", "What is the value of {}?")


def generated_expressions(limits: dict[str, int | None], seed: int) -> Splits:
    """Sums and differences of up to four integers, and a test on those of five."""
    train, validation, test = split_sizes(limits)
    rng = random.Random(seed)
    pairs = expressions(train + validation + test, OPERANDS, OPERAND_SHARES, rng)
    tests = {"interpolate": pairs[train + validation :], "extrapolate": expressions(test, (5,), (1.0,), rng)}
    return Splits(pairs[:train], pairs[train : train + validation], tests)


def expressions(count: int, operands: Sequence[int], shares: Sequence[float], rng: random.Random) -> list[Pair]:
    """Distinct nested sums and differences in the style of DeepMind's ``add_sub_multiple``, and their values."""
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        text, value = expression(rng.choices(operands, shares)[0], rng)
        pairs[rng.choice(TEMPLATES).format(text)] = str(value)
    shuffled = [Pair(question, answer) for question, answer in pairs.items()]
    rng.shuffle(shuffled)
    return shuffled


def expression(operands: int, rng: random.Random) -> tuple[str, int]:
    """A random expression and its value; a left part that is one itself stands in brackets every other time."""
    if operands == 1:
        value = rng.randrange(rng.choice(LIMITS)) * (-1 if rng.random() < NEGATIVE_SHARE else 1)
        return str(value), value
    split = rng.randrange(1, operands)
    (left, first), (right, second) = expression(split, rng), expression(operands - split, rng)
    if split > 1 and rng.random() < 0.5:
        left = f"({left})"
    if operands - split > 1:
        right = f"({right})"
    sign = rng.choice("+-")
    return f"{left} {sign} {right}", first + second if sign == "+" else first - second


ROOMS = ("one", "two", "three", "four", "five")
SIZES = {"tiny": -150, "small": -70, "plain": 0, "large": 90, "huge": 210}
PLACES = {"by the station": -60, "on a main road": -40, "at the edge of town": 0, "near the park": 80, "downtown": 160}
STATES = {"in need of repair": -110, "as it stands": 0, "freshly painted": 50, "newly built": 140}
EXTRAS = {"": 0, " with a balcony": 40, " with a garden": 95, " with a garage": 60, " with a lift": 25}
RENT, RENT_PER_ROOM, RENT_DEVIATION = 400, 130, 40.0


def generated_rents(limits: dict[str, int | None], seed: int) -> Splits:
    """Rents of flats from their descriptions, which can be estimated but not known."""
    train, validation, test = split_sizes(limits)
    pairs = rents(train + validation + test, seed)
    return Splits(pairs[:train], pairs[train : train + validation], {"test": pairs[train + validation :]})


def rents(count: int, seed: int) -> list[Pair]:
    """A flat in words, and its rent: a sum over what the words say, plus a Gaussian error of standard deviation 40.

    Whoever knows the sum errs by 31.9 on average.
    """
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        rooms = rng.randrange(len(ROOMS))
        size, place, state, extra = (rng.choice(list(table)) for table in (SIZES, PLACES, STATES, EXTRAS))
        mean = RENT + RENT_PER_ROOM * rooms + SIZES[size] + PLACES[place] + STATES[state] + EXTRAS[extra]
        flat = f"A {size} flat of {ROOMS[rooms]} room{'s' if rooms else ''} {place}, {state}{extra}. What is the rent?"
        pairs.append(Pair(flat, str(max(0, round(rng.gauss(mean, RENT_DEVIATION))))))
    return pairs


GENERATORS: dict[str, Callable[[dict[str, int | None], int], Splits]] = {
    "generated": generated_sums,
    "expressions": generated_expressions,
    "readings": generated_readings,
    "rents": generated_rents,
}


def sample(pairs: list[Pair], limit: int | None, seed: int) -> list[Pair]:
    """All pairs, or ``limit`` of them by chance."""
    return pairs if limit is None or limit >= len(pairs) else random.Random(seed).sample(pairs, limit)


def prepare(name: str, source: Path, destination: Path, seed: int = 0) -> dict[str, int]:
    """Turn an original download into the splits that the configurations read; returns their sizes.

    Raises:
        DataError: an unknown data set, a missing file or a malformed line.
    """
    if name not in DOWNLOADS:
        raise DataError(f"unknown data set {name!r}; expected one of {', '.join(DOWNLOADS)}")
    if not source.is_dir():
        raise DataError(f"{source}: no such folder. It should hold {DOWNLOADS[name]}")
    destination.mkdir(parents=True, exist_ok=True)
    if name in ("arithmetic", "mathematics_dataset"):
        splits = deepmind_splits(name, source, seed)
        prefix = "arithmetic_" if name == "arithmetic" else ""
        for split, pairs in splits.items():
            write_pairs(destination / f"{prefix}{split}.txt.gz", pairs)
        return {split: len(pairs) for split, pairs in splits.items()}
    return copy_splits(name, source, destination, seed)


def deepmind_splits(name: str, source: Path, seed: int) -> dict[str, list[Pair]]:
    """Train and validation pairs of every difficulty, and the interpolation and extrapolation tests."""
    inner, outer = CATEGORIES, EXTRAPOLATION
    if name == "arithmetic":
        inner, outer = ("arithmetic__add_sub_multiple",), ("arithmetic__add_sub_multiple_longer",)
    splits: dict[str, list[Pair]] = {"train": [], "val": [], "test_interpolate": [], "test_extrapolate": []}
    for difficulty in DIFFICULTIES:
        pairs = read_all(source / difficulty, inner)
        random.Random(seed).shuffle(pairs)
        if name == "arithmetic":
            pairs = pairs[: ARITHMETIC_TRAIN + ARITHMETIC_VALIDATION]
        held_out = min(ARITHMETIC_VALIDATION, len(pairs) // 10)
        splits["val"] += pairs[:held_out]
        splits["train"] += pairs[held_out:]
    splits["test_interpolate"] = read_all(source / "interpolate", inner)
    splits["test_extrapolate"] = read_all(source / "extrapolate", outer)
    return splits


def read_all(folder: Path, categories: Sequence[str]) -> list[Pair]:
    """The pairs of categories that are answered by a number (mixed_longer has fractions, too)."""
    return [pair for category in categories for pair in read(folder / f"{category}.txt", skip_text=True)]


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{pair.question}\n{pair.answer}\n" for pair in pairs)


def copy_splits(name: str, source: Path, destination: Path, seed: int) -> dict[str, int]:
    """Lines of the original files, checked by their reader; where there is no validation split, a tenth of train."""
    files = {
        "gsm8k": {"train.jsonl": None, "test.jsonl": "test.jsonl"},
        "rjokes": {"train.tsv": "train.tsv", "dev.tsv": "validation.tsv", "test.tsv": "test.tsv"},
        "multirc": {"train.jsonl": None, "val.jsonl": "test.jsonl"},
    }[name]
    sizes = {}
    for file, target in files.items():
        path = next((p for p in (source / file, source / f"{file}.gz") if p.is_file()), source / file)
        READERS[name](path)
        lines = [line for _, line in lines_of(path)]
        parts = {target: lines} if target else split_lines(lines, Path(file).suffix, seed)
        for split, part in parts.items():
            (destination / split).write_text("\n".join(part) + "\n", encoding="utf-8")
            sizes[split] = len(part)
    return sizes


def split_lines(lines: list[str], suffix: str, seed: int) -> dict[str, list[str]]:
    """A tenth of the lines for validation, by chance, in their order."""
    chosen = set(random.Random(seed).sample(range(len(lines)), max(1, len(lines) // 10)))
    return {
        f"train{suffix}": [line for index, line in enumerate(lines) if index not in chosen],
        f"validation{suffix}": [line for index, line in enumerate(lines) if index in chosen],
    }


def main(arguments: list[str]) -> int:
    """``prepare DATASET DOWNLOADED_FOLDER DESTINATION``"""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality prepare")
    parser.add_argument("dataset", choices=DOWNLOADS)
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    try:
        sizes = prepare(chosen.dataset, chosen.source, chosen.destination, chosen.seed)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for split, size in sizes.items():
        print(f"{split}: {size}")
    return 0
