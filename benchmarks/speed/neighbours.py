"""The share of CPU time that other processes use, from Linux's accounting: they would disturb a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError

PROC = Path("/proc")
LIMIT = 0.05
"""Share of all cores' time; more than this disturbs a measurement."""
LOOK_S = 1.0


class Reading(NamedTuple):
    """Clock ticks since the machine (or this process) started."""

    total: int
    """Ticks of all cores together, idle or not."""
    busy: int
    """Busy ticks, including those that a hypervisor gave to another virtual machine."""
    own: int
    """Ticks of this process and all its descendants."""


def read(proc: Path = PROC, process: int | None = None) -> Reading | None:
    """The current reading; None if the system has no such accounting."""
    try:
        user, nice, system, idle, waiting, *others = map(int, (proc / "stat").read_text().split("\n")[0].split()[1:9])
    except OSError:
        return None
    busy = user + nice + system + sum(others)
    return Reading(busy + idle + waiting, busy, own_ticks(proc, process or os.getpid()))


def own_ticks(proc: Path, process: int) -> int:
    """Ticks of a process and its descendants; those that have ended are included in their parent's count."""
    ticks, children = {}, {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # after the name, which may contain anything
        except OSError:  # the process has ended
            continue
        number = int(path.parent.name)
        ticks[number] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(number)
    family = [process]
    for member in family:
        family += children.get(member, [])
    return sum(ticks.get(member, 0) for member in family)


def others_share(before: Reading | None, after: Reading | None) -> float | None:
    """The share of all cores' time that other processes used; None if unknown."""
    if before is None or after is None:
        return None
    total, busy, own = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, busy - own) / max(total, 1)


def disturbs(share: float | None) -> bool:
    return share is not None and share > LIMIT


def refuse_if_busy() -> None:
    """Raise if other processes would disturb the measurement."""
    before = read()
    time.sleep(LOOK_S)
    share = others_share(before, read())
    if share is not None and disturbs(share):
        raise InputError(
            f"other processes use {share:.0%} of the time of this machine's {os.cpu_count()} cores (more than "
            f"{LIMIT:.0%} disturbs): stop them or wait; --busy measures anyway and marks disturbed results"
        )
