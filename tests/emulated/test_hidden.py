"""The loss from hidden states: chunks of logits whose gradient is written in place by the compiled kernels.

Hidden states and weights are small multiples of powers of two, so that every dtype holds their logits exactly, and what
is left to judge is the kernels and the products of their gradients.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, linear_cross_entropy_ntl

from ..problems import Problem
from .bounds import Bounds
from .conftest import some
from .gpu import DTYPES
from .judge import within
from .problems import digits, labels_of
from .rounding import UNIT, Rounded

OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "none", "config": NTLConfig(reweigh=True)},
    {"config": NTLConfig(kind="mse", reweigh=True), "softcap": 5.0},
    {"z_loss": 0.01, "skip_ignored": False, "num_tokens": 9, "num_numbers": 4},
]


def multiples(unit: float, *shape: int) -> Tensor:
    return torch.randint(-2, 3, shape).double() * unit


@pytest.mark.parametrize(("dtype", "number"), some(3, DTYPES, range(len(OPTIONS))))
def test_equals_the_truth(dtype: torch.dtype, number: int) -> None:
    options, rows, vocab_size = OPTIONS[number], 13, (1001, 256)[number % 2]
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
    total = bounds.parts()["loss"]
    within("loss", loss, total.value.view(loss.shape), total.error.view(loss.shape), problem)
    kind, right = torch.finfo(dtype), bounds.gradient()
    error = right.error + kind.eps / 2 * (right.value.abs() + right.error) + kind.smallest_normal * kind.eps
    of_logits = Rounded(right.value, error)
    for name, gradient, product in (
        ("hidden", gradients[0], product_of(of_logits, weight, dtype)),
        ("weight", gradients[1], product_of(of_logits.transposed(), hidden, dtype)),
    ):
        bound = product.error + kind.eps / 2 * (product.value.abs() + product.error)
        within(name, gradient, product.value, bound + kind.smallest_normal * kind.eps, problem)


def product_of(gradient: Rounded, other: Tensor, dtype: torch.dtype) -> Rounded:
    """gradient @ other, summed in float32, where the product of each chunk may be rounded to the dtype."""
    value, size = gradient.value @ other, gradient.value.abs() @ other.abs()
    roundings = (gradient.value.shape[1] + 4) * UNIT + torch.finfo(dtype).eps / 2
    return Rounded(value, gradient.error @ other.abs() + roundings * size)
