"""The threads that compute blocks: either all threads share each block, or each thread computes whole blocks.

Torch splits an operation over its threads and waits for the slowest, which is fastest on a machine without other load.
If other processes use the cores, each of the hundreds of operations of a walk waits for a thread that is not running.
Threads that compute whole blocks wait only once, at the end, but start slower: torch's own threads keep looking for
work for some milliseconds after an operation. Therefore operations are split until the calling thread is found to wait
for its core. From then on, and in some further walks, threads compute whole blocks. A row's results are bitwise equal.

With three other processes on two cores, a step of 1,024 x 32,000 logits took 489 ms with split operations, and 241 ms
with whole blocks.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TypeVar

import torch

T = TypeVar("T")
LONGEST_WAIT = 0.35
"""A thread that waits for a core more than this share of its time, and more than SHORTEST_WAIT_S (an interrupt, or a
thread waking up), is on a shared machine. With one other thread on its core, it waits half of the time."""
SHORTEST_WAIT_S = 1e-3
WALKS_BEFORE_ASKING_AGAIN = 8
HAS_OPENMP = "parallel backend: OpenMP" in torch.__config__.parallel_info()
"""Whether the number of threads that split operations can be set per calling thread."""
STARTING = Lock()
"""Held while workers start, and while the process forks."""


class Machine:
    """What previous walks have found: for how many more walks (below 0 after races) the machine counts as shared."""

    is_shared_for = 0


def threads_for(device: torch.device) -> int:
    """The number of threads for blocks: torch's setting on a CPU, 1 if threads cannot compute operations alone."""
    return torch.get_num_threads() if device.type == "cpu" and HAS_OPENMP else 1


def for_each(work: Callable[[T], object], items: Sequence[T], threads: int) -> None:
    """Call ``work`` for every item, in any order; its errors are raised here, when all threads are done."""
    if threads == 1 or len(items) < 2:
        for item in items:
            work(item)
        return
    left = deque(items)
    start, start_of_work = time.perf_counter(), time.thread_time()
    if Machine.is_shared_for > 0:
        Machine.is_shared_for -= 1
        return take_whole_items(work, left, threads)
    while left:
        work(left.popleft())
        passed = time.perf_counter() - start
        waited = passed - (time.thread_time() - start_of_work)
        if waited > max(LONGEST_WAIT * passed, SHORTEST_WAIT_S):
            Machine.is_shared_for = WALKS_BEFORE_ASKING_AGAIN
            return take_whole_items(work, left, threads)


def take_whole_items(work: Callable[[T], object], left: deque[T], threads: int) -> None:
    """Process items in threads that take one at a time."""
    is_inference = torch.is_inference_mode_enabled()

    def take_items() -> None:
        with torch.inference_mode(is_inference), torch.no_grad():
            while left:
                try:
                    item = left.popleft()
                except IndexError:  # another thread took it
                    return
                work(item)

    futures: list[Future[None]] = []
    with suppress(RuntimeError), STARTING:  # raised if the system refuses a thread or the main thread has ended
        for worker in workers(threads)[: len(left)]:
            futures.append(worker.submit(take_items))
    for future in wait(futures).done:
        future.result()
    take_items()  # all of them, if there are no workers


@cache
def workers(count: int) -> list[ThreadPoolExecutor]:
    """That many threads that do not split operations, all of them started; raises RuntimeError if one is refused.

    The number of a new thread is a default that ``torch.set_num_threads`` sets, together with that of the calling
    thread. Therefore a thread that ends here sets it to 1 and back.
    """

    def start() -> list[ThreadPoolExecutor]:
        default = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            started = [ThreadPoolExecutor(1, "ntl_kernels") for _ in range(count)]
            for worker in started:
                worker.submit(torch.get_num_threads).result()  # reads the default
            return started
        finally:
            torch.set_num_threads(default)

    with ThreadPoolExecutor(1, "ntl_kernels") as starter:
        return starter.submit(start).result()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=STARTING.acquire, after_in_parent=STARTING.release, after_in_child=STARTING.release)
    os.register_at_fork(after_in_child=workers.cache_clear)  # a forked process has none of its parent's threads
