"""Reports on compiled kernels: registers, spills, shared memory and the widest accesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

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


def table(reports: Iterable[Report]) -> str:
    """A text table with one line per report."""
    return aligned([list(Report.__dataclass_fields__), *([str(v) for v in asdict(r).values()] for r in reports)])


def aligned(lines: list[list[str]]) -> str:
    """Lines of cells as aligned columns."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
