"""The mathematics of shards in one process, without any collective: `parallel/test_ranks.py` has those."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from itertools import product
from math import inf, nan
from unittest.mock import patch

import pytest
import torch

from ntl_kernels.backends.contract import Header, Statistics
from ntl_kernels.parallel import headers as module
from ntl_kernels.parallel.headers import are_wrong, hash_of, with_header
from ntl_kernels.problem import Problem as CheckedProblem
from ntl_kernels.spec import LossSpec

from ..impossible_labels import (
    SMOOTHINGS,
    UNMEASURED_CONFIGS,
    check_impossible,
    check_unmeasured,
    impossible_problem,
    unmeasured_problem,
)
from ..large_logits import (
    OFFSET_PROBLEMS,
    check_large,
    check_offsets,
    large_problem,
    masked_start_problem,
    offset_problem,
)
from ..problems import Problem, check, random_problem
from .shard_cases import ShardCases, check_disagreeing_ranks
from .shards import checked, random_bounds, solve_in_shards

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


@pytest.mark.parametrize("first", [0, 16_000])
def test_label_smoothing_of_shards_that_start_with_a_mask(first: int) -> None:
    problem = masked_start_problem(32_000, first)
    check_large(solve_in_shards(problem, [(0, 16_000), (16_000, 16_000)], "eager"), problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_number_tokens_without_probability_have_no_number_loss(reduction: str, dtype: torch.dtype) -> None:
    for config, bounds in product(UNMEASURED_CONFIGS, ([(0, 203)], [(0, 40), (40, 0), (40, 163)])):
        problem = unmeasured_problem(dtype, reduction, config)
        check_unmeasured(solve_in_shards(problem, bounds, "eager"), problem)


@pytest.mark.gpu
class TestOnTheGpu(ShardCases):
    device = "cuda"
    every = 5  # nearly every problem compiles kernels of its own


def test_kernels_name_what_is_sent_alike() -> None:
    from ntl_kernels.kernels import shard_fields as statistics

    found = [getattr(statistics, name.upper()).value for name in Statistics._fields]
    assert found == list(range(len(Statistics._fields)))


@pytest.mark.parametrize(
    ("bounds", "is_whole"),
    [
        ([(0, 12)], True),
        ([(8, 4), (0, 5), (5, 3)], True),
        ([(0, 0), (0, 12), (12, 0)], True),
        ([(0, 12), (0, 12)], False),
        ([(0, 6), (0, 6)], False),
        ([(0, 6), (7, 6)], False),
        ([(0, 6), (6, 5)], False),
        ([(0, 6), (6, 7)], False),
        ([(0, 0)], False),
    ],
)
def test_whether_columns_make_up_the_vocabulary(bounds: list[tuple[int, int]], is_whole: bool) -> None:
    sent = torch.tensor([(*one, 7, 8, -1, -1, 0.3) for one in bounds])
    check_wrong(sent, None if is_whole else "cover the vocabulary .0, 12. without")


def check_wrong(headers: torch.Tensor, words: str | None) -> None:
    """Whether headers of a vocabulary of 12 are wrong, on a host and where nobody may look."""
    if words is None:
        assert are_wrong(headers, 12) is None
    else:
        with pytest.raises(ValueError, match=words):
            are_wrong(headers, 12)
    with patch.object(module, "can_look", lambda _: False):
        found, of_others = are_wrong(headers, 12), are_wrong(headers, 99)
    assert found is not None and bool(found) == (words is not None)
    assert of_others


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([(7.0, 8.0, -1.0, -1.0, 0.3)], None),
        ([(7.0, 8.0, 100.0, -1.0, 0.3), (7.0, 8.0, 100.0005, -1.0, 0.300001)], None),
        ([(7.0, 8.0, -1.0, -1.0, nan), (7.0, 8.0, -1.0, -1.0, nan)], None),
        ([(7.0, 8.0, inf, -1.0, 0.3), (7.0, 8.0, inf, -1.0, 0.3)], None),
        ([(7.0, 8.0, 0.0, 0.0, 0.0), (7.0, 8.0, 0.0, 0.0, 0.0)], None),
        ([(2.0**24 - 1, 8.0, 1.0, 1.0, 0.3), (2.0**24 - 2, 8.0, 1.0, 1.0, 0.3)], "options"),
        ([(7.0, 8.0, 1.0, 1.0, 0.3), (7.0, 9.0, 1.0, 1.0, 0.3), (7.0, 9.0, 1.0, 1.0, 0.3)], "differs from ranks 1, 2"),
        ([(7.0, 8.0, 0.0, 1.0, 0.3), (7.0, 8.0, 1e-30, 1.0, 0.3)], "num_tokens"),
        ([(7.0, 8.0, -1.0, -1.0, 0.3), (7.0, 8.0, -1.0, 1.0, 0.3)], "num_numbers .None, 1 in"),
        ([(7.0, 8.0, -1.0, -1.0, 0.3), (7.0, 8.0, -1.0, -1.0, nan)], "config.weight .0.3, nan in"),
        ([(7.0, 8.0, -1.0, -1.0, inf), (7.0, 8.0, -1.0, -1.0, 0.3)], "config.weight .inf, 0.3 in"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whether_ranks_have_one_problem(
    headers: list[tuple[float, ...]], words: str | None, dtype: torch.dtype
) -> None:
    columns = [(0, 12), *[(0, 0)] * (len(headers) - 1)]
    rows = [(*own, *one) for own, one in zip(columns, headers, strict=True)]
    check_wrong(torch.tensor(rows, dtype=dtype), words)


def test_ranks_that_disagree_get_nan() -> None:
    check_disagreeing_ranks("eager", "cpu")


def test_hashes_tell_problems_apart() -> None:
    """Among many that differ little, as few are alike as chance has it."""
    problem = checked(large_problem(torch.float32, "sum"), "eager")
    torch.manual_seed(0)
    sent = set()
    for i in range(200):
        for j in range(5):
            labels = torch.zeros(100, dtype=torch.int64)
            labels[i % 100] = 1 + j + 5 * (i // 100)
            sent.add(header_of(problem._replace(labels=labels)).rows_hash)
    assert len(sent) >= 999
    others = [replace(problem.spec, **{name: 0.125}) for name in ("z_loss", "softcap", "logit_scale", "worst_loss")]
    others += [replace(problem.spec, ignore_index=5), replace(problem.spec, kind="mse")]
    changed = [problem._replace(spec=spec) for spec in others]
    changed += [problem._replace(backend="triton"), problem._replace(reduction="none"), problem]
    assert len({header_of(one).options_hash for one in changed}) == len(changed)


def header_of(problem: CheckedProblem) -> Header:
    """What a rank without columns sends."""
    header = with_header(torch.full((9, 1), nan), problem, 0, 0)[:, 0].tolist()
    assert header[len(Header._fields) :] == [0, 0]
    return Header(*header[: len(Header._fields)])


def test_a_hash_of_options_is_of_their_values() -> None:
    """Equal in every process, and whether or not they went through the schema of an operator."""
    spec = checked(large_problem(torch.float32, "sum", softcap=30.0), "eager").spec
    assert hash_of(spec, "sum", "eager", 203) == hash_of(LossSpec.unpack(spec.pack()), "sum", "eager", 203)
    assert hash_of(spec, "sum", "eager", 203) == zlib.crc32(repr((spec.pack(), "sum", "eager", 203)).encode()) >> 1
    assert all(0 <= hash_of(spec, "sum", "eager", size) < 2**31 for size in range(100))
