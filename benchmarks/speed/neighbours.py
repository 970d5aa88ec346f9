"""The CPU time of other processes, which disturbs measurements, and a process that keeps all cores busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..commands import InputError

LIMIT = 0.05
"""Share of all cores' time; more than this disturbs a measurement."""
LOOK_S = 1.0
PROGRAM = """
import os, sys, torch
parent, cores = map(int, sys.argv[1:])
torch.set_num_threads(cores)
matrix = torch.randn(1024, 1024)
torch.mm(matrix, matrix)
print("busy", flush=True)
while os.getppid() == parent:  # and no longer
    torch.mm(matrix, matrix)
"""


class Reading(NamedTuple):
    """Seconds since the machine (or this process) started."""

    total: float
    """Of all cores together, idle or not."""
    busy: float
    """Busy seconds, including those that a hypervisor gave to another virtual machine."""
    ours: float
    """Of this process and its descendants, including those that have ended."""


def read() -> Reading:
    """The current reading."""
    import psutil  # comes with accelerate; only measurements on a CPU need it

    cores, process = psutil.cpu_times(), psutil.Process()
    guests = getattr(cores, "guest", 0.0) + getattr(cores, "guest_nice", 0.0)  # also part of user and nice
    idle = cores.idle + getattr(cores, "iowait", 0.0)
    ours = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            ours += sum(member.cpu_times()[:4])  # user and system, and both of children that have ended
        except psutil.NoSuchProcess:
            continue
    return Reading(sum(cores) - guests, sum(cores) - guests - idle, ours)


def others_share(before: Reading, after: Reading) -> float:
    """The share of all cores' time that other processes used."""
    total, busy, ours = (late - early for early, late in zip(before, after, strict=True))
    return min(max(0.0, busy - ours) / max(total, 1e-9), 1.0)


def disturbs(share: float | None) -> bool:
    return share is not None and share > LIMIT


def refuse_if_busy() -> None:
    """Raise if other processes would disturb the measurement."""
    before = read()
    time.sleep(LOOK_S)
    share = others_share(before, read())
    if disturbs(share):
        raise InputError(
            f"other processes use {share:.0%} of the time of this machine's {os.cpu_count()} cores (more than "
            f"{LIMIT:.0%} disturbs): stop them or wait; --busy measures anyway and marks disturbed results"
        )


@contextmanager
def all_cores_busy() -> Iterator[None]:
    """Run matrix products in as many threads as there are cores, like data loader workers or another training run."""
    command = [sys.executable, "-c", PROGRAM, str(os.getpid()), str(os.cpu_count() or 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "busy\n":
                raise RuntimeError("the process that keeps all cores busy has ended")
            yield
        finally:
            process.kill()
