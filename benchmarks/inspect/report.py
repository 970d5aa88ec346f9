"""Reports on compiled kernels: registers, spills, shared memory and the widest accesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields

from ntl_kernels.backends.tiles import LANES

from ..table import Table
from .cases import Case, compile_launch, platform_of, record
from .machine_code import read_amd, read_nvidia
from .workers import on_all_cores


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
    return on_all_cores(inspect_case, cases)


def inspect_case(case: Case) -> Report:
    """Compile one case and report on its machine code."""
    compiled = compile_launch(record(case), case.target)
    read = read_amd if case.target.startswith("gfx") else read_nvidia
    threads = compiled.metadata.num_warps * LANES[platform_of(case.target)]
    shared = compiled.metadata.shared
    return Report(case.kernel, case.target, str(case), threads, shared_bytes=shared, **read(compiled))


def table(found: Sequence[Report]) -> str:
    """A line per report."""
    return Table((field.name for field in fields(Report)), (map(str, astuple(one)) for one in found)).aligned()
