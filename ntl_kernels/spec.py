"""`LossOptions`: a loss's options as given. `LossSpec`: the same with the constants derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

from .config import KINDS, LARGEST_FLOAT32, MEANS, SMALLEST_FLOAT32, NTLConfig, check_number
from .tokens import Group, NumberTokens
from .tokens.values import check_ignore_index
from .tracing import is_symbolic
from .value_losses import VALUE_LOSSES

WORST_FACTOR = 1.01
"""With reweigh, a row without any probability on number tokens costs this many times the largest number loss."""
LARGEST_FACTOR = LARGEST_FLOAT32 * math.log(2)
"""The largest factor of the logits that float32 holds in units of log2(e), which the kernels exponentiate in."""
WORD = 2**32
Values: TypeAlias = tuple[str, bool, str, "float | None", float, float, tuple[Group, ...]]
"""What :func:`values_of` returns."""


@dataclass(frozen=True)
class RowOptions:
    """The options of one row's loss besides those of the Number Token Loss, as passed to the public functions."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0

    def check(self) -> None:
        """Raise unless every option has the right type and range; the configuration checks its own options."""
        check_ignore_index(self.ignore_index)
        check_number("label_smoothing", self.label_smoothing, minimum=0.0, maximum=1.0)
        check_number("z_loss", self.z_loss, minimum=0.0)
        check_number("logit_scale", self.logit_scale, above=0.0, maximum=LARGEST_FACTOR)
        softcap, logit_scale = self.softcap, self.logit_scale
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


row_values = attrgetter(*(field.name for field in fields(RowOptions)))
"""The values of the RowOptions among some options, in their order."""


@dataclass(frozen=True)
class LossOptions(RowOptions):
    """All options of a loss besides its configuration, as passed to the public functions."""

    reduction: str = "mean"
    backend: str = "auto"


