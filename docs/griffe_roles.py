"""Docstrings name things as Sphinx does (:func:`f`); here these names become links of the site, or code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|data|attr|mod):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Resolve roles against the public names of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite every docstring of the package."""
        for named in walk(pkg, set()):
            if named.docstring:
                named.docstring.value = linked(named.docstring.value, named)


def walk(module: Any, seen: set[str]) -> Any:
    """Everything defined in a module, itself included."""
    if module.is_alias or module.path in seen:
        return
    seen.add(module.path)
    yield module
    for member in getattr(module, "members", {}).values():
        yield from walk(member, seen)


def linked(docstring: str, owner: Any) -> str:
    """The docstring of ``owner`` with links in place of roles."""
    return ROLE.sub(lambda match: link(match[1], owner), docstring)


def link(name: str, owner: Any) -> str:
    """A name as a link, if the package defines it; else as code."""
    try:
        target = owner.resolve(name)
    except (griffe.NameResolutionError, griffe.AliasResolutionError):
        return f"`{name}`"
    return f"[`{name}`][{target}]"
