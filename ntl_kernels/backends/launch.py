"""Launches kernels with little host time.

At every launch, Triton binds all arguments again to find the compiled variant. The four launches of a step then take 87
microseconds of the host, and 34 from here (Triton 3.9 on a server's CPU, without running kernels).

Compiled kernels are cached under a key that contains at least as much as Triton's own: for a tensor, its dtype and
whether it starts at a multiple of 16 bytes; for an integer, its value (or, if the kernel does not specialise on it,
whether it needs 64 bits); for anything else, the value itself; and also the device and all compile-time arguments. A
known layout is launched directly; a new one goes through Triton, which finds or compiles its kernel. A finer key than
Triton's only costs additional look-ups; a coarser one would be wrong. `tests/backends/test_launch.py` compares the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ..kernels.arguments import Scalars
from .layout import VECTOR_BYTES

MOST_LAYOUTS = 4096
"""The cache is cleared at this size, so that the strides of more and more shapes do not fill the memory."""
WIDEST = 2**31
COMPILED: dict[Any, Any] = {}
"""Key -> compiled kernel."""


def launch(
    kernel: Any,
    programs: int,
    home: torch.device,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    **options: Any,
) -> None:
    """``kernel[(programs,)](*arguments, **constants, **options)`` on the device of the arguments.

    Args:
        kernel: a function under ``triton.jit`` whose constant parameters come last, in the order of ``constants``.
        home: the device of the tensors among the arguments.
        arguments: tensors, numbers, None, and the groups of :mod:`ntl_kernels.kernels.arguments`.
        options: Triton's options (``num_warps``, ...). They follow from the rest, so they are not part of the key.
    """
    if type(kernel) is not JITFunction:  # the interpreter
        kernel[(programs,)](*arguments, **constants, **options)
        return
    device = driver.active.get_current_device()
    if home.index is not None and home.index != device:  # a model on several devices; Triton uses the current
        with on_device(home):
            launch(kernel, programs, home, arguments, constants, **options)
        return
    if is_watched(kernel):
        kernel[(programs,)](*arguments, **constants, **options)
        return
    key = (id(kernel), device, layout_of(kernel, arguments), *constants.values())
    compiled = COMPILED.get(key)
    if compiled is None:
        if len(COMPILED) >= MOST_LAYOUTS:
            COMPILED.clear()
        COMPILED[key] = kernel[(programs,)](*arguments, **constants, **options)
        return
    stream = driver.active.get_current_stream(device)
    handles = compiled.function, compiled.packed_metadata, None, None, None
    compiled.run(programs, 1, 1, stream, *handles, *arguments, *constants.values())


def on_device(device: torch.device) -> Any:
    """A context in which ``device`` is the current device."""
    return torch.get_device_module(device).device(device)


def is_watched(kernel: Any) -> bool:
    """Whether launch hooks are installed."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(kernel.pre_run_hooks) or any(hook is not None and getattr(hook, "calls", True) for hook in hooks)


UNSPECIALISED: dict[int, tuple[bool, ...]] = {}
"""Id of a kernel -> for each of its arguments, whether its value and alignment do not affect the variant."""


def layout_of(kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The properties of the arguments that determine the variant of a kernel."""
    flags = UNSPECIALISED.get(id(kernel))
    if flags is None:
        flags = UNSPECIALISED[id(kernel)] = tuple(parameter.do_not_specialize for parameter in kernel.params)
    return tuple([part_of(argument, flag) for argument, flag in zip(arguments, flags, strict=False)])


def part_of(argument: Any, is_unspecialised: bool = False) -> Any:
    """The properties of one argument that determine the variant of a kernel.

    Nothing of a table of number tokens is kept, so that the table of a vocabulary that is no longer used can go.
    """
    kind = type(argument)
    if kind is int:
        return argument >= WIDEST if is_unspecialised else argument
    if kind is float or argument is None or kind is Scalars:  # floats do not affect the variant
        return kind
    if isinstance(argument, Tensor):
        return argument.dtype if is_unspecialised else (argument.dtype, argument.data_ptr() % VECTOR_BYTES == 0)
    return tuple([part_of(part) for part in argument])
