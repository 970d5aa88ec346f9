"""A Python like that of a machine with a GPU: packages missing there cannot be imported."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

PACKAGES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").split()
"""The packages of such a machine, without this project."""
SITE = """
import importlib.metadata
from importlib.machinery import PathFinder

modules, packages = {modules!r}, {packages!r}
find_any_module, find_any_packages = PathFinder.find_spec, importlib.metadata.MetadataPathFinder.find_distributions


def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in modules else find_any_module(name, path, target)


def find_distributions(cls, *context):
    return (found for found in find_any_packages(*context) if found.metadata["Name"] not in packages)


PathFinder.find_spec = classmethod(find_spec)
importlib.metadata.MetadataPathFinder.find_distributions = classmethod(find_distributions)
"""
"""Hides modules and their packages, because pytest imports the plugins of all packages that it finds."""
COMMAND = """#!/usr/bin/env bash
PYTHONPATH={folder}:${{PYTHONPATH:-}} exec {python} "$@"
"""


def make_python(folder: Path, carried: Iterable[str] = (), without: Iterable[str] = ()) -> Path:
    """A command like ``python`` that sees the packages of the machine and those carried there, ``without`` some."""
    site = folder / "site"
    site.mkdir(parents=True)
    packages = absent_packages(carried) | set(without)
    modules = {
        module for module, owners in importlib.metadata.packages_distributions().items() if packages.issuperset(owners)
    }
    (site / "sitecustomize.py").write_text(SITE.format(modules=modules, packages=packages))
    command = folder / "python"
    command.write_text(COMMAND.format(folder=site, python=sys.executable))
    command.chmod(0o755)
    return command


def absent_packages(carried: Iterable[str]) -> set[str]:
    """Packages installed only here, except the dependencies that the machine's packages have in their versions here."""
    installed = {normalised(found.name): found for found in importlib.metadata.distributions()}
    present: set[str] = set()
    waiting = [*PACKAGES, "ntl-kernels"]
    while waiting:
        name = waiting.pop()
        if name in installed and name not in present:
            present.add(name)
            waiting += [] if name == "ntl-kernels" else needs_of(installed[name])
    present |= {normalised(name) for name in carried}
    return {found.name for name, found in installed.items() if name not in present}


def needs_of(package: importlib.metadata.Distribution) -> list[str]:
    """The package's required dependencies here."""
    needs = [Requirement(text) for text in package.requires or ()]
    return [normalised(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def normalised(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
