"""The state of the machine: how freed memory is treated, and the CPU time of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import pytest
import torch

from benchmarks.environment import ROOT
from benchmarks.speed import memory, neighbours
from benchmarks.speed.neighbours import Reading

from .speed_cases import CPU

HAS_CHOICE = len(memory.ways(CPU, memory.BOTH)) > 1
PROGRAM = """
import json, time, torch
from benchmarks.speed import memory, neighbours

def faults_of_a_step():
    before = memory.faults()
    torch.ones(10 * 2**20)  # 40 MiB
    return memory.faults() - before

def seconds_of_ours(seconds):
    before = neighbours.read()
    time.sleep(seconds)
    after = neighbours.read()
    assert 0 <= neighbours.others_share(before, after) <= 1
    return after.ours - before.ours

faults = []
if {has_choice}:
    with memory.treated("preparing"):
        torch.ones(20 * 2**20)
    faults = [[faults_of_a_step() for _ in range(40)] for way in memory.WAYS for _ in [memory.set_allocator(way)]]
with neighbours.all_cores_busy():
    busy = seconds_of_ours(1.0)
print(json.dumps([faults, busy, seconds_of_ours(0.3)]))
"""


@pytest.mark.slow
def test_memory_and_load_on_this_machine() -> None:
    """Fresh memory is mapped at every step and kept memory once; the load is ours, and ends."""
    command = [sys.executable, "-c", PROGRAM.format(has_choice=HAS_CHOICE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    faults, busy, after = json.loads(done.stdout)
    if HAS_CHOICE:
        fresh, kept = faults
        assert min(fresh) >= 10240  # pages of 4 KiB
        assert median(kept) < 100, kept  # steps in which the heap grows map pages
    assert busy >= 0.1 > after  # however busy the machine is


def test_ways_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert memory.ways(CPU, "both") == ("fresh", "kept")
    assert memory.ways(CPU, "kept") == ("kept",)
    assert memory.ways(torch.device("cuda"), "both") == (None,)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert memory.ways(CPU, "both") == (None,)
    with memory.treated(None):
        pass


def test_the_share_of_others() -> None:
    before, after = Reading(total=200.0, busy=100.0, ours=50.0), Reading(total=400.0, busy=200.0, ours=120.0)
    assert neighbours.others_share(before, after) == pytest.approx((100 - 70) / 200)
    assert neighbours.others_share(after, after) == 0
    assert neighbours.disturbs(0.06) and not neighbours.disturbs(0.05) and not neighbours.disturbs(None)
