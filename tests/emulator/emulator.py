"""The emulated GPU: where it replaces the real one, and how it judges a launch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from triton import knobs
from triton.runtime import driver as active

from .driver import Asked, Driver, Launched
from .library import BUILD, MOST_REPORTS, Launch, Report, machine
from .memory import Memory, Roles
from .ptx import Kernel


class Fault(AssertionError):
    """A fault that the emulator found in a launch."""


class Emulator:
    """Executes every launch of Triton's while it is :meth:`active`, and raises :class:`Fault` for a faulty one."""

    def __init__(self) -> None:
        self.roles: dict[str, Roles] = {}
        """Of each kernel by its name; one that is not there cannot be launched."""
        self.schedule = 0
        """The order of warps and CTAs: 0 ascending, 1 descending, any other number the seed of a random order."""
        self.noise = 0
        """Seed for errors of approximate instructions as large as PTX allows; 0: none."""
        self.most_steps = 200_000_000
        """Instructions of a program's warps, after which it counts as endless."""
        self.is_executing = True
        self.launched: list[Launched] = []
        """All launches since the list was last emptied."""
        self.replaced: dict[int, Kernel] = {}
        """Kernels that run in place of others, by the others' ids."""
        with settings():
            self.driver = Driver(self.launch)

    @contextmanager
    def active(self) -> Iterator[Emulator]:
        before, listener = dict(vars(active)), knobs.compilation.listener
        active.set_active(self.driver)
        knobs.compilation.listener = self.driver.on_compiled
        try:
            with settings():
                yield self
        finally:
            knobs.compilation.listener = listener
            vars(active).update(before)

    def roles_of(self, asked: Asked) -> Roles:
        return self.roles[asked.kernel]

    def launch(self, asked: Asked, launched: Launched) -> None:
        self.launched.append(launched)
        if not self.is_executing or launched.programs == 0:
            return
        kernel = self.replaced.get(id(launched.kernel), launched.kernel)
        memory = Memory(asked.tensors(), self.roles_of(asked))
        faults = [*self.run(kernel, launched, memory), *memory.unwritten()]
        if faults:
            raise Fault("\n".join(f"{asked.kernel}: {fault}" for fault in faults))

    def run(self, kernel: Kernel, launched: Launched, memory: Memory) -> Iterator[str]:
        """Execute a launch; returns its faults."""
        registers = kernel.initial_registers(launched.values, launched.grid)
        spaces, reports = memory.spaces(), (Report * MOST_REPORTS)()
        launch = Launch(
            code=ctypes.addressof(kernel.code),
            code_size=len(kernel.code),
            threads=kernel.threads,
            shared_bytes=launched.shared_bytes,
            grid=launched.grid,
            schedule=self.schedule,
            noise=self.noise,
            register_bytes=kernel.register_bytes,
            registers=registers.ctypes.data,
            thread_register=kernel.thread_register,
            program_registers=kernel.program_registers,
            spaces=ctypes.addressof(spaces),
            num_spaces=len(memory.spans),
            reports=ctypes.addressof(reports),
            executed=kernel.executed.ctypes.data,
            lanes=kernel.lanes.ctypes.data,
            accesses=kernel.accesses.ctypes.data,
            most_steps=self.most_steps,
        )
        machine().run(launch)
        for report in reports[: launch.num_reports]:
            yield described(report, kernel)


@cache
def emulator() -> Emulator:
    """The emulator of this process: a process has one driver."""
    return Emulator()


def described(report: Report, kernel: Kernel) -> str:
    """A report in words."""
    return (
        f"{machine().kinds[report.kind]}: CTA {report.cta}, thread {report.thread} (other: {report.other}), "
        f"{report.bytes} bytes at {report.address:#x}, by `{kernel.lines[report.at]}` of {kernel.places[report.at]}"
    )


@contextmanager
def settings() -> Iterator[None]:
    """Keep what Triton compiles with the rest of the emulator's files, and leave its other settings as they are."""
    with knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir = str(BUILD / f"triton{os.environ.get('PYTEST_XDIST_WORKER', '')}")  # each process has its own
        yield
