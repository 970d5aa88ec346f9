"""PTX, the assembly text of a compiled kernel, as instructions of the machine. Unknown text is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .library import LANES, Instruction, machine

WIDTHS = {"pred": 1, "b8": 1, "b16": 2, "b32": 4, "b64": 8, "f32": 4, "u32": 4, "s32": 4, "u64": 8, "f64": 8, "u8": 1}
"""Bytes of a value."""
AXES = "xyz"
"""Of the grid; a program's threads have one axis."""
SPECIAL = {"%tid.x": 4, "%ntid.x": 4, "_": 8} | {f"%{name}.{axis}": 4 for name in ("ctaid", "nctaid") for axis in AXES}
"""Registers that PTX does not declare; `_` receives unused results."""
HINTS = re.compile(r"L1::evict_first|L1::evict_last|L2::cache_hint")
"""Parts of a load's or a store's name that do not affect its result."""
GARBAGE = 0xC9
"""The bytes of a register that was never written."""


class UnknownPTX(NotImplementedError):
    """Text that the emulator does not support."""


class Parameter(NamedTuple):
    name: str
    bytes: int


@dataclass
class Kernel:
    """One kernel, ready to run."""

    name: str
    text: str
    parameters: list[Parameter] = field(default_factory=list)
    threads: int = 0
    lines: list[str] = field(default_factory=list)
    """The text of each instruction."""
    places: list[str] = field(default_factory=list)
    """Its line in the source."""
    cubin: Path | None = None
    """The file of its machine code."""

    def __post_init__(self) -> None:
        header, body = self.split()
        self.widths = dict(SPECIAL)  # of registers, by name or by what comes before their number
        self.offsets: dict[str, int] = {}
        self.constants: dict[str, int] = {}
        self.register_bytes = 0
        for line in header.splitlines():
            if found := re.match(r"\s*\.param \.(\w+) (?:\.ptr \.global \.align \d+ )?(\w+),?\s*$", line):
                self.parameters.append(Parameter(found[2], WIDTHS[found[1]]))
                self.widths[found[2]] = WIDTHS[found[1]]
            elif ".param" in line:
                raise UnknownPTX(line)
        (self.threads,) = (int(count) for count in re.findall(r"\.reqntid (\d+)", header))
        self.thread_register = self.register("%tid.x")
        self.program_registers = tuple(self.register(f"%ctaid.{axis}") for axis in AXES)
        self.read(body)
        self.executed = np.zeros(len(self.code), np.uint64)
        """How many warps have executed each instruction."""
        self.lanes = np.zeros(len(self.code), np.uint64)
        """How many lanes."""
        self.accesses = np.zeros(len(self.code), np.uint64)
        """Of loads and stores: how many lanes, where neighbours at the same place count once."""

    def split(self) -> tuple[str, str]:
        """(what stands before the kernel's instructions, these)."""
        text = re.sub(r"//.*", "", self.text)
        start = text.index(f".entry {self.name}(")
        brace = text.index("{", text.index(")", start))
        return text[start:brace], text[brace + 1 :]

    def read(self, body: str) -> None:
        labels: dict[str, int] = {}
        branches: dict[int, str] = {}
        code: list[Instruction] = []
        unknown: list[str] = []
        files = dict(re.findall(r'\.file\s+(\d+)\s+"[^"]*?([^"/]+)"', self.text))
        place, depth = "", 1
        for line in filter(None, map(str.strip, re.split(r"[;\n]", body))):
            depth += (line == "{") - (line == "}")
            if depth == 0:
                break
            if line in "{}" or line.startswith(".pragma"):
                continue
            if line.endswith(":"):
                labels[line[:-1]] = len(code)
            elif found := re.match(r"\.loc\s+(\d+) (\d+)", line):
                place = f"{files.get(found[1], found[1])}:{found[2]}"
            elif found := re.fullmatch(r"\.reg \.(\w+)\s+(%\w+)<\d+>", line):
                self.widths[found[2]] = WIDTHS[found[1]]
            elif line.startswith("."):
                raise UnknownPTX(line)
            else:
                try:
                    code.append(self.instruction(line, branches, len(code)))
                except UnknownPTX as error:
                    unknown.append(str(error))
                self.lines.append(line)
                self.places.append(place)
        if unknown:
            raise UnknownPTX("\n".join([f"{self.name}:", *unknown]))
        for at, label in branches.items():
            code[at].target = labels[label]
        self.code = (Instruction * len(code))(*code)

    def width(self, text: str) -> int | None:
        """Bytes of a register's values; None for a constant."""
        found = re.fullmatch(r"(%[a-z]+)\d+", text)
        return self.widths[found[1]] if found else self.widths.get(text)

    def register(self, text: str, constant_bytes: int = 4) -> int:
        """The position of an operand in a warp's registers; a constant has a register for each width."""
        width = self.width(text)
        if width is None:
            text, width = f"{text}:{constant_bytes}", constant_bytes
            self.constants[text] = bytes_of(text.partition(":")[0], width)
        if text not in self.offsets:
            self.offsets[text] = self.register_bytes
            self.register_bytes += width * LANES
        return self.offsets[text]

    def instruction(self, line: str, branches: dict[int, str], at: int) -> Instruction:
        operations = machine().operations
        found = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([\w.:]+)\s*(.*)", line)
        if not found:
            raise UnknownPTX(line)
        negated, predicate, name, rest = found.groups()
        name = name.replace(".shared::cta", ".shared")  # PTX has two names for it
        operands = split_operands(rest)
        result = Instruction(predicate=self.register(predicate) if predicate else -1, negated=bool(negated))
        access = re.fullmatch(r"(ld|st)\.(global|shared)((?:\.[\w:]+)*?)(?:\.v([248]))?\.(b8|b16|b32|b64)", name)
        if name in ("bra", "bra.uni"):
            result.operation = operations["bra"]
            branches[at] = operands[0]
        elif name in ("ret", "bar.sync", "bar.warp.sync"):
            if operands not in ([], ["0"], ["0xffffffff"], ["-1"]):
                raise UnknownPTX(line)
            result.operation = operations[name]
        elif name.startswith("createpolicy.fractional.L2::"):
            result.operation = operations["createpolicy"]
        elif access and all(HINTS.fullmatch(part) for part in re.findall(r"[^.]+", access[3])):
            is_load, width = access[1] == "ld", WIDTHS[access[5]]
            values, address = operands[:2] if is_load else reversed(operands[:2])
            self.set_access(result, f"{access[1]}.{access[2]}", values, address, width, int(access[4] or 1), is_load)
        elif matrices := re.fullmatch(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])\.shared\.b16", name):
            is_load = matrices[1] == "ld"
            values, address = operands if is_load else reversed(operands)
            self.set_access(result, f"{matrices[1]}matrix", values, address, 4, int(matrices[2]), is_load)
        elif re.fullmatch(r"mov\.b(32|64)", name) and "{" in rest:
            is_packing = operands[1].startswith("{")
            result.operation = operations[("pack" if is_packing else "unpack") + name[3:]]
            self.set_operands(result, split_group(operands[0]), split_group(operands[1]))
            if len(split_group(operands[is_packing])) != 2:
                raise UnknownPTX(line)
        elif re.fullmatch(r"setp\.eq\.b?f16x2", name):
            result.operation = operations[name]
            self.set_operands(result, operands[0].split("|"), operands[1:])
        elif name == "cvt.s64.s32" and self.width(operands[1]) == 8:  # the lower half
            result.operation = operations["cvt.s64.s32 of b64"]
            self.set_operands(result, operands[:1], operands[1:])
        elif name in operations and not re.search(r"[{}|]", rest):
            result.operation = operations[name]
            given = [text.strip("[]") for text in operands] if name.startswith("ld.param") else operands
            self.set_operands(result, given[:1], given[1:])
        else:
            raise UnknownPTX(line)
        return result

    def set_operands(self, result: Instruction, to: list[str], given: list[str]) -> None:
        for i, text in enumerate(to):
            result.to[i] = self.register(text)
        for i, text in enumerate(given):
            result.from_[i] = self.register(text, machine().operand_bytes(result.operation, 1 + i) or 4)
        for i, text in enumerate([*to, *given]):
            expected = machine().operand_bytes(result.operation, i)
            if expected and self.width(text) not in (None, expected):
                raise UnknownPTX(f"{text} holds {self.width(text)} bytes where {expected} are expected")

    def set_access(
        self, result: Instruction, operation: str, values: str, address: str, width: int, count: int, is_load: bool
    ) -> None:
        found = re.fullmatch(r"\[\s*(\S+?)\s*(?:\+\s*(-?\d+))?\s*\]", address)
        registers = split_group(values)
        if not found or len(registers) != count:
            raise UnknownPTX(f"{operation} {values}, {address}")
        result.operation = machine().operations[operation]
        result.bytes, result.count, result.offset = width, count, int(found[2] or 0)
        (result.stride,) = {self.width(register) for register in registers if register != "_"} or {width}
        if result.stride < width:
            raise UnknownPTX(f"{operation} of {width} bytes, {values}")
        self.set_operands(result, registers if is_load else [], [found[1], *([] if is_load else registers)])

    def initial_registers(self, values: list[bytes], grid: tuple[int, int, int]) -> np.ndarray:
        """A warp's registers at its start, for the bytes of each parameter."""
        registers = np.full(self.register_bytes, GARBAGE, np.uint8)
        known = dict(self.constants)
        known |= {parameter.name: value for parameter, value in zip(self.parameters, values, strict=True)}
        known |= {f"%nctaid.{axis}": size.to_bytes(4, "little") for axis, size in zip(AXES, grid, strict=True)}
        known |= {"%ntid.x": self.threads.to_bytes(4, "little")}
        for text in known.keys() & self.offsets.keys():
            lanes, offset = np.frombuffer(known[text] * LANES, np.uint8), self.offsets[text]
            registers[offset : offset + len(lanes)] = lanes
        return registers


def bytes_of(text: str, width: int) -> bytes:
    """An immediate operand, ``width`` bytes wide."""
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", text):
        value = int(text.rstrip("U"), 0)
    elif re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        value = int(text[2:], 16)
    elif text == "global_smem":  # the start of shared memory
        value = 0
    else:
        raise UnknownPTX(f"operand {text!r}")
    if width == 1:  # a predicate
        value = value != 0
    return (int(value) & (2 ** (8 * width) - 1)).to_bytes(width, "little")


def split_operands(text: str) -> list[str]:
    """Operands, split at the commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip()]


def split_group(text: str) -> list[str]:
    """The registers of ``{ %r1, %r2 }``, or the one of ``%r1``."""
    return [part.strip() for part in text.strip("{}").split(",")]
