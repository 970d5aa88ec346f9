"""What other processes take of the machine, on made-up records and on the real one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.environment import ROOT
from benchmarks.speed import neighbours
from benchmarks.speed.neighbours import Reading

SPIN = "while True: pass"
ON_LINUX = pytest.mark.skipif(neighbours.read() is None, reason="needs /proc")


def record(proc: Path, cpu: str, processes: dict[int, tuple[int, int]]) -> Path:
    """A /proc with a first line of ``stat``, and of each process its parent and its ticks."""
    (proc / "stat").write_text(f"cpu  {cpu}\ncpu0 1 2 3\n")
    for number, (parent, ticks) in processes.items():
        (proc / str(number)).mkdir(exist_ok=True)
        ignored = " ".join("0" for _ in range(9))
        spread = f"{ticks - 3} 1 1 1"  # user, system, and both of children that have ended
        (proc / str(number) / "stat").write_text(f"{number} (a) b (c) R {parent} {ignored} {spread} 20 0 1\n")
    return proc


def test_a_record_is_read(tmp_path: Path) -> None:
    processes = {7: (1, 100), 8: (7, 50), 9: (8, 25), 10: (1, 999), 11: (10, 999)}
    proc = record(tmp_path, "10 20 30 1000 500 4 5 6 0 0", processes)
    assert neighbours.read(proc, 7) == Reading(total=1575, busy=75, own=175)
    assert neighbours.read(tmp_path / "nowhere", 7) is None


def test_the_share_of_others(tmp_path: Path) -> None:
    before = neighbours.read(record(tmp_path, "100 0 0 100 0 0 0 0 0 0", {7: (1, 50)}), 7)
    after = neighbours.read(record(tmp_path, "180 0 0 200 0 0 0 20 0 0", {7: (1, 110), 8: (7, 10)}), 7)
    assert neighbours.others_share(before, after) == pytest.approx((100 - 70) / 200)  # the stolen are others', too
    assert neighbours.others_share(None, after) is None
    assert neighbours.others_share(after, after) == 0
    assert neighbours.disturbs(0.06) and not neighbours.disturbs(0.05) and not neighbours.disturbs(None)


@ON_LINUX
def test_a_process_of_ones_own_is_no_other() -> None:
    """What a spinning child takes is in the reading of its parent."""
    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        try:
            mine = neighbours.read()  # first and last, so that the child's time is part of this one
            spinning = neighbours.read(process=child.pid)
            time.sleep(1.0)
            late_spinning = neighbours.read(process=child.pid)
            late_mine = neighbours.read()
        finally:
            child.kill()
    assert mine and late_mine and spinning and late_spinning
    spun = late_spinning.own - spinning.own
    assert spun >= 10  # of 100 ticks, on however busy a machine
    assert late_mine.own - mine.own >= spun


LOADED = """
import time
from benchmarks.speed import load, neighbours

def ticks(seconds):
    before = neighbours.read().own
    time.sleep(seconds)
    return neighbours.read().own - before

with load.all_cores_busy():
    during = ticks(1.0)
print(during, ticks(0.3))
"""


@ON_LINUX
def test_the_load_is_ours_and_ends() -> None:
    """In a process that has no other children."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    during, after = map(int, done.stdout.split())
    assert during >= 10 > after
