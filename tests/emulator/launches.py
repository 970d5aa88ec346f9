"""Every launch of the project four ways: the bytes that reach the driver must be the same.

Triton's own way binds all arguments anew. `ntl_kernels.backends.launch` keeps compiled kernels under a key of its own,
so that a key too coarse would launch the wrong variant: a warm launch, after whatever was launched before, and one from
an empty table are compared with Triton's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.jit import JITFunction

from ntl_kernels.backends import launch as launching
from ntl_kernels.backends import triton, triton_shards

from .driver import Launched
from .emulator import Emulator

MODULES = (triton, triton_shards)
"""Those that launch kernels."""


class Mismatch(AssertionError):
    """A launch that is not Triton's own."""


class Launcher:
    """Stands in for :func:`ntl_kernels.backends.launch.launch`."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.compared = 0
        """Launches that were compared."""
        self.bindings = 0

    @contextmanager
    def active(self) -> Iterator[Launcher]:
        """Compare all launches of the backends while they go through the emulator."""
        run = JITFunction.run

        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.bindings += 1
            return run(*arguments, **keywords)

        real = {module: module.launch for module in MODULES}
        JITFunction.run = counted
        for module in MODULES:
            module.launch = self
        try:
            yield self
        finally:
            JITFunction.run = run
            for module, function in real.items():
                module.launch = function

    def __call__(
        self, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], **options: Any
    ) -> None:
        def direct() -> None:
            launching.launch(kernel, programs, arguments, constants, **options)

        if type(kernel) is not JITFunction:  # somebody looks at launches, and none happens
            return direct()
        _, first = self.seen(direct, False)
        bindings, own = self.seen(lambda: kernel[(programs,)](*arguments, **constants, **options), False)
        known = dict(launching.COMPILED)
        launching.COMPILED.clear()
        bindings_cold, cold = self.seen(direct, False)
        bindings_warm, warm = self.seen(direct, self.emulator.is_executing)
        launching.COMPILED.update(known)
        if (bindings, bindings_cold, bindings_warm) != (1, 1, 0):
            raise Mismatch(f"{kernel.__name__}: {bindings_cold} bindings cold, {bindings_warm} warm; expected 1 and 0")
        for name, launch in (("with what was known", first), ("cold", cold), ("warm", warm)):
            if launch != own:
                raise Mismatch(f"{kernel.__name__}, {name}: {launch} is launched, Triton launches {own}")
        self.compared += 1

    def seen(self, call: Any, is_executing: bool) -> tuple[int, Launched]:
        """(how often Triton bound arguments, what reached the driver) of one launch."""
        emulator, before = self.emulator, self.emulator.is_executing
        bindings, count = self.bindings, len(emulator.launched)
        emulator.is_executing = is_executing
        try:
            call()
        finally:
            emulator.is_executing = before
        (launched,) = emulator.launched[count:]
        del emulator.launched[count:]
        if is_executing:
            emulator.launched.append(launched)
        return self.bindings - bindings, launched
