"""Blocks handed to threads whole.

Torch splits an operation over its threads, and every operation ends where the last thread does. A walk over blocks has
hundreds of operations, and where other processes want the cores, too, each of them waits for a thread that is not
running. Here a thread takes a block, computes all of it on its own, and takes the next: threads meet once, at the end.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Lock, Thread
from typing import TypeVar

import torch

T = TypeVar("T")
MOST_THREADS = 256
"""Threads are started as they are needed; beyond this number Python's own lock would be the limit."""
INITIALISING = Lock()


def for_each(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call ``work`` for every item, in no order; the first error that it raises is raised here, after all the work."""
    if threads == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    left = deque(items)
    is_inference = torch.is_inference_mode_enabled()

    def take_items() -> None:
        with torch.inference_mode(is_inference), torch.no_grad():
            while left:
                try:
                    item = left.popleft()
                except IndexError:  # another thread took it
                    return
                work(item)

    futures = [workers().submit(take_items) for _ in range(min(threads, len(items)))]
    wait(futures)
    for future in futures:
        future.result()


def threads_for(device: torch.device) -> int:
    """In how many threads blocks are computed: torch's own number on a CPU, 1 where a thread cannot have its own."""
    return torch.get_num_threads() if device.type == "cpu" and has_threads_of_its_own() else 1


@cache
def has_threads_of_its_own() -> bool:
    """Whether a thread can keep its operations to itself; only under OpenMP does it have a number of threads."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()


@cache
def workers() -> ThreadPoolExecutor:
    """Threads whose operations run on themselves alone."""
    return ThreadPoolExecutor(MOST_THREADS, "ntl_kernels", keep_to_itself)


os.register_at_fork(after_in_child=workers.cache_clear)  # a forked process has none of its parent's threads


def keep_to_itself() -> None:
    """Give the calling thread one OpenMP thread, and leave what threads to come start with as it is.

    ``torch.set_num_threads`` sets both: the number of the thread that calls it, and that of threads to come.
    """
    with INITIALISING:
        of_threads_to_come = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = Thread(target=torch.set_num_threads, args=(of_threads_to_come,))
        restoring.start()
        restoring.join()
