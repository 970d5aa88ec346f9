"""The threads that compute blocks: either all threads share each block, or each thread takes whole blocks.

Torch splits an operation over its threads and waits for the slowest. That is fastest on a machine without other load.
If other processes use the cores, too, each of the hundreds of operations of a walk waits for a thread that is not
running. Threads that take whole blocks wait for each other only once, at the end. Their start is slower, though:
torch's own threads keep looking for work on their cores for some milliseconds after an operation. Therefore operations
are split until the calling thread is found to wait for its core. From then on, and in some further walks, threads take
whole blocks. The results of a row are bitwise equal in both cases.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier, Lock, Thread
from typing import TypeVar

import torch

T = TypeVar("T")
LONGEST_WAIT = 0.35
"""If a thread waits for a core more than this share of its time, the machine is shared. With one other thread on its
core, it waits half of the time."""
SHORTEST_WAIT_S = 1e-3
"""A shorter wait may be an interrupt, or a thread waking up."""
WALKS_BEFORE_ASKING_AGAIN = 8
MOST_THREADS = 256
"""Maximum number of threads; with more, Python's global lock would be the limit."""
INITIALISING = Lock()


class Machine:
    """What previous walks have found about the machine."""

    is_shared_for = 0
    """How many more walks assume that other processes use the cores; below 0 if callers in several threads have counted
    at the same time."""


def for_each(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call ``work`` for every item, in any order; its errors are raised here."""
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
    """Process items one after another, until none is left or the machine is found to be shared."""
    start, start_of_work = time.perf_counter(), time.thread_time()
    while left and Machine.is_shared_for <= 0:
        work(left.popleft())
        passed = time.perf_counter() - start
        waited = passed - (time.thread_time() - start_of_work)
        if waited > max(LONGEST_WAIT * passed, SHORTEST_WAIT_S):
            Machine.is_shared_for = WALKS_BEFORE_ASKING_AGAIN


def take_whole_items(work: Callable[[T], object], left: deque[T], threads: int) -> None:
    """Process the remaining items in threads that take one at a time; errors are raised when all threads are done."""
    is_inference = torch.is_inference_mode_enabled()

    def take_items() -> None:
        with torch.inference_mode(is_inference), torch.no_grad():
            while left:
                try:
                    item = left.popleft()
                except IndexError:  # another thread took it
                    return
                work(item)

    pool = workers(min(threads, MOST_THREADS))
    futures = [pool.submit(take_items) for _ in range(min(threads, len(left)))]
    wait(futures)
    for future in futures:
        future.result()


def threads_for(device: torch.device) -> int:
    """The number of threads for blocks: torch's setting on a CPU, 1 if threads cannot compute operations alone."""
    return torch.get_num_threads() if device.type == "cpu" and has_threads_of_its_own() else 1


@cache
def has_threads_of_its_own() -> bool:
    """Whether the number of threads that split operations can be set per calling thread, as with OpenMP."""
    return "parallel backend: OpenMP" in torch.__config__.parallel_info()


@cache
def workers(count: int) -> ThreadPoolExecutor:
    """That many threads that do not split operations.

    All have started when this returns: for a moment, a starting thread changes the default of new threads.
    """
    pool = ThreadPoolExecutor(count, "ntl_kernels", keep_to_itself)
    meeting = Barrier(count)
    wait([pool.submit(meeting.wait) for _ in range(count)])
    return pool


os.register_at_fork(after_in_child=workers.cache_clear)  # a forked process has none of its parent's threads


def keep_to_itself() -> None:
    """Limit the calling thread to one OpenMP thread, without changing the default of new threads.

    ``torch.set_num_threads`` sets both, the number of the calling thread and the default of new threads.
    """
    with INITIALISING:
        of_threads_to_come = torch.get_num_threads()
        torch.set_num_threads(1)
        restoring = Thread(target=torch.set_num_threads, args=(of_threads_to_come,))
        restoring.start()
        restoring.join()
