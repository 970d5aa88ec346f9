"""What a launch may read and write: its tensors, to the element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ctypes import Array
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .library import Space, machine

SHIFT = 1
"""A granule of global memory has two bytes, the smallest element of our tensors."""
MAY_READ, MAY_WRITE, IS_UNWRITTEN, IS_WRITTEN = 1, 2, 4, 8
MOST_BYTES = 2**26
"""A tensor that spans more is split, so that the gaps between its rows need no memory."""


class Roles(NamedTuple):
    """What a kernel does to its parameters; it only reads the others."""

    outputs: frozenset[str]
    """It writes every element."""
    updates: frozenset[str] = frozenset()
    """It may read and write every element."""


class Span(NamedTuple):
    begin: int
    end: int
    flags: np.ndarray
    shadow: np.ndarray


class Memory:
    """The memory of one launch."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], roles: Roles) -> None:
        parts = [(name, part) for name, tensor in tensors for part in pieces(tensor)]
        self.spans = [span(begin, end) for begin, end in united(extent(part) for _, part in parts)]
        self.outputs: list[tuple[str, np.ndarray]] = []
        inputs = [part for name, part in parts if name not in roles.outputs]
        for name, part in parts:
            flags = self.flags_of(part)
            flags |= MAY_READ
            if name in roles.updates:
                flags |= MAY_WRITE
            elif name in roles.outputs:
                flags |= MAY_WRITE
                self.outputs.append((name, flags))
                if not any(overlap(part, other) for other in inputs):
                    flags |= IS_UNWRITTEN
                    poison(part)

    def flags_of(self, tensor: Tensor) -> np.ndarray:
        """The flags [..., granules of an element] of a tensor's elements: a view."""
        address, size = tensor.data_ptr(), tensor.element_size() >> SHIFT
        home = next(span for span in self.spans if span.begin <= address < span.end)
        strides = [stride * size for stride in tensor.stride()]
        return np.lib.stride_tricks.as_strided(
            home.flags[(address - home.begin) >> SHIFT :], (*tensor.shape, size), (*strides, 1)
        )

    def spaces(self) -> Array[Space]:
        return (Space * max(1, len(self.spans)))(
            *[
                Space(part.begin, part.end, part.begin, part.flags.ctypes.data, part.shadow.ctypes.data, SHIFT, False)
                for part in self.spans
            ]
        )

    def unwritten(self) -> Iterator[str]:
        """An error for outputs that were not completely written."""
        for name, flags in self.outputs:
            missing = np.argwhere(~(flags & IS_WRITTEN).astype(bool).all(-1))
            if len(missing):
                yield f"not written: {len(missing)} elements of {name}, the first at {missing[0].tolist()}"


def span(begin: int, end: int) -> Span:
    granules = (end - begin) >> SHIFT
    return Span(begin, end, np.zeros(granules, np.uint8), np.zeros(granules * machine().shadow_bytes, np.uint8))


def extent(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first byte and after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def overlap(a: Tensor, b: Tensor) -> bool:
    (first, first_end), (second, second_end) = extent(a), extent(b)
    return first < second_end and second < first_end


def united(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, with overlapping ones merged."""
    whole: list[tuple[int, int]] = []
    for begin, end in sorted(extents):
        if whole and begin < whole[-1][1]:
            whole[-1] = whole[-1][0], max(end, whole[-1][1])
        else:
            whole.append((begin, end))
    return whole


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor, split along its first axis if it spans too much."""
    if tensor.numel():
        begin, end = extent(tensor)
        if end - begin > MOST_BYTES and tensor.ndim > 1:
            for part in tensor:
                yield from pieces(part)
        else:
            yield tensor


def poison(output: Tensor) -> None:
    """Fill the outputs with NaN."""
    if output.is_floating_point():
        output.fill_(torch.nan)
