"""The picture's loss and arrows are those of the float64 reference, and show what the number loss is for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.config import KINDS
from ntl_kernels.demo.picture import FIRST, LEAST, TOKENS, answer, in_arrows, in_words

VALUES = {token: float(text) for token, text in enumerate(TOKENS) if text.isdigit()}
SOFT = {"kind": "soft_labels", "label_sigma": 1.5}
OPTIONS = [*({"kind": kind} for kind in KINDS[:-1]), SOFT, {"squash_factor": 3}, {"label_sigma": 1.5}]
HEIGHTS = st.lists(st.floats(1e-3, 1e3), min_size=11, max_size=11)
LABELS, WEIGHTS, WHOLE = st.integers(0, 10), st.floats(0, 2), st.integers(0, 999_999)
SIGMAS = {kind: 1.0 if kind == "soft_labels" else 0.0 for kind in KINDS}


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


def plain_ntl(kind: str, shares: Tensor, label: int) -> Tensor:
    """NTL of one row, from the paper's formulas; of soft_labels, with sigma 1."""
    if label == len(VALUES):
        return shares.new_zeros(())
    digits, offsets = shares[:10], torch.arange(10, dtype=torch.float64) - label
    error = (digits / digits.sum() * offsets).sum()
    target = (-(offsets**2) / 2).softmax(-1)
    return {
        "wasserstein": (digits / digits.sum() * offsets.abs()).sum(),
        "mse": error**2,
        "mae": error.abs(),
        "huber": torch.nn.functional.huber_loss(error, error.new_zeros(())),
        "soft_labels": (target * (target / digits).log()).sum(),
    }[kind]


def gradient(logits: Tensor, label: int, kind: str, cross_entropy: float, weight: float) -> Tensor:
    """Of ``cross_entropy`` times that and ``weight`` times NTL."""
    logits = logits.clone().requires_grad_()
    shares = logits.softmax(-1)
    loss = cross_entropy * -shares[label].log() + weight * plain_ntl(kind, shares, label)
    return torch.autograd.grad(loss, logits)[0]


def from_arrow(words: str) -> float:
    """The gradient that :func:`in_arrows` prints."""
    return float(words.split()[-1]) * (-1 if "↑" in words else 1)


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


@settings(deadline=None, max_examples=60)
@given(HEIGHTS, LABELS, st.sampled_from(KINDS), WEIGHTS)
def test_curves_step_and_kinds(heights: list[float], label: int, kind: str, weight: float) -> None:
    found = ask(heights=heights, label=label, kind=kind, weight=weight, label_sigma=SIGMAS[kind])
    logits = torch.tensor(heights, dtype=torch.float64).log()
    shares = logits.softmax(-1)
    top, wrong = found["at"], TOKENS.index(found["wrong"].strip("“”"))
    assert heights[top] == pytest.approx(max(heights))
    assert wrong != label and heights[wrong] == pytest.approx(max(heights[:label] + heights[label + 1 :]))
    for index, factor in enumerate((0.0, weight)):
        for digit, loss in enumerate(found["curves"][index]):
            moved = shares.clone()
            moved[digit], moved[top] = shares[top], shares[digit]
            expected = -moved[label].log() + factor * plain_ntl(kind, moved, label)
            assert loss == pytest.approx(expected.item(), abs=1e-9)
    assert len(found["curves"]) == 2 and {len(losses) for losses in found["curves"]} == {10}
    step = (logits - gradient(logits, label, kind, 1.0, weight)).softmax(-1).clamp(min=LEAST)
    assert found["step"] == pytest.approx((step / step.sum()).tolist())
    assert sum(found["step"]) == pytest.approx(1, abs=1e-12)
    assert [row[0] for row in found["kinds"]] == list(KINDS)
    for other, ntl, *arrows in found["kinds"]:
        assert float(ntl) == pytest.approx(plain_ntl(other, shares, label).item(), abs=6e-4)
        expected = gradient(logits, label, other, 0.0, weight)[[label, wrong]]
        assert [from_arrow(words) for words in arrows] == pytest.approx(expected.tolist(), abs=6e-3)


