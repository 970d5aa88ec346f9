"""Launches kernels with little host time.

At every launch, Triton binds all arguments again to find the compiled variant, which is most of the cost of a launch.
Here compiled kernels are cached under a key that contains at least as much as Triton's own: for a tensor, its dtype and
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

from ..kernels.arguments import Numbers, Scalars, Transform
from .layout import VECTOR_BYTES

MOST_LAYOUTS = 4096
"""The cache is cleared at this size, so that the strides of more and more shapes do not fill the memory."""
WIDEST = 2**31
COMPILED: dict[Any, Any] = {}
"""Key -> compiled kernel."""


def launch(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], **options: Any) -> None:
    """``kernel[(programs,)](*arguments, **constants, **options)``.

    Args:
        kernel: a function under ``triton.jit`` whose constant parameters come last, in the order of ``constants``.
        arguments: tensors, numbers, None, and the groups of :mod:`ntl_kernels.kernels.arguments`.
        options: Triton's options (``num_warps``, ...). They follow from the rest, so they are not part of the key.
    """
    if type(kernel) is not JITFunction:  # the interpreter
        kernel[(programs,)](*arguments, **constants, **options)
        return
    device, home = driver.active.get_current_device(), device_of(arguments)
    if home.index is not None and home.index != device:  # a model on several devices; Triton uses the current
        with on_device(home):
            launch(kernel, programs, arguments, constants, **options)
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


def device_of(arguments: tuple[Any, ...]) -> torch.device:
    """The device of the first tensor, which may be inside a group."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            return argument.device
        if isinstance(argument, tuple):
            for part in argument:
                if isinstance(part, Tensor):
                    return part.device
    raise TypeError("a kernel needs a tensor among its arguments, which determines its device; got none")


def on_device(device: torch.device) -> Any:
    """A context in which ``device`` is the current device."""
    return torch.get_device_module(device).device(device)


def is_watched(kernel: Any) -> bool:
    """Whether launch hooks are installed."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(kernel.pre_run_hooks) or any(hook is not None and getattr(hook, "calls", True) for hook in hooks)


def layout_of(kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The properties of the arguments that determine the variant of a kernel."""
    flags = unspecialised(id(kernel), kernel)
    return tuple([part_of(argument, flag) for argument, flag in zip(arguments, flags, strict=False)])


def part_of(argument: Any, is_unspecialised: bool) -> Any:
    """The properties of one argument that determine the variant of a kernel."""
    kind = type(argument)
    if kind is int:
        return argument >= WIDEST if is_unspecialised else argument
    if kind is float or argument is None or kind is Transform or kind is Scalars:  # floats do not affect the variant
        return kind
    if kind is Numbers:
        return layout_of_numbers(argument)
    if isinstance(argument, Tensor):
        return argument.dtype if is_unspecialised else (argument.dtype, argument.data_ptr() % VECTOR_BYTES == 0)
    return tuple([part_of(part, False) for part in argument])


def layout_of_numbers(numbers: Numbers) -> tuple[Any, ...]:
    """The same for a table, whose dtypes are always those of a NumberTable.

    Not cached: a cache would keep the tables of vocabularies that are no longer used.
    """
    ids, value, lookup, groups, size = numbers
    return (
        ids.data_ptr() % VECTOR_BYTES == 0,
        value.data_ptr() % VECTOR_BYTES == 0,
        lookup.data_ptr() % VECTOR_BYTES == 0,
        None if groups is None else groups.data_ptr() % VECTOR_BYTES == 0,
        size,
    )


UNSPECIALISED: dict[int, tuple[bool, ...]] = {}


def unspecialised(name: int, kernel: Any) -> tuple[bool, ...]:
    """For each argument of a kernel, whether its value and alignment do not affect the variant."""
    if name not in UNSPECIALISED:
        UNSPECIALISED[name] = tuple(parameter.do_not_specialize for parameter in kernel.params)
    return UNSPECIALISED[name]
