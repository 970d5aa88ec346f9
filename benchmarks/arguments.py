"""Shared by the command lines: a parser with one-line errors, and types of values. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

from .errors import WRONG_INPUT

MOST_THREADS = 1024


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"error: {message} ({self.prog} --help)\n")


def count(text: str) -> int:
    """For ``type=``: a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1; got {text!r}")
    return number


def threads(text: str) -> int:
    """For ``type=``: a number of threads that a process can start."""
    number = count(text)
    if number > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_THREADS} threads; got {text!r}")
    return number


def seconds(text: str) -> float:
    """For ``type=``: a time above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0; got {text!r}")
    return number
