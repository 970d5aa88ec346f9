"""Counts what a multiprocessor executes for one row: the instructions of each loop times its trips for the row's size.

Code outside the loops is counted once per warp. That is an upper bound: only number rows run all of it.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .cases import Launch, compile_launch
from .control_flow import Kernel, Part, Unrecognised, kernel_of
from .machine_code import NVIDIA_BITS, Instruction, disassembled, parsed, width_of

WARP = 32
"""Threads per warp."""


PIPES = {
    "fma": """
        FFMA FMUL FADD FFMA2 FMUL2 FADD2 FSWZADD IMAD IMUL IDP HFMA2 HADD2 HMUL2""",
    "alu": """
        FMNMX FMNMX3 FSETP FSEL FSET FCHK F2FP I2FP ISETP IADD3 IADD LEA LOP3 LOP PLOP3 SHF SHL SHR PRMT SEL MOV IMNMX
        VIADD VIADDMNMX VIMNMX VIMNMX3 IABS SGXT BMSK CS2R P2R R2P HMNMX2 HSETP2 HSET2 VOTE""",
    "xu": """
        MUFU I2F F2I F2F FRND POPC FLO BREV""",
    "lsu": """
        LDG STG LDS STS LDL STL ATOM ATOMG ATOMS RED SHFL S2R MATCH""",
    "other": """
        BRA EXIT BAR BSSY BSYNC BREAK WARPSYNC YIELD NOP DEPBAR MEMBAR ERRBAR CCTL LDC LDCU S2UR CS2UR R2UR
        VOTEU REDUX CREDUX""",
}
"""Opcodes by pipe.

The assignment follows the list "Pipelines" in NVIDIA's Nsight Compute documentation (Profiling Guide, Metrics Decoder).

fma    Floating-point and integer multiply-adds. From Hopper on, only half of the pipe takes integers; the kernels have
       too few of them for that to matter.
alu    Comparisons, selections, integers, logic, conversions to 16 bits.
xu     Transcendental functions (MUFU) and slow conversions.
lsu    Memory, shuffles, special registers.
other  Branches, barriers, constants and (see :func:`pipe_of`) the uniform datapath, which only take an issue slot.
"""
PIPE_OF = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}
PACKED = ("FFMA2", "FMUL2", "FADD2")
"""Two float32 operations per thread."""
LSU_BITS = 32
"""Bits per thread and pass through the LSU, or 128 bytes per warp."""


class Counts(NamedTuple):
    """Counts for one row, over all threads of its program."""

    vector_loads: int
    """16-byte loads, counted per thread."""
    vector_stores: int
    """16-byte stores, counted per thread."""
    instructions: int
    """Warp instructions: an upper bound of the issue slots."""
    passes: dict[str, int]
    """Warp passes by pipe: see :func:`passes_of`."""


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


def pipe_of(instruction: Instruction) -> str:
    """A key of :data:`PIPES`.

    Raises:
        ValueError: the opcode is not in :data:`PIPES`.
    """
    if instruction.name.startswith("U"):
        return "other"
    try:
        return PIPE_OF[instruction.name]
    except KeyError:
        raise ValueError(f"no pipe is known for {instruction.opcode}: add it to PIPES in {__name__}") from None


def passes_of(instruction: Instruction) -> int:
    """How many passes through its pipe a warp's instruction takes, with at most 4 bytes per thread and pass."""
    if instruction.name in ("LDG", "STG"):
        return max(1, width_of(instruction.opcode, NVIDIA_BITS) // LSU_BITS)
    return 2 if instruction.name in PACKED else 1


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
