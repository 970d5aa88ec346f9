"""Counts what a multiprocessor executes for one row: the instructions of each loop times its trips for the row's size.

Code outside the loops is counted once per warp. That is an upper bound: only number rows run all of it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .cases import Launch, compile_launch
from .control_flow import Kernel, Part, Unrecognised, kernel_of
from .machine_code import Instruction, disassembled, parsed
from .pipes import passes_of, pipe_of

WARP = 32
"""Threads per warp."""


class Counts(NamedTuple):
    """Counts for one row, over all threads of its program."""

    vector_loads: int
    """16-byte loads, counted per thread."""
    vector_stores: int
    """16-byte stores, counted per thread."""
    instructions: int
    """Warp instructions: an upper bound of the issue slots."""
    passes: dict[str, int]
    """Warp passes by pipe: see :func:`~benchmarks.inspect.pipes.passes_of`."""


class Trips(NamedTuple):
    """How often a part runs for a row."""

    part: Part
    trips: int
    vectors: int
    """Vectors of all threads in all trips."""


def executed(launch: Launch, target: str, vocab_size: int, head: int = 0) -> Counts:
    """What a launch for a target such as "sm_90" executes for a row with V columns that counts.

    Args:
        head: columns before the first one at a multiple of 16 bytes.

    Raises:
        Unrecognised: the machine code does not consist of two walks over a row.
    """
    return executed_code(disassembled(compile_launch(launch, target)).code, launch, vocab_size, head)


def executed_code(code: str, launch: Launch, vocab_size: int, head: int = 0) -> Counts:
    """:func:`executed` for disassembled code."""
    tile = launch.keywords["TILE"]
    if tile.aligned and (head or vocab_size % tile.vector):
        raise ValueError(f"compiled for whole vectors: head {head} and {vocab_size} columns of {tile.vector} a vector")
    return counts_of(kernel_of(parsed(code)), (vocab_size - head) // tile.vector, tile.threads)


def counts_of(kernel: Kernel, vectors: int, threads: int) -> Counts:
    """The counts for a row whose body has this many vectors."""
    walks = trips_of(kernel.reads, vectors, threads) + trips_of(kernel.writes, vectors, threads)
    passes = passes_by_pipe(kernel.rest)
    instructions = len(kernel.rest)
    for part, trips, _ in walks:
        instructions += trips * len(part.instructions)
        for pipe, count in passes_by_pipe(part.instructions).items():
            passes[pipe] += trips * count
    warps = threads // WARP
    return Counts(
        vector_loads=sum(walk.vectors for walk in walks if walk.part.loads),
        vector_stores=sum(walk.vectors for walk in walks if walk.part.stores),
        instructions=warps * instructions,
        passes={pipe: warps * count for pipe, count in sorted(passes.items())},
    )


def passes_by_pipe(code: list[Instruction]) -> Counter[str]:
    passes: Counter[str] = Counter()
    for instruction in code:
        passes[pipe_of(instruction)] += passes_of(instruction)
    return passes


def trips_of(walk: list[Part], vectors: int, threads: int) -> list[Trips]:
    """How the vectors of a row, each of which is moved once, are distributed over the parts of a walk.

    Parts that always run take their share first, then loops over whole groups, then masked parts, in which every thread
    takes one vector at a time. The assembler unrolls a masked loop into a loop over several vectors and smaller blocks
    for the rest, so wider parts come first and the narrowest takes what remains.

    Raises:
        Unrecognised: vectors are left over, or there are too few for the parts that always run.
    """
    order = sorted(walk, key=lambda part: (part.is_loop or part.is_optional, part.is_masked, -part.width))
    shared = []
    for i, part in enumerate(order):
        is_last = i == len(order) - 1
        steps = -(-vectors // threads) if part.is_masked else vectors // threads
        trips = -(-steps // part.width) if part.is_masked and is_last else steps // part.width
        if not part.is_loop:
            trips = min(trips, 1) if part.is_optional else 1
        moved = trips * part.width * threads
        if moved > vectors and not part.is_masked:
            raise Unrecognised(f"a block moves {moved} vectors in every row, but the row has only {vectors} left")
        shared.append(Trips(part, trips, min(moved, vectors)))
        vectors -= shared[-1].vectors
    if vectors:
        raise Unrecognised(f"no loop or block was found that moves {vectors} vectors of the row")
    return shared
