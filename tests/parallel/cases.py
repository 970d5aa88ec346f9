"""What the processes of `ranks.py` run. Each gets its group first; problems are made anew from their seeds."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor.debug import CommDebugMode

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..problems import Problem, random_problem
from .shards import random_bounds

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def own_bounds(group: ProcessGroup, seed: int, vocab_size: int) -> tuple[int, int]:
    """(first, width) of this rank."""
    return random_bounds(random.Random(seed), vocab_size, dist.get_world_size(group))[dist.get_rank(group)]


def answer_of(output: NTLOutput, *gradients: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """In a form that can be sent."""
    return {name: part.detach() for name, part in output._asdict().items()}, gradients


def solve_logits(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradient of this rank's columns) of random problems."""
    answers = []
    for seed in seeds:
        problem = random_problem(seed, DTYPES)
        first, width = own_bounds(group, seed, problem.numbers.vocab_size)
        leaf = problem.logits[..., first : first + width].detach().clone().requires_grad_()
        inplace = seed % 3 == 0 and backend != "reference"
        output = vocab_parallel_cross_entropy_ntl(
            leaf * 1 if inplace else leaf,
            problem.labels,
            problem.numbers,
            group=group,
            vocab_start=first,
            inplace=inplace,
            return_parts=True,
            backend=backend,
            **problem.options,
        )
        (gradient,) = torch.autograd.grad(output.loss, leaf, problem.upstream.to(output.loss.dtype))
        answers.append(answer_of(output, gradient))
    return answers


def linear_problem(seed: int, hidden_size: int = 12) -> tuple[Problem, Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """(problem, hidden, weight, bias, chunking): the problem's logits are ``hidden @ weight.T + bias``."""
    problem, rng = random_problem(seed, DTYPES), random.Random(seed)
    torch.manual_seed(seed)
    dtype, shape = problem.logits.dtype, problem.logits.shape[:-1]
    hidden = torch.randn(*shape, hidden_size).to(dtype)
    weight = torch.randn(problem.numbers.vocab_size, hidden_size).to(dtype)
    bias = torch.randn(problem.numbers.vocab_size).to(dtype) if rng.random() < 0.5 else None
    chunking = {"chunk_size": rng.choice([None, 1, 2, 5, 100]), "skip_ignored": rng.random() < 0.5}
    return problem, hidden, weight, bias, chunking


def solve_linear(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradients of hidden and of this rank's weight and bias) of random problems."""
    answers = []
    for seed in seeds:
        problem, hidden, weight, bias, chunking = linear_problem(seed)
        first, width = own_bounds(group, seed, problem.numbers.vocab_size)
        own = slice(first, first + width)
        leaves = [hidden.clone().requires_grad_(), weight[own].clone().requires_grad_()]
        leaves += [] if bias is None else [bias[own].clone().requires_grad_()]
        output = vocab_parallel_linear_cross_entropy_ntl(
            *leaves[:2],
            problem.labels,
            problem.numbers,
            bias_shard=None if bias is None else leaves[2],
            group=group,
            vocab_start=first,
            return_parts=True,
            backend=backend,
            **chunking,
            **problem.options,
        )
        answers.append(answer_of(output, *torch.autograd.grad(output.loss, leaves, problem.upstream.to(output.loss.dtype))))
    return answers
