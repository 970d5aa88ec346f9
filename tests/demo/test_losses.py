"""The demo's numbers are those of the float64 reference, and its presets show what they say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, cross_entropy_ntl
from ntl_kernels.config import KINDS
from ntl_kernels.demo.charts import shown
from ntl_kernels.demo.losses import (
    NUMBER_LOSSES,
    PRESETS,
    VOCABULARIES,
    Options,
    Shape,
    compare,
    gradients,
    number_loss_config,
    preset_shape,
    remark,
    title,
)

CONFIGS = {
    **{f"NTL-{title(kind)}": lambda o, r, kind=kind: NTLConfig(kind, o.weight, r) for kind in KINDS},
    "NTL-WAS": lambda o, r: NTLConfig("wasserstein", o.weight, r),
    "NTL-WAS, squash_factor": lambda o, r: NTLConfig("wasserstein", o.weight, r, squash_factor=o.squash_factor),
    "NTL-WAS, label_sigma": lambda o, r: NTLConfig("wasserstein", o.weight, r, label_sigma=o.label_sigma),
    "NTL-Huber": lambda o, r: NTLConfig("huber", o.weight, r, huber_delta=o.huber_delta),
}
DIGITS = VOCABULARIES["digits"]
share = st.floats(0, 1)
shapes = st.builds(Shape, st.integers(0, 9), st.floats(0.05, 40), st.integers(0, 9), share, share, st.floats(0, 0.999))
options = st.builds(Options, st.floats(1.1, 10), st.floats(0.1, 30), st.floats(0.1, 10), st.floats(0, 2))


def reference(logits: Tensor, label: int, kind: str, config: NTLConfig) -> NTLOutput:
    output = cross_entropy_ntl(
        logits[None],
        torch.tensor([label]),
        VOCABULARIES[kind].numbers,
        config=config,
        return_parts=True,
        backend="reference",
    )
    assert isinstance(output, NTLOutput)
    return output


def near(expected: float) -> object:
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(list(VOCABULARIES)), st.integers(0, 9), shapes, options)
def test_losses_are_the_references(kind: str, truth: int, shape: Shape, chosen: Options) -> None:
    vocabulary = VOCABULARIES[kind]
    result = compare(vocabulary, truth, shape, chosen)
    assert result.peaks == vocabulary.values
    moved = [(place, replace(shape, peak=result.peaks[place]).logits(vocabulary)) for place in (0, -1)]
    for name, loss in result.number_losses.items():
        for reweigh, curve in ((True, loss.reweighed), (False, loss.plain)):
            config = CONFIGS[name](chosen, reweigh)
            now = reference(shape.logits(vocabulary), truth, kind, config)
            assert curve.now == near(now.ntl.item())
            assert [curve.moved[place] for place, _ in moved] == [
                near(reference(logits, truth, kind, config).ntl.item()) for _, logits in moved
            ]
            assert curve.now <= loss.worst * (1 + 1e-9)
    assert result.cross_entropy.now == near(now.cross_entropy.item())
    assert result.number_mass == near(now.number_mass.item())
    assert result.number_mae == near(now.number_mae.item())


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(list(NUMBER_LOSSES)), st.booleans(), st.integers(0, 9), shapes, options)
def test_gradients_are_the_references(name: str, reweigh: bool, truth: int, shape: Shape, chosen: Options) -> None:
    logits = shape.logits(DIGITS)
    found = gradients(logits, truth, DIGITS, number_loss_config(name, chosen, reweigh))
    for gradient, config in (
        (found.total, CONFIGS[name](chosen, reweigh)),
        (found.cross_entropy, NTLConfig(weight=0.0)),
    ):
        given_logits = logits.clone().requires_grad_()
        (expected,) = torch.autograd.grad(reference(given_logits, truth, "digits", config).loss, given_logits)
        torch.testing.assert_close(torch.tensor(gradient, dtype=torch.float64), expected, rtol=1e-9, atol=1e-11)


@settings(deadline=None)
@given(shapes)
def test_shapes_are_distributions_with_the_shares_asked_for(shape: Shape) -> None:
    probabilities = shape.logits(DIGITS).exp()
    assert probabilities.sum().item() == pytest.approx(1)
    assert probabilities[10:].sum().item() == pytest.approx(shape.text_share)
    even = (1 - shape.text_share) * shape.even_share / 10
    assert (probabilities[:10] >= even - 1e-12).all()
    centres = torch.tensor([shape.peak, shape.second_peak], dtype=torch.float64)[:, None]
    peaks = torch.exp(-((torch.arange(10) - centres) ** 2) / (2 * shape.width**2))
    peaks /= peaks.sum(-1, keepdim=True)
    peaks = (1 - shape.second_share) * peaks[0] + shape.second_share * peaks[1]
    expected = even + (1 - shape.text_share) * (1 - shape.even_share) * peaks
    torch.testing.assert_close(probabilities[:10], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("truth", [0, 3, 4, 9])
def test_presets_show_what_they_say(kind: str, truth: int) -> None:
    vocabulary = VOCABULARIES[kind]
    high = vocabulary.values[-1]
    results = {n: compare(vocabulary, truth, preset_shape(n, vocabulary, truth), Options()) for n in PRESETS}
    near_and_far, right, close, far, uniform, peaks, text = (results[name].number_losses for name in PRESETS)
    two_peaks = preset_shape("near and far", vocabulary, truth)
    logits = two_peaks.logits(vocabulary)
    found = gradients(logits, truth, vocabulary, NTLConfig())
    near_place, far_place = int(two_peaks.peak), int(two_peaks.second_peak)
    assert abs(near_place - truth) == 1 and abs(far_place - truth) == max(truth, high - truth)
    alone, total = found.cross_entropy, found.total
    assert alone[near_place] == near(alone[far_place]) and alone[near_place] > 0
    assert total[near_place] < alone[near_place] < total[far_place]
    assert close["NTL-WAS"].plain.now < near_and_far["NTL-WAS"].plain.now < far["NTL-WAS"].plain.now
    for name, loss in right.items():
        wide = 1.2 if name == "NTL-WAS, label_sigma" else 0.05 * loss.worst  # whose target is wider than one number
        assert loss.plain.now < wide
        assert far[name].plain.now > close[name].plain.now > loss.plain.now
        assert text[name].plain.now == near(right[name].plain.now)
        assert text[name].reweighed.now > 0.85 * loss.worst
    near_ce, far_ce = (results[f"certain and {place}"].cross_entropy.now for place in ("near", "far"))
    assert near_ce == near(far_ce) and near_ce > 5
    mean_distance = sum(abs(value - truth) for value in vocabulary.values) / len(vocabulary.values)
    assert uniform["NTL-WAS"].plain.now == near(mean_distance)
    reach = min(truth, high - truth)
    assert peaks["NTL-WAS"].plain.now > 0.9 * reach
    if reach > 1 and kind == "digits":
        assert max(peaks[name].plain.now for name in ("NTL-MSE", "NTL-MAE", "NTL-Huber")) < 0.05


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_remarks_belong_to_their_shapes_alone(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    for name, preset in PRESETS.items():
        shape = preset_shape(name, vocabulary, 4)
        assert remark(shape, vocabulary, 4) == preset.remark
        for moved in (replace(shape, width=0.2), replace(shape, text_share=0.5), replace(shape, even_share=0.33)):
            assert remark(moved, vocabulary, 4) == ""
    assert remark(preset_shape("near and far", vocabulary, 4), vocabulary, 3) == "", "the same bars, another truth"


@pytest.mark.parametrize("truth", [0, 4, 9])
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_worst_is_reached_with_reweighing_whichever_the_true_number(kind: str, truth: int) -> None:
    vocabulary = VOCABULARIES[kind]
    high = vocabulary.values[-1]
    losses = compare(vocabulary, truth, Shape(0, text_share=1 - 1e-9), Options()).number_losses
    for loss in losses.values():
        assert loss.reweighed.now == pytest.approx(loss.worst) and loss.plain.now < loss.worst
    largest = {"NTL-WAS": high, "NTL-WAS, squash_factor": 2.0, "NTL-MSE": high**2, "NTL-MAE": high}
    largest["NTL-Huber"] = high - 0.5
    for name, loss in largest.items():
        assert losses[name].worst == pytest.approx(1.01 * loss)


@pytest.mark.parametrize("reading", [1e-9, -1e-9, 0.0])
def test_tiny_numbers_are_shown_without_a_sign(reading: float) -> None:
    assert shown(reading) == "0.0000"


def test_numbers_are_shown_with_fewer_decimals_as_they_grow() -> None:
    assert [shown(number) for number in (0.12345, -9.99, 12.345, 9801.0)] == ["0.1235", "-9.9900", "12.35", "9801"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"peak": math.nan}, "peak"),
        ({"peak": 1.0, "width": 0.0}, "width"),
        ({"peak": 1.0, "second_share": 1.1}, "second_share must be at most 1"),
        ({"peak": 1.0, "even_share": -0.1}, "even_share"),
        ({"peak": 1.0, "text_share": 1.0}, "text_share"),
    ],
)
def test_impossible_shapes_are_refused(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Shape(**arguments)


@pytest.mark.parametrize("truth", [-1, 10, 2.5, math.nan])
def test_true_numbers_without_a_token_are_refused(truth: float) -> None:
    with pytest.raises(ValueError, match="whole number from 0 to 9"):
        compare(DIGITS, truth, Shape(4), Options())
