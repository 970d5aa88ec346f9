"""Rows that are hard to compute exactly, for every code path: logits, hidden states, shards, kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch

from ntl_kernels import NTLConfig, NumberTokens

from .impossible_labels import (
    SMOOTHINGS,
    UNMEASURED_CONFIGS,
    check_impossible,
    check_soft,
    check_unmeasured,
    impossible_problem,
    soft_problem,
    unmeasured_problem,
)
from .large_logits import (
    OFFSET_PROBLEMS,
    check_large,
    check_offsets,
    large_problem,
    masked_start_problem,
    offset_problem,
)
from .problems import Answer, Problem, check, moved, solve

REDUCTIONS = ("mean", "sum", "none")
SOFT = NTLConfig("soft_labels", label_sigma=1.3)
DIGITS = {i + 3: float(i) for i in range(10)}
IGNORE_INDICES = (-100, -1, 0, 4, 20, 2**31, 2**32, 2**32 + 4, 2**53 + 1, 2**63 - 1, -(2**31), -(2**32) + 4, -(2**63))


class LargeRows:
    """Finite logits. Options alternate with reductions and dtypes: random problems combine them."""

    device = "cpu"
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    vocab_size = 32_000
    every = 1
    """Run one in so many of the problems."""

    def solve(self, problem: Problem) -> Answer:
        raise NotImplementedError

    def tanh_error(self, problem: Problem) -> float:
        """The relative error of the softcap's tanh."""
        return 0.0

    def placed(self, problem: Problem) -> Problem:
        return moved(problem, self.device)

    @pytest.mark.parametrize("number", range(3))
    def test_large_logits_lose_no_more_than_torch(self, number: int) -> None:
        """Common offsets, masks of every size, rows of one level, confident rows."""
        for i, options in enumerate(({}, {"logit_scale": 0.7}, {"softcap": 30.0}, {"label_smoothing": 0.5})):
            dtype, reduction = self.dtypes[(number + i) % len(self.dtypes)], REDUCTIONS[number]
            problem = self.placed(large_problem(dtype, reduction, **options))
            check_large(self.solve(problem), problem, self.tanh_error(problem))

    def test_a_common_offset_costs_no_digits(self) -> None:
        for options in OFFSET_PROBLEMS[:: self.every]:
            problem = self.placed(offset_problem(*options))
            check_offsets(self.solve(problem), problem)

    def test_label_smoothing_of_rows_with_masked_columns(self) -> None:
        for first in (0, self.vocab_size // 2):
            problem = self.placed(masked_start_problem(self.vocab_size, first))
            check_large(self.solve(problem), problem)

    def test_the_number_loss_of_large_logits(self) -> None:
        for i, dtype in enumerate(self.dtypes):
            problem = self.placed(large_problem(dtype, REDUCTIONS[i % 3], weight=0.3, reweigh=i % 2 == 0))
            answer, truth = self.solve(problem), solve(problem.in_dtype(torch.float64), "reference")
            torch.testing.assert_close(answer.output.loss.double(), truth.output.loss, rtol=2e-6, atol=2e-6)
            rounding = torch.finfo(dtype).eps
            torch.testing.assert_close(answer.gradient.double(), truth.gradient, rtol=rounding, atol=2e-6)

    def test_large_values_cost_no_digits(self, configs: Sequence[NTLConfig] = (*UNMEASURED_CONFIGS, SOFT)) -> None:
        """Only differences of values matter, for every kind."""
        for i, config in enumerate(configs[:: self.every]):
            logits, labels = torch.randn(5, 50).to(self.dtypes[i % 3]), torch.tensor([4, 20, 7, 12, 3])
            options = {"config": config, "reduction": REDUCTIONS[i % 3]}
            upstream = torch.ones(5) if i % 3 == 2 else torch.tensor(1.0)
            numbers = [NumberTokens.from_mapping({k + 3: first + k for k in range(10)}, 50) for first in (0.0, 1e6)]
            near, far = (self.solve(self.placed(Problem(logits, labels, n, options, upstream))) for n in numbers)
            for part in ("ntl", "number_mae", "gradient"):
                torch.testing.assert_close(far.entries[part], near.entries[part])

    @pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 1.0])])
    def test_an_ignore_index_is_no_other_label(self, weights: torch.Tensor | None) -> None:
        """One beyond int32 would wrap around to a label. It has the same effect as a weight of 0."""
        labels = torch.tensor([0, 4, 20, 49, 0, 4])
        numbers, logits = NumberTokens.from_mapping(DIGITS, 50), torch.randn(6, 50)
        for i, ignore_index in enumerate(IGNORE_INDICES[:: self.every]):
            options = {"reduction": REDUCTIONS[i % 3], "ignore_index": ignore_index, "token_weights": weights}
            upstream = torch.ones(6) if i % 3 == 2 else torch.tensor(1.0)
            problem = Problem(logits, labels, numbers, options, upstream)
            keep = (labels != ignore_index) * (1.0 if weights is None else weights)
            expected = self.solve(
                self.placed(replace(problem, options={**options, "token_weights": keep, "ignore_index": -100}))
            )
            for dtype in (torch.int32, torch.int64):
                found = self.solve(self.placed(replace(problem, labels=labels.to(dtype))))
                torch.testing.assert_close(found.output.loss, expected.output.loss)
                torch.testing.assert_close(found.gradient, expected.gradient)

    @pytest.mark.parametrize("distance", [1e19, 3e38])
    def test_number_tokens_of_other_groups_may_be_at_any_distance(self, distance: float) -> None:
        """Even if a difference or a squashed cost of theirs is infinite in float32: 0 times it would be NaN."""
        groups = [{3: 0.0, 4: 1e-3, 5: 3e-3}, {6: distance, 7: 0.9 * distance, 8: 0.8 * distance}]
        groups += [{9: -distance, 10: -0.9 * distance}]
        many = NumberTokens.from_groups(groups, 50)
        logits, labels = 3 * torch.randn(4, 50), torch.tensor([4, 7, 9, 20])
        configs = [NTLConfig(squash_factor=9.0), NTLConfig("mae"), NTLConfig(label_sigma=1e-3, reweigh=True)]
        configs += [NTLConfig("soft_labels", label_temperature=1e-3), *[NTLConfig("mse")] * (distance < 1e20)]
        for config in configs[:: self.every]:
            options = {"reduction": "none", "config": replace(config, weight=1e-3 / distance)}
            problem = self.placed(Problem(logits, labels, many, options, torch.ones(4)))
            found = self.solve(problem)
            for row, group in enumerate(groups):
                alone = self.solve(replace(problem, numbers=NumberTokens.from_mapping(group, 50)))
                torch.testing.assert_close(found.output.ntl[row], alone.output.ntl[row])
                torch.testing.assert_close(found.gradient[row], alone.gradient[row])

    def test_float16_survives_loss_scaling(self) -> None:
        """The upstream gradient is applied before rounding: a mean over many rows would underflow without it."""
        logits, labels = torch.randn(40, 50).half(), torch.randint(0, 50, (40,))
        options = {"reduction": "mean", "num_tokens": 10**6, "num_numbers": 10**6}
        problem = Problem(logits, labels, NumberTokens.from_mapping(DIGITS, 50), options, torch.tensor(65536.0))
        problem = self.placed(problem)
        answer = self.solve(problem)
        check(answer, problem)
        assert (answer.gradient != 0).float().mean() > 0.99


