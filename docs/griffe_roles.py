"""Docstrings use Sphinx's roles (:func:`f`), which become links of the site, or code. Signatures show constants of the
package by their values: ``NTLConfig()`` instead of ``DEFAULT_CONFIG``.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|data|attr|mod):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Resolve roles and defaults against the names of the package."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite every docstring and every signature of the package."""
        for named in walk(pkg, set()):
            if named.docstring:
                named.docstring.value = linked(named.docstring.value, named)
            for parameter in named.parameters if named.is_function else ():
                parameter.default = value_of(parameter.default, pkg)


def value_of(default: Any, package: griffe.Module) -> Any:
    """A default; if it is a constant of the package that is created by a call, that call."""
    if not isinstance(default, griffe.ExprName) or not default.canonical_path.startswith(f"{package.path}."):
        return default
    value = getattr(package.modules_collection[default.canonical_path], "value", None)
    return value if isinstance(value, griffe.ExprCall) else default


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
