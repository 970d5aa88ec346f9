"""What is told to a user in one line instead of a traceback. Imports nothing heavy."""

from __future__ import annotations

import difflib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

WRONG_INPUT, INTERRUPTED = 2, 128 + signal.SIGINT
"""Exit codes."""


class InputError(ValueError):
    """Something given that cannot work: data, an option, a folder. The message names it, and what was expected.

    Whatever reads what a user gave may raise it; commands tell it in one line.
    """


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors of values that a user chose, as an :class:`InputError` that names the option."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{what}: {reason}") from error


def in_one_line(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """A command that says what it was given wrong, or that it was interrupted, and ends with the exit code for it."""

    @wraps(main)
    def command(arguments: list[str]) -> int:
        try:
            return main(arguments)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return WRONG_INPUT
        except KeyboardInterrupt:
            return interrupted()

    return command


@contextmanager
def interruptible() -> Iterator[None]:
    """Wrap imports that take seconds: Ctrl-C meanwhile ends the program in one line, too."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(interrupted()) from None


def interrupted() -> int:
    """Say so; the exit code. A second Ctrl-C then ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)  # a terminal has shown ^C
    return INTERRUPTED


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was meant, compared by what follows its last dot; None if all are unlike it.

    Alike are names that are spelt much the same, the initials of a name ("lr") and some of its words ("batch_size").
    """
    ends: dict[str, str] = {}
    for each in known:
        ends.setdefault(each.rpartition(".")[2], each)
    alike = difflib.get_close_matches(name, ends, 1)
    alike += [end for end in ends if "_" in end and "".join(word[:1] for word in end.split("_")) == name]
    alike += [end for end in ends if f"_{name}_" in f"_{end}_"]
    return ends[alike[0]] if alike else None


def writable(folder: Path, complaint: str = "{folder}: cannot write there") -> Path:
    """The folder, made and tried, so that no work is done whose results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{complaint.format(folder=folder)}: {error.strerror or error}") from error
    return folder
