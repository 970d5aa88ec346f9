"""Errors that are shown to users in one line instead of a traceback. Imports nothing heavy."""

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
    """Invalid input of a user: data, an option, a folder. The message names it and what was expected.

    Any code that reads a user's input may raise it; commands print it in one line.
    """


@contextmanager
def naming(what: str, *others: type[Exception]) -> Iterator[None]:
    """Convert errors about a user's value, and those of ``others``, to an :class:`InputError` that names the option."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, OSError, *others) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{what}: {reason}") from error


def in_one_line(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """A command that prints input errors and interruptions in one line and returns the matching exit code."""

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
    """Wrap imports that take seconds, so that Ctrl-C during them also ends the program with one line."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(interrupted()) from None


def interrupted() -> int:
    """Print that the program was interrupted; return the exit code. A second Ctrl-C ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("\ninterrupted" if sys.stderr.isatty() else "interrupted", file=sys.stderr)  # a terminal has shown ^C
    return INTERRUPTED


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, compared by the part after its last dot; None if none is similar.

    Similar are names with nearly the same spelling, the initials of a name ("lr") and some of its words ("batch_size").
    """
    ends: dict[str, str] = {}
    for each in known:
        ends.setdefault(each.rpartition(".")[2], each)
    alike = difflib.get_close_matches(name, ends, 1)
    alike += [end for end in ends if "_" in end and "".join(word[:1] for word in end.split("_")) == name]
    alike += [end for end in ends if f"_{name}_" in f"_{end}_"]
    return ends[alike[0]] if alike else None


def writable(folder: Path, complaint: str = "{folder}: cannot write there") -> Path:
    """Create the folder and test that it is writable, before any work whose results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{complaint.format(folder=folder)}: {error.strerror or error}") from error
    return folder
