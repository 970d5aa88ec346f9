"""The loss from hidden states: chunks of logits whose gradient is written in place by the compiled kernels."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig, linear_cross_entropy_ntl

from ..problems import assert_as_good_as_plain
from .gpu import DTYPES
from .problems import digits, labels_of

OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "none"},
    {"config": NTLConfig(kind="mse"), "softcap": 5.0},
    {"z_loss": 0.01, "skip_ignored": False, "num_tokens": 9},
]


@pytest.mark.parametrize(("number", "case"), enumerate(product(DTYPES, OPTIONS)), ids=str)
def test_equals_the_reference(number: int, case: tuple[torch.dtype, dict[str, Any]]) -> None:
    dtype, options = case
    vocab_size = (1001, 256)[number % 2]
    numbers = digits(vocab_size, 10)
    hidden, weight = (torch.randn(13, 16) * 0.5).to(dtype), (torch.randn(vocab_size, 16) * 0.5).to(dtype)
    if "num_tokens" in options:
        options = {**options, "num_numbers": 4}

    def found(backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
        operands = [part.to(dtype).requires_grad_() for part in (hidden, weight)]
        loss = linear_cross_entropy_ntl(
            *operands, labels_of(numbers, 13), numbers, backend=backend, chunk_size=5, **options
        )
        total = (loss * torch.arange(1, 1 + loss.numel())).sum()
        return [loss.detach(), *torch.autograd.grad(total, operands)]

    answers = found("triton", dtype), found("reference", dtype), found("reference", torch.float64)
    for name, got, plain, truth in zip(("loss", "hidden", "weight"), *answers, strict=True):
        assert_as_good_as_plain(got, plain, truth, name, scale=8.0)
