"""`LossSpec`: the options of a loss, checked, and what follows from them and the number values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from .config import LARGEST_FLOAT32, SMALLEST_FLOAT32, SOFT, NTLConfig, check_number
from .formulas import Line, cost_line, costs
from .tokens import Group, NumberTokens
from .tokens.values import check_ignore_index
from .tracing import is_symbolic
from .value_losses import VALUE_LOSSES

REDUCTIONS = ("mean", "sum", "none")
WORST_FACTOR = 1.01
"""With reweigh, a row without any probability on number tokens costs this many times the largest number loss: a little
more than the worst number, so that predicting none never pays. The `ntloss` package has the same factor."""
GRADIENT_BOUNDS = {"wasserstein": 1.0, SOFT: 1.0} | {kind: loss.gradient_bound for kind, loss in VALUE_LOSSES.items()}
"""The largest term of a kind's gradient relative to its largest loss."""
LARGEST_FACTOR = LARGEST_FLOAT32 * math.log(2)
"""The largest factor of the logits that float32 holds in units of log2(e), which the kernels exponentiate in."""


@dataclass(frozen=True)
class LossSpec:
    """Everything that computing a loss needs besides tensors, denominators and lambda (docs, Mathematics).

    Its fields are also arguments of the custom operators, so each is a str, bool, int or float, or None.
    """

    kind: str
    reweigh: bool
    mean_over: str
    squash_factor: float | None
    label_sigma: float
    """This and the next: large enough for float32."""
    label_temperature: float
    label_share: float
    huber_delta: float
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float | None
    logit_scale: float
    reduction: str
    has_cross_entropy: bool
    """False: the Number Token Loss alone."""
    nearest: Any
    """float: the smallest and"""
    furthest: Any
    """the largest distance between two distinct values of a group; after :meth:`in_group`, of the label's."""
    worst_loss: Any
    """float: ``1.01 * L_max``, the loss of a number row without any probability on number tokens."""

    @property
    def cost_line(self) -> Line:
        """The line of :func:`ntl_kernels.formulas.cost_line`, if there is one group."""
        return cost_line(self.squash_factor, self.nearest, self.furthest)

    @property
    def is_soft(self) -> bool:
        """Whether the loss compares all probabilities with soft labels."""
        return self.kind == SOFT

    @property
    def is_cumulative(self) -> bool:
        """Whether the loss compares cumulative distributions."""
        return self.kind == "wasserstein" and self.label_sigma > 0

    @property
    def largest_weight(self) -> float:
        """The largest lambda whose product with any loss and its gradient fits float32."""
        return LARGEST_FLOAT32 / (GRADIENT_BOUNDS[self.kind] * self.worst_loss)

    def in_group(self, group: Group) -> LossSpec:
        """The spec of rows whose labels are in groups with fields [n, 1]."""
        spec = replace(self, nearest=group.nearest, furthest=group.furthest)
        if spec.kind == "wasserstein":
            largest = costs(group.furthest, spec.cost_line)
        elif spec.is_soft:
            return spec
        else:
            largest = VALUE_LOSSES[spec.kind].loss(group.furthest, spec.huber_delta)
        return replace(spec, worst_loss=WORST_FACTOR * largest)


def spec_of(
    config: NTLConfig,
    numbers: NumberTokens,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    reduction: str = "mean",
    has_cross_entropy: bool = True,
) -> LossSpec:
    """The spec of a public function's arguments, checked; cached.

    Raises:
        TypeError, ValueError: an option has the wrong type or value; the largest possible loss, or the slope of the
            costs, overflows float32.
    """
    if not isinstance(config, NTLConfig):
        raise TypeError(f"config must be an NTLConfig; got {type(config).__name__}")
    c = config  # without lambda, so that a schedule creates no new spec
    targets = c.label_sigma, c.label_temperature, c.label_share
    of_config = c.kind, c.reweigh, c.mean_over, c.squash_factor, *targets, c.huber_delta
    of_row = ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction, has_cross_entropy
    given = of_config, numbers.groups, *of_row
    if torch.compiler.is_compiling():  # the cache must not keep what a trace creates; a trace runs once anyway
        return new_spec(*given)
    try:
        return cached_spec(*given)
    except TypeError:  # an option is not hashable or has a wrong type: the call below names it
        return new_spec(*given)


