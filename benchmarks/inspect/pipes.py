"""Which pipe of a multiprocessor executes an instruction.

The assignment follows the list "Pipelines" in NVIDIA's Nsight Compute documentation (Profiling Guide, Metrics Decoder).
"""

from __future__ import annotations

from .machine_code import NVIDIA_BITS, Instruction, width_of

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
