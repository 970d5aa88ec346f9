"""DTensors, on real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from ntl_kernels import NTLOutput

from ..problems import Answer, check, random_problem
from . import cases
from .cases import DTYPES
from .ranks import Ranks

LAYOUTS = [
    ((4,), [Shard(-1)]),
    ((4,), [Replicate()]),
    ((4,), [Shard(0)]),
    ((2, 2), [Shard(0), Shard(-1)]),
    ((2, 2), [Shard(-1), Replicate()]),
    ((2, 2), [Shard(0), Shard(0)]),
]


@pytest.mark.parametrize(("shape", "placements"), LAYOUTS)
def test_random_problems_equal_the_reference(ranks: Ranks, shape: tuple[int, ...], placements: list[Any]) -> None:
    seeds = list(range(25))
    answers = ranks.run(cases.solve_dtensor, seeds, shape, placements, ranks=4)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        problem = random_problem(seed, DTYPES, shapes=((7,), (3, 5), (4, 3, 2)))
        first, *others = of_ranks
        assert all(torch.equal(parts[name], first[0][name]) for parts, _ in others for name in parts), seed
        parts, (gradient,) = first
        check(Answer(NTLOutput(**parts), gradient), problem)
