"""Logits become rows, and the rows of a gradient keep their alignment."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from ntl_kernels.backends.layout import VECTOR_BYTES, gradient_like, has_overlap, is_phase_equal, rows_of

BASE = torch.randn(3, 5, 11)


@pytest.mark.parametrize(
    ("logits", "shape", "is_view"),
    [
        (BASE, (1, 15, 11), True),
        (BASE[0, 0], (1, 1, 11), True),
        (BASE[:, :-1], (3, 4, 11), True),
        (BASE[0, ::2], (1, 3, 11), True),
        (BASE[..., 1:7], (3, 5, 6), True),
        (BASE.view(3, 1, 5, 11)[:, :, :-1], (3, 4, 11), True),
        (BASE.transpose(0, 2), (1, 55, 3), False),
        (BASE[:1].expand(3, 5, 11), (1, 15, 11), False),
        (BASE[:1, :1].expand(4, 1, 11), (1, 4, 11), False),
        (BASE[:0], (1, 0, 11), True),
        (torch.randn(2, 3, 4, 5, 6)[:, :2, :3], (1, 2 * 2 * 3 * 5, 6), False),
    ],
)
def test_rows(logits: Tensor, shape: tuple[int, ...], is_view: bool) -> None:
    rows = rows_of(logits)
    assert rows.shape == shape
    assert rows.stride(-1) == 1 and not has_overlap(rows)
    assert (rows.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()) == is_view
    torch.testing.assert_close(rows.reshape(logits.shape), logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("batch", "length", "more", "offset"), [(1, 5, 0, 0), (3, 4, 1, 3), (2, 1, 5, 1), (4, 3, 64, 2)]
)
def test_gradient_rows_are_aligned_like_the_logits(batch: int, length: int, more: int, offset: int) -> None:
    for dtype, vocab_size in product((torch.float32, torch.bfloat16), (8, 11, 50)):
        wide = torch.zeros(batch, length + 1, vocab_size + more + offset, dtype=dtype)
        logits = wide[:, :length, offset : offset + vocab_size]
        gradient = gradient_like(logits)
        assert gradient.shape == logits.shape and gradient.dtype == dtype
        assert is_phase_equal(logits, gradient) and not has_overlap(gradient)
        waste = gradient.untyped_storage().nbytes() - logits.numel() * logits.element_size()
        assert waste <= (batch * length + batch + 1) * VECTOR_BYTES
    assert gradient_like(torch.randn(1, 7, 11)).is_contiguous()
