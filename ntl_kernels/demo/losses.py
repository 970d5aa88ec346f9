"""What the first page shows: losses and gradients of one prediction that a person has shaped.

All of it comes from :func:`ntl_kernels.cross_entropy_ntl` in float64; nothing here draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..config import KINDS, NTLConfig, NTLOutput, check_number
from ..functional import cross_entropy_ntl
from ..tokens import NumberTokens

TEXT_TOKENS = (" the", " apples", ",", "<eos>")
"""What the made-up vocabularies have beside numbers."""
ABBREVIATIONS = ("mse", "mae")
"""Kinds of loss that are written in capitals."""


class Vocabulary:
    """A made-up vocabulary: ``texts`` [V], of which ``numbers`` are the number tokens."""

    def __init__(self, number_texts: list[str]) -> None:
        self.texts = (*number_texts, *TEXT_TOKENS)
        self.numbers = NumberTokens.from_tokenizer(self, digits_only=False)
        self.values: list[float] = self.numbers.values.tolist()

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, as :meth:`NumberTokens.from_tokenizer` asks a tokenizer for it."""
        return {text: token for token, text in enumerate(self.texts)}

    def label(self, truth: float) -> int:
        """The token id of the number ``truth``.

        Raises:
            ValueError: no token is worth that.
        """
        if truth not in self.values:
            low, high = self.values[0], self.values[-1]
            raise ValueError(f"the true number must be a whole number from {low:g} to {high:g}; got {truth:g}")
        return int(self.numbers.ids[self.values.index(truth)])


VOCABULARIES: Mapping[str, Vocabulary] = {
    "digits": Vocabulary([str(number) for number in range(10)]),
    "many-digit tokens": Vocabulary([str(number) for number in range(100)]),
}


@dataclass(frozen=True)
class Shape:
    """A predicted distribution: one or two peaks over the number tokens, a part spread evenly, and text.

    Args:
        peak, second_peak: where the peaks lie, in units of value.
        width: their standard deviation, above 0.
        second_share: how much of the peaks the second one has, 0 to 1.
        even_share: how much of the numbers' probability is spread evenly over all of them, 0 to 1.
        text_share: probability on the tokens that are no numbers, together: at least 0 and below 1.

    Raises:
        TypeError, ValueError: an argument is no number or out of range.
    """

    peak: float
    width: float = 0.1
    second_peak: float = 0.0
    second_share: float = 0.0
    even_share: float = 0.01
    text_share: float = 0.0

    def __post_init__(self) -> None:
        check_number("peak", self.peak)
        check_number("second_peak", self.second_peak)
        check_number("width", self.width, above=0.0)
        for name in ("second_share", "even_share"):
            check_number(name, getattr(self, name), minimum=0.0)
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1; got {getattr(self, name)!r}")
        check_number("text_share", self.text_share, minimum=0.0, below=1.0)

    def logits(self, vocabulary: Vocabulary) -> Tensor:
        """Log-probabilities [V] in float64: finite however narrow the peaks, but -inf for text without a share."""
        values = vocabulary.numbers.values.double()
        parts = [
            ((1 - self.even_share) * (1 - self.second_share), log_peak(values, self.peak, self.width)),
            ((1 - self.even_share) * self.second_share, log_peak(values, self.second_peak, self.width)),
            (self.even_share, torch.full_like(values, -math.log(len(values)))),
        ]
        mixture = torch.stack([log(share) + part for share, part in parts]).logsumexp(0)
        text = log(self.text_share) - math.log(len(TEXT_TOKENS))
        logits = torch.full((vocabulary.numbers.vocab_size,), text, dtype=torch.float64)
        logits[vocabulary.numbers.ids] = log(1 - self.text_share) + mixture
        return logits


def log_peak(values: Tensor, centre: float, width: float) -> Tensor:
    """Log-probabilities [K] of a Gaussian over the values."""
    return (-((values - centre) ** 2) / (2 * width**2)).log_softmax(-1)


def log(share: float) -> float:
    """The logarithm, and -inf of 0."""
    return math.log(share) if share > 0 else -math.inf


class Preset(NamedTuple):
    """A shape to start from, and what to look at."""

    shape: Callable[[float, float, float], Shape]
    """Of the true number, the smallest and the largest number."""
    remark: str


