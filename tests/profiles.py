"""What a call computes and how much memory it uses, according to torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_of(call: Callable[[], object]) -> int:
    """The peak memory of a call in bytes, besides its arguments."""
    call()  # what is created once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    held = most = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def products_of(call: Callable[[], object]) -> list[tuple[int, int]]:
    """The shapes of the results of all matrix products of a call."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        call()
    matrices = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}
    shapes = [
        [event.input_shapes[place] for place in matrices[event.name]]
        for event in found.events()
        if event.name in matrices and event.device_type == torch.autograd.DeviceType.CPU
    ]
    return [(left[0], right[1]) for left, right in shapes]
