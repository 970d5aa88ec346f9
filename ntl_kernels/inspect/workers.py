"""Work for several processes, which end with it."""

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
    """The function of every item, computed by new processes.

    Ctrl-C is answered here: the processes do not see it, and are killed.
    """
    others = set(active_children())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            with interrupts_held_back():  # which the processes that are started here inherit
                results = pool.map(function, items, chunksize=chunksize)
            return list(results)
        except KeyboardInterrupt:
            for process in set(active_children()) - others:
                process.kill()
            raise


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C within takes effect at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