def further_end(truth: float, low: float, high: float) -> float:
    return high if high - truth >= truth - low else low


def two_peaks(truth: float, low: float, high: float) -> Shape:
    """Equally far on both sides of the truth, or, where it is at an end, on it and at the other end."""
    reach = min(truth - low, high - truth)
    first, second = (truth - reach, truth + reach) if reach else (truth, further_end(truth, low, high))
    return Shape(first, second_peak=second, second_share=0.5)


def near_and_far(truth: float, low: float, high: float) -> Shape:
    """One off, and as far off as can be: not equally far, so that the gradient of NTL-WAS does not cancel."""
    near = truth - 1 if truth > low else truth + 1
    return Shape(near, second_peak=further_end(truth, low, high), second_share=0.5, even_share=0.1)


PRESETS: Mapping[str, Preset] = {
    "near and far": Preset(
        near_and_far,
        "Two equal wrong peaks. Cross-entropy pushes both down alike; NTL spares the near one and pushes the far one "
        "harder: see the gradient below.",
    ),
    "certain and right": Preset(
        lambda truth, low, high: Shape(truth),
        "Nearly all probability on the true number: every loss is small. With label_sigma the target is wider than one "
        "number, so that being certain costs something, too.",
    ),
    "certain and near": Preset(
        lambda truth, low, high: Shape(truth + 1 if truth < high else truth - 1),
        "One off. Now choose “certain and far” and see which numbers change.",
    ),
    "certain and far": Preset(
        lambda truth, low, high: Shape(further_end(truth, low, high)),
        "As far off as can be. Cross-entropy is what it was one off: it sees no distance. Every number loss has grown.",
    ),
    "uniform": Preset(
        lambda truth, low, high: Shape(truth, even_share=1.0),
        "Every number equally likely. In the middle of the range the expected value is nearly right, and the losses "
        "of the expected value (MSE, MAE, Huber) are small; NTL-WAS is the mean distance.",
    ),
    "two peaks": Preset(
        two_peaks,
        "The truth lies between two wrong peaks (unless it is the first or last number). The expected value is right, "
        "so MSE, MAE and Huber see next to nothing; NTL-WAS sees the distance of each peak.",
    ),
    "mass on text": Preset(
        lambda truth, low, high: Shape(truth, text_share=0.9),
        "What is left on numbers is right, but 90% lies on text. Without reweighing every number loss is small; with "
        "it, near its largest.",
    ),
}


def preset_shape(name: str, vocabulary: Vocabulary, truth: float) -> Shape:
    """The shape of a preset for a true number."""
    return PRESETS[name].shape(truth, vocabulary.values[0], vocabulary.values[-1])


def remark(shape: Shape, vocabulary: Vocabulary, truth: float) -> str:
    """What a preset says of a shape: nothing as soon as the shape is no longer the preset's."""
    return next((PRESETS[name].remark for name in PRESETS if preset_shape(name, vocabulary, truth) == shape), "")


@dataclass(frozen=True)
class Options:
    """The options of :class:`~ntl_kernels.NTLConfig` that the page lets one choose."""

    squash_factor: float = 2.0
    label_sigma: float = 1.0
    huber_delta: float = 1.0
    weight: float = 0.3


def expected_value_loss(kind: str) -> Callable[[Options], NTLConfig]:
    """The configuration of a loss of the expected value, whichever option its kind reads."""
    return lambda options: NTLConfig(kind, options.weight, huber_delta=options.huber_delta)


def title(kind: str) -> str:
    """A kind of loss as the page writes it."""
    return kind.upper() if kind in ABBREVIATIONS else kind.capitalize()


NUMBER_LOSSES: Mapping[str, Callable[[Options], NTLConfig]] = {
    "NTL-WAS": lambda options: NTLConfig(weight=options.weight),
    "NTL-WAS, squash_factor": lambda options: NTLConfig(weight=options.weight, squash_factor=options.squash_factor),
    "NTL-WAS, label_sigma": lambda options: NTLConfig(weight=options.weight, label_sigma=options.label_sigma),
    **{f"NTL-{title(kind)}": expected_value_loss(kind) for kind in KINDS if kind != "wasserstein"},
}


