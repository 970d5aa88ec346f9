"""Paired comparison of losses: runs with the same seed share initial weights and data order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from ..commands import InputError
from .records import Groups, Record, unlike, value_of

CONFIDENCE = 0.95
FEWEST_PAIRS = 3
"""With fewer pairs, no difference counts as certain: Student's t relies only on their spread."""
DECIMALS, PER_CENT_DECIMALS = 12, 6
"""Digits to which differences are rounded; smaller ones are rounding errors."""
AS_RATIOS = ("mae", "median_error", "log_mae", "mse", "perplexity", "ce")
"""Metrics above 0: the difference of a pair is its ratio, as a change in per cent, which cannot be below −100%."""
IN_POINTS = ("exact_match", "number_accuracy", "paper_accuracy", "token_accuracy", "within_one")
IN_POINTS += ("no_number", "run_on", "too_short", "iou_50", "iou_75")
"""Shares: differences are in percentage points. For all other metrics they are plain differences."""


class Difference(NamedTuple):
    """The mean of paired differences between ours and theirs, and its 95% interval; NaN if undefined."""

    mean: float
    low: float
    high: float
    lower: int
    """The number of pairs in which ours is lower."""
    pairs: int
    gap: str = ""
    """Why there is no mean."""

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.pairs >= FEWEST_PAIRS and (self.low > 0 or self.high < 0)

    @property
    def verdict(self) -> str:
        """``lower``, ``higher`` or ``undecided``."""
        return "undecided" if not self.is_certain else "lower" if self.mean < 0 else "higher"


def difference(ours: Sequence[float], theirs: Sequence[float], scale: float = 1.0) -> Difference:
    """Student's t on the pairs' differences, times ``scale``."""
    return mean_of([scale * (one - other) for one, other in zip(ours, theirs, strict=True)])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Student's t on the logarithms of the pairs' ratios, returned as changes in per cent.

    A run whose value is 0 or not a number has no ratio. Dropping only its pair would drop the best or the worst run, so
    there is no result then.
    """
    values = [*ours, *theirs]
    if not all(map(math.isfinite, values)):
        return nothing("no number in some runs", len(ours))
    if min(values, default=1) <= 0:
        return nothing("0 in some runs has no ratio", len(ours))
    found = mean_of([math.log(one / other) for one, other in zip(ours, theirs, strict=True)])
    return found._replace(mean=per_cent(found.mean), low=per_cent(found.low), high=per_cent(found.high))


def as_ratio(change: float) -> float:
    """A change in per cent as a ratio."""
    return 1 + change / 100


def mean_of(each: Sequence[float]) -> Difference:
    """The mean over the pairs, with an interval from Student's t."""
    if not each:
        raise ValueError("no pair to compare")
    if not all(map(math.isfinite, each)):
        return nothing("no number in some runs", len(each))
    each = [round(value, DECIMALS) for value in each]
    mean = round(fmean(each), DECIMALS) + 0.0  # no minus 0
    lower = sum(value < 0 for value in each)
    if len(each) == 1:
        return Difference(mean, math.nan, math.nan, lower, 1)
    margin = float(student.ppf((1 + CONFIDENCE) / 2, len(each) - 1)) * stdev(each) / math.sqrt(len(each))
    return Difference(mean, mean - margin, mean + margin, lower, len(each))


def nothing(gap: str, pairs: int) -> Difference:
    """A result without a mean, with the reason."""
    return Difference(math.nan, math.nan, math.nan, 0, pairs, gap)


def per_cent(logarithm: float) -> float:
    """The logarithm of a ratio as a change in per cent, rounded; infinite if it overflows.

    Plots name their source by these numbers, whose last digits differ between versions of scipy.
    """
    return round(100 * float(np.expm1(np.float64(logarithm))), PER_CENT_DECIMALS)


def pairs_of(runs: Sequence[Record], baseline: Sequence[Record], models: bool = True) -> list[tuple[Record, Record]]:
    """(run, baseline's run) for every seed that both have; ``models``: a pair must also share the model."""
    of_seed = {run["seed"]: run for run in baseline}
    pairs = [(run, of_seed[run["seed"]]) for run in runs if run["seed"] in of_seed]
    for one, other in pairs:
        if wrong := unlike(one, other, models):
            names = ", ".join(map(str, (one["dataset"], one["model"], one["loss"])))
            raise InputError(f"{names}, seed {one['seed']} cannot be compared with {other['loss']}: {', '.join(wrong)}")
    return pairs


def compare(
    runs: Sequence[Record],
    beside: Sequence[Record],
    where: str | int,
    metric: str,
    where_beside: str | int | None = None,
    models: bool = True,
) -> Difference | None:
    """The difference of runs to others in a metric, on a split or after a number of steps; None if no pair has it.

    ``where_beside``: another split for the others, which may be the same runs; ``models`` as in :func:`pairs_of`.
    """
    other_where = where if where_beside is None else where_beside
    pairs = [
        (value_of(one, where, metric), value_of(other, other_where, metric))
        for one, other in pairs_of(runs, beside, models)
    ]
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not both:
        return None
    ours, theirs = zip(*both, strict=True)
    if metric in AS_RATIOS:
        return ratio(ours, theirs)
    return difference(ours, theirs, 100.0 if metric in IN_POINTS else 1.0)


def baseline(groups: Groups, model: str) -> list[Record]:
    """The runs of a model with plain cross-entropy."""
    return groups.get((model, "CE"), [])
