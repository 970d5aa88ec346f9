"""How freed memory is treated: pages are mapped anew at every step, or stay."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import pytest
import torch

from benchmarks.environment import ROOT
from benchmarks.errors import InputError
from benchmarks.speed import memory

from .speed_cases import CPU

HAS_CHOICE = len(memory.ways(CPU, memory.BOTH)) > 1
PROGRAM = """
import torch
from benchmarks.speed import memory

def faults_of_a_step():
    before = memory.faults()
    torch.ones(10 * 2**20)  # 40 MiB
    return memory.faults() - before

with memory.treated("preparing"):
    torch.ones(20 * 2**20)
print([[faults_of_a_step() for _ in range(40)] for way in memory.WAYS for _ in [memory.set_allocator(way)]])
"""


@pytest.mark.skipif(not HAS_CHOICE, reason="needs glibc")
def test_fresh_memory_is_mapped_at_every_step_and_kept_memory_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    fresh, kept = json.loads(done.stdout)
    assert min(fresh) >= 10240  # pages of 4 KiB
    assert median(kept) < 100, kept  # single steps map pages: those that the heap grows in


def test_ways_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert memory.ways(CPU, "both") == ("fresh", "kept")
    assert memory.ways(CPU, "kept") == ("kept",)
    assert memory.ways(torch.device("cuda"), "both") == (None,)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert memory.ways(CPU, "both") == (None,)
    with memory.treated(None):
        pass


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_an_environment_that_chooses_by_itself_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "something")
    with pytest.raises(InputError, match=name):
        memory.refuse_settings()
