"""The demo's first picture: its arrows are minus the library's gradients, and show what the number loss is for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ntl_kernels import NTLConfig, cross_entropy_ntl
from ntl_kernels.demo.losses import VOCABULARIES
from ntl_kernels.demo.picture import FIRST, answer, in_arrows, in_words, markup

REQUEST: dict[str, Any] = {"heights": list(FIRST.heights), "truth": 4, "weight": 0.3}
heights = st.lists(st.floats(1e-3, 1e3), min_size=10, max_size=10)


@settings(deadline=None, max_examples=25)
@given(heights, st.integers(0, 9), st.floats(0, 1))
def test_arrows_are_what_a_step_of_gradient_descent_does(heights: list[float], truth: int, weight: float) -> None:
    found = answer({"heights": heights, "truth": truth, "weight": weight})["arrows"]
    text = [-math.inf] * 4
    logits = torch.tensor([*map(math.log, heights), *text], dtype=torch.float64)
    for index, config in enumerate((NTLConfig(weight=0.0), NTLConfig(weight=weight))):
        rows = logits[None].clone().requires_grad_()
        numbers = VOCABULARIES["digits"].numbers
        loss = cross_entropy_ntl(rows, torch.tensor([truth]), numbers, config=config, backend="reference")
        (gradient,) = torch.autograd.grad(loss, rows)
        expected = (-gradient[0, :10]).tolist()
        assert [pair[index] for pair in found] == [pytest.approx(one, rel=1e-6, abs=1e-9) for one in expected]


def test_at_first_cross_entropy_pushes_3_and_9_alike_and_ntl_spares_3() -> None:
    arrows = answer(REQUEST)["arrows"]
    (near, near_both), (far, far_both) = arrows[3], arrows[9]
    assert near == pytest.approx(far) and near < 0
    assert far_both < far < near_both < 0
    assert answer({**REQUEST, "weight": 1.0})["arrows"][3][1] > 0
    assert [place for place, (alone, _) in enumerate(arrows) if alone > 0] == [4]


def test_the_legend_names_the_truth_and_the_two_likeliest_wrong_numbers() -> None:
    readout = answer(REQUEST)["readout"]
    assert readout.index('<th scope="col">3</th>') < readout.index("class=true>4</th>") < readout.index('col">9</th>')
    assert "↓ 0.40</td><td>↑ 0.87</td><td>↓ 0.40" in readout and "+ 0.30 NTL" in readout
    assert "class=true>9</th>" in answer({**REQUEST, "truth": 9})["readout"]
    assert readout in markup()


@pytest.mark.parametrize(
    ("gradient", "words", "arrow"),
    [
        (0.4, "pushes it down by 0.40", "↓ 0.40"),
        (-0.87, "pulls it up by 0.87", "↑ 0.87"),
        (0.0049, "leaves it", "0.00"),
        (-0.005, "pulls it up by 0.01", "↑ 0.01"),
    ],
)
def test_gradients_in_words(gradient: float, words: str, arrow: str) -> None:
    assert (in_words(gradient), in_arrows(gradient)) == (words, arrow)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (None, "a request must hold heights, truth, weight; got None"),
        ({"heights": [1.0]}, "a request must hold heights, truth, weight"),
        ({**REQUEST, "heights": [1.0] * 9}, "heights must be 10 numbers above 0"),
        ({**REQUEST, "heights": [0.0] + [1.0] * 9}, "heights must be 10 numbers above 0"),
        ({**REQUEST, "heights": ["1"] * 10}, "heights must be 10 numbers above 0"),
        ({**REQUEST, "truth": None}, "truth must be a number; got None"),
        ({**REQUEST, "truth": 2.5}, "the true number must be a whole number from 0 to 9; got 2.5"),
        ({**REQUEST, "weight": -1}, "weight"),
        ({**REQUEST, "weight": "much"}, "weight"),
    ],
)
def test_a_wrong_request_gets_a_sentence(request_: Any, problem: str) -> None:
    found = answer(request_)
    assert list(found) == ["problem"] and problem in found["problem"] and found["problem"].endswith(".")
