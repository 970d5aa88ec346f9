"""Blocks in threads: the same bits as one after another, in whatever state the caller's thread is."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NumberTokens, cross_entropy_ntl
from ntl_kernels.backends.eager import blocks, workers
from ntl_kernels.statistics import number_statistics

from ..problems import random_problem, solve

THREADS = 3
ROWS, VOCAB = 40, 64
NUMBERS = NumberTokens.from_mapping({digit: digit for digit in range(10)}, VOCAB)
LABELS = torch.arange(ROWS) % 20


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several threads for blocks of three rows, as on a machine that is found to be shared."""
    before = torch.get_num_threads()
    monkeypatch.setattr(workers.Machine, "is_shared_for", 10**9)
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * VOCAB * 4)
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def in_one_thread(function: Callable[[], Any]) -> Any:
    torch.set_num_threads(1)
    try:
        return function()
    finally:
        torch.set_num_threads(THREADS)


def loss_and_gradient(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    loss = cross_entropy_ntl(logits, LABELS, NUMBERS)
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("seed", range(2000, 2060))
def test_random_problems_give_the_same_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, (torch.float64, torch.float32, torch.bfloat16, torch.float16))
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * problem.logits.shape[-1] * 4)
    together, alone = solve(problem, "eager"), in_one_thread(lambda: solve(problem, "eager"))
    torch.testing.assert_close(together.gradient, alone.gradient, rtol=0, atol=0, equal_nan=True)
    for name, entry in together.entries.items():
        torch.testing.assert_close(entry, alone.entries[name], rtol=0, atol=0, equal_nan=True)


def test_statistics_give_the_same_bits() -> None:
    logits, upstream = torch.randn(ROWS, VOCAB, dtype=torch.float64), torch.randn(ROWS, dtype=torch.float64)

    def run() -> list[Tensor]:
        own = logits.clone().requires_grad_()
        found = number_statistics(own, NUMBERS)
        (gradient,) = torch.autograd.grad(found.expected_value, own, upstream)
        return [found.expected_value.detach(), found.mass.detach(), gradient]

    for together, alone in zip(run(), in_one_thread(run), strict=True):
        assert torch.equal(together, alone)


def test_blocks_are_computed_in_several_threads() -> None:
    meeting = threading.Barrier(THREADS, timeout=20)
    found = set()

    def work(item: int) -> None:
        meeting.wait()  # broken unless as many threads are here at once
        found.add(threading.get_ident())

    workers.for_each(work, range(THREADS), THREADS)
    assert len(found) == THREADS
    assert threading.get_ident() not in found


def test_a_worker_keeps_its_operations_to_itself() -> None:
    found: list[int] = []
    workers.for_each(lambda _: found.append(torch.get_num_threads()), range(20), THREADS)
    assert set(found) == {1}


def test_the_numbers_of_threads_stay_as_they_are() -> None:
    """From the moment that the loss is there, however late a worker was to start."""
    logits = torch.randn(ROWS, VOCAB)
    found = set()
    for _ in range(100):
        workers.workers.cache_clear()
        cross_entropy_ntl(logits, LABELS, NUMBERS)
        with ThreadPoolExecutor(1) as later:
            found.add(later.submit(torch.get_num_threads).result())
    assert found == {THREADS} == {torch.get_num_threads()}


def test_one_thread_has_no_workers() -> None:
    found = set()
    workers.for_each(lambda _: found.add(threading.get_ident()), range(20), 1)
    assert found == {threading.get_ident()}


