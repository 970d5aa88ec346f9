"""A model, not a measurement, of what bounds ``row_losses_kernel`` with its gradient: ``--model``.

The counts are those of a row that counts and starts at a multiple of 16 bytes: :mod:`.executed` says how they are made,
:mod:`.roofline` against which figures they are held.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .cases import DTYPES, VOCAB_SIZES, Case, compile_launch, in_parallel, record
from .executed import Counts, executed_code
from .machine_code import disassembled, registers_of
from .roofline import GPU, GPUS, floor_seconds, l2_bytes_of, next_limit, resident_programs, shares_of

KERNEL = "losses_and_gradients"
NUMBERS = 10
"""Number tokens."""
ROWS = tuple(sorted(VOCAB_SIZES, key=lambda rows: VOCAB_SIZES[rows]))


@dataclass(frozen=True)
class Estimate:
    """One line of the model: a GPU, a dtype and a vocabulary. Everything is of one row unless it says otherwise."""

    gpu: str
    target: str
    triton: str
    """The version, whose assembler makes the machine code."""
    dtype: str
    vocab_size: int
    threads: int
    registers: int
    """Per thread."""
    vector_loads: int
    """16-byte loads of single threads."""
    vector_stores: int
    l2_bytes: int
    """Between the L2 and the multiprocessor."""
    memory_bytes: int
    """One read and one write: what is loaded again comes from the L2."""
    memory_bytes_missed: int
    """The same if the L2 holds nothing."""
    rows_in_flight: int
    """On the whole GPU."""
    bytes_in_flight: int
    """Logits of those rows that are read again."""
    l2_capacity: int
    instructions: int
    """Of warps: issue slots."""
    passes: dict[str, int]
    """Of warps, by pipe."""
    floor_seconds: float
    """One read and one write of the row, while all other rows of the GPU have their share of the bandwidth."""
    shares: dict[str, float]
    """The time of each limit alone, over ``floor_seconds``."""
    next_limit: str
    """The largest of ``shares``; memory is among them if ``bytes_in_flight`` do not fit the L2."""
    next_published_limit: str
    """The same without the L2, whose bandwidth is a guess."""


def cases_of(targets: Iterable[str], loss: str = "default") -> list[Case]:
    """Every dtype and vocabulary for some targets."""
    return [Case(KERNEL, target, dtype, rows, NUMBERS, loss) for target in targets for dtype in DTYPES for rows in ROWS]


def model(cases: Iterable[Case]) -> list[Estimate]:
    """Compile the cases, as many at a time as there are cores, and count what a row of each executes."""
    found = [one for estimates in in_parallel(estimates_of, cases) for one in estimates]
    return sorted(found, key=lambda one: list(GPUS).index(one.gpu))


def estimates_of(case: Case) -> list[Estimate]:
    """A case on every GPU of its target."""
    launch = record(case)
    compiled = compile_launch(launch, case.target)
    usage, code = disassembled(compiled)
    counts = executed_code(code, launch, VOCAB_SIZES[case.rows])
    threads, registers = launch.keywords["TILE"].threads, registers_of(usage)
    return [
        estimate(case, gpu, counts, threads, registers, compiled.metadata.shared)
        for gpu in GPUS.values()
        if gpu.target == case.target
    ]


def estimate(case: Case, gpu: GPU, counts: Counts, threads: int, registers: int, shared_bytes: int) -> Estimate:
    """What follows from the counts of a case on a GPU."""
    import triton

    row_bytes = VOCAB_SIZES[case.rows] * DTYPES[case.dtype].itemsize
    rows = resident_programs(threads, registers, shared_bytes, gpu) * gpu.multiprocessors
    in_flight = rows * 16 * (counts.vector_loads - counts.vector_stores)
    fits = in_flight <= gpu.l2_bytes
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
        memory_bytes_missed=l2_bytes_of(counts),
        rows_in_flight=rows,
        bytes_in_flight=in_flight,
        l2_capacity=gpu.l2_bytes,
        instructions=counts.instructions,
        passes=counts.passes,
        floor_seconds=floor_seconds(row_bytes, gpu),
        shares=shares,
        next_limit=next_limit(shares, fits),
        next_published_limit=next_limit(shares, fits, is_published=True),
    )
