"""Reads machine code with the disassemblers that ship with Triton."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Disassembly(NamedTuple):
    """The disassembly of a kernel for an NVIDIA GPU."""

    usage: str
    """The output of cuobjdump on registers and memory."""
    code: str
    """The output of nvdisasm: the instructions."""


def disassembled(compiled: Any) -> Disassembly:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        return Disassembly(run(tools / "cuobjdump", "-res-usage", cubin), run(tools / "nvdisasm", "-c", cubin))


def run(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def registers_of(usage: str) -> int:
    """Registers per thread."""
    registers = re.search(r"REG:(\d+)", usage)
    assert registers, f"cuobjdump printed no registers: {usage!r}"
    return int(registers.group(1))


def read_nvidia(compiled: Any) -> dict[str, int]:
    """The fields of a report from a cubin, read with cuobjdump and nvdisasm."""
    usage, code = disassembled(compiled)
    return {
        "registers": registers_of(usage),
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", code)),
        "load_bits": widest(re.findall(r"\bLDG([.\w]*)", code), NVIDIA_BITS),
        "store_bits": widest(re.findall(r"\bSTG([.\w]*)", code), NVIDIA_BITS),
    }


def read_amd(compiled: Any) -> dict[str, int]:
    """The fields of a report from the assembly, which contains the compiler's own counts."""
    code = compiled.asm["amdgcn"]

    def count(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", code)
        assert found, f"the assembly has no .{name}"
        return int(found.group(1))

    return {
        "registers": count("vgpr_count"),
        "spills": count("vgpr_spill_count") + count("sgpr_spill_count"),
        "load_bits": widest(re.findall(r"\b(?:global|buffer)_load_(\w+)", code), AMD_BITS),
        "store_bits": widest(re.findall(r"\b(?:global|buffer)_store_(\w+)", code), AMD_BITS),
    }


NVIDIA_BITS = {".256": 256, ".128": 128, ".64": 64, ".U16": 16, ".S16": 16, ".U8": 8, ".S8": 8}
"""Access width in bits by an instruction's suffix; 32 without one."""
AMD_BITS = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "short": 16, "byte": 8}


def widest(suffixes: Iterable[str], bits: dict[str, int]) -> int:
    """The widest of some accesses; 0 if there are none."""
    return max((width_of(suffix, bits) for suffix in suffixes), default=0)


def width_of(suffix: str, bits: dict[str, int]) -> int:
    return next((width for mark, width in bits.items() if mark in suffix), 32)


class Instruction(NamedTuple):
    """One instruction of an NVIDIA GPU, such as ``@!P0 LDG.E.EF.128 R4, desc[UR6][R12.64]``."""

    predicate: str
    """``@!P0``, or empty."""
    opcode: str
    """The opcode with its suffixes."""
    operands: str

    @property
    def name(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]

    @property
    def is_vector(self) -> bool:
        """Whether it moves 16 bytes per thread from or to global memory."""
        return self.name in ("LDG", "STG") and width_of(self.opcode, NVIDIA_BITS) == 128

    @property
    def stores_zero(self) -> bool:
        return self.name == "STG" and self.operands.endswith(", RZ")

    @property
    def target(self) -> str | None:
        """The target label of a branch."""
        label = re.search(r"`\((\.\w+)\)", self.operands)
        return label.group(1) if self.name == "BRA" and label else None

    @property
    def is_conditional(self) -> bool:
        """Whether a branch or an exit is conditional; ``BRA.U`` has its predicate among the operands."""
        return self.predicate != "" or (self.name == "BRA" and not self.operands.startswith("`"))


class Program(NamedTuple):
    """The instructions of a kernel, and the positions of its labels."""

    instructions: list[Instruction]
    labels: dict[str, int]
    """Label -> index of the instruction after it."""


LABEL = re.compile(r"^(\.L\w*):")
LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?P<text>.*?)\s*;")
INSTRUCTION = re.compile(r"^(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9]*(?:\.\w+)*)\s*(.*)$")


def parsed(code: str) -> Program:
    """Parse nvdisasm's output.

    Raises:
        ValueError: a line is not an instruction of a known form.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in code.splitlines():
        if label := LABEL.match(line):
            labels[label.group(1)] = len(instructions)
        elif text := LINE.match(line):
            instruction = INSTRUCTION.match(text["text"])
            if instruction is None:
                raise ValueError(f"not an instruction: {text['text']!r}")
            instructions.append(Instruction(instruction.group(1) or "", instruction.group(2), instruction.group(3)))
    if not instructions:
        raise ValueError("the disassembly has no instruction")
    return Program(instructions, labels)
