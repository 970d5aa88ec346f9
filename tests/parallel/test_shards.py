"""The mathematics of shards in one process, without any collective: `parallel/test_ranks.py` has those."""

from __future__ import annotations

import random

import pytest
import torch

from ..problems import check, random_problem
from .shards import random_bounds, solve_in_shards

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_shards_equal_the_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        problem, rng = random_problem(seed, DTYPES), random.Random(seed)
        bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
        check(solve_in_shards(problem, bounds, "eager", inplace=seed % 3 == 0), problem)
