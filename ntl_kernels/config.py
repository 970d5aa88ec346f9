"""The options of the Number Token Loss and the parts it reports."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch import Tensor

from .tracing import is_symbolic
from .value_losses import VALUE_LOSSES

KINDS = ("wasserstein", *VALUE_LOSSES)
MEANS = ("numbers", "tokens")
"""What NTL may be a mean over."""
LARGEST_FLOAT32 = 3.4028234663852886e38
SMALLEST_FLOAT32 = 2.0**-126
"""The smallest that float32 holds with all its digits; the reciprocal of a smaller one may be beyond it."""


@dataclass(frozen=True)
class NTLConfig:
    """Which Number Token Loss to add, and how strongly.

    Numbers must fit float32, in which the losses are computed; those of float64 logits have the same limits.

    Args:
        kind: ``"wasserstein"`` (NTL-WAS: expected distance to the label's value) or one of ``"mse"``, ``"mae"``,
            ``"huber"`` (that loss between the expected value and the label's value).
        weight: lambda, the factor of the NTL term beside cross-entropy; 0 gives plain cross-entropy. Where numbers
            could only be estimated, more than 0.3 brought answers no nearer to the truth and cost likelihood
            (``benchmarks/results/quality/advice.md``). Its product with the largest loss must fit
            float32. A 0-d tensor on the logits' device may change in place from step to step: a schedule then
            recompiles nothing, and a captured graph follows it.
        reweigh: interpolate between the NTL (all probability on number tokens) and 1.01 times its largest
            possible value (none there), so that leaving the number tokens is never cheaper than a wrong number.
            The paper does not, and the ``ntloss`` package does by default. Where a number's end is uncertain, this
            makes numbers longer (docs, Mathematics, eq. 35); without it, estimates came at least as near to the truth
            (``advice.md``).
        mean_over: what reduction "mean" divides the sum of NTL by. ``"numbers"``, as in the paper: the number tokens.
            ``"tokens"``: what divides cross-entropy, so that the loss is ``sum(w (CE + lambda NTL)) / num_tokens``.
            Then lambda is the same in every split of a batch that is averaged over tokens, and ``num_numbers`` is not
            used. A weight over numbers, times :meth:`NumberTokens.tokens_per_number`, is one over tokens.
        squash_factor: wasserstein only. The furthest number costs this many times the nearest wrong one (> 1).
        label_sigma: wasserstein only. Standard deviation, in units of value, of a Gaussian target around the
            label's value; 0 is the one-hot target. Excludes ``squash_factor``.
        huber_delta: where ``"huber"`` turns from quadratic to linear, as in :func:`torch.nn.functional.huber_loss`.

    Raises:
        TypeError, ValueError: an option has the wrong type, is out of range or contradicts another.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083.
    """

    kind: str = "wasserstein"
    weight: float | Tensor = 0.3
    reweigh: bool = False
    mean_over: str = "numbers"
    squash_factor: float | None = None
    label_sigma: float = 0.0
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if not isinstance(self.reweigh, bool):
            raise TypeError(f"reweigh must be a bool; got {self.reweigh!r}")
        if self.mean_over not in MEANS:
            raise ValueError(f"mean_over must be one of {', '.join(MEANS)}; got {self.mean_over!r}")
        if isinstance(self.weight, Tensor):
            check_weight_tensor(self.weight)
        else:
            check_number("weight", self.weight, minimum=0.0)
        check_number("label_sigma", self.label_sigma, minimum=0.0)
        check_number("huber_delta", self.huber_delta, above=0.0)
        if self.squash_factor is not None:
            check_number("squash_factor", self.squash_factor, above=1.0)
        if self.kind != "wasserstein" and (self.squash_factor is not None or self.label_sigma > 0):
            raise ValueError(f"squash_factor and label_sigma belong to kind='wasserstein'; got kind={self.kind!r}")
        if self.squash_factor is not None and self.label_sigma > 0:
            raise ValueError("squash_factor and label_sigma exclude each other; got both")


class NTLOutput(NamedTuple):
    """The loss and what it is made of. Only ``loss`` carries gradient.

    With reduction "mean" or "sum" every field is a 0-d float32 tensor (float64 for float64 logits). With "none" the
    first three have the labels' shape. ``loss = cross_entropy + weight * ntl``.
    """

    loss: Tensor
    """The value to minimise, the only one with a gradient."""
    cross_entropy: Tensor
    """Cross-entropy, label smoothing and z-loss included, reduced like the loss."""
    ntl: Tensor
    """Number Token Loss, before its weight, reduced like the loss."""
    num_tokens: Tensor
    """The denominator of cross-entropy: the one given, else the sum of the valid rows' weights."""
    num_numbers: Tensor
    """The ``num_numbers`` given, else the sum of the number rows' weights: the denominator of NTL, unless
    ``mean_over="tokens"``, where NTL has that of cross-entropy."""
    token_accuracy: Tensor
    """Share of the rows that count whose label has the largest logit (a tie counts)."""
    number_mae: Tensor
    """Mean |expected value - label's value| over the number rows that count."""
    number_mass: Tensor
    """Mean probability on number tokens over the number rows that count."""


def check_weight_tensor(weight: Tensor) -> None:
    """Raise unless a tensor given as lambda is one floating-point number, detached."""
    if weight.ndim != 0 or not weight.is_floating_point():
        raise ValueError(
            f"weight must be a number or a 0-d floating-point tensor; got {weight.dtype} {tuple(weight.shape)}"
        )
    if weight.requires_grad:
        raise ValueError("weight requires grad, but the loss is not differentiated by it; detach it")


def check_number(
    name: str,
    value: object,
    *,
    minimum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    divides: bool = False,
) -> None:
    """Raise unless ``value`` is a real number (Python's or NumPy's) that float32 holds, within the bounds given.

    One that must be above 0, or that ``divides`` something (where it may be 0), must not be so small that float32 makes
    it 0 or its reciprocal infinite. In a trace constants are checked, and numbers that stand for any that a later call
    brings are not.
    """
    if is_symbolic(value):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise TypeError(f"{name} must be a number; got {value!r}")
    number = as_float(value)
    fits = (
        math.isfinite(number)
        and (minimum is None or number >= minimum)
        and (above is None or number > above)
        and (below is None or number < below)
        and (maximum is None or number <= maximum)
    )
    if not fits:
        bounds = {"at least": minimum, "above": above, "at most": maximum, "below": below}
        expected = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
        raise ValueError(f"{name} must be finite{' and ' + expected if expected else ''}; got {shown(value)}")
    if abs(number) > LARGEST_FLOAT32:
        raise ValueError(
            f"{name} must be at most {LARGEST_FLOAT32:g}, the largest float32, in which the losses are computed; "
            f"got {shown(value)}"
        )
    if (divides or above == 0) and 0 < number < SMALLEST_FLOAT32:
        raise ValueError(
            f"{name} must be {'0 or ' if divides else ''}at least {SMALLEST_FLOAT32:g}, the smallest normal float32, "
            f"in which the losses are computed; got {shown(value)}"
        )


def as_float(value: Any) -> float:
    """The nearest float64; for an int or a fraction beyond it the largest."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def shown(value: object) -> str:
    """A number in an error message, where hundreds of digits tell nothing."""
    if isinstance(value, Integral) and int(value).bit_length() > 128:
        return f"an int of {int(value).bit_length()} bits"
    return repr(value)


DEFAULT_CONFIG = NTLConfig()
