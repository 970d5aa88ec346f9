"""Triton's own driver and launchers over an emulated libcuda: calls of its entry points arrive here.

Real are ``JITFunction.run``, compilation down to the cubin, ``CompiledKernel``, ``CudaUtils`` (driver.c, compiled on
this machine) and ``CudaLauncher``, which packs the arguments. The functions of libcuda are emulated.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import math
import struct
from collections.abc import Callable, Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.nvidia import driver as nvidia

from .library import build
from .ptx import Kernel

DEVICE, STREAM = 1025, 0x5EED0
"""A separate index, since Triton and our launches cache compiled kernels by it."""
SUCCESS, FAILURE = 0, 719  # CUDA_ERROR_LAUNCH_FAILED
SORTS_OF_SCRATCH = 2 if "profile_scratch" in inspect.getsource(nvidia) else 1  # Triton 3.4 has one
REGISTERS, LOCAL_BYTES, MOST_THREADS, SHARED_BYTES = 4, 3, 0, 1  # CUfunction_attribute


class LaunchError(RuntimeError):
    """A launch that differs from the request."""


class Launched(NamedTuple):
    """The launch that arrived at the driver."""

    kernel: Kernel
    grid: tuple[int, int, int]
    shared_bytes: int
    values: tuple[bytes, ...]
    """The bytes of each parameter."""

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


class Asked(NamedTuple):
    """The launch that was requested."""

    kernel: str
    signature: dict[str, Any]
    arguments: dict[str, Any]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(parameter, tensor) of all arguments, those inside groups with the group's parameter."""
        for name, argument in self.arguments.items():
            for part in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(part, Tensor):
                    yield name, part.detach()

    def values(self) -> tuple[bytes, ...]:
        """The bytes of each parameter, packed here from the arguments and their types."""
        packed = [value for name, kind in self.signature.items() for value in pack(kind, self.arguments[name])]
        return *packed, *[bytes(8)] * SORTS_OF_SCRATCH  # no memory of any kind


def pack(kind: Any, value: Any) -> Iterator[bytes]:
    if isinstance(kind, tuple):
        for part, inner in zip(kind, value, strict=True):
            yield from pack(part, inner)
    elif kind != "constexpr":
        letter = "Q" if kind[0] == "*" else {"i32": "i", "i64": "q", "fp32": "f"}[kind]
        yield struct.pack("<" + letter, value.data_ptr() if isinstance(value, Tensor) else value)


class Driver(nvidia.CudaDriver):
    """Triton's driver for NVIDIA GPUs, whose launches go to ``execute``."""

    def __init__(self, execute: Callable[[Asked, Launched], None]) -> None:
        self.execute = execute
        self.asked: Asked | None = None
        self.error: BaseException | None = None
        self.texts: dict[bytes, Path] = {}  # PTX by the digest of its cubin
        self.modules: dict[int, bytes] = {}
        self.kernels: dict[int, Kernel] = {}
        self.callbacks = self.load_library()
        self.utils = nvidia.CudaUtils()
        self.utils.load_binary = self.raising(self.utils.load_binary)
        self.launcher_cls = self.launcher()
        self.get_current_device = lambda: DEVICE
        self.set_current_device = lambda device: None
        self.get_current_stream = lambda device: STREAM
        self.get_device_capability = lambda device: (9, 0)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def load_library(self) -> Any:
        """Compile and load libcuda, before another one is searched for."""
        include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
        path = build("libcuda.c", "libcuda.so.1", ("-Wno-unused", f"-I{include}", "-Wl,-soname,libcuda.so.1"))
        with contextlib.suppress(FileExistsError):
            path.with_suffix("").symlink_to(path.name)  # by this name Triton 3.4 links it
        knobs.nvidia.libcuda_path = str(path.parent)
        types = {
            "load": (c_void_p, c_size_t, c_void_p),
            "find": (c_void_p, c_char_p, c_void_p),
            "attribute": (c_void_p, c_int, POINTER(c_int)),
            "launch": (c_void_p, POINTER(c_uint), POINTER(c_uint), c_uint, c_void_p, c_uint, POINTER(c_void_p)),
        }
        functions = {name: ctypes.CFUNCTYPE(c_int, *parts) for name, parts in types.items()}
        table = type("Callbacks", (ctypes.Structure,), {"_fields_": list(functions.items())})
        callbacks = table(*[make(self.guarded(getattr(self, f"on_{name}"))) for name, make in functions.items()])
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL).set_callbacks(ctypes.byref(callbacks))
        return callbacks

    def guarded(self, call: Callable[..., None]) -> Callable[..., int]:
        """A callback that keeps its exception, which cannot pass through C, and returns a CUresult."""

        def run(*arguments: Any) -> int:
            try:
                call(*arguments)
            except BaseException as error:
                self.error = error
                return FAILURE
            return SUCCESS

        return run

    def raising(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of Triton's that raises a callback's exception instead of its own error for the CUresult."""

        def run(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except RuntimeError:
                error, self.error = self.error, None
                if error is not None:
                    raise error from None
                raise

        return run

    def on_compiled(self, *, src: Any, metadata: Any, metadata_group: dict[str, str], **_: Any) -> None:
        """Triton's listener: a kernel was compiled, or found in the cache."""
        paths = {Path(path).suffix: Path(path) for path in metadata_group.values()}
        self.texts[sha256(paths[".cubin"].read_bytes()).digest()] = paths[".ptx"]

    def on_load(self, image: int, size: int, module: int) -> None:
        self.modules[module] = sha256(ctypes.string_at(image, size)).digest()

    def on_find(self, module: int, name: bytes, function: int) -> None:
        path = self.texts[self.modules[module]]
        self.kernels[function] = Kernel(name.decode(), path.read_text(), cubin=path.with_suffix(".cubin"))

    def on_attribute(self, function: int, attribute: int, value: Any) -> None:
        value[0] = {MOST_THREADS: 1024, SHARED_BYTES: 0, LOCAL_BYTES: 0, REGISTERS: 32}[attribute]

    def on_launch(
        self, function: int, grid: Any, block: Any, shared_bytes: int, stream: int, num_attributes: int, parameters: Any
    ) -> None:
        kernel, asked = self.kernels[function], self.asked
        shape = (stream, num_attributes, *block[:3])
        if shape != (STREAM, 0, kernel.threads, 1, 1):
            raise LaunchError(f"{kernel.name} is launched with {shape}")
        values = tuple(ctypes.string_at(parameters[i], part.bytes) for i, part in enumerate(kernel.parameters))
        if asked is None or values != asked.values():
            raise LaunchError(f"{kernel.name}: parameters {values} arrive, {asked and asked.values()} were given")
        self.execute(asked, Launched(kernel, tuple(grid[:3]), shared_bytes, values))

    def launcher(self) -> type:
        """Triton's launcher, which records its launch."""
        driver = self

        class Launcher(nvidia.CudaLauncher):
            def __init__(self, src: Any, metadata: Any) -> None:
                super().__init__(src, metadata)
                self.kernel, self.signature = metadata.name, dict(src.signature)

            def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
                arguments = dict(zip(self.signature, rest[4:], strict=True))
                driver.asked = Asked(self.kernel, self.signature, arguments)
                try:
                    driver.raising(super().__call__)(x, y, z, stream, function, *rest)
                finally:
                    driver.asked = None

        return Launcher
