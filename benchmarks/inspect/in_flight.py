"""A simulation, not a measurement, of the rows in flight in ``row_losses_kernel`` with its gradient: ``--in-flight``.

A multiprocessor that works on one row waits while the row arrives and while its threads combine their results. The
simulation (:mod:`.fluid`) says what share of the bandwidth of a copy remains, for the tile in use and for others. What
a row executes, how many loads a thread has on their way and how many programs fit come from the machine code; the rest
is assumed, here and in :mod:`.roofline`, with a low and a high end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

from .cases import DTYPES, VOCAB_SIZES, Case, Launch, compile_launch, in_parallel, record
from .control_flow import kernel_of
from .counts import WARP, Trips, passes_by_pipe, trips_of
from .fluid import Machine, Phase, simulate
from .loads import row_comes_first, waves_of
from .machine_code import Instruction, disassembled, parsed, registers_of
from .report import table
from .roofline import GPU, GPUS, L2_BYTES_PER_CLOCK, clocks_of, resident_programs

ROWS = 8192
"""Rows of a launch."""
SIMULATED = 28
"""Simulated are this many multiprocessors, with their share of the rows and of the bandwidths."""
PIECES = 4
"""A loop is simulated as so many trips at most."""
COPY = 0.9
"""Bandwidth of a copy, as a share of the published one (assumed)."""
CLOCK = 0.88
"""Clock under load, as a share of the boost clock (assumed)."""
L2_LATENCY = 400.0
"""Clocks from a load to its data if they are in the L2 (assumed)."""
LINK = 64.0
"""Bytes per clock between the L2 and one multiprocessor (assumed)."""
START = 400.0
"""Clocks until a new program starts where another has ended, on average (assumed)."""


class Ends(NamedTuple):
    """Assumptions at one end of what is plausible."""

    latency: float
    """Clocks from a load to its data if they are in memory."""
    label: float
    """The same for the label; the labels of neighbouring rows are next to each other."""
    between: float
    """Clocks in which the threads combine their results between the walks."""
    after: float
    """Clocks for what follows the last store of the row."""
    overlaps: bool
    """Whether a program computes while its loads arrive, and goes on before its stores have reached memory."""


LOW = Ends(latency=1200, label=1200, between=1500, after=500, overlaps=False)
HIGH = Ends(latency=600, label=L2_LATENCY, between=800, after=300, overlaps=True)


WAYS = ("in use", 128, 256, 512, "next row ahead")
"""The tile in use, other numbers of threads per row, and programs that ask for the row after their own."""


@dataclass(frozen=True)
class Flight:
    """One line: a dtype, a vocabulary and a way on a GPU."""

    gpu: str
    triton: str
    dtype: str
    vocab_size: int
    way: str | int
    threads: int
    programs: int
    """Resident on a multiprocessor."""
    waves: list[int]
    """16-byte loads of what a thread keeps, in groups that are on their way together."""
    row_first: bool
    """Whether the row is asked for before the label's number is looked up."""
    l2_megabytes: float
    """What the L2 has to hold: what is read again of the rows in flight, and the rows ahead."""
    low: float | None
    """Share of the bandwidth of a copy; None if the L2 cannot hold that much."""
    high: float | None


def flights(cases: Sequence[Case], names: Sequence[str]) -> list[Flight]:
    """The flights of some cases, on the GPUs with these names, in every way."""
    return [one for found in in_parallel(partial(flights_of, names=names), cases) for one in found]


def flights_of(case: Case, names: Sequence[str]) -> list[Flight]:
    gpus = [GPUS[name] for name in names if GPUS[name].target == case.target]
    in_use = record(case).keywords["TILE"].threads
    return [flight(case, way, gpu) for way in WAYS if way != in_use for gpu in gpus]


def flight(case: Case, way: str | int, gpu: GPU) -> Flight:
    """Compile a case in one way and simulate it."""
    import triton

    launch = launch_with(way, case) if isinstance(way, int) else record(case)
    compiled = compile_launch(launch, case.target)
    usage, code = disassembled(compiled)
    row_bytes = VOCAB_SIZES[case.rows] * DTYPES[case.dtype].itemsize
    row = Row(code, launch, VOCAB_SIZES[case.rows], gpu, row_bytes if way == "next row ahead" else 0)
    programs = resident_programs(row.threads, registers_of(usage), compiled.metadata.shared, gpu)
    held = programs * gpu.multiprocessors * (row.bytes_read_again + row.ahead)
    shares = [share_of_copy(row, ends, programs, row_bytes) if held <= gpu.l2_bytes else None for ends in (LOW, HIGH)]
    named = (gpu.name, triton.__version__, case.dtype, VOCAB_SIZES[case.rows], way, row.threads, programs)
    return Flight(*named, row.waves, row.comes_first, held / 1e6, *shares)


def launch_with(threads: int, case: Case) -> Launch:
    """The launch of a case if kept rows of any size use this many threads."""
    from ntl_kernels.backends import tiles

    try:
        with patch.object(tiles, "KEPT", ((math.inf, threads),)):
            tiles.kept_tile.cache_clear()
            return record(case)
    finally:
        tiles.kept_tile.cache_clear()


