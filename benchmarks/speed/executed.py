"""Counts what Triton launches execute on the tests' emulated GPU: accesses by width, instructions, barriers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from ..inspect.counts import WARP
from ..inspect.machine_code import read_nvidia

if TYPE_CHECKING:
    from tests.emulator.driver import Launched
    from tests.emulator.emulator import Emulator

ACCESS = re.compile(r"(ld|st)\.global\S*?(?:\.v(?P<count>[248]))?\.b(?P<bits>\d+)")
SPECIAL = re.compile(r"(ex2|lg2|rcp|rsqrt|sqrt|tanh|sin|cos|div)\.\S*f32")
"""Instructions for special functions; a division takes the reciprocal."""


class Executed(NamedTuple):
    """What all launches of a kernel executed."""

    kernel: str
    launches: int
    programs: int
    threads: int
    registers: int
    spills: int
    instructions: int
    """Warp instructions of the PTX."""
    loads: dict[str, int]
    """Bytes -> accesses of this width to global memory. Neighbouring lanes at the same place access it once."""
    stores: dict[str, int]
    special: int
    """Special functions, counted per lane."""
    barriers: float
    """Barriers that a program passes."""


@contextmanager
def emulated_gpu() -> Iterator[Emulator]:
    """The emulated GPU. Kernels of other packages may read and write all elements of their tensors."""
    from tests.emulated import gpu
    from tests.emulator.memory import Roles

    with gpu.emulated_gpu() as here:
        roles_of = here.roles_of

        def roles_of_any(asked: Any) -> Roles:
            is_ours = asked.kernel in gpu.ROLES
            return roles_of(asked) if is_ours else Roles(frozenset(), updates=frozenset(asked.arguments))

        with mock.patch.multiple(here, roles_of=roles_of_any, schedule=0, noise=0):
            yield here


@contextmanager
def executing(gpu: Emulator) -> Iterator[list[Executed]]:
    """Count what is launched meanwhile; the list gets its kernels at the end, in the order of their first launches."""
    gpu.launched.clear()
    for kernel in gpu.driver.kernels.values():
        for counter in (kernel.executed, kernel.lanes, kernel.accesses):
            counter[:] = 0
    found: list[Executed] = []
    yield found
    of_kernels: dict[int, list[Launched]] = {}
    for launched in gpu.launched:
        of_kernels.setdefault(id(launched.kernel), []).append(launched)
    found.extend(executed_by(launches) for launches in of_kernels.values())


def executed_by(launches: list[Launched]) -> Executed:
    """What a kernel executed in these launches, which are all since its counters were set to zero."""
    kernel, programs = launches[0].kernel, sum(launched.programs for launched in launches)
    assert kernel.cubin is not None
    code = read_nvidia(SimpleNamespace(asm={"cubin": kernel.cubin.read_bytes()}))
    accesses: dict[str, Counter[str]] = {"ld": Counter(), "st": Counter()}
    special = barriers = 0
    for line, warps, lanes, places in zip(kernel.lines, kernel.executed, kernel.lanes, kernel.accesses, strict=True):
        name = next(part for part in line.split() if part[0] != "@")
        if access := ACCESS.fullmatch(name):
            size = int(access["count"] or 1) * int(access["bits"]) // 8
            accesses[access[1]][str(size)] += int(places)
        elif SPECIAL.fullmatch(name):
            special += int(lanes)
        elif name == "bar.sync":
            barriers += int(warps)
    return Executed(
        kernel.name,
        len(launches),
        programs,
        kernel.threads,
        code["registers"],
        code["spills"],
        int(kernel.executed.sum()),
        widest_first(accesses["ld"]),
        widest_first(accesses["st"]),
        special,
        barriers * WARP / kernel.threads / programs,
    )


def widest_first(accesses: Counter[str]) -> dict[str, int]:
    return {size: accesses[size] for size in sorted(accesses, key=int, reverse=True) if accesses[size]}
