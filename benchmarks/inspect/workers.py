"""Runs a function in several processes, which end with the call."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int, chunksize: int = 1
) -> list[Result]:
    """The function's result for every item, computed by new processes.

    Ctrl-C is handled in the calling process, which kills the others; they do not see it.
    """
    others = set(active_children())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            with interrupts_held_back():  # the new processes inherit the blocked signal
                results = pool.map(function, items, chunksize=chunksize)
            return list(results)
        except KeyboardInterrupt:
            for process in set(active_children()) - others:
                process.kill()
            raise


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C until the end of the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
