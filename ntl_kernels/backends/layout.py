"""Views of logits as rows, and the memory layout of their gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

VECTOR_BYTES = 16
"""Bytes of the widest load and store that the kernels use."""


def rows_of(logits: Tensor) -> Tensor:
    """[..., V] as [B, T, V] with last stride 1, without overlaps and without the negative bit of ``x.conj().imag``; a
    view if two leading strides can express it."""
    logits, vocab_size = logits.resolve_neg(), logits.shape[-1]
    if logits.is_contiguous():
        count = -1 if logits.numel() else math.prod(logits.shape[:-1])
        return logits.view(1, count, vocab_size)
    if logits.stride(-1) == 1 or vocab_size <= 1:
        try:
            rows = logits.view(-1, *logits.shape[-2:]) if logits.ndim != 2 else logits.unsqueeze(0)
            if not has_overlap(rows):
                return rows
        except RuntimeError:  # three or more independent leading strides
            pass
    return logits.contiguous().view(1, -1, vocab_size)


def has_overlap(rows: Tensor) -> bool:
    """Whether two of the rows [B, T, V], of last stride 1, may share memory (expanded, or an as_strided window)."""
    (batch, length, extent), (outer, inner, _) = rows.shape, rows.stride()
    if length == 1:
        return batch > 1 and outer < extent
    if batch == 1:
        return inner < extent
    if inner <= outer:
        return inner < extent or outer < (length - 1) * inner + extent
    return outer < extent or inner < (batch - 1) * outer + extent


def gradient_like(logits: Tensor) -> Tensor:
    """An uninitialised gradient for rows [B, T, V], as compact as their alignment allows.

    A kernel reads and writes a row in 16-byte vectors of the same columns, so every row must start at the same offset
    modulo 16 bytes as its row of logits.
    """
    batch, length, vocab_size = logits.shape
    vector = VECTOR_BYTES // logits.element_size()
    if logits.is_contiguous() and logits.storage_offset() % vector == 0:
        return torch.empty_like(logits)
    row = same_phase(vocab_size, logits.stride(1) if length > 1 else vocab_size, vector)
    block = same_phase(length * row, logits.stride(0) if batch > 1 else length * row, vector)
    phase = logits.storage_offset() % vector  # allocations start at multiples of 16 bytes
    buffer = logits.new_empty(phase + batch * block)
    return buffer.as_strided((batch, length, vocab_size), (block, row, 1), phase)


def same_phase(least: int, stride: int, vector: int) -> int:
    """The smallest number of at least ``least`` that is congruent to ``stride`` modulo ``vector``."""
    return least + (stride - least) % vector


def is_phase_equal(a: Tensor, b: Tensor) -> bool:
    """Whether the rows of two [B, T, V] tensors start at the same offsets modulo 16 bytes."""
    vector = VECTOR_BYTES // a.element_size()
    strides = zip(a.stride()[:2], b.stride()[:2], a.shape[:2], strict=True)
    return (a.data_ptr() - b.data_ptr()) % VECTOR_BYTES == 0 and all(
        size == 1 or (left - right) % vector == 0 for left, right, size in strides
    )


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64 logits, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
