"""A simulation, not a measurement, of the rows in flight in ``row_losses_kernel`` with its gradient: ``--in-flight``.

A multiprocessor that works on one row waits while the row arrives and while its threads combine their results. The
simulation (:mod:`.fluid`) says what share of the bandwidth of a copy remains, for the tile in use and for others. What
a row executes, how many loads a thread has on their way and how many programs fit come from the machine code; the rest
is assumed, here and in :mod:`.roofline`, with a low and a high end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

from .cases import DTYPES, VOCAB_SIZES, Case, Launch, compile_launch, in_parallel, record
from .control_flow import Kernel, kernel_of
from .counts import WARP, Trips, passes_by_pipe, trips_of
from .fluid import Machine, Phase, simulate
from .loads import row_comes_first, waves_of
from .machine_code import Instruction, disassembled, parsed, registers_of
from .report import aligned
from .roofline import GPU, GPUS, L2_BYTES_PER_CLOCK, clocks_of, resident_programs

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
PIECES = 4
"""A loop is simulated as so many trips at most."""
FRACTION = 4
"""Simulated is this fraction of a GPU: its multiprocessors, its bandwidths and the rows."""
BATCHES = (1024, 8192)
"""Rows of a launch."""


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


class Way(NamedTuple):
    """A way to have more rows in flight."""

    name: str
    threads: int | None = None
    """Threads per row; None for the tile in use."""
    is_ahead: bool = False
    """Whether a program asks for the row after its own, which then comes from the L2."""


WAYS = (Way("in use"), *(Way(f"{n} threads", n) for n in (128, 256, 512)), Way("next row ahead", is_ahead=True))


@dataclass(frozen=True)
class Flight:
    """One line: a dtype, a vocabulary and a way on a GPU."""

    gpu: str
    triton: str
    dtype: str
    vocab_size: int
    way: str
    threads: int
    programs: int
    """Resident on a multiprocessor."""
    waves: list[int]
    """16-byte loads of what a thread keeps, in groups that are on their way together."""
    row_comes_first: bool
    """Whether the row is asked for before the label's number is looked up."""
    l2_bytes: int
    """What the L2 has to hold: what is read again of the rows in flight, and the rows ahead."""
    low: dict[int, float]
    """Rows of a launch -> share of the bandwidth of a copy; empty if the L2 cannot hold ``l2_bytes``."""
    high: dict[int, float]


def flights(cases: Sequence[Case], names: Sequence[str]) -> list[Flight]:
    """The flights of some cases, on the GPUs with these names, in every way."""
    return [one for found in in_parallel(partial(flights_of, names=names), cases) for one in found]


def flights_of(case: Case, names: Sequence[str], ways: Sequence[Way] = WAYS) -> list[Flight]:
    gpus = [GPUS[name] for name in names if GPUS[name].target == case.target]
    in_use = record(case).keywords["TILE"].threads
    return [flight(case, way, gpu) for way in ways if way.threads != in_use for gpu in gpus]


def flight(case: Case, way: Way, gpu: GPU) -> Flight:
    """Compile a case in one way and simulate it."""
    import triton

    with tile_with(way.threads):
        launch = record(case)
    compiled = compile_launch(launch, case.target)
    usage, code = disassembled(compiled)
    program = parsed(code)
    row = Row(kernel_of(program), launch, row_comes_first(program), VOCAB_SIZES[case.rows], gpu, way.is_ahead)
    threads, row_bytes = row.threads, VOCAB_SIZES[case.rows] * DTYPES[case.dtype].itemsize
    programs = resident_programs(threads, registers_of(usage), compiled.metadata.shared, gpu)
    held = programs * gpu.multiprocessors * (row.bytes_read_again + way.is_ahead * row_bytes)
    fits = held <= gpu.l2_bytes
    ahead = row_bytes if way.is_ahead else 0
    low, high = (
        {n: share_of_copy(n, programs, row_bytes, row.phases(ends), gpu, ahead) for n in BATCHES if fits}
        for ends in (LOW, HIGH)
    )
    return Flight(
        gpu=gpu.name,
        triton=triton.__version__,
        dtype=case.dtype,
        vocab_size=VOCAB_SIZES[case.rows],
        way=way.name,
        threads=threads,
        programs=programs,
        waves=waves_of(row.kept_code),
        row_comes_first=row.comes_first,
        l2_bytes=held,
        low=low,
        high=high,
    )


@contextmanager
def tile_with(threads: int | None) -> Iterator[None]:
    """Make rows that are kept use this many threads, whatever their size."""
    from ntl_kernels.backends import tiles

    table = tiles.KEPT if threads is None else ((math.inf, threads),)
    try:
        with patch.object(tiles, "KEPT", table):
            tiles.kept_tile.cache_clear()
            yield
    finally:
        tiles.kept_tile.cache_clear()


