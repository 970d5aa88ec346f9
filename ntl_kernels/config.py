"""The options of the Number Token Loss and the parts it reports."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

from torch import Tensor

from .tracing import is_symbolic
from .value_losses import VALUE_LOSSES

SOFT = "soft_labels"
KINDS = ("wasserstein", *VALUE_LOSSES, SOFT)
MEANS = ("numbers", "tokens")
"""What NTL may be averaged over."""
LARGEST_FLOAT32 = 3.4028234663852886e38
SMALLEST_FLOAT32 = 2.0**-126
"""The smallest normal float32; the reciprocal of a smaller number may overflow."""


@dataclass(frozen=True)
class NTLConfig:
    """The kind, weight and options of the Number Token Loss.

    Args:
        kind: ``"wasserstein"`` (NTL-WAS: expected distance to the label's value) or one of ``"mse"``, ``"mae"``,
            ``"huber"`` (that loss between the expected value and the label's value), or ``"soft_labels"``: KL(t || p),
            with a target t around the label's value and p the softmax over the whole vocabulary (eq. 37).
        weight: lambda, the factor of the NTL term; 0 means plain cross-entropy. In the benchmarks
            (``benchmarks/results/quality/advice.md``), larger values than 0.3 increased cross-entropy. On rents they
            did not reliably reduce the error; on ratings of jokes, 1 reduced the MAE of greedy answers of small models.
            In a fine-tuned model, 1 did not reliably reduce an error of diamond prices below that with 0.3. A 0-d
            tensor on the logits' device may change in place from step to step: a schedule then causes no recompilation,
            and a captured CUDA graph reads the current value (not yet run on a GPU).
        reweigh: interpolate between NTL (all probability on number tokens) and 1.01 times its largest possible value
            (no probability on number tokens), so that predicting no number is never cheaper than predicting a wrong
            one. The paper does not do this; the ``ntloss`` package does by default. If it is uncertain where a
            number ends, reweighing makes numbers longer (docs, Mathematics, eq. 35). In the benchmarks, at lambda =
            0.3, it did not reliably reduce the error of estimates: rents, diamonds, readings (``advice.md``).
        mean_over: what reduction "mean" divides the sum of NTL by. ``"numbers"``: the number tokens, as in the paper.
            ``"tokens"``: the denominator of cross-entropy, so that the loss is
            ``sum(w (CE + lambda u NTL)) / num_tokens``. Lambda then has the same effect for every split of a batch that
            is averaged over tokens, and ``num_numbers`` is not used. To convert a weight for ``"numbers"`` into one
            for ``"tokens"``, multiply it by :meth:`NumberTokens.tokens_per_number`.
        squash_factor: wasserstein only. The cost of the furthest number relative to the nearest wrong one (> 1).
        label_sigma: wasserstein and soft_labels. Standard deviation, in the units of the values, of a Gaussian target
            around the label's value; for wasserstein, 0 is the one-hot target. Not with ``squash_factor``.
        label_temperature: soft_labels only, in place of ``label_sigma``: the target falls exponentially with the
            distance to the label's value, to 1/e at this distance (DIST2Loss, arXiv 2503.02379).
        label_share: soft_labels only. The factor of cross-entropy in number rows, from 0 to 1. With 0, the soft target
            replaces the label instead of being added to it. The reported cross-entropy has no such factor.
        huber_delta: the error from which ``"huber"`` is linear, as in :func:`torch.nn.functional.huber_loss`.

    Raises:
        TypeError, ValueError: an option has the wrong type, is out of range or contradicts another.

    Examples:
        >>> config = NTLConfig(kind="huber", weight=0.1, huber_delta=2.0)
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> loss = cross_entropy_ntl(torch.zeros(1, 8), torch.tensor([2]), numbers, config=config)

    Limits: all numbers, and lambda times the largest loss, must fit float32, even for float64 logits.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083.
    """

    kind: str = "wasserstein"
    weight: float | Tensor = 0.3
    reweigh: bool = False
    mean_over: str = "numbers"
    squash_factor: float | None = None
    label_sigma: float = 0.0
    label_temperature: float | None = None
    label_share: float = 1.0
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            hint = f" (weight={self.kind!r}?)" if isinstance(self.kind, (Real, Tensor)) else ""
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}{hint}")
        if not isinstance(self.reweigh, bool):
            raise TypeError(f"reweigh must be a bool; got {self.reweigh!r}")
        if self.mean_over not in MEANS:
            raise ValueError(f"mean_over must be one of {', '.join(MEANS)}; got {self.mean_over!r}")
        if isinstance(self.weight, Tensor):
            if self.weight.ndim != 0 or not self.weight.is_floating_point():
                got = f"{self.weight.dtype} {tuple(self.weight.shape)}"
                raise ValueError(f"weight must be a number or a 0-d floating-point tensor; got {got}")
            if self.weight.requires_grad:
                raise ValueError("weight requires grad, but the loss has no gradient for it; detach it")
        else:
            check_number("weight", self.weight, minimum=0.0)
        check_number("label_sigma", self.label_sigma, minimum=0.0)
        check_number("label_share", self.label_share, minimum=0.0, maximum=1.0)
        check_number("huber_delta", self.huber_delta, above=0.0)
        if self.squash_factor is not None:
            check_number("squash_factor", self.squash_factor, above=1.0)
        if self.label_temperature is not None:
            check_number("label_temperature", self.label_temperature, minimum=0.0)
        if self.kind == SOFT:
            self.check_soft_labels()
        elif (self.label_temperature is not None and self.label_temperature > 0) or self.label_share != 1:
            raise ValueError(f"label_temperature and label_share need kind='soft_labels'; got kind={self.kind!r}")
        elif self.kind != "wasserstein" and (self.squash_factor is not None or self.label_sigma > 0):
            raise ValueError(f"squash_factor and label_sigma need kind='wasserstein'; got kind={self.kind!r}")
        if self.squash_factor is not None and self.label_sigma > 0:
            raise ValueError("squash_factor and label_sigma cannot be combined; got both")

    def check_soft_labels(self) -> None:
        """Raise unless exactly one option gives the width of the target, and none is for other kinds."""
        if self.reweigh or self.squash_factor is not None:
            raise ValueError(
                "kind='soft_labels' takes neither reweigh nor squash_factor, which change costs of numbers"
            )
        given = 1 if self.label_sigma > 0 else 0  # no sum of comparisons, which may be symbolic
        given += 1 if self.label_temperature is not None and self.label_temperature > 0 else 0
        if given != 1:
            raise ValueError(
                "kind='soft_labels' needs either label_sigma or label_temperature, in the units of the values; "
                f"got label_sigma={self.label_sigma!r} and label_temperature={self.label_temperature!r}"
            )


class NTLOutput(NamedTuple):
    """The loss and its parts. Only ``loss`` has a gradient.

    With reduction "mean" or "sum" every field is a 0-d float32 tensor (float64 for float64 logits). With "none" the
    first three have the labels' shape. ``loss = cross_entropy + weight * ntl``, unless ``label_share`` is below 1.
    """

    loss: Tensor
    """The value to minimise, the only field with a gradient."""
    cross_entropy: Tensor
    """Cross-entropy, including label smoothing and z-loss, reduced like the loss."""
    ntl: Tensor
    """Number Token Loss before multiplication by its weight, reduced like the loss."""
    num_tokens: Tensor
    """The denominator of cross-entropy: ``num_tokens`` if given, else the sum of the weights of the rows that count."""
    num_numbers: Tensor
    """The denominator of NTL: ``num_numbers`` if given, else the sum of w u over the number rows. With
    ``mean_over="tokens"`` it is reported, but NTL is divided by ``num_tokens``."""
    token_accuracy: Tensor
    """Share of the rows that count in which the label has the largest logit (ties included)."""
    number_mae: Tensor
    """Mean |expected value - label's value| over the number rows that count, have number weights
    other than 0 and a number logit above -inf."""
    number_mass: Tensor
    """Mean probability on number tokens over the same rows."""


def check_number(
    name: str,
    value: object,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    divides: bool = False,
) -> None:
    """Raise unless ``value`` is a real number (Python's or NumPy's) that fits float32 and is within the given bounds.

    A number that must be above 0, or that is a denominator (``divides``; it may be 0), must not be so small that
    float32 rounds it to 0 or makes its reciprocal infinite. A trace checks constants, but not symbolic numbers.
    """
    if is_symbolic(value):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{name} must be a number; got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int or fraction
        number = -sys.float_info.max if value < 0 else sys.float_info.max
    fits = (
        math.isfinite(number)
        and (minimum is None or number >= minimum)
        and (above is None or number > above)
        and (maximum is None or number <= maximum)
    )
    if not fits:
        bounds = {"at least": minimum, "above": above, "at most": maximum}
        limits = ["finite", *(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)]
        raise ValueError(f"{name} must be {' and '.join(limits)}; got {shown(value)}")
    if abs(number) > LARGEST_FLOAT32:
        raise ValueError(
            f"{name} must be at most {LARGEST_FLOAT32:g}, the largest float32 (losses are computed in float32); "
            f"got {shown(value)}"
        )
    if (divides or above == 0) and 0 < number < SMALLEST_FLOAT32:
        raise ValueError(
            f"{name} must be {'0 or ' if divides else ''}at least {SMALLEST_FLOAT32:g}, the smallest normal float32 "
            f"(losses are computed in float32); got {shown(value)}"
        )


def shown(value: object) -> str:
    """A number for an error message, without hundreds of digits."""
    if isinstance(value, Integral) and int(value).bit_length() > 128:
        return f"an int of {int(value).bit_length()} bits"
    return repr(value)


DEFAULT_CONFIG = NTLConfig()