def new_spec(
    of_config: tuple[Any, ...],
    groups: tuple[Group, ...],
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    logit_scale: float,
    reduction: str,
    has_cross_entropy: bool,
) -> LossSpec:
    """:func:`spec_of`, from the options of a configuration."""
    kind, reweigh, mean_over, squash_factor, label_sigma, label_temperature, label_share, huber_delta = of_config
    check_options(ignore_index, label_smoothing, z_loss, softcap, logit_scale, reduction)
    nearest = min(group.nearest for group in groups if group.nearest)
    furthest = max(group.furthest for group in groups)
    return LossSpec(
        kind=kind,
        reweigh=reweigh,
        mean_over=mean_over,
        squash_factor=None if squash_factor is None else float(squash_factor),
        label_sigma=float32_width(label_sigma, nearest),
        label_temperature=0.0 if label_temperature is None else float32_width(label_temperature, nearest),
        label_share=float(label_share),
        huber_delta=float(huber_delta),
        ignore_index=int(ignore_index),
        label_smoothing=float(label_smoothing),
        z_loss=float(z_loss),
        softcap=None if softcap is None else float(softcap),
        logit_scale=float(logit_scale),
        reduction=reduction,
        has_cross_entropy=has_cross_entropy,
        nearest=nearest,
        furthest=furthest,
        worst_loss=WORST_FACTOR * largest_loss(kind, squash_factor, huber_delta, groups),
    )


cached_spec = lru_cache(maxsize=256, typed=True)(new_spec)  # typed: True must not match 1.0


@lru_cache(maxsize=256)
def spec_of_fields(*values: Any) -> LossSpec:
    """The spec with these fields; raises for numbers out of range, which a trace could not check if they were
    symbolic."""
    spec = LossSpec(*values)
    of_row = spec.ignore_index, spec.label_smoothing, spec.z_loss, spec.softcap, spec.logit_scale, spec.reduction
    check_options(*of_row)
    names = "kind", "squash_factor", "label_sigma", "label_temperature", "label_share", "huber_delta"
    NTLConfig(**{name: getattr(spec, name) for name in names})
    return spec


def check_options(
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float | None, logit_scale: float, reduction: str
) -> None:
    """Raise unless every option has the right type and range; a configuration checks its own options."""
    check_reduction(reduction)
    check_ignore_index(ignore_index)
    check_number("label_smoothing", label_smoothing, minimum=0.0, maximum=1.0)
    check_number("z_loss", z_loss, minimum=0.0)
    check_number("logit_scale", logit_scale, above=0.0, maximum=LARGEST_FACTOR)
    if softcap is None:
        return
    check_number("softcap", softcap, above=0.0, maximum=LARGEST_FACTOR)
    if is_symbolic(softcap) or is_symbolic(logit_scale):
        return
    if not SMALLEST_FLOAT32 <= float(logit_scale) / float(softcap) <= LARGEST_FLOAT32:
        raise ValueError(
            f"softcap and logit_scale differ too much: logit_scale / softcap must be from {SMALLEST_FLOAT32:g} to "
            f"{LARGEST_FLOAT32:g} to fit float32; got softcap={softcap!r} and logit_scale={logit_scale!r}"
        )


def check_reduction(reduction: str) -> None:
    """Raise for anything but a reduction's name."""
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}; got {reduction!r}")


def largest_loss(kind: str, squash_factor: float | None, huber_delta: float, groups: tuple[Group, ...]) -> float:
    """The largest loss of any label; raises if it, its gradient, or the slope of the costs is beyond float32."""
    furthest = max(group.furthest for group in groups)
    if kind == "wasserstein":
        lines = [(group, *cost_line(squash_factor, group.nearest, group.furthest)) for group in groups]
        for group, _, slope in lines:
            if not slope <= LARGEST_FLOAT32:
                raise ValueError(
                    f"squash_factor={squash_factor!r} makes the slope of the costs exceed float32, since the nearest "
                    f"and furthest number values are {group.nearest:g} and {group.furthest:g} apart; rescale the values"
                )
        largest = max(offset + slope * group.furthest for group, offset, slope in lines)
    elif kind == SOFT:  # like cross-entropy, it is bounded by the logits alone
        largest = 1.0
    else:
        largest = VALUE_LOSSES[kind].of_number(furthest, huber_delta)
    if not GRADIENT_BOUNDS[kind] * WORST_FACTOR * largest <= LARGEST_FLOAT32:
        cause = "" if squash_factor is None else f" with squash_factor={squash_factor!r}"
        raise ValueError(
            f"the number values are up to {furthest:g} apart; the loss {kind!r} of that distance{cause}, "
            f"or its gradient, is beyond float32; rescale the values"
        )
    return largest


def float32_width(width: float, smallest_distance: float) -> float:
    """The standard deviation or temperature of a target, large enough for float32, that gives the same target.

    Below a hundredth of the smallest distance, the target equals the one-hot target to the last bit of float64.
    """
    return max(float(width), smallest_distance / 100) if width > 0 else float(width)
