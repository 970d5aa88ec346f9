"""Hold an answer of the kernels to what is right, within what float32 loses."""

from __future__ import annotations

import torch
from torch import Tensor


from ..problems import Answer, Problem, solve
from .bounds import Bounds
from .rounding import Rounded
from .truth import independent_gradient

WORST: dict[str, float] = {}
"""The largest error so far as a share of its bound, by what it is of."""


def hold(answer: Answer, problem: Problem, roundings: int = 1, ranks: int = 1) -> None:
    """Raise unless every entry is right.

    Args:
        roundings: how often a gradient is rounded to the logits' dtype; twice where it is kept and scaled later.
        ranks: over how many shards a row's sums are taken.
    """
    bounds = Bounds(problem, ranks)
    truth = solve(problem.in_dtype(torch.float64), "reference")
    check_the_reference(truth, problem)
    for name, bound in bounds.parts().items():
        got = getattr(answer.output, name)
        expected = getattr(truth.output, name).double()
        within(name, got, expected, bound.error.view(expected.shape), problem)
    if problem.options.get("softcap") is None:  # under a softcap logits tie that differ in another precision
        assert torch.equal(answer.output.token_accuracy.double(), truth.output.token_accuracy.float().double())
    if answer.gradient.numel() == truth.gradient.numel():  # asked for
        hold_gradient(answer.gradient, truth.gradient, bounds.gradient(), problem, roundings)


def hold_gradient(got: Tensor, expected: Tensor, bound: Rounded, problem: Problem, roundings: int = 1) -> None:
    """A gradient in the logits' dtype, to which it is rounded."""
    kind = torch.finfo(got.dtype)
    error = bound.error.view(expected.shape)
    to_dtype = kind.eps / 2 * roundings * (expected.abs() + error) + kind.smallest_normal * kind.eps * roundings
    within(f"gradient {str(got.dtype)[6:]}", got, expected, error + to_dtype, problem)


def within(name: str, got: Tensor, expected: Tensor, bound: Tensor, problem: Problem) -> None:
    assert got.shape == expected.shape, f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    got, expected = got.detach().double(), expected.detach()
    is_nan = expected.isnan()
    assert torch.equal(got.isnan(), is_nan), f"NaN elsewhere in {name} of {problem}: {got}, expected {expected}"
    lost = torch.where(is_nan | (got == expected), 0.0, (got - expected).abs() / bound)
    worst = float(lost.max()) if lost.numel() else 0.0
    WORST[name] = max(WORST.get(name, 0.0), worst)
    if not worst <= 1:
        at = int(lost.nan_to_num(nan=torch.inf).argmax())
        raise AssertionError(
            f"{name} is off by {worst:.3g} times its bound at element {at}: {got.flatten()[at]}, expected "
            f"{expected.flatten()[at]} within {bound.flatten()[at]:.3g}, of {problem}"
        )


def check_the_reference(truth: Answer, problem: Problem) -> None:
    """The project's reference equals the independent loss."""
    gradient = independent_gradient(problem)
    torch.testing.assert_close(truth.gradient, gradient, rtol=1e-6, atol=1e-12)


