"""Pairs of questions and answers, and functions that read them from files."""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from ntl_kernels.evaluation import number_in

from ...commands import InputError

T = TypeVar("T")
FINAL = "####"
"""GSM8K's mark before the final number."""


class Pair(NamedTuple):
    question: str
    answer: str


class Splits(NamedTuple):
    train: list[Pair]
    validation: list[Pair]
    tests: dict[str, list[Pair]]
    parts: Mapping[str, list[str]] = MappingProxyType({})
    """Test split -> the part that each of its questions belongs to; without splits that have no parts."""


def final_value(text: str) -> float | None:
    """The number that an answer consists of, or that follows its last ``####``; otherwise None."""
    return number_in(text, behind=FINAL)


def as_it_is_or_gzipped(path: Path) -> Path:
    """The file with this name, or with ``.gz`` appended if only that exists."""
    gzipped = path.with_name(f"{path.name}.gz")
    return gzipped if gzipped.is_file() and not path.is_file() else path


def lines_of(path: Path) -> list[tuple[int, str]]:
    """(number, text) of every line of a UTF-8 text file, gzipped or not."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("a folder, a pipe or a device")
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"not a text file in UTF-8: {error}"
        raise InputError(f"{path}: {reason}") from error
    if not lines:
        raise InputError(f"{path}: the file is empty")
    return list(enumerate(lines, 1))


def read_pairs(path: str | Path, skip_text: bool = False) -> list[Pair]:
    """Question and answer on alternating lines; a pair whose answer is not a number is an error, or skipped."""
    lines = [line for _, line in lines_of(Path(path))]
    if len(lines) % 2:
        raise InputError(f"{path}, line {len(lines)}: a question without an answer: {lines[-1]!r}")
    pairs = [Pair(question, answer) for question, answer in zip(lines[::2], lines[1::2], strict=True)]
    for index, pair in enumerate(pairs):
        if not pair.question.strip():
            raise InputError(f"{path}, line {2 * index + 1}: an empty question")
        if number_in(pair.answer) is None and not skip_text:
            raise InputError(f"{path}, line {2 * index + 2}: the answer {pair.answer!r} is not a number")
    return [pair for pair in pairs if number_in(pair.answer) is not None] if skip_text else pairs


def answered(pairs: list[Pair], path: Path, empty_target: str | None) -> list[Pair]:
    """The pairs of a file that have an answer; others are an error unless ``empty_target`` is "skip"."""
    empty = [pair for pair in pairs if not pair.answer.strip()]
    if empty and empty_target != "skip":
        raise InputError(
            f"{path}: {len(empty)} of {len(pairs)} questions have no answer, such as {empty[0].question[-60:]!r}; "
            "dataset.empty_target=skip leaves them out"
        )
    if empty:
        print(f"{path}: {len(empty)} of {len(pairs)} questions have no answer and are left out", file=sys.stderr)
    return [pair for pair in pairs if pair.answer.strip()]


def sample(pairs: list[T], limit: int | None, seed: int) -> list[T]:
    """All pairs, or a random sample of ``limit`` pairs: the same places in any list of the same length."""
    return pairs if limit is None or limit >= len(pairs) else random.Random(seed).sample(pairs, limit)
