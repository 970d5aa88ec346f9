"""`number_statistics` against a softmax in float64, forward and backward; `number_answers` against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ntl_kernels import NumberTokens
from ntl_kernels.statistics import number_answers, number_statistics

from .large_logits import large_problem

NUMBERS = NumberTokens.from_mapping({3: -1.5, 4: 2.0, 9: 2.0, 10: 7.0}, 13)
GROUPS: list[dict[int, float]] = [{3: -1.5, 10: 7.0}, {4: 2.0}, {0: 5.0, 9: 2.0, 12: 2.5}]


def true_statistics(logits: Tensor, numbers: NumberTokens = NUMBERS) -> tuple[Tensor, Tensor]:
    """(yhat, m) in float64, of number tokens in one group."""
    x = logits.double()
    q = x[..., numbers.ids].softmax(-1)
    return (q * numbers.values.double()).sum(-1), x.softmax(-1)[..., numbers.ids].sum(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 2, 3), (0,)])
def test_equals_the_softmax(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """For any results that are differentiated, and any strides of logits and upstream gradients."""
    base = (torch.randn(13, *shape) * 3).to(dtype).requires_grad_()
    logits = base.movedim(0, -1)
    found, true = number_statistics(logits, NUMBERS), true_statistics(logits)
    result_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    precision = 1e-12 if dtype == torch.float64 else 5e-6
    rounding = max(4 * torch.finfo(dtype).eps, precision)  # of a gradient
    for part, expected in zip(found, true, strict=True):
        torch.testing.assert_close(part, expected.to(result_dtype), rtol=precision, atol=precision)
    upstreams = torch.randn(*shape, 2).unbind(-1)
    for wanted in ([0], [1], [0, 1]):
        gradients = [
            torch.autograd.grad(
                [results[i] for i in wanted], base, [upstreams[i].to(results[i]) for i in wanted], retain_graph=True
            )
            for results in (found, true)
        ]
        torch.testing.assert_close(*gradients, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_each_group_has_its_own(shape: tuple[int, ...]) -> None:
    """Results and gradients; NaN and 0 where all of a group is at -inf."""
    logits = torch.randn(*shape, 13, dtype=torch.float64)
    logits.view(-1, 13)[:1, [3, 10]] = -torch.inf
    logits.requires_grad_()
    found = number_statistics(logits, NumberTokens.from_groups(GROUPS, 13))
    x = logits.softmax(-1)
    for i, group in enumerate(GROUPS):
        ids, values = torch.tensor([*group]), torch.tensor([*group.values()], dtype=torch.float64)
        mass = x[..., ids].sum(-1)
        expected = (x[..., ids] * values).sum(-1) / mass
        torch.testing.assert_close(found.mass[..., i], mass)
        torch.testing.assert_close(found.expected_value[..., i], expected, equal_nan=True)
        is_measured = expected.isfinite()
        for got, want in ((found.mass[..., i], mass), (found.expected_value[..., i], expected)):
            gradients = [
                torch.autograd.grad(part[is_measured].sum(), logits, retain_graph=True)[0] for part in (got, want)
            ]
            torch.testing.assert_close(gradients[0], gradients[1].nan_to_num())
    assert found.mass.shape == found.expected_value.shape == (*shape, 3)


@pytest.mark.parametrize("numbers", [NUMBERS, NumberTokens.from_groups(GROUPS, 13)])
def test_all_derivatives(numbers: NumberTokens) -> None:
    """First and second order, reverse and forward mode, single and batched."""
    logits = torch.randn(3, 13, dtype=torch.float64, requires_grad=True)

    def statistics(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(number_statistics(x, numbers))

    assert torch.autograd.gradcheck(statistics, logits, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(statistics, logits)


def test_a_row_that_nobody_asks_about_has_no_gradient() -> None:
    """Even if it has no finite number logit, or no finite logit at all."""
    logits = torch.randn(3, 13)
    logits[1, NUMBERS.ids] = -torch.inf
    logits[2] = -torch.inf
    logits.requires_grad_()
    for index in (0, 1):
        gradient = torch.autograd.grad(number_statistics(logits, NUMBERS)[index][0], logits)[0]
        assert gradient[0].any() and not gradient[1:].any()


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, -1e7])
def test_the_gradient_of_large_values_keeps_its_digits(offset: float) -> None:
    """An offset of all values changes nothing; nor do values far away that have no probability."""
    numbers = NumberTokens.from_mapping({**{i: offset + i for i in range(10)}, 11: -3e7}, 13)
    logits = torch.randn(4, 13)
    logits[:, 11] = -torch.inf
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(number_statistics(logits, numbers).expected_value.sum(), logits)
    q, steps = logits.detach().double()[:, :10].softmax(-1), torch.arange(10, dtype=torch.float64)
    truth = q * (steps - (q * steps).sum(-1, keepdim=True))
    torch.testing.assert_close(gradient[:, :10].double(), truth, rtol=1e-5, atol=1e-6)


def test_large_logits_lose_no_digits() -> None:
    """Also where no number logit is finite: the mass is 0 then, and only the expected value NaN."""
    problem = large_problem(torch.float32, "none")
    logits = problem.logits.clone()
    logits[:4, problem.numbers.ids] = -torch.inf
    found, true = number_statistics(logits, problem.numbers), true_statistics(logits, problem.numbers)
    torch.testing.assert_close(torch.stack(found).double(), torch.stack(true), rtol=2e-6, atol=2e-6, equal_nan=True)


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"logits.*int64"):
        number_statistics(torch.ones(2, 13, dtype=torch.long), NUMBERS)
    with pytest.raises(ValueError, match=r"13.*14"):
        number_statistics(torch.ones(2, 14), NUMBERS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_answers_are_those_of_the_distribution(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """NumPy's weighted quantiles, in every group; the mean is the expected value."""
    numbers, levels = NumberTokens.from_groups(GROUPS, 13), (0.05, 0.3, 0.95)
    logits = (torch.randn(*shape, 13) * 2).to(dtype)
    found = number_answers(logits, numbers, levels)
    torch.testing.assert_close(found.mean, number_statistics(logits, numbers).expected_value, rtol=1e-5, atol=1e-5)
    assert found.quantiles.shape == (*shape, 3, 3)
    of_rows = found.most_likely.view(-1, 3), found.median.view(-1, 3), found.quantiles.view(-1, 3, 3)
    for row, *answers in zip(logits.double().view(-1, 13), *of_rows, strict=True):
        for i, group in enumerate(GROUPS):
            values, share = np.array([*group.values()]), row[[*group]].softmax(-1).numpy()
            assert answers[0][i] == values[share.argmax()]
            right = np.quantile(values, (0.5, *levels), weights=share, method="inverted_cdf")
            assert [answers[1][i].item(), *answers[2][i].tolist()] == pytest.approx(right.tolist())


def test_answers_of_rows_without_a_number_are_nan_and_wrong_levels_are_named() -> None:
    found = number_answers(torch.full((2, 13), -torch.inf), NUMBERS)
    assert all(part.isnan().all() for part in found)
    for wrong in (torch.nan, torch.inf):
        found = number_answers(torch.zeros(13).index_fill(0, NUMBERS.ids[1:2], wrong), NUMBERS, iter([0.5]))
        assert all(part.isnan().all() for part in found) and found.quantiles.numel() == found.median.numel()
    for ask in (number_answers, number_statistics):
        with pytest.raises(TypeError, match="logits must be a float32, .* tensor; got NoneType"):
            ask(None, NUMBERS)
    with pytest.raises(ValueError, match=r"a level must be .* at most 1; got 1\.5"):
        number_answers(torch.zeros(13), NUMBERS, levels=[1.5])


def test_all_probability_lies_between_its_ends() -> None:
    """However it is rounded: never beyond the last number that has any."""
    numbers = NumberTokens.from_mapping({token: float(token) for token in range(100)}, 100)
    logits = torch.randn(400, 100).index_fill(1, torch.arange(90, 100), -torch.inf)
    assert (number_answers(logits, numbers, [1.0]).quantiles == 89).all()
