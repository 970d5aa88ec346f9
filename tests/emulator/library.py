"""The machine in C: compiled once, and the structures of ``machine.h`` as Python fills them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from ctypes import c_int32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
BUILD = Path(os.environ.get("NTL_KERNELS_EMULATOR", HERE.parents[1] / "build" / "emulator"))
"""Where compiled C files and Triton's cache of compiled kernels lie."""
LANES = 32
FLAGS = ("-shared", "-fPIC", "-O2", "-Wall")
MACHINE_FLAGS = ("-march=native", "-ffp-contract=off", "-fno-math-errno")


def compiler() -> str | None:
    """The C compiler, found as Triton finds it; None without one."""
    names = (os.environ.get("CC"), "gcc", "clang", sysconfig.get_config_var("CC"))
    return next((path for name in names if name and (path := shutil.which(name.split()[0]))), None)


def build(source: str, target: str, flags: Sequence[str] = ()) -> Path:
    """Compile a C file of this folder into the library ``target``, unless that was done before."""
    command = [compiler() or "cc", *FLAGS, *flags, str(HERE / source)]
    sources = [path.read_bytes() for path in sorted(HERE.glob("*.[ch]"))]
    digest = hashlib.sha256(b"\0".join([*sources, repr(command).encode()])).hexdigest()[:16]
    library = BUILD / digest / target
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_name(f"{target}.{os.getpid()}")
        subprocess.run([*command, "-o", str(part), "-lm"], check=True)
        part.replace(library)  # atomically, since several processes may do so
    return library


class Instruction(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("operation", "predicate", "negated", "target", "count", "bytes", "stride")),
        ("to", c_int32 * 8),
        ("from_", c_int32 * 9),
        ("offset", ctypes.c_int64),
    )


class Space(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("begin", "end")),
        *((name, c_void_p) for name in ("memory", "flags", "shadow")),
        *((name, c_int32) for name in ("shift", "is_shared")),
    )


class Report(ctypes.Structure):
    _fields_ = (*((name, c_int32) for name in ("kind", "at", "cta", "thread", "other", "bytes")), ("address", c_uint64))


MOST_REPORTS = 32


class Launch(ctypes.Structure):
    _fields_ = (
        ("code", c_void_p),
        *((name, c_int32) for name in ("code_size", "threads", "shared_bytes")),
        ("grid", c_int32 * 3),
        *((name, c_int32) for name in ("schedule", "noise", "register_bytes")),
        ("registers", c_void_p),
        ("thread_register", c_int32),
        ("program_registers", c_int32 * 3),
        ("spaces", c_void_p),
        *((name, c_int32) for name in ("num_spaces", "num_reports")),
        *((name, c_void_p) for name in ("reports", "executed", "lanes", "accesses")),
        ("most_steps", c_uint64),
    )


class Machine:
    """The compiled machine."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(build("machine.c", "machine.so", MACHINE_FLAGS)))
        self.library.size_of.restype = c_uint64
        sizes = [self.library.size_of(i) for i in range(5)]
        self.shadow_bytes = sizes.pop(2)
        assert sizes == [ctypes.sizeof(part) for part in (Instruction, Space, Report, Launch)], sizes
        self.operations = {name: i for i, name in enumerate(self.names("operation_name"))}
        self.kinds = self.names("kind_name")

    def names(self, function: str) -> list[str]:
        """All names that a function of the library returns by index."""
        name_of = getattr(self.library, function)
        name_of.restype = ctypes.c_char_p
        names: list[str] = []
        while (name := name_of(len(names))) is not None:
            names.append(name.decode())
        return names

    def operand_bytes(self, operation: int, k: int) -> int:
        """The bytes of an arithmetic instruction's result (k = 0) and operands; 0 for others."""
        return self.library.operand_bytes(operation, k)

    def run(self, launch: Launch) -> None:
        self.library.run(ctypes.byref(launch))


@cache
def machine() -> Machine:
    return Machine()
