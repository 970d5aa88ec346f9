"""Splits the rows of logits [B, T, V] into blocks that fit the cache, with memory that all blocks reuse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ...problem import Rows
from ..layout import loss_dtype
from .labels import Labels, chosen

BLOCK_BYTES = {"cpu": 8 * 2**20}
"""Bytes of a block of rows in the losses' dtype: small enough for the caches, large enough that calling operations
costs little in comparison (measured on two cores with 1 MiB of L2 each and 32 MiB of L3)."""
DEVICE_BLOCK_BYTES = 2**26
"""The same on other devices, where fewer, larger operations are faster."""
FEWEST_SEQUENCES = 12
"""Sequences are copied into one block if it has room for this many. Copying fewer costs more than the additional blocks
(measured in float32 and bfloat16)."""


class Block(NamedTuple):
    """The rows that count in a span of rows of the logits, and the memory of their gradient."""

    rows: Rows  # The block's rows among all N rows
    labels: Labels
    logits: Tensor  # [n, V]; a copy in the losses' dtype if the span has several sequences
    gradient: Tensor | None  # [n, V], or [b, T, V] of several sequences: the gradient of all rows of the span
    counted: Tensor | None  # int64 [n]: which rows of the span count; None if all do
    blocks: Blocks

    def buffer(self, name: str) -> Tensor:
        """Memory [n, V] in the losses' dtype."""
        return self.blocks.buffer(name, self.logits.shape[0])

    def target(self, x: Tensor, keep: bool) -> Tensor:
        """Where to compute the gradient of x: in its final memory if the dtypes agree, else in x unless it is kept."""
        assert self.gradient is not None
        if self.gradient.dtype == x.dtype and self.gradient.shape == x.shape:
            return self.gradient
        return self.buffer("gradient") if keep or x is self.logits else x

    def write(self, g: Tensor) -> None:
        """Write the gradient of the block's rows, and 0 for the rows that do not count."""
        gradient, counted = self.gradient, self.counted
        assert gradient is not None
        if counted is not None:
            places = (counted,) if gradient.ndim == 2 else (counted // gradient.shape[1], counted % gradient.shape[1])
            gradient.zero_().index_put_(places, g.to(gradient.dtype))
        elif g is not gradient:
            gradient.copy_(g.view(gradient.shape))


class Blocks:
    """The rows of logits [B, T, V] that count, in blocks that fit the cache."""

    def __init__(self, logits: Tensor, labels: Labels, gradient: Tensor | None) -> None:
        self.logits, self.labels, self.gradient = logits, labels, gradient
        self.spans = spans_of(logits)
        self.buffers: dict[str, Tensor] = {}

    def for_each(self, work: Callable[[Block], object]) -> None:
        """Call ``work`` for every block."""
        for span in self.spans:
            work(self.block(span))

    def block(self, span: slice) -> Block:
        """The rows that count in a span."""
        labels, gradient = self.labels, None if self.gradient is None else rows_in(self.gradient, span)
        logits, size = rows_in(self.logits, span), span.stop - span.start
        if logits.ndim > 2:  # several sequences, which need not follow each other in memory
            logits = self.buffer("rows", size).view(logits.shape).copy_(logits).flatten(0, 1)
        counted = None if labels.counts is None else labels.counts[span].nonzero().squeeze(-1)
        if counted is None or counted.numel() == size:
            part = labels if len(self.spans) == 1 else labels.part(span)
            return Block(span, part, logits, gradient, None, self)
        rows = counted + span.start
        return Block(rows, labels.part(rows), chosen(logits, counted), gradient, counted, self)

    def buffer(self, name: str, rows: int) -> Tensor:
        """The first rows of a buffer that all blocks reuse; new ones would cause page faults."""
        if name not in self.buffers:
            shape = self.spans[0].stop, self.logits.shape[-1]  # no other span is longer than the first
            self.buffers[name] = self.logits.new_empty(shape, dtype=loss_dtype(self.logits.dtype))
        return self.buffers[name][:rows]


def rows_in(tensor: Tensor, span: slice) -> Tensor:
    """A span of the rows of [B, T, V]: [n, V] of one sequence, or several whole sequences [b, T, V]."""
    length, count = tensor.shape[1], span.stop - span.start
    b, start = divmod(span.start, length)
    return tensor[b : b + count // length] if count > length else tensor[b, start : start + count]


def spans_of(logits: Tensor) -> list[slice]:
    """The rows of each block among all rows of [B, T, V]: some of one sequence, or several whole sequences."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step = max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize))
    threads = torch.get_num_threads() if logits.device.type == "cpu" else 1
    if step > threads:
        step -= step % threads  # operations split a block by rows: equally many per thread
    total, several = batch * length, step // max(1, length)
    unit = max(1, min(total, several * length if several >= FEWEST_SEQUENCES else length))
    step = min(step, unit)  # no block has rows of two units
    starts = (start for first in range(0, total, unit) for start in range(first, min(first + unit, total), step))
    return [slice(*ends) for ends in pairwise((*starts, total))]
