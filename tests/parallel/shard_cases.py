"""What the kernels of shards must do on any device: for `backends/interpreted.py` on a CPU and `test_shards.py`."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.backends import load_shard_backend
from ntl_kernels.parallel import headers

from ..backends.triton_cases import moved
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
from ..problems import Answer, Problem, check, random_problem, tanh_error
from .shards import checked, random_bounds, sent_by, solve_in_shards

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ShardCases:
    """Tests for the device of the subclass."""

    device: str
    every = 1
    """Of the random problems, run every so many."""
    is_compiled = True
    """For an NVIDIA GPU, whose tanh a softcap takes."""

    def check(self, answer: Answer, problem: Problem) -> None:
        check(answer, problem, tanh=tanh_error(problem) if self.is_compiled else 0.0)

    def check_large(self, answer: Answer, problem: Problem) -> None:
        check_large(answer, problem, tanh=tanh_error(problem) if self.is_compiled else 0.0)

    @pytest.mark.parametrize("first_seed", range(0, 100, 25))
    def test_shards_equal_the_reference(self, first_seed: int) -> None:
        for seed in range(first_seed, first_seed + 25, self.every):
            problem, rng = moved(random_problem(seed, DTYPES), self.device), random.Random(seed)
            bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
            self.check(solve_in_shards(problem, bounds, "triton", inplace=seed % 3 == 0), problem)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_large_logits_lose_no_more_than_torch(self, reduction: str, dtype: torch.dtype) -> None:
        """Also where a rank has masked columns only."""
        bounds = [(0, 10), (10, 0), (10, 120), (130, 73)]
        for options in ({}, {"label_smoothing": 0.5}):
            problem = moved(large_problem(dtype, reduction, **options), self.device)
            self.check_large(solve_in_shards(problem, bounds, "triton"), problem)

    def test_a_common_offset_costs_no_digits(self) -> None:
        for options in OFFSET_PROBLEMS:
            problem = moved(offset_problem(*options), self.device)
            check_offsets(solve_in_shards(problem, [(0, 10), (10, 120), (130, 73)], "triton"), problem)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_impossible_labels_have_the_loss_that_torch_gives_them(self, reduction: str) -> None:
        """Also where a rank has nothing but -inf in a row, or no column."""
        bounds = [(0, 40), (40, 0), (40, 100), (140, 63)]
        for label_smoothing in SMOOTHINGS:
            problem = moved(impossible_problem(torch.float32, reduction, label_smoothing), self.device)
            check_impossible(solve_in_shards(problem, bounds, "triton"), problem)

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_an_upstream_gradient_with_the_negative_bit(self, reduction: str) -> None:
        """Its memory holds the opposite values."""
        labels, upstream = torch.tensor([4, 9, 20]), torch.tensor([2.0, 0.5, 3.0])
        numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 50)
        upstream = upstream if reduction == "none" else upstream[0]
        problem = Problem(torch.randn(3, 50), labels, numbers, {"reduction": reduction}, upstream)
        problem = moved(problem, self.device)
        seen = replace(problem, upstream=torch._neg_view(-problem.upstream))
        found, expected = (solve_in_shards(one, [(0, 30), (30, 20)], "triton") for one in (seen, problem))
        assert torch.equal(found.gradient, expected.gradient)

    def test_label_smoothing_of_shards_that_start_with_a_mask(self) -> None:
        for first in (0, 16_000):
            problem = moved(masked_start_problem(32_000, first), self.device)
            check_large(solve_in_shards(problem, [(0, 16_000), (16_000, 16_000)], "triton"), problem)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_number_tokens_without_probability_have_no_number_loss(self, reduction: str) -> None:
        for config in UNMEASURED_CONFIGS:
            problem = moved(unmeasured_problem(torch.float32, reduction, config), self.device)
            check_unmeasured(solve_in_shards(problem, [(0, 40), (40, 0), (40, 163)], "triton"), problem)

    def test_ranks_that_disagree_get_nan(self) -> None:
        check_disagreeing_ranks("triton", self.device)


def check_disagreeing_ranks(backend: str, device: str) -> None:
    """Where nobody may look at the headers, losses and gradients of every row that counts are NaN."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 64)
    labels, options = torch.tensor([0, 5, 63, -100, 32, 31, 9]), {"config": NTLConfig(), "reduction": "mean"}
    problem = moved(Problem(torch.randn(7, 64), labels, numbers, options, torch.tensor(1.0)), device)
    task = checked(problem, backend)._replace(num_tokens=6.0, num_numbers=3.0)
    swapped = problem.labels.clone()
    swapped[:2] = swapped[:2].flip(0)
    weights, whole = torch.ones(7, device=device), ((0, 20), (20, 44))
    for others, bounds, is_fine in (
        ({}, whole, True),
        ({}, ((0, 64),), True),
        ({}, ((32, 32), (0, 32)), True),
        ({}, ((0, 32), (32, 0), (32, 32)), True),
        ({"labels": problem.labels.int()}, whole, True),
        ({"token_weights": weights}, whole, True),
        ({"num_tokens": torch.full((), 6, device=device)}, whole, True),
        ({"num_tokens": 6.00001}, whole, True),
        ({"ntl_weight": torch.full((), 0.3, dtype=torch.float64, device=device)}, whole, True),
        ({}, ((0, 64), (0, 64)), False),
        ({}, ((0, 32), (33, 31)), False),
        ({}, ((0, 32), (0, 32)), False),
        ({}, ((0, 32), (31, 33)), False),
        ({"labels": swapped}, whole, False),
        ({"token_weights": weights.cumsum(0)}, whole, False),
        ({"num_tokens": 6.001}, whole, False),
        ({"num_numbers": torch.full((), 4, device=device)}, whole, False),
        ({"num_numbers": None}, whole, False),
        ({"ntl_weight": 0.4}, whole, False),
        ({"ntl_weight": float("inf")}, whole, False),
        ({"ntl_weight": float("nan")}, whole, False),
        ({"reduction": "sum"}, whole, False),
        ({"spec": replace(task.spec, softcap=3.0)}, whole, False),
        ({"spec": replace(task.spec, z_loss=0.5)}, whole, False),
        ({"table": task.table._replace(values=task.table.values + 1)}, whole, False),
        ({"table": task.table._replace(ids=task.table.ids.flip(0))}, whole, False),
    ):
        shards = [problem.logits[None, :, first : first + width].contiguous() for first, width in bounds]
        for odd in range(len(bounds)):
            tasks = [task._replace(**others) if rank == odd else task for rank in range(len(bounds))]
            columns = zip(shards, tasks, bounds, strict=True)
            sent = torch.stack([sent_by(shard, own, first, backend) for shard, own, (first, _) in columns])
            with patch.object(headers, "can_look", lambda _: False):
                headers.check_headers(sent, task)
            steps = load_shard_backend(backend)
            fields, merge = steps.merge_shards(sent, None, task)
            is_nan = (problem.labels >= 0) & (not is_fine)
            assert torch.equal(fields[0].isnan(), is_nan), (others, bounds, odd)
            gradient = torch.zeros_like(shards[0])
            steps.shard_gradients(shards[0], task, bounds[0][0], merge, torch.ones((), device=device), gradient)
            assert torch.equal(gradient[0].isnan().all(-1), is_nan), (others, bounds, odd)
