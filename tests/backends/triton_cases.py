"""Tests of the Triton backend on any device: whole on a GPU and emulated, a few in Triton's interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import (
    NTLConfig,
    NTLOutput,
    NumberTokens,
    backends,
    cross_entropy_ntl,
    dispatch,
    linear_cross_entropy_ntl,
)
from ntl_kernels.problem import Problem as Contract
from ntl_kernels.problem import RowInputs
from ntl_kernels.spec import spec_of

from ..problems import Answer, Problem, check, moved, random_numbers, random_problem, solve, tanh_error
from ..row_cases import InfiniteRows

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class CallCases:
    """What a call does with operands that are wrong, extreme or seen through a view."""

    device: str

    @pytest.mark.parametrize(("reduction", "has_ce"), [("mean", True), ("sum", True), ("none", True), ("none", False)])
    def test_bad_labels_and_weights_give_the_nan_of_the_reference(
        self, reduction: str, has_ce: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In their own rows, where they are not checked first, as on a GPU."""
        monkeypatch.setattr(backends, "HOST_DEVICES", ())
        monkeypatch.delenv("NTL_KERNELS_VALIDATE", raising=False)
        labels = torch.tensor([50, -1, 10**12, 4, 5, 20, 60, -100, 4], device=self.device)
        weights = torch.tensor([1.0, 1.0, 1.0, -0.5, torch.nan, 1.0, 0.0, 1.0, 2.0], device=self.device)
        spec = spec_of(NTLConfig(reweigh=True), DIGITS, reduction=reduction, has_cross_entropy=has_ce)
        answers = []
        for backend in ("triton", "reference"):
            logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)).to(self.device).requires_grad_()
            table = DIGITS.table(self.device)
            contract = Contract(RowInputs(labels, weights), None, None, 0.3, table, spec, backend)
            result = dispatch.loss_of_logits(logits, contract)
            result.loss.backward(torch.ones_like(result.loss))
            answers.append((result.loss.detach(), result.parts[:4], logits.grad))
        torch.testing.assert_close(*answers, equal_nan=True)
        loss, _, gradient = answers[1]
        if reduction == "mean":  # then its denominators are also NaN
            assert loss.isnan() and torch.equal(gradient.isnan().all(-1), (labels != -100) & (weights != 0))
        else:
            assert gradient.isnan().any(-1).tolist() == gradient.isnan().all(-1).tolist() == [True] * 5 + [False] * 4
            assert loss.isnan().tolist() == (True if reduction == "sum" else [True] * 5 + [False] * 4)

    def test_the_largest_factors_of_logits(self) -> None:
        """float32 also holds them times log2(e); larger ones raise."""
        labels = torch.tensor([4, 20, 30, 5])
        for options in ({"softcap": 2.3e38, "logit_scale": 1e3}, {"softcap": 8e37}, {"logit_scale": 2.3e38}):
            logits = torch.randn(4, 50) * (1e-3 if "softcap" in options else 1e-38)
            given = {"reduction": "sum", "config": NTLConfig(weight=0.0), **options}
            problem = moved(Problem(logits, labels, DIGITS, given, torch.tensor(1e-38)), self.device)
            answer, expected = solve(problem, "triton"), solve(problem.in_dtype(torch.float64), "reference")
            assert answer.gradient.isfinite().all() and answer.gradient.any()
            torch.testing.assert_close(answer.output.loss.double(), expected.output.loss, rtol=1e-5, atol=1e-5)
        for options in ({"softcap": 3e38}, {"logit_scale": 3e38}):
            with pytest.raises(ValueError, match=r"at most 2\.35866e\+38"):
                solve(moved(Problem(logits, labels, DIGITS, options, torch.tensor(1.0)), self.device), "triton")

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_that_do_not_count_are_not_read(self, dtype: torch.dtype) -> None:
        logits = torch.randn(3, 50).to(dtype)
        logits[1] = torch.nan
        weights = torch.tensor([1.0, 0.0, 2.0])
        for labels, options in (([4, -100, 20], {}), ([4, 5, 20], {"token_weights": weights})):
            options = {**options, "reduction": "mean"}
            problem = Problem(logits, torch.tensor(labels), DIGITS, options, torch.tensor(1.0))
            problem = moved(problem, self.device)
            answer = solve(problem, "triton")
            check(answer, problem)
            assert answer.output.loss.isfinite() and (answer.gradient[1] == 0).all()

    @pytest.mark.parametrize("operand", ["logits", "slice", "in place", "hidden"])
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_operands_with_the_negative_bit(self, reduction: str, operand: str) -> None:
        """Their memory holds the opposite values."""
        expected = solve_seen(lambda tensor: tensor, operand, reduction, self.device)
        found = solve_seen(lambda tensor: torch._neg_view(-tensor), operand, reduction, self.device)
        torch.testing.assert_close(found, expected)  # a copy may be aligned differently, and summed in another order


