"""The verdict on an uploaded ``tokenizer.json``: which tokens are numbers, and which options count them all."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from types import ModuleType
from typing import Any

from ..tokens import NumberTokens
from ..tokens.texts import Options, panics_as_errors, shortened, verdict, vocab_of

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows
    resource = None

NAME = "tokenizer.json"
MOST_VALUES = 200
"""The most values listed for a tokenizer."""
MOST_LETTERS = 1000
"""The maximum length of a message: some errors quote whole files."""
LARGEST_VOCABULARY = 10_000_000
"""Far beyond any model's; a table of this size is allocated."""
SECONDS, MOST_MEMORY = 30, 2**31
"""What an answer may take: a kilobyte can make the tokenizers package run for years, fill the memory or abort."""
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
PROCESSES: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
PROCESSES.set_forkserver_preload(["tokenizers", "ntl_kernels.demo.server"])
ONE_AT_A_TIME = Lock()


def bounded_answer(question: Mapping[str, str], content: bytes) -> dict[str, Any]:
    """:func:`answer` within :data:`SECONDS` and, where the system can limit it, :data:`MOST_MEMORY`: in a process of
    its own, which a file may block or end."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=send_answer, args=(sender, question, content, SECONDS, MOST_MEMORY), daemon=True)
    found = None
    with ONE_AT_A_TIME, receiver, suppress(EOFError):
        process.start()
        sender.close()  # the end of the process then ends the wait
        found = receiver.recv() if receiver.poll(SECONDS) else None
    process.kill()
    process.join()
    limits = f"{SECONDS} seconds or {MOST_MEMORY / 2**30:g} GB of memory"
    return found or {"problem": f"{question.get('name', NAME)}: its tokenizer needs more than {limits}, or fails."}


def send_answer(
    sender: Connection, question: Mapping[str, str], content: bytes, seconds: int, most_memory: int
) -> None:
    """Send the answer, in the process of :func:`bounded_answer`."""
    warnings.simplefilter("ignore")  # the page shows them
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of a panic, Rust prints its whole stack
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # also if the demo ends before
        resource.setrlimit(resource.RLIMIT_DATA, (most_memory, most_memory))
    with suppress(MemoryError):
        sender.send(answer(question, content))


def answer(question: Mapping[str, str], content: bytes) -> dict[str, Any]:
    """What the page shows for a file: "source", the verdict of :func:`judge`, "numbers"; or "problem", a sentence.

    Args:
        question: the file's name and, as text, ``digits_only``, ``space_prefixed`` ("true" or "false") and
            ``vocab_size`` (empty for that of the tokenizer).
        content: the file.
    """
    name = question.get("name", NAME)
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
    found |= dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))  # the verdict needs none of them
    with panics_as_errors(f"{name} is JSON, but the tokenizers package cannot read it"):
        tokenizer = Tokenizer.from_str(json.dumps(found))
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
