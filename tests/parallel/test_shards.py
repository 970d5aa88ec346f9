"""The mathematics of shards in one process, without any collective: `parallel/test_ranks.py` has those."""

from __future__ import annotations

import random

import pytest
import torch

from ntl_kernels.backends.shards import Bound, Statistic

from ..problems import check, random_problem
from .shard_cases import ShardCases
from .shards import random_bounds, solve_in_shards

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_shards_equal_the_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        problem, rng = random_problem(seed, DTYPES), random.Random(seed)
        bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
        check(solve_in_shards(problem, bounds, "eager", inplace=seed % 3 == 0), problem)


@pytest.mark.gpu
class TestOnTheGpu(ShardCases):
    device = "cuda"
    every = 5  # nearly every problem compiles kernels of its own


def test_kernels_name_the_statistics_alike() -> None:
    from ntl_kernels.kernels import shards as kernels

    assert {name: getattr(kernels, name).value for name in Statistic.__members__} == {s.name: s for s in Statistic}
    assert [bound.name for bound in Bound] == ["FIRST", "WIDTH", "VOCAB_SIZE"]  # the order of store_bounds
