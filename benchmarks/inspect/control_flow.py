"""Finds the parts of a kernel that move a row: blocks of straight-line code and loops, in program order.

Nothing is assumed about the source. Parts are recognised by their 16-byte loads and stores, and code that does not look
like a pass over a row raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .machine_code import Instruction, Program


class Unrecognised(ValueError):
    """The machine code does not have a form that the model supports."""


class Part(NamedTuple):
    """A loop or a block of straight-line code with 16-byte accesses."""

    instructions: list[Instruction]
    """The instructions of one trip."""
    loads: int
    """16-byte loads per thread and trip."""
    stores: int
    is_masked: bool
    """Whether a thread may have nothing to load or store: the accesses are predicated or can be skipped."""
    is_loop: bool
    is_optional: bool
    """Whether this is straight-line code that a row may skip."""

    @property
    def width(self) -> int:
        """Vectors per thread and trip."""
        return max(self.loads, self.stores)


class Kernel(NamedTuple):
    """The code that a row which counts may run, without the code that only ignored rows run."""

    reads: list[Part]
    """The first walk: the parts up to the first store."""
    writes: list[Part]
    """The second walk: the remaining parts."""
    rest: list[Instruction]
    """All other code, which has no loops."""


class Block(NamedTuple):
    """A basic block: instructions that all run, or none of them."""

    start: int
    stop: int
    successors: tuple[int, ...]
    """The indices of the blocks that may come next."""


def kernel_of(program: Program) -> Kernel:
    """The code that a row which counts runs.

    Raises:
        Unrecognised: no walk reads the row, or none writes it.
    """
    blocks = blocks_of(program)
    writers = [i for i, block in enumerate(blocks) if any(map(writes_values, code_of(program, block)))]
    if not writers:
        raise Unrecognised("no 16-byte store of a value: the kernel writes no gradient, or writes it in another way")
    counted = before(blocks, writers) | after(blocks, writers)
    exits = {i for i in after(blocks, writers) if not blocks[i].successors}
    parts, inside = parts_of(program, blocks, counted, exits)
    rest = [one for i in sorted(counted - inside) for one in code_of(program, blocks[i])]
    first = next(i for i, part in enumerate(parts) if part.stores)
    reads, writes = parts[:first], parts[first:]
    if not reads:
        raise Unrecognised("no 16-byte load before the first 16-byte store: no walk reads the row")
    if any(part.stores == 0 for part in writes):
        raise Unrecognised("16-byte loads after the first store that do not belong to a store")
    if any(part.loads not in (0, part.stores) for part in writes):
        raise Unrecognised("a loop or block stores more or fewer vectors than it loads")
    return Kernel(reads, writes, rest)


def writes_values(instruction: Instruction) -> bool:
    """Whether a store writes values. Zeros are written for ignored rows."""
    return instruction.is_vector and instruction.name == "STG" and not instruction.stores_zero


def code_of(program: Program, block: Block) -> list[Instruction]:
    return program.instructions[block.start : block.stop]


FORBIDDEN = ("CALL", "RET", "BRX", "BRXU", "JMP", "JMX", "JMXU")
"""Jumps that are not supported here."""


def blocks_of(program: Program) -> list[Block]:
    """The basic blocks in program order. A barrier also ends a block, because it separates the walks over a row."""
    code = program.instructions
    if found := {one.opcode for one in code if one.name in FORBIDDEN}:
        raise Unrecognised(f"control flow that the model does not follow: {', '.join(sorted(found))}")
    ends = {i + 1 for i, one in enumerate(code) if one.name in ("BRA", "EXIT", "BAR")}
    starts = sorted(({0} | ends | set(program.labels.values())) - {len(code)})
    number = {start: i for i, start in enumerate(starts)}
    blocks = []
    for start, stop in zip(starts, [*starts[1:], len(code)], strict=True):
        last = code[stop - 1]
        nexts = [number[program.labels[last.target]]] if last.target else []
        if stop < len(code) and (last.name not in ("BRA", "EXIT") or last.is_conditional):
            nexts.append(number[stop])
        blocks.append(Block(start, stop, tuple(nexts)))
    return blocks


def after(blocks: list[Block], seeds: Iterable[int]) -> set[int]:
    """The blocks that may run after some blocks, including these."""
    found, todo = set(seeds), list(seeds)
    while todo:
        new = set(blocks[todo.pop()].successors) - found
        found |= new
        todo += new
    return found


def before(blocks: list[Block], seeds: Iterable[int]) -> set[int]:
    """The blocks that may run before some blocks, including these."""
    backwards: list[list[int]] = [[] for _ in blocks]
    for i, block in enumerate(blocks):
        for successor in block.successors:
            backwards[successor].append(i)
    return after([Block(0, 0, tuple(predecessors)) for predecessors in backwards], seeds)


def parts_of(program: Program, blocks: list[Block], counted: set[int], exits: set[int]) -> tuple[list[Part], set[int]]:
    """The parts that move a row, and their blocks."""
    parts, inside = [], set[int]()
    loops = loops_of(blocks, counted)
    for first in sorted(counted):
        if first in inside:
            continue
        if first in loops:
            members = loops[first]
            parts.append(part_of(program, blocks, members, {members[-1]}, is_loop=True))
            inside |= set(members)
        elif any(one.is_vector for one in code_of(program, blocks[first])):
            parts.append(part_of(program, blocks, range(first, first + 1), exits, is_loop=False))
            inside.add(first)
    return parts, inside


def loops_of(blocks: list[Block], counted: set[int]) -> dict[int, range]:
    """First block -> blocks of every loop: from the target of a backward branch up to the branch."""
    loops: dict[int, range] = {}
    for i in sorted(counted):
        for head in (successor for successor in blocks[i].successors if successor <= i):
            if any(set(other) & set(range(head, i + 1)) for other in loops.values()):
                raise Unrecognised("a nested loop, or a loop with two backward branches")
            loops[head] = range(head, i + 1)
    return loops


def part_of(program: Program, blocks: list[Block], members: range, ends: set[int], *, is_loop: bool) -> Part:
    """The part made of some blocks; ``ends`` are the blocks in which its loop, or the kernel, ends."""
    start = members[0] if is_loop else 0
    code, masked = [], []
    for block in members:
        is_passed = can_be_passed(blocks, block, start, ends)
        code += code_of(program, blocks[block])
        masked += [one.predicate != "" or is_passed for one in code_of(program, blocks[block]) if one.is_vector]
    if not masked:
        raise Unrecognised("a loop without 16-byte accesses, whose number of trips is unknown to the model")
    if len(set(masked)) > 1:
        raise Unrecognised("a loop or block in which only some of the 16-byte accesses are masked")
    loads = sum(one.is_vector and one.name == "LDG" for one in code)
    return Part(
        code,
        loads,
        len(masked) - loads,
        is_masked=masked[0],
        is_loop=is_loop,
        is_optional=not is_loop and can_be_passed(blocks, members[0], start, ends),
    )


def can_be_passed(blocks: list[Block], block: int, start: int, ends: set[int]) -> bool:
    """Whether there is a path from the start to an end that avoids a block."""
    without = [other if i != block else Block(0, 0, ()) for i, other in enumerate(blocks)]
    return block != start and bool(after(without, [start]) & ends - {block})
