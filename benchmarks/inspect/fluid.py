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


class Run(NamedTuple):
    clocks: float
    memory_bytes: float
    """What memory moved."""


START_SPREAD = 300.0
"""Clocks over which the first programs of a launch start (assumed)."""


def simulate(
    rows: int, resident: int, start: float, phases: Sequence[Phase], machine: Machine, ahead: float = 0.0
) -> Run:
    """Programs of one row each, of which a multiprocessor holds a number at a time.

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
    todo = np.zeros((count, 5))
    todo[:, 0] = np.linspace(0, START_SPREAD, count)
    background = np.zeros((2, count))  # bytes that drain, and bytes of the next row
    background[1] = ahead
    phase, is_running = np.zeros(count, int), np.ones(count, bool)
    unstarted = unasked = rows - count
    clocks = moved = 0.0
    while is_running.any() or background.any():
        waits_for_row = (phase == 1) & (background[1] > 0)
        is_done = is_running & ~todo[:, :4].any(1) & ~waits_for_row
        for i in np.flatnonzero(is_done):
            background[0, i] += todo[i, 4]
            phase[i] += 1
            if phase[i] == 2 and unasked:
                background[1, i] = ahead
                unasked -= 1
            if phase[i] < len(table):
                todo[i] = table[phase[i]]
            elif unstarted:
                phase[i], todo[i] = 0, Phase(wait=chance.uniform(0, 2 * start))
                unstarted -= 1
            else:
                is_running[i], todo[i] = False, 0.0
        if is_done.any():
            continue
        amounts = np.stack([*todo.T[:4], *background])
        rates = rates_of(todo, background, place, machine)
        times = np.divide(amounts, rates, out=np.full_like(amounts, np.inf), where=rates > 0)
        step = float(times.min())
        clocks += step
        moved += step * float(rates[[1, 4, 5]].sum())
        left = np.where(times <= step * (1 + 1e-9), 0.0, amounts - rates * step)
        todo[:, :4], background = left[:4].T, left[4:]
    return Run(clocks, moved)


def rates_of(todo: Floats, background: Floats, place: NDArray[np.int64], machine: Machine) -> Floats:
    """Per clock and program: waits, bytes of memory, bytes of the L2, computation, bytes that drain, bytes ahead."""
    wait, memory, l2, compute = todo.T[:4] > 0
    links = machine.link / np.maximum(np.bincount(place, memory | l2, machine.multiprocessors), 1)[place]
    behind = background > 0
    wanted = np.concatenate([memory * links, *np.where(behind, np.inf, 0.0)])
    from_memory, drained, ahead = fair(machine.memory, wanted).reshape(3, -1)
    from_l2 = fair(max(machine.l2 - from_memory.sum() - drained.sum(), 0.0), l2 * links)
    computed = compute / np.maximum(np.bincount(place, compute, machine.multiprocessors), 1)[place]
    return np.stack([wait * 1.0, from_memory, from_l2, computed, drained, ahead])


def fair(total: float, wanted: Floats) -> Floats:
    """Equal shares of a total; what some do not want goes to the others."""
    rising = np.sort(wanted)
    if rising.sum() <= total:
        return wanted
    taken = np.concatenate([[0.0], np.cumsum(rising)[:-1]])
    levels = (total - taken) / np.arange(len(wanted), 0, -1)
    return np.minimum(wanted, levels[np.argmax(rising >= levels)])
