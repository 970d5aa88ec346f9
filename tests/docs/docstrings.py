"""What the docstrings of the package say, as the reference should show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import griffe

from .pages import ROOT

CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
ROLE = re.compile(r":(?:func|class|meth|data|attr|mod):`~?([\w.]+)`")
EMPHASIS = re.compile(r"(?<!\S)(\*{1,2})(\S(?:[^*]*\S)?)\1(?!\w)")
BULLET = re.compile(r"^ *[-*] ", re.MULTILINE)


@cache
def package() -> Any:
    return griffe.load("ntl_kernels", search_paths=[ROOT])


def pieces_of(name: str) -> list[str]:
    """The texts of a name's docstring: of its own, and of each argument, error and result; none for an unknown name."""
    head, _, path = name.partition(".")
    if head != "ntl_kernels" or not path:
        return []
    try:
        docstring = package()[path].docstring
    except KeyError:
        return []
    if docstring is None:
        return []
    return [piece for section in docstring.parse("google", warnings=False) for piece in texts(section.value) if piece]


def texts(value: Any) -> Iterator[str]:
    """The texts of a section, however the parser holds them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from texts(entry)
    elif hasattr(value, "description"):
        yield value.description


def shown(text: str) -> str:
    """The characters that a reader sees of a docstring's text."""
    parts = CODE.split(ROLE.sub(r"`\1`", text))
    return squeezed("".join(part.strip("`") if i % 2 else prose(part) for i, part in enumerate(parts)))


def prose(text: str) -> str:
    """Text without the marks of emphasis and lists."""
    return EMPHASIS.sub(r"\2", BULLET.sub("", text))


def squeezed(text: str) -> str:
    """Text without white space."""
    return re.sub(r"\s+", "", text)