class TritonCases(InfiniteRows):
    """Adds random problems and rows of any length."""

    is_compiled = True
    """For an NVIDIA GPU, whose tanh a softcap uses."""

    def tanh_error(self, problem: Problem) -> float:
        return tanh_error(problem) if self.is_compiled else 0.0

    def solve(self, problem: Problem) -> Answer:
        return solve(problem, "triton")

    def check(self, answer: Answer, problem: Problem) -> None:
        check(answer, problem, tanh=self.tanh_error(problem))

    @pytest.mark.parametrize("first_seed", range(0, 500, 50))
    def test_every_row_equals_the_reference(self, first_seed: int) -> None:
        for seed in range(first_seed, first_seed + 50, self.every):
            problem = moved(random_problem(seed, DTYPES), self.device)
            self.check(solve(problem, "triton", inplace=seed % 3 == 0), problem)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("vocab_size", [2, 5, 2500, 4099, 17011])
    def test_rows_of_any_length(self, vocab_size: int, dtype: torch.dtype) -> None:
        """From less than a vector to several groups of vectors, every kind of edge and remainder."""
        rng = random.Random(vocab_size)
        for config in (NTLConfig(reweigh=True), NTLConfig(kind="mse", reweigh=False)):
            numbers = random_numbers(rng, vocab_size)
            labels = torch.cat([numbers.ids[[0, -1]], torch.tensor([vocab_size - 1, -100])])
            options = {"config": config, "label_smoothing": 0.1, "z_loss": 0.01, "reduction": "mean"}
            logits = torch.randn(2, 3, vocab_size)[:, :-1].to(dtype)
            problem = Problem(logits, labels.view(2, 2), numbers, options, torch.tensor(1.5))
            problem = moved(problem, self.device)
            self.check(self.solve(problem), problem)


def solve_seen(see: Callable[[Tensor], Tensor], operand: str, reduction: str, device: str) -> list[Tensor]:
    """Results and gradient of a loss with all tensors passed through ``see``."""
    torch.manual_seed(0)
    leaf, head = torch.randn(2, 3, 50).to(device).requires_grad_(), torch.randn(50, 50).to(device)
    labels = torch.tensor([[4, 20, -100], [5, 12, 3]], device=device)
    weights = torch.tensor([[1.5, 0.0, 2.0], [0.5, 1.0, 3.0]], device=device)
    upstream, num_tokens, num_numbers, ntl_weight = torch.tensor([1.5, 3.0, 2.0, 0.7], device=device)
    logits = see(leaf * 1)
    if operand == "slice":
        logits, labels, weights = logits[:, :-1], labels[:, :-1].contiguous(), weights[:, :-1]
    options: dict[str, Any] = {"config": NTLConfig(weight=see(ntl_weight)), "reduction": reduction, "backend": "triton"}
    if reduction == "mean":
        options |= {"num_tokens": see(num_tokens), "num_numbers": see(num_numbers)}
    if operand == "in place":  # of rows without weights, whose labels are used unchanged
        logits, labels, weights = logits.flatten(0, 1), labels.flatten(), weights.flatten()
        output = cross_entropy_ntl(logits, see(labels), DIGITS, inplace=True, return_parts=True, **options)
    else:
        options |= {"token_weights": see(weights), "number_weights": see(2 * weights), "return_parts": True}
        if operand == "hidden":
            bias = see(head[0].contiguous())
            output = linear_cross_entropy_ntl(logits, see(head), see(labels), DIGITS, bias=bias, **options)
        else:
            output = cross_entropy_ntl(logits, see(labels), DIGITS, **options)
    assert isinstance(output, NTLOutput)
    upstream = see(weights if reduction == "none" else upstream)
    return [*(part.detach() for part in output), *torch.autograd.grad(output.loss, leaf, upstream)]
