"""What the gradients of a sharded vocabulary promise to whoever differentiates, batches, keeps or overwrites."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ntl_kernels import linear_cross_entropy_ntl

from . import gradients
from .ranks import Ranks

REDUCTIONS = ("mean", "sum", "none")
every_road = pytest.mark.parametrize("road", ["logits", "hidden"])


@every_road
@pytest.mark.parametrize("options", [{"reduction": reduction} for reduction in REDUCTIONS], ids=REDUCTIONS)
def test_what_one_rank_cannot_know_is_refused(ranks: Ranks, road: str, options: dict[str, Any]) -> None:
    for found in ranks.run(gradients.refusals, road, options, ranks=2):
        assert "no second derivatives" in found["by the inputs"]
        assert "no second derivatives" in found["by the upstream gradient"]
        assert "is_grads_batched" in found["batched"]


@every_road
def test_the_reference_refuses_it_as_well(ranks: Ranks, road: str) -> None:
    """Its gradients are right, but their derivatives would be one rank's share."""
    for found in ranks.run(gradients.refusals, road, {"backend": "reference"}, ranks=2):
        assert "no second derivatives" in found["by the inputs"]
        assert "no second derivatives" in found["by the upstream gradient"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_who_saved_overwritten_logits_raises(ranks: Ranks, reduction: str) -> None:
    for found in ranks.run(gradients.overwritten, reduction, ranks=2):
        assert all("modified by an inplace operation" in error for error in found), found


@every_road
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_infinite_upstream_gradient_leaves_ignored_rows_alone(ranks: Ranks, road: str, reduction: str) -> None:
    assert ranks.run(gradients.ignored_rows, road, reduction, ranks=2) == [[0.0, 0.0]] * 2


@every_road
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_loss_that_is_dropped_is_freed(ranks: Ranks, road: str, reduction: str) -> None:
    assert all(ranks.run(gradients.is_freed, road, reduction, ranks=2))


@pytest.mark.parametrize("case", gradients.HALF)
def test_float16_heads_equal_one_device(ranks: Ranks, case: str) -> None:
    """Whether gradients are kept or the logits made anew."""
    step, options = gradients.HALF[case]
    hidden, weight, numbers = gradients.half_problem(step)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    loss = linear_cross_entropy_ntl(*leaves, gradients.LABELS, numbers, **options)
    expected = torch.autograd.grad(loss, leaves, torch.tensor(0.5))
    found = ranks.run(gradients.half_gradients, case, ranks=3)
    for got, want in ((found[0][0], expected[0]), (torch.cat([part for _, part in found]), expected[1])):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3 * want.abs().max().item())
