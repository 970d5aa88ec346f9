"""The picture's loss and arrows are those of the float64 reference, and show what the number loss is for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.config import KINDS
from ntl_kernels.demo.picture import FIRST, TOKENS, answer, in_arrows, in_words

VALUES = {token: float(text) for token, text in enumerate(TOKENS) if text.isdigit()}
SOFT = {"kind": "soft_labels", "label_sigma": 1.5}
OPTIONS = [*({"kind": kind} for kind in KINDS[:-1]), SOFT, {"squash_factor": 3}, {"label_sigma": 1.5}]
HEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=11, max_size=11)


def ask(**setting: Any) -> dict[str, Any]:
    return answer({}, json.dumps({**FIRST, **setting}).encode())


def reference(heights: list[float], label: int, config: NTLConfig) -> tuple[NTLOutput, list[float]]:
    """The parts of the loss, and minus its gradient by each logit."""
    rows = torch.tensor([heights], dtype=torch.float64).log().requires_grad_()
    numbers = NumberTokens.from_mapping(VALUES, len(TOKENS))
    labels = torch.tensor([label])
    output = cross_entropy_ntl(rows, labels, numbers, config=config, return_parts=True, backend="reference")
    assert isinstance(output, NTLOutput)
    return output, (-torch.autograd.grad(output.loss, rows)[0][0]).tolist()


def numbers_in(words: str) -> list[float]:
    return [float(number) for number in re.findall(r"[0-9]+\.[0-9]+", words)]


@settings(deadline=None, max_examples=60)
@given(HEIGHTS, st.integers(0, 10), st.sampled_from(OPTIONS), st.floats(0, 2), st.booleans())
def test_loss_and_arrows(heights: list[float], label: int, option: Any, weight: float, reweigh: bool) -> None:
    options = {"weight": weight, "reweigh": reweigh and option != SOFT, **option}
    found = ask(heights=heights, label=label, **options)
    output, both = reference(heights, label, NTLConfig(**options))
    _, alone = reference(heights, label, NTLConfig(weight=0.0))
    for index, expected in enumerate((alone, both)):
        assert [pair[index] for pair in found["arrows"]] == [pytest.approx(e, rel=1e-6, abs=1e-9) for e in expected]
    cross_entropy, _, ntl, loss = numbers_in(found["loss"])
    parts = [part.item() for part in (output.cross_entropy, output.ntl, output.loss)]
    assert [cross_entropy, ntl, loss] == pytest.approx(parts, abs=6e-4)
    assert [row[0] for row in found["rows"]] == list(TOKENS)
    shares = [height / sum(heights) for height in heights]
    assert [numbers_in(row[1]) for row in found["rows"]] == [[pytest.approx(100 * s, abs=0.06)] for s in shares]


def test_at_first_cross_entropy_pushes_3_and_9_alike_and_ntl_spares_3() -> None:
    arrows = ask()["arrows"]
    (near, near_both), (far, far_both) = arrows[3], arrows[9]
    assert near == pytest.approx(far) and near < 0
    assert far_both < far < near_both < 0
    assert ask(weight=1.0)["arrows"][3][1] > 0
    assert [place for place, (alone, _) in enumerate(arrows) if alone > 0] == [4]


def test_gradients_in_words() -> None:
    found = [(in_words(gradient), in_arrows(gradient)) for gradient in (0.4, -0.87, 0.0049)]
    assert found == [("pushes it down by 0.40", "↓ 0.40"), ("pulls it up by 0.87", "↑ 0.87"), ("leaves it", "0.00")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "Expecting value"),
        ("null", "a setting needs heights and label; got None"),
        ({"heights": [1.0] * 10}, "heights must be 11 numbers above 0"),
        ({"heights": [0.0] + [1.0] * 10}, "a height must be finite and above 0; got 0.0"),
        ({"heights": [float("nan")] * 11}, "a height must be finite"),
        ({"label": 2.5}, "label must be a whole number from 0 to 10; got 2.5"),
        ({"weight": -1}, "weight must be finite and at least 0; got -1"),
        ({"kind": "l2"}, "kind must be one of wasserstein, "),
        ({"kind": "mse", "label_sigma": 1}, "need kind='wasserstein'; got kind='mse'"),
        ({"temperature": 1}, "unexpected keyword argument 'temperature'"),
    ],
)
def test_a_wrong_setting_gets_a_sentence(content: Any, problem: str) -> None:
    found = answer({}, content.encode()) if isinstance(content, str) else ask(**content)
    assert list(found) == ["problem"] and problem in found["problem"] and found["problem"].endswith(".")
