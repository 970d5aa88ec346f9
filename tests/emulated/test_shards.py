"""The kernels of a vocabulary that is split over ranks, as compiled for a GPU."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from ntl_kernels import NTLConfig

from ..parallel.shards import random_bounds, solve_in_shards
from ..problems import Problem, random_problem
from .conftest import some
from .gpu import DTYPES
from .judge import hold
from .problems import problem_of
from .test_losses import GROUPS, KINDS


def check(problem: Problem, bounds: list[tuple[int, int]], is_in_place: bool = False) -> None:
    hold(solve_in_shards(problem, bounds, "triton", is_in_place), problem, ranks=len(bounds))


@pytest.mark.parametrize(("count", "kind"), some(3, [2, 10, 300], KINDS))
def test_every_kind(kind: str, count: int) -> None:
    """Columns of even and odd numbers, so that rows are aligned and not."""
    number, config = list(KINDS).index(kind), KINDS[kind]
    dtype, reduction = DTYPES[(number + count) % 3], ("mean", "sum", "none")[number % 3]
    problem = problem_of(dtype, 1001, count=count, config=config, reduction=reduction, seed=number, scale=2.0)
    cuts = [0, 496, 1001] if number % 2 else [0, 333, 333, 1001]
    check(problem, [(first, last - first) for first, last in pairwise(cuts)], is_in_place=number % 4 == 1)


@pytest.mark.parametrize(("sizes", "kind"), some(3, GROUPS, KINDS), ids=str)
def test_every_kind_with_groups(kind: str, sizes: tuple[int, ...]) -> None:
    """A group is split over ranks, or on one of them."""
    number = list(KINDS).index(kind) + GROUPS.index(sizes)
    dtype, reduction = DTYPES[(number + 1) % 3], ("mean", "sum", "none")[number // 3 % 3]
    options = {"config": KINDS[kind], "reduction": reduction, "seed": number, "scale": 2.0}
    problem = problem_of(dtype, 1301, count=sizes, shape=(2, 6), **options)
    check(problem, [(0, 496), (496, 805)] if number % 2 else [(0, 333), (333, 0), (333, 968)], number % 4 == 1)


@pytest.mark.parametrize("seed", some(3, range(0, 30, 2)))
def test_random_problems(seed: int) -> None:
    """Any option, and ranks without columns."""
    problem, rng = random_problem(seed, DTYPES, shapes=((7,), (3, 5), (2, 2, 3), (0,))), random.Random(seed)
    check(problem, random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5)), seed % 3 == 0)


@pytest.mark.parametrize("kind", some(2, KINDS))
def test_number_weights(kind: str) -> None:
    """In every kernel of a shard that reads a label."""
    number = list(KINDS).index(kind)
    options = {"config": KINDS[kind], "reduction": ("mean", "sum", "none")[number % 3], "seed": number, "scale": 2.0}
    problem = problem_of(DTYPES[number % 3], 301, count=(10, 1, 40), number_weights=True, weights=True, **options)
    check(problem, [(0, 100), (100, 201)], is_in_place=number % 2 == 0)


@pytest.mark.parametrize("fill", some(4, [-1e10, -1e4, -1e30, -3e38, -torch.inf]))
def test_a_rank_all_of_whose_columns_are_masked(fill: float) -> None:
    for config in (NTLConfig(), NTLConfig(kind="mse", reweigh=True)):
        problem = problem_of(torch.float32, 96, config=config, reduction="sum", scale=1.0)
        logits, labels = problem.logits.clone(), problem.labels.clamp_max(47)
        logits[..., 48:] = fill
        check(replace(problem, logits=logits, labels=labels), [(0, 48), (48, 48)])


@pytest.mark.parametrize("offset", some(3, [1e6, 6e4, 100.0]))
def test_a_common_offset_costs_nothing(offset: float) -> None:
    for config in (NTLConfig(), NTLConfig(kind="mse", reweigh=True), NTLConfig(label_sigma=1.0)):
        problem = problem_of(torch.float32, 100, config=config, reduction="sum", scale=2.0)
        check(replace(problem, logits=problem.logits + offset), [(0, 40), (40, 60)])


@pytest.mark.parametrize("value", some(2, [3e38, 1e10, -3e38, -1e30]))
def test_rows_of_equal_logits(value: float) -> None:
    problem = problem_of(torch.float32, 100, reduction="sum")
    check(replace(problem, logits=torch.full_like(problem.logits, value)), [(0, 40), (40, 60)])
