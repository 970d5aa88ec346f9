"""A fluid model of a GPU: programs that wait, move bytes and compute, and share multiprocessors and memory.

Nothing is quantised but programs and their phases. Between two events, every rate is constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Phase(NamedTuple):
    """What a program does at the same time; the phase ends when all of it is done."""

    wait: float = 0.0
    """Clocks."""
    memory: float = 0.0
    """Bytes from or to memory."""
    l2: float = 0.0
    """Bytes from the L2."""
    compute: float = 0.0
    """Clocks of a multiprocessor, which its programs share equally."""
    stored: float = 0.0
    """Bytes handed to the L2 at the end of the phase. They drain to memory while the program goes on."""


class Machine(NamedTuple):
    """What programs share."""

    multiprocessors: int
    memory: float
    """Bytes per clock between memory and all multiprocessors."""
    l2: float
    """Bytes per clock between the L2 and all multiprocessors, including what comes from memory or goes there."""
    link: float
    """Bytes per clock between the L2 and one multiprocessor."""


START_SPREAD = 300.0
"""Clocks over which the first programs of a launch start (assumed)."""


def simulate(
    rows: int, resident: int, start: float, phases: Sequence[Phase], machine: Machine, ahead: float = 0.0
) -> float:
    """The clocks of programs of one row each, of which a multiprocessor holds a number at a time.

    Args:
        start: clocks between the end of a program and the first phase of the next one, on average. It varies between
            0 and twice that, so that programs do not stay in step.
        ahead: bytes of the next row that a program asks for at the end of its first phase, in the background. The next
            program waits for them at the end of its own first phase.
    """
    chance = np.random.default_rng(0)
    table = np.array([Phase(), *phases], dtype=float)
    count = min(rows, resident * machine.multiprocessors)
    place = np.arange(count) % machine.multiprocessors
    phase = np.zeros(count, int)
    left = np.zeros((6, count))  # of a program's phase: wait, memory, L2, compute; behind it: what drains, the next row
    left[0], left[5] = np.linspace(0, START_SPREAD, count), ahead
    unstarted = unasked = rows - count
    clocks = 0.0
    while left.any() or (phase < len(table)).any():
        waits_for_row = (phase == 1) & (left[5] > 0)
        is_done = (phase < len(table)) & ~left[:4].any(0) & ~waits_for_row
        for i in np.flatnonzero(is_done):
            left[4, i] += table[phase[i], 4]
            phase[i] += 1
            if phase[i] == 2 and unasked:
                left[5, i] = ahead
                unasked -= 1
            if phase[i] < len(table):
                left[:4, i] = table[phase[i], :4]
            elif unstarted:
                phase[i], left[0, i] = 0, chance.uniform(0, 2 * start)
                unstarted -= 1
        if not is_done.any():
            rates = rates_of(left, place, machine)
            times = np.divide(left, rates, out=np.full_like(left, np.inf), where=rates > 0)
            clocks += times.min()
            left = np.where(times <= times.min() * (1 + 1e-9), 0.0, left - rates * times.min())
    return float(clocks)


def rates_of(left: Floats, place: NDArray[np.int64], machine: Machine) -> Floats:
    """How fast each amount in ``left`` falls, per clock."""
    wait, memory, l2, compute, drains, ahead = left > 0
    links = machine.link / np.maximum(np.bincount(place, memory | l2), 1)[place]
    wanted = np.stack([memory * links, *np.where([drains, ahead], np.inf, 0.0)])
    from_memory, drained, asked = fair(machine.memory, wanted.ravel()).reshape(wanted.shape)
    from_l2 = fair(max(machine.l2 - from_memory.sum() - drained.sum(), 0.0), l2 * links)
    computed = compute / np.maximum(np.bincount(place, compute), 1)[place]
    return np.stack([wait, from_memory, from_l2, computed, drained, asked])


def fair(total: float, wanted: Floats) -> Floats:
    """Equal shares of a total; what some do not want goes to the others."""
    rising = np.sort(wanted)
    if rising.sum() <= total:
        return wanted
    taken = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    levels = (total - taken) / np.arange(len(wanted), 0, -1)
    return np.minimum(wanted, levels[np.argmax(rising >= levels)])