@settings(deadline=None, max_examples=30)
@given(HEIGHTS, LABELS)
def test_words_on_the_curves(heights: list[float], label: int) -> None:
    found = ask(heights=heights, label=label)
    mean = sum(digit * height for digit, height in enumerate(heights[:10])) / sum(heights[:10])
    assert found["expected"] == pytest.approx(mean)
    assert found["mean"] == f"Expected value {found['expected']:.2f}"
    share = heights[found["at"]] / sum(heights)
    read = re.fullmatch(r"The losses if the (\d+)% of “(\w+)” moved to each digit", found["read"])
    assert read and int(read[1]) == pytest.approx(100 * share, abs=0.51) and read[2] == TOKENS[found["at"]]
    pairs = enumerate(zip(*found["curves"], strict=True))
    said = [f"{digit}: cross-entropy {alone:.2f}, with NTL {both:.2f}" for digit, (alone, both) in pairs]
    assert found["drawing"] == "; ".join(said)


@pytest.mark.parametrize("option", [{"reweigh": True}, {"kind": "mae", "reweigh": True}, SOFT])
def test_kinds_share_the_options_they_take(option: dict[str, Any]) -> None:
    sigma = option.get("label_sigma", 1.0)
    for kind, ntl, *_ in ask(**option)["kinds"]:
        own = {"label_sigma": sigma} if kind == "soft_labels" else {"reweigh": option.get("reweigh", False)}
        expected, _ = reference(FIRST["heights"], 4, NTLConfig(kind, **own))
        assert ntl == f"{expected.ntl:.3f}"


def test_the_largest_step_leaves_bars_to_drag() -> None:
    """Where softmax rounds the label's probability to 1 and all others to less than the least."""
    heights = ask(heights=[0.5, *[1e-6] * 8, 0.5, 1e-6], label=0, kind="mse", weight=2)["step"]
    assert heights == pytest.approx([1 - 10 * LEAST, *[LEAST] * 10], rel=2e-5)


@settings(deadline=None, max_examples=30)
@given(WHOLE, WHOLE, st.sampled_from(KINDS))
def test_each_digit_of_a_number_is_compared_with_its_own(number: int, guess: int, kind: str) -> None:
    label, other = (f"{each:0{max(len(str(number)), len(str(guess)))}}" for each in (number, guess))
    found = ask(numbers=[label, other], kind=kind, label_sigma=SIGMAS[kind])
    ntl = []
    for own, guessed, *parts in found["digits"]:
        shares = torch.full((11,), LEAST, dtype=torch.float64)
        shares[int(own)] += 0.1
        shares[int(guessed)] += 0.9
        shares /= shares.sum()
        ntl.append(plain_ntl(kind, shares, int(own)).item())
        assert [float(part) for part in parts] == pytest.approx([-shares[int(own)].log().item(), ntl[-1]], abs=6e-3)
    assert ["".join(digits) for digits in zip(*(row[:2] for row in found["digits"]), strict=True)] == [label, other]
    start = f"{other} is {abs(number - guess):,} off {label}; NTL, the mean over its digits, is "
    mean = float(found["off"].removeprefix(start).removesuffix("."))
    assert mean == pytest.approx(sum(ntl) / len(ntl), abs=6e-3)


@pytest.mark.parametrize(
    ("number", "guess"),
    [
        *(("412", "38"), ("", "389"), ("412", ""), ("9" * 7, "9" * 7), ("9" * 5000, "1" * 5000)),
        *(("4.2", "3.9"), ("-12", "-13"), ("٤١٢", "٣٨٩"), ("12\n", "12\n"), ("4a2", "389")),
    ],
)
def test_other_texts_than_two_numbers_alike_get_a_sentence(number: str, guess: str) -> None:
    """And the rest its answer."""
    found = ask(numbers=[number, guess])
    assert found == ask() | {"off": "Write two numbers of equal length: at most 6 digits, nothing else."}
    assert found["digits"] == [] and ask(numbers=["", ""]) == ask() and ask()["off"] == ""


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
        *(
            ({"numbers": each}, f"numbers must be two texts; got {each!r}")
            for each in (None, [], "41", [4, 3], ["4"] * 3)
        ),
        ({"temperature": 1}, "unexpected keyword argument 'temperature'"),
    ],
)
def test_a_wrong_setting_gets_a_sentence(content: Any, problem: str) -> None:
    found = answer({}, content.encode()) if isinstance(content, str) else ask(**content)
    assert list(found) == ["problem"] and problem in found["problem"] and found["problem"].endswith(".")
