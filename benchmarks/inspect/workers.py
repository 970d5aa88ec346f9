"""Runs a function in several processes, which end with the call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_all_cores(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The function's result for every item, computed by as many processes as there are cores; one item, by this one."""
    items = list(items)
    processes = min(len(items), len(os.sched_getaffinity(0)))
    return in_processes(function, items, processes) if processes > 1 else list(map(function, items))


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> list[Result]:
    """The function's result for every item, computed by new processes. Ctrl-C ends them."""
    ignore = (signal.SIGINT, signal.SIG_IGN)  # the calling process handles it
    with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, ignore) as pool:
        try:
            return list(pool.map(function, items))
        except KeyboardInterrupt:
            for process in active_children():
                process.kill()
            raise
