"""Reads from machine code when a kernel asks for a row: how many loads at a time, and what has to arrive before them.

Instructions are taken in program order. Registers are followed by name, predicates are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .machine_code import NVIDIA_BITS, Instruction, Program, width_of

REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?")
DESCRIPTOR = re.compile(r"desc\[UR\d+\]")


def waves_of(code: Iterable[Instruction]) -> list[int]:
    """The 16-byte loads of a thread, in groups: the first use of a load of a group ends the group."""
    waves, pending = [0], set[str]()
    for one in code:
        if pending & sources(one):
            waves.append(0)
            pending = set()
        if one.is_vector and one.name == "LDG":
            waves[-1] += 1
            pending |= destinations(one)
    return [wave for wave in waves if wave]


def row_comes_first(program: Program) -> bool:
    """Whether the first 16-byte load precedes every load whose address was itself loaded, such as a label's number."""
    loaded = set[str]()
    for one in program.instructions:
        depends = bool(loaded & sources(one))
        if one.name == "LDG" and (one.is_vector or depends):
            return one.is_vector and not depends
        if one.name == "LDG" or depends:
            loaded |= destinations(one)
        elif not one.predicate:
            loaded -= destinations(one)
    raise ValueError("the machine code has no 16-byte load")


def sources(one: Instruction) -> set[str]:
    """The registers that an instruction reads, without descriptors of memory."""
    first, _, rest = one.operands.partition(",")
    found = REGISTER.findall(DESCRIPTOR.sub("", rest if REGISTER.fullmatch(first) else one.operands))
    return {f"{kind}{int(number) + i}" for kind, number, is_pair in found for i in range(2 if is_pair else 1)}


def destinations(one: Instruction) -> set[str]:
    """The registers that an instruction writes."""
    match = REGISTER.fullmatch(one.operands.partition(",")[0])
    if match is None:
        return set()
    count = 2 if ".WIDE" in one.opcode else max(1, width_of(one.opcode, NVIDIA_BITS) // 32)
    return {f"{match[1]}{int(match[2]) + i}" for i in range(count)}