class Clock:
    """A thread's time, of which it works so much in each item and waits the rest."""

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
        (0.0004, 0.0001, 4),  # that is seen once it has waited a millisecond
    ],
)
def test_a_walk_that_waits_for_its_core_hands_over_the_rest(
    item_s: float, worked_s: float, own_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, found = Clock(item_s, worked_s), []
    monkeypatch.setattr(workers, "time", clock)
    monkeypatch.setattr(workers.Machine, "is_shared_for", 0)

    def work(item: int) -> None:
        clock.items += 1
        found.append((threading.get_ident() == this_thread, item))

    this_thread = threading.get_ident()
    workers.for_each(work, range(9), THREADS)
    assert [is_own for is_own, _ in found].count(True) == own_items
    assert sorted(item for _, item in found) == list(range(9))
    assert workers.Machine.is_shared_for == (0 if own_items == 9 else workers.WALKS_BEFORE_ASKING_AGAIN)


def test_it_is_asked_again_after_some_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.get_ident()
    monkeypatch.setattr(workers, "time", Clock(0.01, 0.01))
    monkeypatch.setattr(workers.Machine, "is_shared_for", 2)
    found = []
    for _ in range(3):
        threads_of_walk: set[int] = set()
        workers.for_each(lambda _: threads_of_walk.add(threading.get_ident()), range(20), THREADS)  # noqa: B023
        found.append(own in threads_of_walk)
    assert found == [False, False, True]


def test_no_item_is_left_out_or_taken_twice() -> None:
    found: list[int] = []
    workers.for_each(found.append, range(1000), THREADS)
    assert sorted(found) == list(range(1000))
    workers.for_each(found.append, range(0), THREADS)
    assert len(found) == 1000


def test_an_error_is_raised_after_all_the_work() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        if item == 3:
            raise ArithmeticError("item 3")
        done.append(item)

    with pytest.raises(ArithmeticError, match="item 3"):
        workers.for_each(work, range(50), THREADS)
    assert sorted(done) == [item for item in range(50) if item != 3]


@pytest.mark.parametrize("state", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_mode_of_the_caller(state: Callable[[], Any]) -> None:
    logits = torch.randn(ROWS, VOCAB)
    expected = in_one_thread(lambda: loss_and_gradient(logits))[0]
    with state():
        parts = cross_entropy_ntl(logits, LABELS, NUMBERS, return_parts=True)
    assert torch.equal(parts.loss.detach(), expected)


def test_autocast_of_the_caller() -> None:
    logits = torch.randn(ROWS, VOCAB)
    expected = in_one_thread(lambda: loss_and_gradient(logits))
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_and_gradient(logits)
    assert all(map(torch.equal, found, expected))


def test_callers_in_several_threads_at_once() -> None:
    problems = [torch.randn(ROWS, VOCAB) for _ in range(12)]
    expected = in_one_thread(lambda: [loss_and_gradient(logits) for logits in problems])
    with ThreadPoolExecutor(4, initializer=torch.set_num_threads, initargs=(THREADS,)) as callers:
        for found, true in zip(callers.map(loss_and_gradient, problems), expected, strict=True):
            assert all(map(torch.equal, found, true))


@pytest.mark.parametrize("refused", range(THREADS + 2))
def test_a_system_that_refuses_threads(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it has started so many, and until it is asked again."""
    logits = torch.randn(ROWS, VOCAB)
    expected = in_one_thread(lambda: loss_and_gradient(logits))
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
        assert all(map(torch.equal, loss_and_gradient(logits), expected))
        found: list[int] = []
        workers.for_each(found.append, range(50), THREADS)
        assert sorted(found) == list(range(50))
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == THREADS == torch.get_num_threads()
    assert len(started) == min(refused, THREADS + 1)
    test_blocks_are_computed_in_several_threads()


def in_a_child(connection: Any, logits: Tensor) -> None:
    torch.set_num_threads(THREADS)
    connection.send([each.tolist() for each in loss_and_gradient(logits)])


def in_a_thread_that_outlives_the_main_thread(connection: Any, logits: Tensor) -> None:
    def run() -> None:
        while threading.main_thread().is_alive():
            time.sleep(0.01)
        in_a_child(connection, logits)

    in_a_child(connection, logits)  # the workers have started
    threading.Thread(target=run).start()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("target", [in_a_child, in_a_thread_that_outlives_the_main_thread])
def test_a_forked_process_has_workers_of_its_own(target: Callable[[Any, Tensor], None]) -> None:
    logits = torch.randn(ROWS, VOCAB)
    expected = [each.tolist() for each in loss_and_gradient(logits)]
    parent, child = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=target, args=(child, logits))
    process.start()
    child.close()
    try:
        for _ in range(1 + (target is not in_a_child)):
            assert parent.poll(60), "the child hangs"
            assert parent.recv() == expected
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
