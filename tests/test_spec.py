"""`LossSpec`: what follows from options and number values."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.spec import spec_of, spec_of_fields

DIGITS = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 12)
UNEVEN = NumberTokens.from_mapping({0: -3.0, 1: 0.5, 2: 0.5, 3: 12.0}, 12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label_smoothing", -0.5),
        ("label_smoothing", 1.5),
        ("z_loss", -1.0),
        ("z_loss", float("nan")),
        ("softcap", 0.0),
        ("softcap", -1.0),
        ("logit_scale", -1.0),
        ("logit_scale", 1e39),
        ("label_sigma", -1.0),
        ("huber_delta", 0.0),
        ("squash_factor", 0.5),
    ],
)
def test_what_a_trace_could_not_check_is_checked_by_its_operators(name: str, value: float) -> None:
    spec = spec_of(NTLConfig(squash_factor=2.0), UNEVEN, softcap=5.0)
    assert spec_of_fields(*vars(spec).values()) == spec
    with pytest.raises(ValueError, match=name):
        spec_of_fields(*(vars(spec) | {name: value}).values())


@pytest.mark.parametrize("name", ["label_smoothing", "z_loss", "softcap", "logit_scale"])
def test_a_bool_is_no_number_even_after_one_that_equals_it(name: str) -> None:
    assert getattr(spec_of(NTLConfig(), DIGITS, **{name: 1.0}), name) == 1
    with pytest.raises(TypeError, match=f"{name} must be a number; got True"):
        spec_of(NTLConfig(), DIGITS, **{name: True})


@pytest.mark.parametrize("unit", [1e-40, 1e-44])
def test_costs_that_rise_too_fast_are_named(unit: float) -> None:
    """The distances are float32, their reciprocals are not."""
    numbers = NumberTokens.from_mapping({0: 0.0, 1: unit, 2: 3 * unit}, 5)
    with pytest.raises(ValueError, match=r"squash_factor=3\.0.*values are .*e-4\d and .*e-4\d apart"):
        spec_of(NTLConfig(squash_factor=3.0), numbers)
    assert spec_of(NTLConfig(), numbers).worst_loss > 0
    small = NumberTokens.from_mapping({0: 0.0, 1: 1e-30, 2: 3e-30}, 5)
    assert spec_of(NTLConfig(squash_factor=3.0), small).cost_line[1] == pytest.approx(1e30)


def test_a_squash_factor_beyond_float32_is_named() -> None:
    with pytest.raises(ValueError, match=r"apart.*squash_factor=3\.4e\+38.*beyond float32"):
        spec_of(NTLConfig(squash_factor=3.4e38), DIGITS)


@pytest.mark.parametrize(
    ("kind", "largest"), [("wasserstein", 1.5e38), ("mae", 1.5e38), ("mse", 9e18), ("huber", 1.2e19)]
)
def test_losses_of_the_largest_distance_have_finite_gradients(kind: str, largest: float) -> None:
    """Twice the distance is rejected, by the loss or by the number tokens."""
    for reweigh, backend in product((True, False), ("eager", "reference")):
        config = NTLConfig(kind=kind, huber_delta=3e38, reweigh=reweigh, weight=1.0)
        numbers = NumberTokens.from_mapping({0: 0.0, 1: largest / 2, 2: largest}, 5)
        logits = torch.tensor([[9.0, -9, 0, 0, 0], [-90.0, 90, 0, 0, 0], [0.0, 0, 90, 0, 90]], requires_grad=True)
        loss = cross_entropy_ntl(
            logits, torch.tensor([2, 0, 0]), numbers, config=config, backend=backend, reduction="none"
        )
        (gradient,) = torch.autograd.grad(loss, logits, torch.ones(3))
        assert loss.isfinite().all() and gradient.isfinite().all()
        with pytest.raises(ValueError, match=r"beyond float32|must be within"):
            spec_of(config, NumberTokens.from_mapping({0: 0.0, 1: largest, 2: 2 * largest}, 5))


@pytest.mark.parametrize("numbers", [DIGITS, UNEVEN])
def test_squashed_costs_run_from_one_to_the_factor(numbers: NumberTokens) -> None:
    offset, slope = spec_of(NTLConfig(squash_factor=3.0), numbers).cost_line
    assert [offset + slope * d for d in numbers.groups[0][-2:]] == pytest.approx([1.0, 3.0])
    offset, slope = spec_of(NTLConfig(squash_factor=3.0), NumberTokens.from_mapping({0: 1.0, 1: 5.0}, 3)).cost_line
    assert offset + slope * 4 == 1.0
