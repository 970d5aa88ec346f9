"""The losses of a sharded vocabulary on real processes."""

from __future__ import annotations

import pytest
import torch

from ntl_kernels import NTLOutput, linear_cross_entropy_ntl

from ..problems import Answer, assert_as_good_as_plain, check, random_problem
from . import cases
from .cases import DTYPES, linear_problem
from .ranks import Ranks
from .shards import random_bounds


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_problems_equal_the_reference(ranks: Ranks, size: int) -> None:
    seeds = list(range(1000 * size, 1000 * size + 60))
    answers = ranks.run(cases.solve_logits, seeds, ranks=size)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        problem = random_problem(seed, DTYPES)
        first, *others = (parts for parts, _ in of_ranks)
        for parts in others:  # the same bits on all ranks
            assert all(torch.equal(parts[name], first[name]) for name in first), (seed, first, parts)
        check(Answer(NTLOutput(**first), torch.cat([gradient for _, (gradient,) in of_ranks], -1)), problem)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_heads_equal_one_device(ranks: Ranks, size: int) -> None:
    """Chunks of any size, with and without bias: losses, parts and the gradients of hidden, weight and bias."""
    seeds = list(range(2000 * size, 2000 * size + 40))
    answers = ranks.run(cases.solve_linear, seeds, ranks=size)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        first, *others = of_ranks
        for parts, (hidden_gradient, *_) in others:
            assert all(torch.equal(parts[name], first[0][name]) for name in first[0]), seed
            assert torch.equal(hidden_gradient, first[1][0]), seed
        whole = (torch.cat(shards) for shards in zip(*(gradients[1:] for _, gradients in of_ranks), strict=True))
        got = {**first[0], **dict(enumerate([first[1][0], *whole]))}
        truth, plain = (one_device_linear(seed, dtype) for dtype in (torch.float64, None))
        scale = linear_problem(seed)[0].numbers.values.abs().max().item()
        for name, value in got.items():
            if name == "token_accuracy":
                continue
            assert_as_good_as_plain(value, plain[name], truth[name], f"{name} of seed {seed}", 4.0, 64.0, scale)


def one_device_linear(seed: int, dtype: torch.dtype | None) -> dict[str | int, torch.Tensor]:
    """The parts and gradients of the reference; the products in the given dtype, by default that of the problem."""
    problem, hidden, weight, bias, _ = linear_problem(seed)
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
