"""Files that are whole or not there, whatever ends the process that writes them; folders for one process at a time."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from .commands import InputError, naming

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder; at the end of the block, it is flushed and takes the place of ``path``.

    Until then, and after an error, what was at ``path`` is as it was. A file is replaced in one step; a folder that was
    there is moved aside and then removed.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: a device or a pipe, which a file cannot replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{secrets.token_hex(4)}{path.suffix}")  # no other process uses this name
    try:
        yield unfinished
        for file in [unfinished] if unfinished.is_file() else unfinished.rglob("*"):
            flush(file)
        if path.is_file():
            shutil.copymode(path, unfinished)
        before = path.with_name(f"{unfinished.name}.before") if path.is_dir() and unfinished.is_dir() else None
        if before:
            path.rename(before)
        unfinished.replace(path)
        if before:
            shutil.rmtree(before)
    except BaseException:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Return when the storage has a file."""
    if path.is_file():
        with path.open("r+b") as file:
            os.fsync(file.fileno())


def write(path: Path, text: str) -> None:
    """Write a text file in place of the one that was there."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """The object in a file of JSON; ``missing`` if there is no file and this is given."""
    if missing is not None and not path.exists():
        return missing
    with naming(str(path)):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"expected an object of JSON; got {content!r:.40}")
        return content


EACH = ""
"""In a shape, every field that it does not name."""


def misfits(value: Any, shape: Any, name: str = "") -> list[str]:
    """The names of fields that a JSON value lacks or has with another type.

    A shape is a type, [the shape of every item] or {field: its shape}, with EACH for the others.
    """
    if not isinstance(shape, (dict, list)):
        return [] if isinstance(value, shape) else [name]
    if not isinstance(value, type(shape)):
        return [name or "fields"]
    if isinstance(shape, list):
        value, shape = dict(enumerate(value)), {EACH: shape[0]}
    shapes = dict.fromkeys(value, shape[EACH]) | shape if EACH in shape else shape
    return [
        wrong
        for field, inner in shapes.items()
        if field != EACH
        for wrong in misfits(value.get(field, ...), inner, f"{name}.{field}".lstrip("."))
    ]


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Only one process at a time is in such a block for a folder; others wait, or raise an :class:`InputError`.

    The end of a process ends its lock. Where the system cannot lock folders, nothing is locked.
    """
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        os.close(opened)
        raise InputError(f"{folder}: another process is at work in this folder") from error
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_UN)  # a process that was forked meanwhile would keep the lock
        os.close(opened)
