"""Which extra installs a library that a module needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(module: str, library: str, install: str) -> Iterator[None]:
    """Wrap imports: if the library is not installed, the error says what installs it.

    Args:
        module: which module has the imports.
        library: the name of the library; in lower case, that of its package.
        install: what to give ``pip install``.

    Raises:
        ImportError: the library is missing. Any other error of the imports stays what it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library.lower():
            raise
        raise ImportError(f'{module} needs {library}: pip install "{install}"', name=error.name) from error
