"""`LossSpec`: the options of one row's loss and what follows from them, resolved once for each choice of options."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from .config import KINDS, NTLConfig
from .tokens import NumberTokens

LARGEST_FLOAT32 = 3.4028234663852886e38
WORST_FACTOR = 1.01
"""With reweigh, no probability on number tokens costs this many times the largest number loss."""


@dataclass(frozen=True)
class LossSpec:
    """What a backend needs to know of the loss besides tensors and lambda (docs, Mathematics).

    The cost of predicting a number at distance ``d`` from the label's is ``cost_offset + cost_slope * d``, and 0 for
    ``d = 0``: plain distances are (0, 1), squashed ones another line.
    """

    kind: str
    reweigh: bool
    cost_offset: float
    cost_slope: float
    label_sigma: float
    huber_delta: float
    worst_loss: float
    """``1.01 * L_max``: the loss of a number row without any probability on number tokens."""
    ce_weight: float
    """1, or 0 for the Number Token Loss alone."""
    label_smoothing: float
    z_loss: float
    softcap: float | None
    logit_scale: float
    ignore_index: int

    @classmethod
    def resolve(
        cls,
        config: NTLConfig,
        numbers: NumberTokens,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        ce_weight: float = 1.0,
    ) -> LossSpec:
        """Put the options and what follows from the number values together.

        Raises:
            ValueError: the largest possible loss is beyond float32.
        """
        offset, slope = cost_line(numbers, config.squash_factor)
        if config.kind == "wasserstein":
            line = (0.0, 1.0) if config.label_sigma > 0 else (offset, slope)
            largest = line[0] + line[1] * numbers.largest_distance
        else:
            largest = value_loss(config.kind, numbers.largest_distance, config.huber_delta)
        if not WORST_FACTOR * largest <= LARGEST_FLOAT32:
            raise ValueError(
                f"the values of {numbers!r} lie {numbers.largest_distance:g} apart, and the loss {config.kind!r} of "
                f"that distance is beyond float32; scale the values"
            )
        return cls(
            kind=config.kind,
            reweigh=config.reweigh,
            cost_offset=offset,
            cost_slope=slope,
            label_sigma=visible_sigma(config.label_sigma, numbers),
            huber_delta=float(config.huber_delta),
            worst_loss=WORST_FACTOR * largest,
            ce_weight=ce_weight,
            label_smoothing=float(label_smoothing),
            z_loss=float(z_loss),
            softcap=None if softcap is None else float(softcap),
            logit_scale=float(logit_scale),
            ignore_index=ignore_index,
        )

    def pack(self) -> list[float]:
        """As a flat list of floats, the form in which a custom operator's schema can carry it."""
        kind, reweigh, *rest = (getattr(self, name) for name in FIELD_NAMES)
        return [float(KINDS.index(kind)), float(reweigh)] + [math.nan if r is None else float(r) for r in rest]

    @classmethod
    def unpack(cls, packed: list[float]) -> LossSpec:
        """The inverse of :meth:`pack`."""
        entries: dict[str, Any] = dict(zip(FIELD_NAMES, packed, strict=True))
        entries["kind"], entries["reweigh"] = KINDS[int(entries["kind"])], bool(entries["reweigh"])
        entries["softcap"] = None if math.isnan(entries["softcap"]) else entries["softcap"]
        entries["ignore_index"] = int(entries["ignore_index"])
        return cls(**entries)


def visible_sigma(label_sigma: float, numbers: NumberTokens) -> float:
    """A standard deviation that float32 can compute with and that gives the same target.

    Below a hundredth of the smallest distance the Gaussian is one-hot to the last bit of float64.
    """
    return max(float(label_sigma), numbers.smallest_distance / 100) if label_sigma > 0 else 0.0


FIELD_NAMES = tuple(field.name for field in fields(LossSpec))


def cost_line(numbers: NumberTokens, squash_factor: float | None) -> tuple[float, float]:
    """(offset, slope) of the cost over distance, so that the furthest costs ``squash_factor`` times the nearest."""
    if squash_factor is None:
        return 0.0, 1.0
    nearest, furthest = numbers.smallest_distance, numbers.largest_distance
    if nearest == furthest:  # two distinct values: one distance, which costs 1
        return 1.0, 0.0
    slope = (squash_factor - 1) / (furthest - nearest)
    return 1.0 - slope * nearest, slope


def value_loss(kind: str, error: float, huber_delta: float) -> float:
    """f(error) of the expected-value losses, for one float."""
    size = abs(error)
    if kind == "mse":
        return size**2
    if kind == "huber":
        return 0.5 * size**2 if size < huber_delta else huber_delta * (size - 0.5 * huber_delta)
    return size
