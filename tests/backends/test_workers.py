"""Blocks in threads: bitwise the results of sequential blocks, whatever the state of the caller's thread."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NumberTokens, cross_entropy_ntl
from ntl_kernels.backends.eager import blocks, workers

from ..problems import random_problem, solve

THREADS = 3
ROWS, VOCAB = 40, 64
NUMBERS = NumberTokens.from_mapping({digit: digit for digit in range(10)}, VOCAB)
LABELS = torch.arange(ROWS) % 20
LOGITS = torch.randn(ROWS, VOCAB)


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several threads for blocks of three rows, as on a shared machine."""
    before = torch.get_num_threads()
    monkeypatch.setattr(workers.Machine, "is_shared_for", 10**9)
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * VOCAB * 4)
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def in_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(THREADS)


def loss_and_gradient(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    loss = cross_entropy_ntl(logits, LABELS, NUMBERS)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("first_seed", range(2000, 2040, 10))
def test_random_problems_give_the_same_bits(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first_seed, first_seed + 10):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.bfloat16, torch.float16))
        monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * problem.logits.shape[-1] * 4)
        together, alone = solve(problem, "eager"), in_one_thread(solve, problem, "eager")
        torch.testing.assert_close(together.entries, alone.entries, rtol=0, atol=0, equal_nan=True)


def loss_alone(logits: Tensor) -> Tensor:
    """Without a gradient, since the loss is rounded differently if it is computed with one."""
    return cross_entropy_ntl(logits.detach(), LABELS, NUMBERS)


def test_every_state_of_the_caller_gives_the_same_bits() -> None:
    loss, expected = in_one_thread(loss_alone, LOGITS), in_one_thread(loss_and_gradient, LOGITS)
    for state in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with state():
            assert torch.equal(loss_alone(LOGITS), loss)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, loss_and_gradient(LOGITS), expected))
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(THREADS,)) as callers:
        for found in callers.map(loss_and_gradient, [LOGITS] * 12):
            assert all(map(torch.equal, found, expected))


def test_blocks_are_computed_in_several_threads() -> None:
    """They do not split their operations. A single thread is the caller's."""
    meeting, found = threading.Barrier(THREADS, timeout=20), set()

    def work(item: int) -> None:
        if item < THREADS:
            meeting.wait()  # broken unless as many threads are here at once
        found.add((threading.get_ident(), torch.get_num_threads()))

    workers.for_each(work, range(THREADS), THREADS)
    assert len(found) == THREADS and {count for _, count in found} == {1}
    assert (here := threading.get_ident()) not in {thread for thread, _ in found}
    found.clear()
    workers.for_each(work, range(THREADS, 20), 1)
    assert found == {(here, THREADS)}


def test_every_item_is_taken_once_and_an_error_raised_after_all_the_work() -> None:
    found: list[int] = []

    def work(item: int) -> None:
        found.append(item)
        if item == 3:
            raise IndexError("item 3")

    with pytest.raises(IndexError, match="item 3"):
        workers.for_each(work, range(1000), THREADS)
    assert sorted(found) == list(range(1000))
    workers.for_each(work, range(0), THREADS)


class Clock:
    """A thread's time: how long it works on each item, and waits otherwise."""

    def __init__(self, item_s: float, worked_s: float) -> None:
        self.item_s, self.worked_s, self.items = item_s, worked_s, 0

    def perf_counter(self) -> float:
        return self.items * self.item_s

    def thread_time(self) -> float:
        return self.items * self.worked_s


@pytest.mark.parametrize(
    ("item_s", "worked_s", "own_items"),
    [
        (0.01, 0.01, 9),  # works all the time
        (0.01, 0.007, 9),  # waits less than a third of it
        (0.0001, 0.00001, 9),  # waits 0.8 ms in all
        (0.01, 0.005, 1),  # another thread on its core
        (0.0004, 0.0001, 4),  # noticed once it has waited a millisecond
    ],
)
def test_a_walk_that_waits_for_its_core_hands_over_the_rest(
    item_s: float, worked_s: float, own_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all items of some further walks, until it is checked again."""
    clock, here = Clock(item_s, worked_s), threading.get_ident()
    monkeypatch.setattr(workers, "time", clock)
    monkeypatch.setattr(workers.Machine, "is_shared_for", 0)
    further_walks = 0 if own_items == 9 else workers.WALKS_BEFORE_ASKING_AGAIN
    for walk in range(1 + further_walks):
        found: list[tuple[int, bool]] = []

        def work(item: int, found: list[tuple[int, bool]] = found) -> None:
            clock.items += 1
            found.append((item, threading.get_ident() == here))

        workers.for_each(work, range(9), THREADS)
        assert sorted(item for item, _ in found) == list(range(9))
        assert sum(is_own for _, is_own in found) == (own_items if walk == 0 else 0)
        assert workers.Machine.is_shared_for == further_walks - walk


@pytest.mark.parametrize("refused", range(THREADS + 2))
def test_a_system_that_refuses_threads(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many threads have started, until it is checked again. The numbers of threads do not change."""
    expected = in_one_thread(loss_and_gradient, LOGITS)
    start, started = threading.Thread.start, list[str]()

    def start_few(thread: threading.Thread) -> None:
        if thread.name.startswith("ntl_kernels"):
            if len(started) == refused:
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
        start(thread)

    workers.workers.cache_clear()
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", start_few)
        assert all(map(torch.equal, loss_and_gradient(LOGITS), expected))
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == THREADS == torch.get_num_threads()
    assert len(started) == min(refused, THREADS + 1)
    test_blocks_are_computed_in_several_threads()


def in_a_child(connection: Any) -> None:
    """In its main thread, and in a thread that outlives it."""

    def send(wait: Callable[[], object] = lambda: None) -> None:
        wait()
        torch.set_num_threads(THREADS)
        connection.send([each.tolist() for each in loss_and_gradient(LOGITS)])

    def until_the_main_thread_has_ended() -> None:
        while threading.main_thread().is_alive():
            time.sleep(0.01)

    send()  # the workers have started
    threading.Thread(target=partial(send, until_the_main_thread_has_ended)).start()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own() -> None:
    expected = [each.tolist() for each in loss_and_gradient(LOGITS)]
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=in_a_child, args=(child,))
    process.start()
    child.close()
    try:
        for _ in range(2):
            assert parent.poll(60), "the child hangs"
            assert parent.recv() == expected
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
