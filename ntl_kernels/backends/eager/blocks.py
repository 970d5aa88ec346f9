"""Splits the rows of logits [B, T, V] into blocks that fit the cache, with memory that all blocks reuse."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple, TypeAlias, Union

from torch import Tensor

from ..layout import loss_dtype
from .workers import for_each, threads_for

BLOCK_BYTES = {"cpu": 8 * 2**20}
"""Bytes of a block of rows in the losses' dtype: small enough for the caches, large enough that calling operations
costs little in comparison (measured on two cores with 1 MiB of L2 each and 32 MiB of L3)."""
DEVICE_BLOCK_BYTES = 2**26
"""The same on other devices, where fewer, larger operations are faster."""
Rows: TypeAlias = Union[slice, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""Some rows: a slice, or int64 indices."""


def chosen(tensor: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor [n, ...]."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


class Workspace:
    """Buffers in the losses' dtype that all blocks of a thread reuse; new ones would cause page faults."""

    def __init__(self, logits: Tensor, rows: int) -> None:
        self.logits = logits
        self.shape = rows, logits.shape[-1]
        self.buffers: dict[tuple[int, str], Tensor] = {}

    def buffer(self, name: str, rows: int) -> Tensor:
        """The first rows of the buffer with this name."""
        key = get_ident(), name
        if key not in self.buffers:
            self.buffers[key] = self.logits.new_empty(self.shape, dtype=loss_dtype(self.logits.dtype))
        return self.buffers[key][:rows]


class Block(NamedTuple):
    """The rows that count in a span of rows of the logits, and the memory of their gradient."""

    span: slice
    """The span, a slice of all N rows."""
    rows: Rows
    """The block's rows among all N rows."""
    logits: Tensor
    """[n, V]"""
    gradient: Tensor | None
    """The gradient of all rows of the span."""
    chosen: Tensor | None
    """int64 [n]: which rows of the span count; None if all do."""
    workspace: Workspace

    def buffer(self, name: str) -> Tensor:
        return self.workspace.buffer(name, self.logits.shape[0])

    def as_loss_dtype(self) -> Tensor:
        """The logits [n, V] in the losses' dtype."""
        logits = self.logits
        return logits if logits.dtype == loss_dtype(logits.dtype) else self.buffer("x").copy_(logits)

    def target(self, x: Tensor, keep: bool) -> Tensor:
        """Where to compute the gradient of x: in its final memory if the dtypes agree, else in x unless it is kept."""
        assert self.gradient is not None
        if self.gradient.dtype == x.dtype and self.chosen is None:
            return self.gradient
        return self.buffer("gradient") if keep or x is self.logits else x

    def write(self, g: Tensor) -> None:
        """Write the gradient of the block's rows, and 0 for the rows that do not count."""
        assert self.gradient is not None
        if self.chosen is not None:
            self.gradient.zero_()
            self.gradient.index_copy_(0, self.chosen, g.to(self.gradient.dtype))
        elif g is not self.gradient:
            self.gradient.copy_(g)


class Blocks(NamedTuple):
    """The rows of logits [B, T, V] that count, in blocks that fit the cache."""

    logits: Tensor
    counts: Tensor | None
    """bool [N]: which rows count; None if all do."""
    gradient: Tensor | None
    """[B, T, V]"""
    workspace: Workspace
    spans: list[tuple[int, int, int]]
    """(sequence, first row, row after the last) of each block."""
    threads: int
    """The number of threads that compute them."""

    def block(self, place: int) -> Block:
        """The block at an index of ``spans``."""
        b, start, end = self.spans[place]
        length = self.logits.shape[1]
        span = slice(b * length + start, b * length + end)
        is_whole = end - start == length
        rows = self.logits[b] if is_whole else self.logits[b, start:end]
        target = None
        if self.gradient is not None:
            target = self.gradient[b] if is_whole else self.gradient[b, start:end]
        counted = None if self.counts is None else self.counts[span].nonzero().squeeze(-1)
        if counted is None or counted.numel() == end - start:
            return Block(span, span, rows, target, None, self.workspace)
        return Block(span, counted + span.start, chosen(rows, counted), target, counted, self.workspace)

    def for_each(self, work: Callable[[Block], object]) -> None:
        """Call ``work`` for every block, in as many threads as torch has."""
        for_each(lambda place: work(self.block(place)), range(len(self.spans)), self.threads)


def blocks_of(logits: Tensor, counts: Tensor | None, gradient: Tensor | None) -> Blocks:
    """The rows that count ([N] bool, None: all) of logits [B, T, V] in blocks."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step, threads = max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize)), threads_for(logits.device)
    if step > threads:
        step -= step % threads  # operations split a block by rows: equally many per thread
    step = min(step, max(1, length))
    spans = [(b, start, min(start + step, length)) for b in range(batch) for start in range(0, length, step)]
    return Blocks(logits, counts, gradient, Workspace(logits, step), spans, threads)
