"""How to install a library that a module needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def needs(module: str, library: str, install: str) -> Iterator[None]:
    """Wrap imports of a module: if the library (in lower case, its package) is not installed, the ImportError says how
    to install it. ``install`` is the argument of ``pip install``, or an extra of this package in brackets: "[trl]"."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library.lower():
            raise
        command = installing(install[1:-1]) if install.startswith("[") else f'pip install "{install}"'
        raise ImportError(f"{module} needs {library}: {command}", name=error.name) from error


def installing(extra: str) -> str:
    """The command that installs an extra of this package: from the checkout if there is one, else for the installation.

    The second needs no index that has this package, since the metadata of an installed package lists its extras.
    """
    root = Path(__file__).parents[1]
    is_checkout = (root / "setup.py").is_file()
    return f'pip install -e "{root}[{extra}]"' if is_checkout else f'pip install "ntl_kernels[{extra}]"'
