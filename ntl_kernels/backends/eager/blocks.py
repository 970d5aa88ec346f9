"""Splits the rows of logits [B, T, V] into blocks that fit the cache, with memory that all blocks reuse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
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
FEWEST_SEQUENCES = 12
"""Sequences are copied into one block if it has room for this many. Copying fewer costs more than the additional blocks
(measured in float32 and bfloat16)."""
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

    rows: Rows
    """The block's rows among all N rows."""
    logits: Tensor
    """[n, V]; a copy in the losses' dtype if the span has several sequences."""
    gradient: Tensor | None
    """[n, V], or [b, T, V] of several sequences: the gradient of all rows of the span."""
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
        if self.gradient.dtype == x.dtype and self.gradient.shape == x.shape:
            return self.gradient
        return self.buffer("gradient") if keep or x is self.logits else x

    def write(self, g: Tensor) -> None:
        """Write the gradient of the block's rows, and 0 for the rows that do not count."""
        gradient, chosen = self.gradient, self.chosen
        assert gradient is not None
        if chosen is not None:
            places = (chosen,) if gradient.ndim == 2 else (chosen // gradient.shape[1], chosen % gradient.shape[1])
            gradient.zero_().index_put_(places, g.to(gradient.dtype))
        elif g is not gradient:
            gradient.copy_(g.view(gradient.shape))


class Blocks(NamedTuple):
    """The rows of logits [B, T, V] that count, in blocks that fit the cache."""

    logits: Tensor
    counts: Tensor | None
    """bool [N]: which rows count; None if all do."""
    gradient: Tensor | None
    """[B, T, V]"""
    workspace: Workspace
    spans: list[slice]
    """The rows of each block among all N rows: some of one sequence, or several whole sequences."""
    threads: int
    """The number of threads that compute them."""

    def block(self, span: slice) -> Block:
        logits, gradient = rows_in(self.logits, span), None if self.gradient is None else rows_in(self.gradient, span)
        if logits.ndim > 2:  # several sequences, which need not follow each other in memory
            copy = self.workspace.buffer("rows", span.stop - span.start)
            logits = copy.view(logits.shape).copy_(logits).flatten(0, 1)
        counted = None if self.counts is None else self.counts[span].nonzero().squeeze(-1)
        if counted is None or counted.numel() == logits.shape[0]:
            return Block(span, logits, gradient, None, self.workspace)
        return Block(counted + span.start, chosen(logits, counted), gradient, counted, self.workspace)

    def for_each(self, work: Callable[[Block], object]) -> None:
        """Call ``work`` for every block, in as many threads as torch has."""
        for_each(lambda span: work(self.block(span)), self.spans, self.threads)


def rows_in(tensor: Tensor, span: slice) -> Tensor:
    """A span of the rows of [B, T, V]: [n, V] of one sequence, or several whole sequences [b, T, V]."""
    length, count = tensor.shape[1], span.stop - span.start
    b, start = divmod(span.start, length)
    return tensor[b : b + count // length] if count > length else tensor[b, start : start + count]


def blocks_of(logits: Tensor, counts: Tensor | None, gradient: Tensor | None) -> Blocks:
    """The rows that count ([N] bool, None: all) of logits [B, T, V] in blocks."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step, threads = max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize)), threads_for(logits.device)
    if step > threads:
        step -= step % threads  # operations split a block by rows: equally many per thread
    total, several = batch * length, step // max(1, length)
    unit = max(1, min(total, several * length if several >= FEWEST_SEQUENCES else length))
    step = min(step, unit)  # no block has rows of two units
    starts = (start for first in range(0, total, unit) for start in range(first, min(first + unit, total), step))
    spans = [slice(*ends) for ends in pairwise((*starts, total))]
    return Blocks(logits, counts, gradient, Workspace(logits, step), spans, threads)
