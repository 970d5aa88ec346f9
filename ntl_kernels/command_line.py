"""What the command lines share: an error is one line, and names the option or value that was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

WRONG_INPUT = 2
"""The exit code."""


def meant(word: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown word: the known word that is most like it, or else all of them."""
    words = {each.lower(): each for each in known}
    near = get_close_matches(word.lower(), words, n=1)
    others = f"; expected one of {', '.join(words.values())}" if words else ""
    return f": did you mean {words[near[0]]}?" if near else others


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are one line, with the option or choice that was probably meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"error: {message}\n")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuse unknown arguments here: a subcommand's parser, which knows its options, would pass them on."""
        found, unknown = super().parse_known_args(args, namespace)
        if options := [each.partition("=")[0] for each in unknown if each.startswith("-")]:
            self.error(f"unrecognized option {options[0]}{meant(options[0], self._option_string_actions)}")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice {value!r}{meant(value, action.choices)}")