class Row:
    """What a program does for a row, from its machine code."""

    def __init__(
        self, kernel: Kernel, launch: Launch, comes_first: bool, vocab_size: int, gpu: GPU, is_ahead: bool
    ) -> None:
        tile = launch.keywords["TILE"]
        self.threads, self.gpu, self.comes_first, self.is_ahead = tile.threads, gpu, comes_first, is_ahead
        vectors = vocab_size // tile.vector
        self.rest = kernel.rest
        self.reads, self.writes = (
            [one for part in walk for one in trips if one.part is part and one.trips]
            for walk in (kernel.reads, kernel.writes)
            for trips in [trips_of(walk, vectors, tile.threads)]
        )
        self.kept_code = [one for trips in self.reads if not trips.part.is_loop for one in trips.part.instructions]

    @property
    def bytes_read_again(self) -> int:
        return sum(16 * one.vectors for one in self.writes if one.part.loads)

    def clocks(self, code: list[Instruction], trips: int = 1) -> float:
        """The clocks of a multiprocessor that all warps of a program need for some code."""
        times = trips * self.threads // WARP
        passes = {pipe: times * count for pipe, count in passes_by_pipe(code).items()}
        return max(clocks_of(times * len(code), passes, self.gpu).values())

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
        source, latency = ("l2", L2_LATENCY) if self.is_ahead else ("memory", ends.latency)
        found, kept = [], [one for one in self.reads if not one.part.is_loop]
        for one in self.reads:
            if one.part.is_loop:
                work = Phase(compute=self.clocks_in(one))._replace(**{source: 16.0 * one.vectors})
                found += steps(work, one.trips, latency, ends)
        work = Phase(compute=sum(map(self.clocks_in, kept)) + self.clocks(self.rest))
        work = work._replace(**{source: 16.0 * sum(one.vectors for one in kept)})
        waves = waves_of(self.kept_code) or [1]
        for wave in waves:
            found += steps(scaled(work, wave / sum(waves)), 1, latency if kept else 0, ends)
        return found

    def clocks_in(self, trips: Trips) -> float:
        return self.clocks(trips.part.instructions, trips.trips)


def steps(work: Phase, count: int, latency: float, ends: Ends) -> list[Phase]:
    """The phases of work that is done in ``count`` steps, each of which waits for what it loads."""
    pieces = min(count, PIECES)
    part = scaled(work, 1 / pieces)
    if ends.overlaps:
        return [Phase(wait=latency)] + [part._replace(wait=(count - 1) * latency / pieces)] * pieces
    alone = (Phase(wait=latency * count / pieces), Phase(memory=part.memory, l2=part.l2), Phase(compute=part.compute))
    return [phase for phase in (*alone, Phase(memory=part.stored)) if any(phase)] * pieces


def scaled(work: Phase, factor: float) -> Phase:
    return Phase(*(amount * factor for amount in work))


def share_of_copy(
    rows: int, programs: int, row_bytes: int, phases: Sequence[Phase], gpu: GPU, ahead: float = 0
) -> float:
    """The time of a copy of the rows, over that of the simulation."""
    multiprocessors = gpu.multiprocessors // FRACTION
    copy = COPY * gpu.memory_bandwidth / (CLOCK * gpu.clock) / FRACTION
    machine = Machine(multiprocessors, copy, L2_BYTES_PER_CLOCK * multiprocessors, LINK)
    run = simulate(rows // FRACTION, programs, START, phases, machine, ahead)
    return 2 * row_bytes * (rows // FRACTION) / copy / run.clocks


def table(found: Sequence[Flight]) -> str:
    """The flights as text, after what was assumed."""
    versions = ", ".join(sorted({one.triton for one in found}))
    assumed = (
        f"Simulated from the machine code of Triton {versions}; nothing here was measured. Assumed: a copy at {COPY} "
        f"of the bandwidth, {CLOCK} of the clock, {L2_LATENCY:.0f} clocks from the L2, {LINK:.0f} bytes per clock "
        f"between it and a multiprocessor ({L2_BYTES_PER_CLOCK} if all ask), {START:.0f} clocks to start a program.\n"
        f"Low end: {LOW}\nHigh end: {HIGH}\nShare of the bandwidth of a copy, low to high, by rows of a launch (N):"
    )
    head = [*("GPU", "logits", "V", "way", "threads", "programs", "loads together", "row first", "L2, MB")]
    lines = [[*head, *(f"N = {rows:,}" for rows in BATCHES)], *map(cells, found)]
    return f"{assumed}\n\n{aligned(lines)}"


def cells(one: Flight) -> list[str]:
    waves = " ".join(map(str, one.waves)) or "-"
    shares = [f"{one.low[n]:.2f} to {one.high[n]:.2f}" if n in one.low else "too much" for n in BATCHES]
    named = [one.gpu, one.dtype, f"{one.vocab_size:,}", one.way, str(one.threads), str(one.programs)]
    return [*named, waves, "yes" if one.row_comes_first else "no", f"{one.l2_bytes / 1e6:.0f}", *shares]
