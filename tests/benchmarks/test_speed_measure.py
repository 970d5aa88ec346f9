"""Clocks and counters: on torch's traces, on made-up traces and with made-up events."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from benchmarks.speed import measure

from .speed_cases import CPU


class Metronome:
    """A clock with given durations of steps, which records whose turn it was."""

    least_sample_s = measure.LEAST_SAMPLE_S

    def __init__(self, durations: dict[Any, float]) -> None:
        self.durations, self.turns = durations, []

    def sample(self, step: Any, first: int, repeats: int) -> float:
        self.turns.append((step, first, repeats))
        return self.durations[step]


def test_steps_take_turns_and_walk_through_the_sets() -> None:
    clock = Metronome({"a": 0.01, "b": 0.01})
    timed = measure.time_alternately({"a": "a", "b": "b"}, clock, seconds=0.2, least=2, most=50)
    assert {name: len(sampled.seconds) for name, sampled in timed.items()} == {"a": 10, "b": 10}
    turns = [step for step, *_ in clock.turns[4:]]  # after two estimates each
    assert turns == ["b", "a", "a", "b"] * 5
    clock = Metronome({"a": 1e-3})
    measure.time_alternately({"a": "a"}, clock, seconds=0.1, least=3, most=3)
    assert [first for _, first, _ in clock.turns[2:]] == [0, 2, 4]


def test_slow_steps_get_fewer_samples_but_enough() -> None:
    clock = Metronome({"fast": 0.001, "slow": 10.0})
    timed = measure.time_alternately({"fast": "fast", "slow": "slow"}, clock, seconds=1.0, least=5, most=40)
    assert timed["fast"].repeats == 2 and len(timed["fast"].seconds) == 40
    assert timed["slow"].repeats == 1 and len(timed["slow"].seconds) == 5
    rounds = [step for step, *_ in clock.turns[4:]]
    assert max(len(run) for run in "".join(step[0] for step in rounds).split("s")) <= 10  # spread over the rounds


def test_pages_are_counted_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = iter(range(0, 10**6, 30))  # 30 pages in every sample
    monkeypatch.setattr(measure, "faults", lambda: next(mapped))
    timed = measure.time_alternately({"a": "a"}, Metronome({"a": 1e-3}), seconds=0.1, least=3, most=3)
    assert (timed["a"].repeats, timed["a"].faults) == (2, 15)


def test_event_clock_starts_when_the_host_has_issued_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write takes 6 ms, like all between two events, and the host 5 ms for a step: 1.5 x 3 x 5 ms take four writes,
    and the one that clears the cache is another."""
    issued: list[str] = []
    event = Mock(elapsed_time=lambda other: 6.0)
    event.record.side_effect = lambda: issued.append("event")
    event.synchronize.side_effect = lambda: issued.append("wait")
    monkeypatch.setattr(torch.cuda, "Event", Mock(return_value=event))
    monkeypatch.setattr(measure, "host_seconds", lambda step, synchronise: 5e-3)
    clock = measure.EventClock(CPU, spacer_bytes=8)
    clock.spacer = Mock(zero_=lambda: issued.append("write"))
    issued.clear()
    for _ in range(2):
        assert clock.sample(lambda index: issued.append(f"step {index}"), 5, 3) == pytest.approx(2e-3)
    assert issued == [*["write"] * 5, "event", "step 5", "step 6", "step 7", "event", "wait"] * 2
    assert torch.cuda.Event.call_args.kwargs == {"enable_timing": True}  # type: ignore[attr-defined]


def test_sets_of_a_gpu_exceed_the_cache() -> None:
    gpu = torch.device("cuda")
    assert [measure.rotating_sets(gpu, size, 60 * 2**20) for size in (2**31, 2**24, 1)] == [2, 12, 64]
    assert measure.rotating_sets(CPU, 1, 2**30) == 1


def test_peak_memory_of_a_known_step() -> None:
    """Two temporaries of 1 MB, one released before the result of 2 MB exists."""

    def step(index: int) -> torch.Tensor:
        first = torch.ones(250_000)
        second = first + 1
        del first
        return torch.cat([second, second])

    observed = measure.observe(step, CPU)
    assert observed["peak_bytes"] == 3_000_000
    assert 3 <= observed["operators"] <= 6


def test_leaves_of_nested_operators() -> None:
    def operator(name: str, start: float, duration: float, thread: int = 1) -> dict[str, Any]:
        return {"cat": "cpu_op", "name": name, "ts": start, "dur": duration, "tid": thread}

    events = [
        operator("aten::a", 0, 10),
        operator("aten::b", 1, 3),
        operator("aten::c", 2, 1),
        operator("aten::d", 5, 2),
        operator("aten::e", 3, 1, thread=2),
        operator("Backward", 20, 5),
        {"cat": "user_annotation", "name": "aten::f", "ts": 0, "dur": 1, "tid": 1},
    ]
    assert measure.count_leaves(events) == 3  # c, d, e


def test_launches_and_waits_of_a_trace() -> None:
    calls = [
        ("cudaLaunchKernel", 5, "cuda_runtime"),
        ("cudaLaunchKernelExC", 20, "cuda_runtime"),
        ("cuLaunchKernelEx", 30, "cuda_driver"),
        ("cudaMemcpyAsync", 40, "cuda_runtime"),
        ("cudaStreamSynchronize", 41, "cuda_runtime"),
        ("cudaMemsetAsync", 45, "cuda_runtime"),
        ("cuMemcpyDtoH_v2", 51, "cuda_driver"),
        ("cudaDeviceSynchronize", 120, "cuda_runtime"),
        ("kernel", 50, "kernel"),
    ]
    events = [{"cat": category, "name": name, "ts": start, "dur": 1} for name, start, category in calls]
    events.append({"cat": "user_annotation", "name": measure.STEP, "ts": 10, "dur": 100})
    assert measure.count_calls(events) == {"launches": 2, "copies": 3, "host_waits": 2}


def test_host_time_excludes_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps that take 2, 3, 4, 5 and 6 ms to issue, each between two waits for the device of 20 ms."""
    order: list[Any] = []
    now = 0

    def pass_time(entry: Any, milliseconds: int) -> None:
        nonlocal now
        order.append(entry)
        now += milliseconds * 10**6

    monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: now)
    seconds = measure.host_seconds(lambda index: pass_time(index, 2 + index), lambda: pass_time("wait", 20))
    assert seconds == pytest.approx(4e-3)
    assert order == [entry for index in range(5) for entry in ("wait", index, "wait")]


def test_compiling_for_one_thread_is_not_part_of_the_observed_step() -> None:
    threads: list[int] = []

    def step(_: int) -> None:
        threads.append(torch.get_num_threads())
        if threads.count(1) == 1:  # like a compiler at the first step with this number of threads
            torch.ones(2**20).add_(1).mul_(2)

    with measure.torch_threads(2):
        observed = measure.observe(step, CPU)
        assert torch.get_num_threads() == 2
    assert threads == [1, 1] and observed == {"peak_bytes": 0, "operators": 0}