@dataclass(frozen=True, kw_only=True)
class LossSpec(RowOptions):
    """Everything a backend needs to know about a row's loss besides tensors and lambda (docs, Mathematics).

    The cost of predicting a number at distance ``d`` from the label's value is ``cost_offset + cost_slope * d``, and 0
    for ``d = 0``. Offset and slope are (0, 1) for plain distances; ``squash_factor`` selects another line. With several
    groups, its argument is (d - nearest) / (furthest - nearest) in the label's group, and ``formulas.in_groups``
    computes each row's line.
    """

    kind: str
    reweigh: bool
    mean_over: str
    """What reduction "mean" averages NTL over: one of config.MEANS."""
    cost_offset: Any  # float; this, the next and worst_loss are tensors [n, 1] in a spec of ``in_groups``
    cost_slope: Any
    label_sigma: float
    huber_delta: float
    worst_loss: Any
    """``1.01 * L_max``: the loss of a number row without any probability on number tokens."""
    ce_weight: float
    """1, or 0 to compute the Number Token Loss alone."""

    @classmethod
    def resolve(cls, config: NTLConfig, numbers: NumberTokens, ce_weight: float = 1.0, **options: Any) -> LossSpec:
        """:meth:`of_values` of a configuration, number tokens and the keywords of RowOptions."""
        return cls.of_values(values_of(config, numbers), RowOptions(**options), ce_weight)

    @classmethod
    def of_values(cls, values: Values, options: RowOptions, ce_weight: float = 1.0) -> LossSpec:
        """Combine the options with the constants derived from the number values.

        Raises:
            ValueError: the largest possible loss, or the slope of the costs, overflows float32.
        """
        kind, reweigh, mean_over, squash_factor, label_sigma, huber_delta, groups = values
        lines = [cost_line(group, squash_factor) for group in groups]
        furthest = max(group.furthest for group in groups)
        if kind == "wasserstein":
            largest = max(line[0] + line[1] * group.furthest for line, group in zip(lines, groups, strict=True))
        else:
            largest = VALUE_LOSSES[kind].of_number(furthest, huber_delta)
        if not slope_room(kind) * WORST_FACTOR * largest <= LARGEST_FLOAT32:
            cause = "" if squash_factor is None else f" with squash_factor={squash_factor!r}"
            raise ValueError(
                f"the number values are up to {furthest:g} apart; the loss {kind!r} of that distance{cause}, "
                f"or its gradient, is beyond float32; rescale the values"
            )
        offset, slope = lines[0] if len(groups) == 1 or squash_factor is None else (1.0, squash_factor - 1.0)
        return cls(
            kind=kind,
            reweigh=reweigh,
            mean_over=mean_over,
            cost_offset=offset,
            cost_slope=slope,
            label_sigma=visible_sigma(label_sigma, min(each.nearest for each in groups if each.nearest)),
            huber_delta=float(huber_delta),
            worst_loss=WORST_FACTOR * largest,
            ce_weight=ce_weight,
            ignore_index=int(options.ignore_index),
            label_smoothing=float(options.label_smoothing),
            z_loss=float(options.z_loss),
            softcap=None if options.softcap is None else float(options.softcap),
            logit_scale=float(options.logit_scale),
        )

    @property
    def largest_weight(self) -> float:
        """The largest lambda whose product with any loss and its gradient fits float32."""
        return LARGEST_FLOAT32 / (slope_room(self.kind) * self.worst_loss)

    def pack(self) -> list[float]:
        """The spec as a flat list of floats, which the schema of a custom operator can contain.

        ``ignore_index`` is split into two halves, because a float cannot hold an int64 beyond 2**53 exactly. Infinity
        stands for no softcap.
        """
        packed = [float(self.ignore_index // WORD), float(self.ignore_index % WORD)]
        for name in PACKED:
            entry = getattr(self, name)
            entry = CHOICES[name].index(entry) if name in CHOICES else entry
            packed.append(math.inf if entry is None else float(entry))
        return packed

    @classmethod
    def unpack(cls, packed: list[float]) -> LossSpec:
        """The inverse of :meth:`pack`.

        Raises:
            ValueError: a number is out of range. A trace in which it was symbolic could not check it.
        """
        return unpacked(tuple(packed))


CHOICES = {"kind": KINDS, "mean_over": MEANS}
"""The fields of a LossSpec that are packed as an index."""
PACKED = [field.name for field in fields(LossSpec) if field.name != "ignore_index"]


@lru_cache(maxsize=256)
def unpacked(packed: tuple[float, ...]) -> LossSpec:
    """:meth:`LossSpec.unpack`, cached."""
    high, low, *entries = packed
    given: dict[str, Any] = dict(zip(PACKED, entries, strict=True))
    given.update({name: choices[int(given[name])] for name, choices in CHOICES.items()})
    given["reweigh"] = bool(given["reweigh"])
    given["softcap"] = None if given["softcap"] == math.inf else given["softcap"]
    spec = LossSpec(ignore_index=int(high) * WORD + int(low), **given)
    spec.check()
    check_number("label_sigma", spec.label_sigma, minimum=0.0)
    check_number("huber_delta", spec.huber_delta, above=0.0)
    check_number("the slope of the costs with squash_factor", spec.cost_slope, minimum=0.0)
    return spec


def values_of(config: NTLConfig, numbers: NumberTokens) -> Values:
    """The inputs of a LossSpec as plain values, without lambda and without tensors."""
    return (
        config.kind,
        config.reweigh,
        config.mean_over,
        config.squash_factor,
        config.label_sigma,
        config.huber_delta,
        numbers.groups,
    )


def visible_sigma(label_sigma: float, smallest_distance: float) -> float:
    """A standard deviation that gives the same target and is large enough for float32.

    Below a hundredth of the smallest distance, the Gaussian equals the one-hot target to the last bit of float64.
    """
    return max(float(label_sigma), smallest_distance / 100) if label_sigma > 0 else float(label_sigma)


def cost_line(group: Group, squash_factor: float | None) -> tuple[float, float]:
    """(offset, slope) of the cost as a function of distance; the furthest costs ``squash_factor`` times the nearest.

    Raises:
        ValueError: the slope overflows float32.
    """
    if squash_factor is None:
        return 0.0, 1.0
    nearest, furthest = group.nearest, group.furthest
    if nearest == furthest:  # only two distinct values: their single distance costs 1
        return 1.0, 0.0
    slope = (squash_factor - 1) / (furthest - nearest)
    if not slope <= LARGEST_FLOAT32:
        raise ValueError(
            f"squash_factor={squash_factor!r} makes the slope of the costs exceed float32, since the nearest and "
            f"furthest number values are {nearest:g} and {furthest:g} apart; rescale the values"
        )
    return 1.0 - slope * nearest, slope


def slope_room(kind: str) -> float:
    """The largest term of a kind's gradient relative to its largest loss."""
    return VALUE_LOSSES[kind].slope_room if kind in VALUE_LOSSES else 1.0
