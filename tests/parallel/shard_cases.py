"""What the kernels of shards must do on any device: for `backends/interpreted.py` on a CPU and `test_shards.py`."""

from __future__ import annotations

import random

import pytest
import torch

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.backends.shards import load_shard_backend

from ..backends.triton_cases import moved, poison_allocations
from ..impossible_labels import SMOOTHINGS, check_impossible, impossible_problem
from ..large_logits import check_large, large_problem
from ..problems import Problem, check, random_problem
from .shards import checked, random_bounds, solve_in_shards

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ShardCases:
    """Tests for the device of the subclass."""

    device: str
    every = 1
    """Of the random problems, run every so many."""

    @pytest.mark.parametrize("first_seed", range(0, 100, 25))
    def test_shards_equal_the_reference(self, first_seed: int) -> None:
        for seed in range(first_seed, first_seed + 25, self.every):
            problem, rng = moved(random_problem(seed, DTYPES), self.device), random.Random(seed)
            bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
            check(solve_in_shards(problem, bounds, "triton", inplace=seed % 3 == 0), problem)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_large_logits_lose_no_more_than_torch(self, reduction: str, dtype: torch.dtype) -> None:
        """Also where a rank has masked columns only."""
        bounds = [(0, 10), (10, 0), (10, 120), (130, 73)]
        for options in ({}, {"label_smoothing": 0.5}):
            problem = moved(large_problem(dtype, reduction, **options), self.device)
            check_large(solve_in_shards(problem, bounds, "triton"), problem)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    def test_impossible_labels_have_the_loss_that_torch_gives_them(self, reduction: str) -> None:
        """Also where a rank has nothing but -inf in a row, or no column."""
        bounds = [(0, 40), (40, 0), (40, 100), (140, 63)]
        for label_smoothing in SMOOTHINGS:
            problem = moved(impossible_problem(torch.float32, reduction, label_smoothing), self.device)
            check_impossible(solve_in_shards(problem, bounds, "triton"), problem)

    def test_the_last_column_of_statistics_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """0 after the bounds: it is sent to other ranks."""
        poison_allocations(monkeypatch)
        for options in ({}, {"label_smoothing": 0.1}):
            problem = moved(large_problem(torch.float32, "sum", **options), self.device)
            sent = load_shard_backend("triton").shard_statistics(
                problem.logits[None, :, 10:200].contiguous(), checked(problem, "triton"), 10
            )
            assert sent[:, -1].tolist() == [10.0, 190.0, 203.0] + [0.0] * (len(sent) - 3)

    def test_statistics_of_columns_that_are_not_the_vocabulary(self) -> None:
        """Without a look at the device: the loss of every row that counts is NaN."""
        numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 64)
        labels, options = torch.tensor([0, 5, 63, -100, 32, 31, 9]), {"config": NTLConfig(), "reduction": "sum"}
        problem = moved(Problem(torch.randn(7, 64), labels, numbers, options, torch.tensor(1.0)), self.device)
        task, steps = checked(problem, "triton"), load_shard_backend("triton")
        for bounds, is_whole in (
            ([(0, 64)], True),
            ([(32, 32), (0, 32)], True),
            ([(0, 32), (32, 0), (32, 32)], True),
            ([(0, 64), (0, 64)], False),
            ([(0, 32), (33, 31)], False),
            ([(0, 32), (0, 32)], False),
            ([(0, 32), (31, 33)], False),
        ):
            shards = [(problem.logits[None, :, first : first + width], first) for first, width in bounds]
            sent = torch.stack([steps.shard_statistics(shard.contiguous(), task, first) for shard, first in shards])
            fields, _ = steps.merge_shards(sent, None, task)
            assert torch.equal(fields[0].isnan(), (problem.labels >= 0) & (not is_whole)), bounds
