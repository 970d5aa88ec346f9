"""Compare the results of the kernels with the truth, within float32's error bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..problems import Answer, Problem, largest_value, solve
from .bounds import Bounds
from .rounding import APPROXIMATE, Rounded


def hold(answer: Answer, problem: Problem, roundings: int = 1, ranks: int = 1) -> None:
    """Raise unless every entry is within its bound.

    Args:
        roundings: how often a gradient is rounded to the logits' dtype; twice where it is kept and scaled later.
        ranks: over how many shards a row's sums are taken.
    """
    bounds = Bounds(problem, ranks)
    parts, gradient = bounds.parts(), bounds.gradient()
    truth = solve(problem.in_dtype(torch.float64), "reference")
    check_the_truth(truth, parts, gradient, problem)
    for name, part in parts.items():
        got = getattr(answer.output, name)
        within(name, got, part.value.view(got.shape), part.error.view(got.shape), problem)
    if problem.options.get("softcap") is None:  # with a softcap, logits tie that differ in another precision
        accuracy = truth.output.token_accuracy.double()
        within("token_accuracy", answer.output.token_accuracy, accuracy, 2 * APPROXIMATE * accuracy, problem)
    if answer.gradient.numel() == truth.gradient.numel():  # if required
        hold_gradient(answer.gradient, gradient, problem, roundings)


def hold_gradient(got: Tensor, right: Rounded, problem: Problem, roundings: int = 1) -> None:
    """A gradient in the logits' dtype, to which it is rounded."""
    kind, expected, error = torch.finfo(got.dtype), right.value.view(got.shape), right.error.view(got.shape)
    to_dtype = kind.eps / 2 * roundings * (expected.abs() + error) + kind.smallest_normal * kind.eps * roundings
    within(f"gradient {str(got.dtype)[6:]}", got, expected, error + to_dtype, problem)


def within(name: str, got: Tensor, expected: Tensor, bound: Tensor, problem: Problem) -> None:
    assert got.shape == expected.shape, f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    got, expected = got.detach().double(), expected.detach()
    is_nan = expected.isnan()
    assert torch.equal(got.isnan(), is_nan), f"NaN elsewhere in {name} of {problem}: {got}, expected {expected}"
    assert bound[expected.isfinite()].isfinite().all(), f"{name} has no bound in {problem}"
    lost = torch.where(is_nan | (got == expected), 0.0, (got - expected).abs() / bound)
    worst = float(lost.max()) if lost.numel() else 0.0
    if not worst <= 1:
        at = int(lost.nan_to_num(nan=torch.inf).argmax())
        raise AssertionError(
            f"{name} is off by {worst:.3g} times its bound at element {at}: {got.flatten()[at]}, expected "
            f"{expected.flatten()[at]} within {bound.flatten()[at]:.3g}, of {problem}"
        )


def check_the_truth(truth: Answer, parts: dict[str, Rounded], gradient: Rounded, problem: Problem) -> None:
    """The project's reference and the formulas of the bounds agree in float64."""
    largest = max(largest_value(problem.numbers, undone) for undone in (False, True))
    for name, part in parts.items():
        expected = getattr(truth.output, name).detach().double()
        torch.testing.assert_close(part.value.view(expected.shape), expected, rtol=1e-6, atol=1e-12 * largest**2)
    expected = truth.gradient
    torch.testing.assert_close(gradient.value.view(expected.shape), expected, rtol=1e-6, atol=1e-12 * largest**2)
