"""A model, not a measurement, of what limits ``row_losses_kernel`` with its gradient: ``--model``.

The counts are for a row that counts and starts at a multiple of 16 bytes. :mod:`.counts` explains how they are made,
and :mod:`.roofline` contains the published figures that they are compared with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cases import DTYPES, VOCAB_SIZES, Case, compile_launch, record
from .counts import Counts, executed_code
from .machine_code import disassembled, registers_of
from .roofline import GPU, GPUS, bytes_on_the_way, floor_seconds, l2_bytes_of, next_limit, resident_programs, shares_of
from .workers import on_all_cores

KERNEL = "losses_and_gradients"
NUMBERS = 10
"""The number of number tokens."""
ROWS = tuple(sorted(VOCAB_SIZES, key=lambda rows: VOCAB_SIZES[rows]))


@dataclass(frozen=True)
class Estimate:
    """One line of the model: a GPU, a dtype and a vocabulary. All values are for one row unless stated otherwise."""

    gpu: str
    target: str
    triton: str
    """The version of Triton, whose assembler produces the machine code."""
    dtype: str
    vocab_size: int
    threads: int
    registers: int
    """Registers per thread."""
    vector_loads: int
    """16-byte loads, counted per thread."""
    vector_stores: int
    l2_bytes: int
    """Bytes between the L2 and the multiprocessor; from memory if every load misses the L2."""
    memory_bytes: int
    """Bytes of one read and one write; everything that is loaded again comes from the L2."""
    rows_in_flight: int
    """Rows being processed on the whole GPU."""
    bytes_on_the_way: tuple[float, float]
    """Bytes that each of these rows must have on their way from or to memory to keep it busy, if its latency is low or
    high."""
    bytes_in_flight: int
    """Bytes of the logits of these rows that are read again."""
    l2_capacity: int
    instructions: int
    """Warp instructions (issue slots)."""
    passes: dict[str, int]
    """Warp passes, by pipe."""
    floor_seconds: float
    """The time of one read and one write of the row when all rows on the GPU share the bandwidth equally."""
    shares: dict[str, float]
    """The time that each limit alone would take, relative to ``floor_seconds``."""
    next_limit: str
    """The largest of ``shares``; memory is included if ``bytes_in_flight`` do not fit the L2."""
    next_published_limit: str
    """The same without the L2 bandwidth, which is a guess."""


def cases_of(targets: Iterable[str], loss: str = "default") -> list[Case]:
    """The cases of every dtype and vocabulary for some targets."""
    return [Case(KERNEL, target, dtype, rows, NUMBERS, loss) for target in targets for dtype in DTYPES for rows in ROWS]


def model(cases: Iterable[Case]) -> list[Estimate]:
    """Compile the cases in parallel and count what a row of each executes."""
    found = [one for estimates in on_all_cores(estimates_of, cases) for one in estimates]
    return sorted(found, key=lambda one: list(GPUS).index(one.gpu))


def estimates_of(case: Case) -> list[Estimate]:
    """The estimates of a case for every GPU of its target."""
    launch = record(case)
    compiled = compile_launch(launch, case.target)
    usage, code = disassembled(compiled)
    counts = executed_code(code, launch, VOCAB_SIZES[case.rows])
    tile, shared = launch.keywords["TILE"], compiled.metadata.shared
    gpus = [gpu for gpu in GPUS.values() if gpu.target == case.target]
    return [estimate(case, gpu, counts, tile.threads, registers_of(usage), shared) for gpu in gpus]


def estimate(case: Case, gpu: GPU, counts: Counts, threads: int, registers: int, shared_bytes: int) -> Estimate:
    """The estimate that follows from the counts of a case on a GPU."""
    import triton

    row_bytes = VOCAB_SIZES[case.rows] * DTYPES[case.dtype].itemsize
    in_flight = resident_programs(threads, registers, shared_bytes, gpu) * gpu.multiprocessors
    read_again = in_flight * 16 * (counts.vector_loads - counts.vector_stores)
    fits = read_again <= gpu.l2_bytes
    low, high = bytes_on_the_way(gpu)
    shares = shares_of(counts, row_bytes, gpu)
    return Estimate(
        gpu=gpu.name,
        target=case.target,
        triton=triton.__version__,
        dtype=case.dtype,
        vocab_size=VOCAB_SIZES[case.rows],
        threads=threads,
        registers=registers,
        vector_loads=counts.vector_loads,
        vector_stores=counts.vector_stores,
        l2_bytes=l2_bytes_of(counts),
        memory_bytes=2 * row_bytes,
        rows_in_flight=in_flight,
        bytes_on_the_way=(low / in_flight, high / in_flight),
        bytes_in_flight=read_again,
        l2_capacity=gpu.l2_bytes,
        instructions=counts.instructions,
        passes=counts.passes,
        floor_seconds=floor_seconds(row_bytes, gpu),
        shares=shares,
        next_limit=next_limit(shares, fits),
        next_published_limit=next_limit(shares, fits, is_published=True),
    )
