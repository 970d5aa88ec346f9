"""Which extra installs a library that a module needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(module: str, library: str, install: str) -> Iterator[None]:
    """Wrap imports: if the library is not installed, the error says how to install it.

    Args:
        module: the importing module.
        library: the name of the library; in lower case, the name of its package.
        install: the argument of ``pip install``.

    Raises:
        ImportError: the library is missing. Other errors of the imports are passed through.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library.lower():
            raise
        raise ImportError(f'{module} needs {library}: pip install "{install}"', name=error.name) from error
