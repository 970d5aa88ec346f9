"""Random heads, and how results are judged: by the reference on one device, as `problems.py` judges logits."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntl_kernels import NTLOutput, linear_cross_entropy_ntl

from .problems import Problem, assert_as_good_as_plain, largest_value, random_problem

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROUNDINGS = 4.0
"""More roundings than for logits are allowed, because the products sum in different orders."""
LARGEST_LOGIT = 64.0
Solved = dict[Any, Tensor]
"""The parts of an output by name, and the gradients of hidden states, weight and bias by number."""


class Head(NamedTuple):
    """A random problem whose logits are ``hidden @ weight.T + bias``."""

    problem: Problem
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    chunking: dict[str, Any]
    is_trained: tuple[bool, bool, bool]
    """Whether the gradients of hidden states, weight and bias are required."""

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.hidden, self.weight, self.bias) if tensor is not None]


def random_head(seed: int, hidden_size: int = 12, **options: Any) -> Head:
    problem, rng = random_problem(seed, DTYPES, **options), random.Random(seed)
    torch.manual_seed(seed)
    dtype, shape = problem.logits.dtype, problem.logits.shape[:-1]
    hidden = torch.randn(*shape, hidden_size).to(dtype)
    weight = torch.randn(problem.numbers.vocab_size, hidden_size).to(dtype)
    bias = torch.randn(problem.numbers.vocab_size).to(dtype) if rng.random() < 0.5 else None
    chunking = {"chunk_size": rng.choice([None, 1, 2, 5, 100]), "skip_ignored": rng.random() < 0.5}
    is_trained = rng.choice([(True, True, True), (True, True, True), (True, False, False), (False, True, True)])
    return Head(problem, hidden, weight, bias, chunking, is_trained)


def solve_head(head: Head, backend: str, dtype: torch.dtype | None = None, is_all: bool = True) -> Solved:
    """On one device; the products are in ``dtype``, by default that of the problem."""
    leaves = [tensor.to(dtype or tensor.dtype).clone() for tensor in head.tensors]
    trained = [leaf.requires_grad_() for leaf, is_due in zip(leaves, head.is_trained, strict=False) if is_all or is_due]
    options = {**head.problem.options, **({} if backend == "reference" else head.chunking)}
    output = linear_cross_entropy_ntl(
        *leaves[:2],
        head.problem.labels,
        head.problem.numbers,
        bias=None if head.bias is None else leaves[2],
        return_parts=True,
        backend=backend,
        **options,
    )
    assert isinstance(output, NTLOutput)
    gradients = iter(torch.autograd.grad(output.loss, trained, head.problem.upstream.to(output.loss.dtype)))
    found = {number: next(gradients) for number, leaf in enumerate(leaves) if leaf.requires_grad}
    return {**{name: part.detach() for name, part in output._asdict().items()}, **found}


def check_head(got: Solved, head: Head) -> None:
    """Compare the results with the float64 reference."""
    truth, plain = (solve_head(head, "reference", dtype) for dtype in (torch.float64, None))
    cancelled = max(largest_value(head.problem.numbers, undone) for undone in (False, True))
    for name, value in got.items():
        if name == "token_accuracy":
            continue  # the products determine which of two equal logits is larger
        what = f"{name} of seed {head.problem.seed}"
        assert_as_good_as_plain(value, plain[name], truth[name], what, ROUNDINGS, LARGEST_LOGIT, cancelled)
