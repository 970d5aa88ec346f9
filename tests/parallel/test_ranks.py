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
