"""Shared by the command lines: errors in one line instead of a traceback, and types of values."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

from ntl_kernels.command_line import WRONG_INPUT, Parser, meant

__all__ = ["WRONG_INPUT", "InputError", "Parser", "count", "in_one_line", "meant", "naming", "seconds"]
__all__ += ["writable", "writable_file"]

INTERRUPTED = 128 + signal.SIGINT
"""The exit code."""
STORAGE = {errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EROFS}
STORAGE |= {errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ENOSPC}
"""Errors of the system for a place that cannot be written to, or is full."""


class InputError(ValueError):
    """Invalid input of a user: data, an option, a folder. The message names it and what was expected.

    Any code that reads a user's input may raise it; commands print it in one line.
    """


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Convert errors about a user's value to an :class:`InputError` that names the option."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{what}: {reason}") from error


def in_one_line(main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """A command that prints input errors, full or unsuitable storage and interruptions in one line and returns the
    matching exit code."""

    @wraps(main)
    def command(arguments: list[str]) -> int:
        try:
            return main(arguments)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return WRONG_INPUT
        except BrokenPipeError:  # who reads the output, such as head, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + 13  # SIGPIPE, which Windows lacks
        except OSError as error:
            if error.errno not in STORAGE:
                raise
            print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
            return WRONG_INPUT
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return INTERRUPTED

    return command


def writable(folder: Path, complaint: str = "{folder}: cannot write there") -> Path:
    """Create the folder and test that it is writable, before any work whose results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{complaint.format(folder=folder)}: {error.strerror or error}") from error
    return folder


def writable_file(path: Path) -> Path:
    """The same for a file: its folder is created and tested."""
    writable(path.parent)
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file; the results go into a file")
    return path


def count(text: str) -> int:
    """For ``type=``: a whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1; got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """For ``type=``: a time above 0."""
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0; got {text!r}")
    return float(text)
