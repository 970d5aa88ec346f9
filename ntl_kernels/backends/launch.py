"""How a kernel is launched with few instructions of the host.

Triton binds every argument anew at every launch to find out which compiled variant fits, most of what a launch costs.
Here the compiled kernel is kept under a key that says at least as much as Triton's own: of a tensor its dtype and
whether it starts at a multiple of 16 bytes, of an integer its value (or, where the kernel does not specialise on it,
whether it takes 64 bits), of anything else what it is; further the device and every compile-time argument. So a layout
seen before goes straight to its kernel, and a new one takes Triton's way, which compiles or finds it. Finer
distinctions than Triton's cost a look-up there, coarser ones would be wrong: `tests/backends/test_launch.py` holds the
two together.
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
"""After so many the table starts anew: strides of ever new shapes must not fill the memory."""
WIDEST = 2**31
COMPILED: dict[Any, Any] = {}
"""Key -> compiled kernel."""


def launch(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], **options: Any) -> None:
    """``kernel[(programs,)](*arguments, **constants, **options)``.

    Args:
        kernel: a function under ``triton.jit`` whose constant parameters come last, in the order of ``constants``.
        arguments: tensors, numbers, None, and the groups of :mod:`ntl_kernels.kernels.arguments`.
        options: Triton's (``num_warps``, ...). They follow from the rest, and so are no part of the key.
    """
    if type(kernel) is not JITFunction:  # the interpreter
        kernel[(programs,)](*arguments, **constants, **options)
        return
    device, home = driver.active.get_current_device(), device_of(arguments)
    if home.index is not None and home.index != device:  # a model over several devices: Triton launches on the current
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
    """Where the first tensor is, in a group or not."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            return argument.device
        if isinstance(argument, tuple):
            for part in argument:
                if isinstance(part, Tensor):
                    return part.device
    raise TypeError("a kernel needs a tensor among its arguments, on whose device it runs; there is none")


def on_device(device: torch.device) -> Any:
    """A context in which ``device`` is the current one."""
    return torch.get_device_module(device).device(device)


def is_watched(kernel: Any) -> bool:
    """Whether anybody is to be called at a launch."""
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(kernel.pre_run_hooks) or any(hook is not None and getattr(hook, "calls", True) for hook in hooks)


def layout_of(kernel: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the variant of a kernel depends on in its arguments."""
    flags = unspecialised(id(kernel), kernel)
    return tuple([part_of(argument, flag) for argument, flag in zip(arguments, flags, strict=False)])


def part_of(argument: Any, is_unspecialised: bool) -> Any:
    """What the variant of a kernel depends on in one argument."""
    kind = type(argument)
    if kind is int:
        return argument >= WIDEST if is_unspecialised else argument
    if kind is float or argument is None or kind is Transform or kind is Scalars:  # floats make no variants
        return kind
    if kind is Numbers:
        return layout_of_numbers(argument)
    if isinstance(argument, Tensor):
        return argument.dtype if is_unspecialised else (argument.dtype, argument.data_ptr() % VECTOR_BYTES == 0)
    return tuple([part_of(part, False) for part in argument])


def layout_of_numbers(numbers: Numbers) -> tuple[Any, ...]:
    """The same for a table, whose dtypes are always those of a NumberTable.

    Looked at anew each time: what kept it would keep the tables of vocabularies that nobody uses any more.
    """
    ids, value, lookup, size = numbers
    return (
        ids.data_ptr() % VECTOR_BYTES == 0,
        value.data_ptr() % VECTOR_BYTES == 0,
        lookup.data_ptr() % VECTOR_BYTES == 0,
        size,
    )


UNSPECIALISED: dict[int, tuple[bool, ...]] = {}


def unspecialised(name: int, kernel: Any) -> tuple[bool, ...]:
    """Of each argument of a kernel, whether its value and alignment make no variants."""
    if name not in UNSPECIALISED:
        UNSPECIALISED[name] = tuple(parameter.do_not_specialize for parameter in kernel.params)
    return UNSPECIALISED[name]
