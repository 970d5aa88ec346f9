"""How the answer to a random head is judged: by the reference on one device, as `problems.py` judges that to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ntl_kernels import NTLOutput, linear_cross_entropy_ntl

from ..problems import assert_as_good_as_plain
from .cases import linear_problem

ROUNDINGS = 4.0
"""More of them are allowed than for logits: of the products, whose order of summing differs."""
LARGEST_LOGIT = 64.0


def check_head(got: dict[Any, Tensor], seed: int, **options: Any) -> None:
    """Hold parts (by name) and gradients (of hidden, weight and bias, numbered) to the float64 reference."""
    truth, plain = (one_device(seed, dtype, **options) for dtype in (torch.float64, None))
    cancelled = linear_problem(seed, **options)[0].numbers.values.abs().max().item()
    for name, value in got.items():
        if name == "token_accuracy":
            continue  # which of two equal logits is larger is up to the products
        what = f"{name} of seed {seed}"
        assert_as_good_as_plain(value, plain[name], truth[name], what, ROUNDINGS, LARGEST_LOGIT, cancelled)


def one_device(seed: int, dtype: torch.dtype | None, **options: Any) -> dict[str | int, Tensor]:
    """The parts and gradients of the reference; the products in the given dtype, by default that of the problem."""
    problem, hidden, weight, bias, _ = linear_problem(seed, **options)
    given = [part for part in (hidden, weight, bias) if part is not None]
    leaves = [part.to(dtype or part.dtype).clone().requires_grad_() for part in given]
    output = linear_cross_entropy_ntl(
        *leaves[:2],
        problem.labels,
        problem.numbers,
        bias=None if bias is None else leaves[2],
        return_parts=True,
        backend="reference",
        **problem.options,
    )
    assert isinstance(output, NTLOutput)
    gradients = torch.autograd.grad(output.loss, leaves, problem.upstream.to(output.loss.dtype))
    return {**{name: part.detach() for name, part in output._asdict().items()}, **dict(enumerate(gradients))}