class Row:
    """What a program does for a row, from its machine code. ``ahead``: bytes that it asks for of the next row."""

    def __init__(self, code: str, launch: Launch, vocab_size: int, gpu: GPU, ahead: int = 0) -> None:
        program, tile = parsed(code), launch.keywords["TILE"]
        kernel = kernel_of(program)
        self.threads, self.gpu, self.ahead, self.rest = tile.threads, gpu, ahead, kernel.rest
        self.comes_first = row_comes_first(program)
        self.reads, self.writes = (
            [one for part in walk for one in trips if one.part is part and one.trips]
            for walk in (kernel.reads, kernel.writes)
            for trips in [trips_of(walk, vocab_size // tile.vector, tile.threads)]
        )
        self.kept = [one for one in self.reads if not one.part.is_loop]
        self.waves = waves_of(instruction for one in self.kept for instruction in one.part.instructions)

    @property
    def bytes_read_again(self) -> int:
        return sum(16 * one.vectors for one in self.writes if one.part.loads)

    def phases(self, ends: Ends) -> list[Phase]:
        label = ends.label + (0 if self.comes_first else L2_LATENCY)
        found = [Phase(wait=label), *self.first_walk(ends), Phase(wait=ends.between)]
        for one in self.writes:
            moved = 16.0 * one.vectors
            work = Phase(l2=moved if one.part.loads else 0, compute=self.clocks_in(one), stored=moved)
            count = one.trips if one.part.is_loop else one.part.width
            found += steps(work, count, L2_LATENCY if one.part.loads else 0, ends)
        return [*found, Phase(wait=ends.after)]

    def first_walk(self, ends: Ends) -> list[Phase]:
        """Loops in their trips, then what is kept in its waves, with the code that is outside of all parts."""
        waves, clocks = self.waves or [1], self.clocks(self.rest) + sum(map(self.clocks_in, self.kept))
        share = [wave / sum(waves) for wave in waves]
        kept = sum(one.vectors for one in self.kept)
        work = [(self.clocks_in(one), one.vectors, one.trips) for one in self.reads if one.part.is_loop]
        found = []
        for compute, vectors, trips in [*work, *((clocks * part, kept * part, 1) for part in share)]:
            if self.ahead:
                phase, latency = Phase(l2=16.0 * vectors, compute=compute), L2_LATENCY
            else:
                phase, latency = Phase(memory=16.0 * vectors, compute=compute), ends.latency
            found += steps(phase, trips, latency if vectors else 0, ends)
        return found

    def clocks_in(self, one: Trips) -> float:
        return self.clocks(one.part.instructions, one.trips)

    def clocks(self, code: list[Instruction], trips: int = 1) -> float:
        """The clocks of a multiprocessor that all warps of a program need for some code."""
        times = trips * self.threads // WARP
        passes = {pipe: times * count for pipe, count in passes_by_pipe(code).items()}
        return max(clocks_of(times * len(code), passes, self.gpu).values())


def steps(work: Phase, count: int, latency: float, ends: Ends) -> list[Phase]:
    """The phases of work that is done in ``count`` steps, each of which waits for what it loads."""
    pieces = min(count, PIECES)
    part = Phase(*(amount / pieces for amount in work))
    if ends.overlaps:
        return [Phase(wait=latency)] + [part._replace(wait=(count - 1) * latency / pieces)] * pieces
    alone = (Phase(wait=latency * count / pieces), Phase(memory=part.memory, l2=part.l2), Phase(compute=part.compute))
    return [phase for phase in (*alone, Phase(memory=part.stored)) if any(phase)] * pieces


def share_of_copy(row: Row, ends: Ends, programs: int, row_bytes: int) -> float:
    """The time of a copy of the rows, over that of the simulation."""
    gpu = row.gpu
    part = SIMULATED / gpu.multiprocessors
    rows, copy = round(ROWS * part), COPY * gpu.memory_bandwidth / (CLOCK * gpu.clock) * part
    machine = Machine(SIMULATED, copy, L2_BYTES_PER_CLOCK * SIMULATED, LINK)
    return 2 * row_bytes * rows / copy / simulate(rows, programs, START, row.phases(ends), machine, row.ahead)


def assumptions_and_table(found: Sequence[Flight]) -> str:
    return (
        f"Simulated from the machine code; nothing here was measured. Assumed: a copy at {COPY} of the bandwidth, "
        f"{CLOCK} of the clock, {L2_LATENCY:.0f} clocks from the L2, {LINK:.0f} bytes per clock between it and a "
        f"multiprocessor ({L2_BYTES_PER_CLOCK} if all ask), {START:.0f} clocks to start a program.\n"
        f"Low end: {LOW}\nHigh end: {HIGH}\n"
        f"low, high: share of the bandwidth of a copy, for {ROWS:,} rows; None: the L2 is too small.\n\n{table(found)}"
    )