def number_loss_config(name: str, options: Options, reweigh: bool) -> NTLConfig:
    """The configuration of one of :data:`NUMBER_LOSSES`."""
    return replace(NUMBER_LOSSES[name](options), reweigh=reweigh)


class Curve(NamedTuple):
    """One loss of the prediction, and what it becomes as the first peak moves."""

    now: float
    moved: list[float]
    """[K]: with the first peak on each number in turn, all else left as it is."""


class NumberLoss(NamedTuple):
    """One number loss with and without ``reweigh``."""

    reweighed: Curve
    plain: Curve
    worst: float
    """The largest value that any prediction gives for this label."""


class Comparison(NamedTuple):
    """Every loss of one prediction."""

    peaks: list[float]
    """[K]: the numbers that the first peak moves over."""
    cross_entropy: Curve
    number_losses: dict[str, NumberLoss]
    """By the name in :data:`NUMBER_LOSSES`."""
    number_mae: float
    """|expected value - true number|."""
    number_mass: float
    """Probability on number tokens."""


def compare(vocabulary: Vocabulary, truth: float, shape: Shape, options: Options) -> Comparison:
    """All losses of the shaped prediction, of the same with its peak moved, and of the worst predictions.

    Raises:
        ValueError: no token is worth ``truth``, or an option is out of range.
    """
    label, values = vocabulary.label(truth), vocabulary.values
    moved = [replace(shape, peak=value) for value in values]
    rows = torch.stack([s.logits(vocabulary) for s in (shape, *moved, *worst_shapes(vocabulary, truth))])
    parts = losses(rows[:1], label, vocabulary, NTLConfig())
    return Comparison(
        values,
        as_curve(losses(rows, label, vocabulary, NTLConfig()).cross_entropy, len(values)),
        {name: number_loss(rows, label, vocabulary, name, options) for name in NUMBER_LOSSES},
        parts.number_mae.item(),
        parts.number_mass.item(),
    )


def worst_shapes(vocabulary: Vocabulary, truth: float) -> list[Shape]:
    """The predictions among which every number loss takes its largest value, up to a billionth: the ends, and text."""
    ends = [Shape(end, even_share=0.0, width=0.01) for end in (vocabulary.values[0], vocabulary.values[-1])]
    return [*ends, Shape(truth, text_share=1 - 1e-12)]


def number_loss(rows: Tensor, label: int, vocabulary: Vocabulary, name: str, options: Options) -> NumberLoss:
    """One of :data:`NUMBER_LOSSES` of logits [1 + K + the worst, V]."""
    count = len(vocabulary.values)
    reweighed, plain = (
        losses(rows, label, vocabulary, number_loss_config(name, options, reweigh)).ntl for reweigh in (True, False)
    )
    worst = torch.maximum(reweighed, plain)[1 + count :].max().item()
    return NumberLoss(as_curve(reweighed, count), as_curve(plain, count), worst)


def as_curve(rows: Tensor, count: int) -> Curve:
    """The first of the losses [1 + K + ...] and the ``count`` = K after it."""
    now, *rest = rows.tolist()
    return Curve(now, rest[:count])


def losses(rows: Tensor, label: int, vocabulary: Vocabulary, config: NTLConfig) -> NTLOutput:
    """The losses of logits [N, V], each against the same label."""
    labels = torch.full(rows.shape[:1], label)
    output = cross_entropy_ntl(rows, labels, vocabulary.numbers, config=config, reduction="none", return_parts=True)
    assert isinstance(output, NTLOutput)
    return output


class Gradients(NamedTuple):
    """Gradients of one prediction by the logit of every token, each [V]."""

    cross_entropy: list[float]
    total: list[float]
    """Of cross-entropy + weight * the number loss."""


def gradients(logits: Tensor, label: int, vocabulary: Vocabulary, config: NTLConfig) -> Gradients:
    """By autograd, for logits [V]."""
    return Gradients(*(gradient(logits, label, vocabulary, c) for c in (replace(config, weight=0.0), config)))


def gradient(logits: Tensor, label: int, vocabulary: Vocabulary, config: NTLConfig) -> list[float]:
    rows = logits[None].clone().requires_grad_()
    loss = cross_entropy_ntl(rows, torch.tensor([label]), vocabulary.numbers, config=config)
    assert isinstance(loss, Tensor)
    return torch.autograd.grad(loss, rows)[0][0].tolist()
