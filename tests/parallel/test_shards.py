"""The mathematics of shards in one process, without any collective: `parallel/test_ranks.py` has those."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from ntl_kernels.backends.eager_shards import is_covered
from ntl_kernels.backends.shards import Bound, Statistic
from ntl_kernels.parallel.bounds import check_cover

from ..impossible_labels import SMOOTHINGS, check_impossible, impossible_problem
from ..large_logits import OFFSET_PROBLEMS, check_large, check_offsets, large_problem, offset_problem
from ..problems import Problem, check, random_problem
from .shard_cases import ShardCases
from .shards import random_bounds, solve_in_shards

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_shards_equal_the_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        problem, rng = random_problem(seed, DTYPES), random.Random(seed)
        bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
        check(solve_in_shards(problem, bounds, "eager", inplace=seed % 3 == 0), problem)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_large_logits_lose_no_more_than_torch(reduction: str, dtype: torch.dtype) -> None:
    for options in ({}, {"label_smoothing": 0.5}):
        problem = large_problem(dtype, reduction, **options)
        check_in_shards(problem)


def check_in_shards(problem: Problem) -> None:
    for bounds in ([(0, 203)], [(0, 10), (10, 0), (10, 120), (130, 73)]):
        check_large(solve_in_shards(problem, bounds, "eager"), problem)


def test_a_common_offset_costs_no_digits() -> None:
    for options in OFFSET_PROBLEMS:
        problem = offset_problem(*options)
        check_offsets(solve_in_shards(problem, [(0, 10), (10, 120), (130, 73)], "eager"), problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_impossible_labels_have_the_loss_that_torch_gives_them(reduction: str, dtype: torch.dtype) -> None:
    """Also where a rank has nothing but -inf in a row, or no column."""
    for label_smoothing, bounds in product(SMOOTHINGS, ([(0, 203)], [(0, 40), (40, 0), (40, 100), (140, 63)])):
        problem = impossible_problem(dtype, reduction, label_smoothing)
        check_impossible(solve_in_shards(problem, bounds, "eager"), problem)


@pytest.mark.gpu
class TestOnTheGpu(ShardCases):
    device = "cuda"
    every = 5  # nearly every problem compiles kernels of its own


def test_kernels_name_the_statistics_alike() -> None:
    from ntl_kernels.kernels import shards as kernels

    assert {name: getattr(kernels, name).value for name in Statistic.__members__} == {s.name: s for s in Statistic}
    assert [bound.name for bound in Bound] == ["FIRST", "WIDTH", "VOCAB_SIZE"]  # the order of store_bounds


@pytest.mark.parametrize(
    ("bounds", "is_whole"),
    [
        ([(0, 12, 12)], True),
        ([(8, 4, 12), (0, 5, 12), (5, 3, 12)], True),
        ([(0, 0, 12), (0, 12, 12), (12, 0, 12)], True),
        ([(0, 12, 12), (0, 12, 12)], False),
        ([(0, 6, 12), (0, 6, 12)], False),
        ([(0, 6, 12), (7, 6, 12)], False),
        ([(0, 6, 12), (6, 5, 12)], False),
        ([(0, 6, 12), (6, 6, 13)], False),
        ([(0, 0, 12)], False),
    ],
)
def test_whether_columns_make_up_the_vocabulary(bounds: list[tuple[int, int, int]], is_whole: bool) -> None:
    """On the device and on the host alike."""
    assert bool(is_covered(torch.tensor(bounds, dtype=torch.float32))) == is_whole
    if is_whole:
        check_cover([list(bound) for bound in bounds])
    else:
        with pytest.raises(ValueError, match="vocabular"):
            check_cover([list(bound) for bound in bounds])