class InfiniteRows(LargeRows):
    """Adds logits of -inf."""

    def test_columns_of_minus_infinity(self) -> None:
        """In long rows, most threads of a kernel see nothing else."""
        for (vocab_size, softcap), dtype in product(((50, None), (50, 5.0), (5003, None)), self.dtypes):
            logits = torch.randn(4, vocab_size)
            logits[:, 30:] = logits[:, 5] = logits[0, :3] = -torch.inf  # 5 is a number
            numbers = NumberTokens.from_mapping(DIGITS, vocab_size)
            options, labels = {"reduction": "mean", "softcap": softcap}, torch.tensor([3, 4, 20, 12])
            problem = self.placed(Problem(logits.to(dtype), labels, numbers, options, torch.tensor(1.0)))
            check(self.solve(problem), problem, tanh=self.tanh_error(problem))

    def test_impossible_labels_have_the_loss_that_torch_gives_them(self) -> None:
        for i, label_smoothing in enumerate(SMOOTHINGS):
            for reduction in REDUCTIONS:
                problem = self.placed(impossible_problem(self.dtypes[i % len(self.dtypes)], reduction, label_smoothing))
                check_impossible(self.solve(problem), problem)

    def test_number_tokens_without_probability_have_no_number_loss(self) -> None:
        for i, (config, are_grouped) in enumerate(product(UNMEASURED_CONFIGS, (False, True))):
            dtype, reduction = self.dtypes[i // 3 % len(self.dtypes)], REDUCTIONS[i % 3]
            problem = self.placed(unmeasured_problem(dtype, reduction, config, are_grouped))
            check_unmeasured(self.solve(problem), problem)

    def test_soft_labels_of_impossible_numbers_have_an_infinite_loss_and_a_finite_gradient(self) -> None:
        for i, reduction in enumerate(REDUCTIONS):
            problem = self.placed(soft_problem(self.dtypes[i % len(self.dtypes)], reduction, label_share=i % 2 / 2))
            check_soft(self.solve(problem), problem)
