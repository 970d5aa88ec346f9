"""Reports on compiled kernels: registers, spills, shared memory and the widest accesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ntl_kernels.backends.tiles import LANES

from .cases import Case, compile_launch, in_parallel, platform_of, record
from .machine_code import read_amd, read_nvidia


@dataclass(frozen=True)
class Report:
    """The report on one compiled kernel."""

    kernel: str
    target: str
    case: str
    threads: int
    registers: int
    """Registers per thread."""
    spills: int
    """Loads and stores of spilled registers in the code (NVIDIA), or registers spilled (AMD)."""
    shared_bytes: int
    load_bits: int
    """The widest load of a thread from global memory, in bits."""
    store_bits: int
    """The widest store, in bits."""


def inspect(cases: Iterable[Case]) -> list[Report]:
    """Compile the cases in parallel and report on each."""
    return in_parallel(inspect_case, cases)


def inspect_case(case: Case) -> Report:
    """Compile one case and report on its machine code."""
    compiled = compile_launch(record(case), case.target)
    read = read_amd if case.target.startswith("gfx") else read_nvidia
    threads = compiled.metadata.num_warps * LANES[platform_of(case.target)]
    shared = compiled.metadata.shared
    return Report(case.kernel, case.target, str(case), threads, shared_bytes=shared, **read(compiled))


def table(found: Sequence[Any]) -> str:
    """A text table with one line per report, or per object of another dataclass."""
    lines = [asdict(one) for one in found]
    return aligned([list(lines[0]), *([cell(value) for value in line.values()] for line in lines)])


def cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def aligned(lines: list[list[str]]) -> str:
    """Lines of cells as aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
