"""What is told to a user in one line instead of a traceback."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path


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
    """A command that says what it was given wrong, and then ends with 2."""

    @wraps(main)
    def command(arguments: list[str]) -> int:
        try:
            return main(arguments)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2

    return command


def writable(folder: Path, complaint: str = "{folder}: cannot write there") -> Path:
    """The folder, made and tried, so that no work is done whose results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{complaint.format(folder=folder)}: {error.strerror or error}") from error
    return folder
