"""Tests of a sharded vocabulary on any backend and device, without processes, which `test_ranks.py` uses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, backends
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl

from ..problems import Answer, Problem, check, moved, random_problem, tanh_error
from ..row_cases import InfiniteRows
from .shards import group_of_one, random_bounds, solve_in_shards, together, uneven_bounds

GROUPS = [{i: float(i) for i in range(10)}, {20: 1.0, 50: 5.0}]
NUMBERS = NumberTokens.from_groups(GROUPS, 64)


class ShardCases(InfiniteRows):
    """Tests for the backend and device of the subclass."""

    backend = "triton"
    is_compiled = True
    """For an NVIDIA GPU, whose tanh a softcap uses."""

    def tanh_error(self, problem: Problem) -> float:
        return tanh_error(problem) if self.is_compiled else 0.0

    def solve(self, problem: Problem) -> Answer:
        return solve_in_shards(problem, uneven_bounds(problem.logits.shape[-1]), self.backend)

    @pytest.mark.parametrize("first_seed", range(0, 100, 25))
    def test_shards_equal_the_reference(self, first_seed: int) -> None:
        for seed in range(first_seed, first_seed + 25, self.every):
            problem, rng = self.placed(random_problem(seed, self.dtypes)), random.Random(seed)
            bounds = random_bounds(rng, problem.logits.shape[-1], rng.randint(1, 5))
            answer = solve_in_shards(problem, bounds, self.backend, inplace=seed % 3 == 0)
            check(answer, problem, tanh=self.tanh_error(problem))

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_an_upstream_gradient_with_the_negative_bit(self, reduction: str) -> None:
        """Its memory holds the opposite values."""
        upstream = torch.tensor([2.0, 0.5, 3.0]) if reduction == "none" else torch.tensor(2.0)
        given = {"labels": torch.tensor([4, 9, 20]), "numbers": NUMBERS, "options": {"reduction": reduction}}
        problem = moved(Problem(torch.randn(3, 64), **given, upstream=upstream), self.device)
        seen = replace(problem, upstream=torch._neg_view(-problem.upstream))
        found, expected = (solve_in_shards(one, [(0, 30), (30, 34)], self.backend) for one in (seen, problem))
        assert torch.equal(found.gradient, expected.gradient)

    def test_ranks_that_disagree_have_nan_where_nobody_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a GPU, where checking would wait: losses and gradients of every row that counts are NaN."""
        monkeypatch.setattr(backends, "HOST_DEVICES", ())
        monkeypatch.delenv("NTL_KERNELS_VALIDATE", raising=False)
        labels = torch.tensor([0, 5, 63, -100, 32, 31, 9], device=self.device)
        swapped, weights = labels[[1, 0, 2, 3, 4, 5, 6]], torch.ones(7, device=self.device)
        even = [(0, 20), (20, 44)]
        for bounds, others, is_equal in (
            (even, {}, True),
            (even, {"labels": labels.int(), "token_weights": weights, "number_weights": weights}, True),
            (even, {"num_tokens": torch.full((), 6, device=self.device), "num_numbers": 3.00001}, True),
            (even, {"config": NTLConfig(weight=torch.full((), 0.3, device=self.device))}, True),
            ([(0, 32), (32, 0), (32, 32)], {}, True),
            (even, {"labels": swapped}, False),
            (even, {"token_weights": weights.cumsum(0)}, False),
            (even, {"number_weights": weights.cumsum(0)}, False),
            (even, {"num_tokens": 6.001}, False),
            (even, {"num_numbers": torch.full((), 4, device=self.device)}, False),
            (even, {"config": NTLConfig(weight=0.4)}, False),
            (even, {"config": NTLConfig(weight=torch.full((), torch.nan, device=self.device))}, False),
            (even, {"config": NTLConfig(reweigh=True)}, False),
            (even, {"softcap": 3.0}, False),
            (even, {"numbers": NumberTokens.from_mapping({i: float(i + 1) for i in range(10)}, 64)}, False),
            (even, {"numbers": NumberTokens(GROUPS, 64, units=[1.0, 10.0])}, False),
            ([(0, 64), (0, 64)], {}, False),
            ([(0, 32), (33, 31)], {}, False),
            ([(0, 32), (31, 33)], {}, False),
        ):
            for odd in (0, 1):
                for loss, gradient in self.results_of_ranks(bounds, labels, odd, others):
                    is_nan = (labels >= 0) & (not is_equal) & (gradient.shape[1] > 0)
                    assert bool(loss.isnan()) != is_equal and torch.equal(gradient.isnan().any(-1), is_nan), others

    def results_of_ranks(
        self, bounds: list[tuple[int, int]], labels: Tensor, odd: int, others: dict[str, Any]
    ) -> list[tuple[Tensor, Tensor]]:
        """(loss, gradient) of each rank; one of them is called with other arguments."""
        torch.manual_seed(0)
        logits = torch.randn(7, 64).to(self.device)

        def call(rank: int) -> tuple[Tensor, Tensor]:
            first, width = bounds[rank]
            given = {"labels": labels, "numbers": NUMBERS, "num_tokens": 6.0, "num_numbers": 3}
            given |= others if rank == odd else {}
            leaf = logits[:, first : first + width].clone().requires_grad_()
            where = {"group": group, "vocab_start": first, "backend": self.backend, "return_parts": True}
            output = vocab_parallel_cross_entropy_ntl(leaf, **given, **where)
            return output.loss.detach(), torch.autograd.grad(output.loss, leaf)[0]

        with group_of_one() as group:
            found = together([lambda rank=rank: call(rank) for rank in range(len(bounds))])
        for answer in found:
            assert not isinstance(answer, Exception), answer
        return found
