"""Values that break kernels: masked columns, large logits, confident rows, infinities, invalid labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, cross_entropy_ntl

from ..problems import Problem
from .conftest import some
from .gpu import DTYPES
from .problems import check, digits, problem_of, solve

REDUCTIONS = ("mean", "none")
CONFIGS = (NTLConfig(), NTLConfig(kind="mse", reweigh=True))
FLOATS = (torch.float32, torch.bfloat16)


def with_logits(problem: Problem, logits: Tensor) -> Problem:
    return replace(problem, logits=logits.to(problem.logits.dtype).view(problem.logits.shape))


def number_labels(problem: Problem) -> Problem:
    """Every label is a number."""
    ids = problem.numbers.ids[torch.arange(problem.labels.numel()) % len(problem.numbers)]
    return replace(problem, labels=ids.long().view(problem.labels.shape))


FILLS = (-1e4, -1e9, -1e10, -1e20, -1e30, -3e38, -torch.inf)


@pytest.mark.parametrize(("reduction", "vocab_size", "fill"), some(4, REDUCTIONS, [1000, 50257], FILLS))
def test_masked_columns(fill: float, vocab_size: int, reduction: str) -> None:
    """Most columns are masked; some threads see nothing else."""
    for dtype in FLOATS:
        problem = problem_of(dtype, vocab_size, shape=(1, 3), reduction=reduction, scale=1.0)
        logits = problem.logits.clone()
        is_hidden = torch.arange(vocab_size) >= vocab_size // 50
        is_hidden[problem.numbers.ids] = False
        is_hidden[problem.labels.clamp_min(0)] = False
        logits[..., is_hidden] = fill
        check(with_logits(problem, logits))


@pytest.mark.parametrize(("columns", "fill"), some(5, [1, 64, 16_000], [-1e4, -1e9, -2e9, -1e20]))
def test_label_smoothing_of_rows_that_start_with_a_mask(columns: int, fill: float) -> None:
    """The sum over the other columns keeps its digits."""
    for dtype in FLOATS:
        problem = problem_of(dtype, 32_003, shape=(1, 3), label_smoothing=0.1, scale=1.0)
        problem.labels[:] = 32_002
        logits = problem.logits.clone()
        logits[..., :columns] = fill
        check(with_logits(problem, logits))


@pytest.mark.parametrize("options", [{"logit_scale": 0.5}, {"logit_scale": 3.0}, {"softcap": 30.0}], ids=str)
def test_masked_columns_under_a_transform(options: dict[str, Any]) -> None:
    for fill in (-1e30, torch.finfo(torch.float32).min):
        problem = number_labels(problem_of(torch.float32, 1000, shape=(1, 3), scale=1.0, **options))
        logits = problem.logits.clone()
        logits[..., 20:] = fill
        logits[..., problem.numbers.ids] = problem.logits[..., problem.numbers.ids]
        check(with_logits(problem, logits))


@pytest.mark.parametrize(("offset", "reduction"), some(3, [100.0, 1e3, 1e4, 6e4, 1e6, -1e6], REDUCTIONS))
def test_a_common_offset_costs_nothing(offset: float, reduction: str) -> None:
    """It changes neither the softmax nor the bounds, which depend only on distances to the peak."""
    for config in CONFIGS:
        problem = problem_of(torch.float32, 1001, reduction=reduction, config=config, scale=2.0)
        check(with_logits(problem, problem.logits + offset))


@pytest.mark.parametrize(("reduction", "dtype"), some(2, REDUCTIONS, DTYPES))
def test_a_column_far_above_the_rest(reduction: str, dtype: torch.dtype) -> None:
    """Its probability is 1 to the last bit, wherever it is."""
    for height in (20.0, 66.0, 1e3, 6e4, 1e6, 1e8, 1e10, 1e30):
        if height > torch.finfo(dtype).max:
            continue
        problem = number_labels(
            problem_of(dtype, 1000, reduction=reduction, config=NTLConfig(reweigh=False), scale=1.0)
        )
        logits = problem.logits.clone()
        logits[0, 0, problem.labels[0, 0]] = height  # the label's
        logits[0, 1, 7] = height  # another's
        logits[0, 2, 900:] = height  # many equal ones
        answer = check(with_logits(problem, logits))
        assert (answer.output.cross_entropy >= 0).all()


@pytest.mark.parametrize("value", some(3, [3e38, 1e30, -1e30, -3e38, 1e10, -1e10, -1e5]))
def test_rows_of_equal_logits(value: float) -> None:
    """Their cross-entropy is log(V), whatever their value."""
    for reduction in REDUCTIONS:
        problem = problem_of(torch.float32, 1001, reduction=reduction)
        check(with_logits(problem, torch.full(problem.logits.shape, value)))
    problem = problem_of(torch.bfloat16, 64)
    check(with_logits(problem, torch.full(problem.logits.shape, torch.finfo(torch.bfloat16).min)))


@pytest.mark.parametrize(("scale", "dtype"), some(3, [30.0, 1e4, 1e5, 1e8, 1e10, 1e30], FLOATS))
def test_large_logits(scale: float, dtype: torch.dtype) -> None:
    for config in CONFIGS:
        check(problem_of(dtype, 1000, config=config, scale=scale, seed=1))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_infinity_and_nan_stay_in_their_row(value: float) -> None:
    problem = problem_of(torch.float32, 50, shape=(1, 3), reduction="none")
    problem.labels[:] = torch.tensor([1, 2, 3])
    problem.logits[0, 1, 7] = value
    answer = solve(problem)
    assert answer.output.loss.isfinite().tolist() == [[True, False, True]]
    assert answer.gradient[0, [0, 2]].isfinite().all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_number_weights_out_of_range(reduction: str) -> None:
    """NaN in the losses of their own rows, and in the gradients of those of them that are number rows."""
    numbers = digits(50, 10)
    other = next(token for token in range(50) if token not in numbers.ids)
    labels = torch.tensor([[*numbers.ids[:4].tolist(), other, -100]])
    weights = torch.tensor([[1.0, -0.5, torch.nan, 0.0, -1.0, torch.nan]])
    is_bad = torch.tensor([False, True, True, False, True, False])
    given = {"num_tokens": 3, "num_numbers": 2} if reduction == "mean" else {}
    logits = torch.randn(1, 6, 50).requires_grad_()
    loss = cross_entropy_ntl(
        logits, labels, numbers, number_weights=weights, reduction=reduction, backend="triton", **given
    )
    assert torch.equal(loss.isnan().view(-1), is_bad if reduction == "none" else torch.tensor([True]))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient[0].isnan().any(-1).tolist() == [False, True, True, False, False, False]
    assert (gradient[0, 5] == 0).all()


@pytest.mark.parametrize(("reduction", "dtype"), some(3, REDUCTIONS, DTYPES))
def test_labels_and_weights_out_of_range(reduction: str, dtype: torch.dtype) -> None:
    """NaN in their own rows, and nothing is read out of bounds."""
    labels = torch.tensor([[50, -1, 10**12, 4, 5, 20, 60, -100, -(2**40), 2**31 - 1, 2**32 + 4]])
    weights = torch.tensor([[1.0, 1.0, 1.0, -0.5, torch.nan, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    is_bad = torch.tensor([True] * 5 + [False] * 3 + [True] * 3)
    given = {"num_tokens": 3, "num_numbers": 2} if reduction == "mean" else {}
    logits = torch.randn(1, 11, 50).to(dtype).requires_grad_()
    loss = cross_entropy_ntl(
        logits, labels, digits(50, 10), token_weights=weights, reduction=reduction, backend="triton", **given
    )
    assert torch.equal(loss.isnan().view(-1), is_bad if reduction == "none" else torch.tensor([True]))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.equal(gradient[0].isnan().all(-1), is_bad) and torch.equal(gradient[0].isnan().any(-1), is_bad)
    assert (gradient[0, 6:8] == 0).all()
