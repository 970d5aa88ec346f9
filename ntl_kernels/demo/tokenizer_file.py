"""What the second page shows: the numbers in an uploaded ``tokenizer.json``."""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections import Counter
from operator import ne
from pathlib import Path
from typing import Any, NamedTuple

from ..tokens import NumberTokens
from ..tokens.texts import count_numbers, possible_labels, vocab_of
from .charts import round_step

MOST_BARS = 24
"""Of a histogram in which every value has its own bar."""
WIDE = 100.0
"""A span of values at which NTL outweighs cross-entropy."""
SQUASH_FACTOR = 9
"""What the documentation recommends for such values."""
_warning_filters = threading.Lock()


class FileError(ValueError):
    """A file that is no tokenizer; the message is a sentence for the person who gave it."""


class Finding(NamedTuple):
    """What :class:`~ntl_kernels.NumberTokens` finds in a tokenizer."""

    numbers: NumberTokens
    tokens: list[tuple[int, str, float]]
    """(id, text, value), by value, then id."""
    warnings: list[str]


def read_tokenizer(path: str | Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a ``tokenizer.json``.

    Raises:
        FileError: the file is no UTF-8 text, no JSON, or no tokenizer.
    """
    from tokenizers import Tokenizer

    name = Path(path).name
    try:
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text)
    except UnicodeDecodeError as error:
        raise FileError(f"{name} is not a text file: byte {error.start} is no UTF-8.") from error
    except json.JSONDecodeError as error:
        raise FileError(f"{name} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise FileError(f"{name} is not a tokenizer.json: its JSON is nested too deeply.") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise FileError(f"{name} is JSON, but not a tokenizer.json: {what_is_missing(content)}.")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers package raises no other class
        raise FileError(f"{name} is JSON, but the tokenizers package cannot read it: {error}.") from error


def what_is_missing(content: object) -> str:
    """Why some JSON is no tokenizer, with the usual mistakes by name."""
    if not isinstance(content, dict):
        return f"it holds a {type(content).__name__}, not an object with a “model”"
    if content and all(isinstance(value, int) for value in content.values()):
        return "it looks like a vocab.json; the tokenizer.json lies beside it"
    if "tokenizer_class" in content:
        return "it looks like a tokenizer_config.json; the tokenizer.json lies beside it"
    return "it has no “model”"


def examine(tokenizer: Any, vocab_size: int | None, digits_only: bool, space_prefixed: bool) -> Finding:
    """The number tokens of a ``tokenizers.Tokenizer``, and everything worth a warning.

    Raises:
        ValueError: as :meth:`NumberTokens.from_tokenizer`.
    """
    with _warning_filters, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = NumberTokens.from_tokenizer(tokenizer, vocab_size, digits_only, space_prefixed)
    tokens = [
        (token, tokenizer.id_to_token(token), value)
        for token, value in zip(numbers.ids.tolist(), numbers.values.tolist(), strict=True)
    ]
    return Finding(numbers, tokens, [str(warning.message) for warning in caught])


class Choice(NamedTuple):
    """Options of :meth:`NumberTokens.from_tokenizer`."""

    digits_only: bool = True
    space_prefixed: bool = False

    def instead_of(self, other: Choice) -> str:
        """The options that differ from another choice's, as arguments."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items() if value != getattr(other, name))

    def call(self) -> str:
        """The call with these options."""
        return ", ".join(filter(None, ["NumberTokens.from_tokenizer(tokenizer", self.instead_of(Choice())])) + ")"


CHOICES = (Choice(), Choice(digits_only=False), Choice(space_prefixed=True), Choice(False, True))


class Verdict(NamedTuple):
    """Whether some options fit a tokenizer."""

    good: bool
    words: str
    call: str
    """The one that fits."""


def judge(tokenizer: Any, chosen: Choice) -> Verdict | None:
    """Whether the chosen options count all number tokens that can be labels; None if there are none at all."""
    nearest = sorted(CHOICES, key=lambda choice: sum(map(ne, choice, chosen)))
    labels = possible_labels(tokenizer, vocab_of(tokenizer))
    found = {choice: count_numbers(labels, *choice) for choice in nearest}
    best = max(found, key=lambda choice: found[choice])
    numbers, most, counted = numbers_of(tokenizer, best), found[best], found[chosen]
    if numbers is None:
        return None
    if counted < most:
        words = f"{most - counted:,} of {most:,} number tokens would get no NTL: use {best.instead_of(chosen)}."
    else:
        words = f"All {most:,} number tokens get NTL."
    values = numbers.values.tolist()
    missing = [f"{digit}" for digit in range(10) if digit not in values]
    if missing:
        words += f" No token is worth {', '.join(missing)}."
    call = best.call()
    if values[-1] - values[0] >= WIDE:
        words += f" Values go up to {values[-1]:g}: squash their distances, or NTL outweighs cross-entropy."
        call += f"\nNTLConfig(squash_factor={SQUASH_FACTOR})"
    return Verdict(counted == most and not missing, words, call)


def numbers_of(tokenizer: Any, choice: Choice) -> NumberTokens | None:
    """The number tokens with these options; None where the library takes none."""
    try:
        return examine(tokenizer, None, *choice).numbers
    except ValueError:
        return None


def histogram(values: list[float]) -> list[tuple[str, int]]:
    """(range, count) of the values: each alone if few, else in some 20 round steps, or powers of ten if far apart."""
    distinct = sorted(set(values))
    low, high = distinct[0], distinct[-1]
    if len(distinct) <= MOST_BARS:
        counts = Counter(values)
        return [(f"{value:g}", counts[value]) for value in distinct]
    if high < 10_000:
        step = round_step(high - low, 20)
        steps = Counter(math.floor(value / step + 1e-9) for value in values)
        return [(f"{step * index:g}–", steps[index]) for index in range(min(steps), max(steps) + 1)]
    decades = Counter(max(0, math.floor(math.log10(max(value, 1)))) for value in values)
    return [(f"10^{decade}–" if decade else "0–", decades[decade]) for decade in range(max(decades) + 1)]


EXAMPLES = {
    "digits": [*"0123456789", "▁", "▁the", "apples"],
    "merged digits": [*map(str, range(1000)), *(f"Ġ{number}" for number in range(100)), "Ġthe", "apples"],
    "some digits missing": ["0", "1", "2", "5", "10", "the", "apples"],
}
"""Tokenizers to look at without a file: token texts by id."""


def example(name: str) -> Any:
    """A ``tokenizers.Tokenizer`` of :data:`EXAMPLES`."""
    from tokenizers import Tokenizer, models

    vocab = {text: token for token, text in enumerate(EXAMPLES[name])}
    return Tokenizer(models.WordLevel(vocab, unk_token="apples"))
