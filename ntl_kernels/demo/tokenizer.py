"""The verdict on an uploaded ``tokenizer.json``: which tokens are numbers, and which options count them all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..tokens import NumberTokens
from ..tokens.texts import Options, panics_as_errors, shortened, verdict, vocab_of

MOST_VALUES = 200
"""The most values listed for a tokenizer."""
MOST_LETTERS = 1000
"""The maximum length of a message: some errors quote whole files."""
LARGEST_VOCABULARY = 10_000_000
"""Far beyond any model's; a table of this size is allocated."""
INSERTED, MOST_TIMES = re.compile(r'"(?:content|prepend)": "((?:[^"\\]|\\.)*)"'), 100_000
"""What a normalizer's parts may insert at every character; how many times as long they may make a text in all."""


def answer(question: Mapping[str, str], content: bytes) -> dict[str, Any]:
    """What the page shows for a file: "source", the verdict of :func:`judge`, "numbers"; or "problem", a sentence.

    Args:
        question: the file's name and, as text, ``digits_only``, ``space_prefixed`` ("true" or "false") and
            ``vocab_size`` (empty for that of the tokenizer).
        content: the file.
    """
    name = question.get("name", "tokenizer.json")
    size = question.get("vocab_size", "").strip()
    options = Options(question.get("digits_only") != "false", question.get("space_prefixed") == "true")
    try:
        tokenizer = read_tokenizer(name, content)
        vocab_size = whole_number(size) if size else None
        if size and not 1 <= (vocab_size or 0) <= LARGEST_VOCABULARY:
            raise ValueError(f"vocab_size must be a whole number from 1 to {LARGEST_VOCABULARY:,}; got {size[:40]!r}.")
    except ValueError as error:
        return {"problem": shortened(str(error), MOST_LETTERS)}
    source, verdict = f"{name}: {tokenizer.get_vocab_size():,} tokens", judge(tokenizer, options)
    try:
        numbers = NumberTokens.from_tokenizer(tokenizer, vocab_size, *options).describe(MOST_VALUES)
    except ValueError as error:
        other = {} if verdict.get("good") else verdict  # if good, only vocab_size is wrong
        return {"source": source, "problem": shortened(f"{error}".removesuffix(".") + ".", MOST_LETTERS), **other}
    return {"source": source, "numbers": numbers, **verdict}


def read_tokenizer(name: str, content: bytes) -> Any:
    """The ``tokenizers.Tokenizer`` in a ``tokenizer.json``; raise a ValueError that says what the file is instead."""
    from tokenizers import Tokenizer

    try:
        text = content.decode()
        found = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not a text file: byte {error.start} is not valid UTF-8.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{name} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ValueError(f"{name} is not a tokenizer.json: its JSON is nested too deeply.") from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise ValueError(f"{name} is JSON, but not a tokenizer.json: {what_is_missing(found)}.")
    inserted = INSERTED.findall(json.dumps(found.get("normalizer"), ensure_ascii=False))
    if math.prod(1 + len(text) for text in inserted) > MOST_TIMES:
        raise ValueError(f"{name}: its normalizer could make a text more than {MOST_TIMES:,} times as long.")
    found |= dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))  # the verdict needs none of them
    try:
        with panics_as_errors("it panicked"):
            tokenizer = Tokenizer.from_str(json.dumps(found))
    except Exception as error:
        raise ValueError(f"{name} is JSON, but the tokenizers package cannot read it: {error}.") from error
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= LARGEST_VOCABULARY:
        raise ValueError(f"{name}: token ids must be below {LARGEST_VOCABULARY:,}; got {largest:,}.")
    return tokenizer


def what_is_missing(found: object) -> str:
    """Why a JSON file is not a tokenizer; common mistakes are named."""
    if not isinstance(found, dict):
        return f"it holds a {type(found).__name__}, not an object with a “model”"
    if found and all(isinstance(value, int) for value in found.values()):
        return "it looks like a vocab.json; upload the tokenizer.json from the same folder"
    if "tokenizer_class" in found:
        return "it looks like a tokenizer_config.json; upload the tokenizer.json from the same folder"
    return "it has no “model”"


def whole_number(text: str) -> int | None:
    """A text as a whole number; None if it is not one, or is far too long."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None


def judge(tokenizer: Any, chosen: Options) -> dict[str, Any]:
    """Whether the chosen options count all number tokens that can be labels ("good"), in words, and the call with the
    options that do; nothing if the library finds none."""
    judged = verdict(tokenizer, vocab_of(tokenizer), chosen)
    try:
        NumberTokens.from_tokenizer(tokenizer, None, *judged.best)
    except ValueError:
        return {}
    return {"good": judged.is_good, "words": judged.words, "call": judged.best.call}
