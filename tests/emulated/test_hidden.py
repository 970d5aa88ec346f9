"""The loss from hidden states: chunks of logits whose gradient is written in place by the compiled kernels.

Hidden states and weights are small multiples of powers of two, so that every dtype holds their logits exactly, and what
is left to judge is the kernels and the products of their gradients.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, linear_cross_entropy_ntl

from ..problems import Problem
from .bounds import Bounds
from .gpu import DTYPES
from .judge import within
from .problems import digits, labels_of
from .rounding import UNIT

OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "none"},
    {"config": NTLConfig(kind="mse"), "softcap": 5.0},
    {"z_loss": 0.01, "skip_ignored": False, "num_tokens": 9, "num_numbers": 4},
]


def multiples(unit: float, *shape: int) -> Tensor:
    return torch.randint(-2, 3, shape).double() * unit


@pytest.mark.parametrize(("number", "case"), enumerate(product(DTYPES, OPTIONS)), ids=str)
def test_equals_the_truth(number: int, case: tuple[torch.dtype, dict[str, Any]]) -> None:
    dtype, options = case
    rows, vocab_size = 13, (1001, 256)[number % 2]
    hidden, weight, numbers = multiples(0.5, rows, 16), multiples(0.25, vocab_size, 16), digits(vocab_size, 10)
    labels, logits = labels_of(numbers, rows), hidden @ weight.T
    assert torch.equal(logits, logits.to(dtype).double())
    is_per_row = options.get("reduction") == "none"
    upstream = torch.randn(rows) if is_per_row else torch.tensor(1.0)

    operands = [part.to(dtype).requires_grad_() for part in (hidden, weight)]
    loss = linear_cross_entropy_ntl(*operands, labels, numbers, backend="triton", chunk_size=5, **options)
    gradients = torch.autograd.grad(loss, operands, upstream)

    options = {"config": NTLConfig(), "reduction": "mean", **options}
    options.pop("skip_ignored", None)
    problem = Problem(logits.to(dtype), labels, numbers, options, upstream)
    bounds = Bounds(problem)
    right, total = bounds.gradient(), bounds.parts()["loss"]
    within("loss", loss, total.value.view(loss.shape), total.error.view(loss.shape), problem)
    kind, size = torch.finfo(dtype), right.value.abs()
    error = right.error + kind.eps / 2 * (size + right.error) + kind.smallest_normal * kind.eps
    found = (
        (right.value @ weight, error @ weight.abs(), size @ weight.abs(), vocab_size),
        (
            right.value.T @ hidden,
            error.T @ hidden.abs(),
            size.T @ hidden.abs(),
            rows,
        ),
    )
    for name, gradient, (expected, passed_on, summands, additions) in zip(
        ("hidden", "weight"), gradients, found, strict=True
    ):
        products = ((additions + 4) * UNIT + kind.eps / 2) * summands  # each chunk's is rounded to the dtype on a CPU
        bound = passed_on + products + kind.eps / 2 * (expected.abs() + passed_on)
        within(name, gradient, expected, bound + kind.smallest_normal * kind.eps, problem)
