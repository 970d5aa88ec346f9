"""What share of the machine other processes take, by Linux's own record: a time beside them is none of ours."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError

PROC = Path("/proc")
LIMIT = 0.05
"""Of all cores: more than that disturbs a measurement."""
LOOK_S = 1.0


class Reading(NamedTuple):
    """Clock ticks since the machine, and this process, started."""

    total: int
    """Of all cores together, idle or not."""
    busy: int
    """Of these the ones in which a process ran here, or, of a virtual machine, somewhere else in its place."""
    own: int
    """Of this process and all that it has started."""


def read(proc: Path = PROC, process: int | None = None) -> Reading | None:
    """How it stands now; None where there is no such record."""
    try:
        user, nice, system, idle, waiting, *others = map(int, (proc / "stat").read_text().split("\n")[0].split()[1:9])
    except OSError:
        return None
    busy = user + nice + system + sum(others)
    return Reading(busy + idle + waiting, busy, own_ticks(proc, process or os.getpid()))


def own_ticks(proc: Path, process: int) -> int:
    """Ticks of a process, of those it started, and of theirs; the ones that have ended are in their parent's record."""
    ticks, children = {}, {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # after the name, which may hold anything
        except OSError:  # it has ended meanwhile
            continue
        number = int(path.parent.name)
        ticks[number] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(number)
    family = [process]
    for member in family:
        family += children.get(member, [])
    return sum(ticks.get(member, 0) for member in family)


def others_share(before: Reading | None, after: Reading | None) -> float | None:
    """The share of all cores' time that other processes took; None where nothing is known."""
    if before is None or after is None:
        return None
    total, busy, own = (late - early for early, late in zip(before, after, strict=True))
    return max(0.0, busy - own) / max(total, 1)


def disturbs(share: float | None) -> bool:
    return share is not None and share > LIMIT


def refuse_if_busy() -> None:
    """An error where other processes would disturb what is to be measured."""
    before = read()
    time.sleep(LOOK_S)
    share = others_share(before, read())
    if share is not None and disturbs(share):
        raise InputError(
            f"other processes take {share:.0%} of the time of this machine's {os.cpu_count()} cores (more than "
            f"{LIMIT:.0%} disturbs): end them, or wait; --busy measures all the same, and marks what was disturbed"
        )
