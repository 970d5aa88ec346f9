"""The threads that blocks are computed in: all of them at each block, or each at a block of its own.

Torch splits an operation over its threads, and every operation ends when the last of them does. That is fastest on a
machine that is ours alone. Where other processes want the cores, too, each of a walk's hundreds of operations waits for
a thread that is not running. Threads that take whole blocks wait for each other once, at the end. They start worse,
though: the threads that split the operation before still look for more work, on a core of their own, for some
milliseconds. So operations are split until the calling thread is found to wait for its core; then threads take whole
blocks, and so they do in some more walks. A row's results have the same bits either way.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Lock, Thread
from typing import TypeVar

import torch

T = TypeVar("T")
LONGEST_WAIT = 0.35
"""A thread that waits for a core more than this share of its time is not alone. It waits half of its time beside one
other thread on its core."""
SHORTEST_WAIT_S = 1e-3
"""Less may be an interrupt, or a thread that had to be woken."""
WALKS_BEFORE_ASKING_AGAIN = 8
MOST_THREADS = 256
"""Threads are started as they are needed; beyond this number Python's own lock would be the limit."""
INITIALISING = Lock()


class Machine:
    """What walks have found."""

    is_shared_for = 0
    """How many more walks take it for granted that other processes want the cores; below 0 where callers in several
    threads have counted at once."""


def for_each(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call ``work`` for every item, in no order; an error that it raises is raised here."""
    if threads == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    left = deque(items)
    if Machine.is_shared_for > 0:
        Machine.is_shared_for -= 1
    else:
        split_operations(work, left)
    if left:
        take_whole_items(work, left, threads)


def split_operations(work: Callable[[T], object], left: deque[T]) -> None:
    """One item after another, until none is left or the machine is found to be shared."""
    start, start_of_work = time.perf_counter(), time.thread_time()
    while left and Machine.is_shared_for <= 0:
        work(left.popleft())
        passed = time.perf_counter() - start
        waited = passed - (time.thread_time() - start_of_work)
        if waited > max(LONGEST_WAIT * passed, SHORTEST_WAIT_S):
            Machine.is_shared_for = WALKS_BEFORE_ASKING_AGAIN


def take_whole_items(work: Callable[[T], object], left: deque[T], threads: int) -> None:
    """All items that are left, in threads that each take one at a time; errors are raised when all threads are done."""
    is_inference = torch.is_inference_mode_enabled()

    def take_items() -> None:
        with torch.inference_mode(is_inference), torch.no_grad():
            while left:
                try:
                    item = left.popleft()
                except IndexError:  # another thread took it
                    return
                work(item)

    futures = [workers().submit(take_items) for _ in range(min(threads, len(left)))]
    wait(futures)
    for future in futures:
        future.result()


def threads_for(device: torch.device) -> int:
    """How many threads blocks are computed in: torch's on a CPU, 1 where a thread cannot keep operations to itself."""
    return torch.get_num_threads() if device.type == "cpu" and has_threads_of_its_own() else 1


@cache
def has_threads_of_its_own() -> bool:
    """Whether each thread has a number of threads to split operations over, which only OpenMP gives it."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()


@cache
def workers() -> ThreadPoolExecutor:
    """Threads that split no operation."""
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
