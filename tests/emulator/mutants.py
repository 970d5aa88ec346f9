"""Compiled kernels with one instruction broken each, which the kernel's tests must detect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .library import LANES
from .ptx import Kernel

MUTATIONS = {
    "barrier removed": (r"\s*bar\.sync\b.*", r""),
    "mask of a store dropped": (r"@!?%p\d+\s+(st\.global)", r"\1"),
    "mask inverted": (r"@(%p\d+\s+(?:ld|st)\.global)", r"@!\1"),
    "branch inverted": (r"@(%p\d+\s+bra\b)", r"@!\1"),
    "address off by a vector": (r"((?:ld|st)\.global.*\+ )0 \]", r"\g<1>16 ]"),
    "exchange with another lane": (r"(shfl\.sync\.bfly\.b32.*, )16, 31", r"\g<1>8, 31"),
    "operand taken twice": (r"((?:fma\.rn|mul)\.f32\s+%r\d+, )(%r\d+), %r\d+", r"\1\2, \2"),
    "choice swapped": (r"(selp\.\w+\s+%\w+, )([^,]+), ([^,]+), (%p\d+)", r"\1\3, \2, \4"),
    "pair swapped": (r"(cvt\.rn\.b?f16x2\.f32\s+%r\d+, )(%r\d+), (%r\d+)", r"\1\3, \2"),
}
"""The change of one line of PTX: pattern and replacement."""


class Mutant(NamedTuple):
    mutation: str
    line: str
    """The original line."""
    name: str
    text: str

    def kernel(self) -> Kernel:
        return Kernel(self.name, self.text)


def mutants_of(kernel: Kernel) -> Iterator[Mutant]:
    """All mutants of lines that had an effect since the kernel's counts began.

    Lines that no lane executed cannot be detected. Nor can a mask that disabled no lane or left one lane of
    each program, whose value all others also have.
    """
    counts = dict(zip(kernel.lines, zip(kernel.lanes.tolist(), kernel.executed.tolist(), strict=True), strict=True))
    lines = kernel.text.split("\n")
    for at, line in enumerate(lines):
        lanes, warps = counts.get(instruction_of(line), (0, 0))
        for mutation, (pattern, replacement) in MUTATIONS.items():
            broken = re.sub(pattern, replacement, line, count=1)
            is_live = SINGLE_LANES < lanes < warps * LANES if mutation.startswith("mask") else lanes
            if broken != line and is_live:
                text = "\n".join([*lines[:at], broken, *lines[at + 1 :]])
                yield Mutant(mutation, f"{at + 1}: {line.strip()}", kernel.name, text)


SINGLE_LANES = 8
"""A line that so few lanes execute in all is executed by one of each program at most."""


def instruction_of(line: str) -> str:
    """A line as :attr:`Kernel.lines` has it."""
    return re.sub(r"//.*", "", line).strip().rstrip(";").strip()
