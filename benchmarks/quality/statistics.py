"""What runs say about a loss: runs with the same seed share weights and order, so they are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from ..errors import InputError
from .records import Groups, Record, unlike, value_of

CONFIDENCE = 0.95
FEWEST_PAIRS = 3
"""Fewer are never called certain: Student's t rests on their spread alone."""
DECIMALS = 12
"""What is below is an error of rounding, and no difference."""
AS_RATIOS = ("mae", "median_error", "log_mae", "mse", "perplexity", "ce")
"""Metrics above 0: a pair is told by its ratio, as a change in per cent, which cannot be below -100 %."""
IN_POINTS = ("exact_match", "number_accuracy", "no_number", "run_on", "token_accuracy")
"""Shares, whose difference is told in percentage points; all others differ as they are."""


class Difference(NamedTuple):
    """The mean of paired differences, ours beside theirs, and its 95 % interval; NaN where it cannot be said."""

    mean: float
    low: float
    high: float
    agree: int
    """Pairs whose difference has the mean's sign."""
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
    """Student's t on the logarithms of the pairs' ratios, told as changes in per cent.

    A run whose value is 0, or no number, has no ratio. To leave out its pair alone would leave out the best or the
    worst of the runs, so nothing is said then.
    """
    values = [*ours, *theirs]
    if not all(map(math.isfinite, values)):
        return nothing("no number in some runs", len(ours))
    if min(values, default=1) <= 0:
        return nothing("0 in some runs has no ratio", len(ours))
    found = mean_of([math.log(one / other) for one, other in zip(ours, theirs, strict=True)])
    return found._replace(mean=per_cent(found.mean), low=per_cent(found.low), high=per_cent(found.high))


def mean_of(each: Sequence[float]) -> Difference:
    """The mean of what the pairs say, with Student's t for its interval."""
    if not each:
        raise ValueError("no pair to compare")
    if not all(map(math.isfinite, each)):
        return nothing("no number in some runs", len(each))
    each = [round(value, DECIMALS) for value in each]
    mean = round(fmean(each), DECIMALS) + 0.0  # no minus 0
    agree = sum(value * mean > 0 for value in each)
    if len(each) == 1:
        return Difference(mean, math.nan, math.nan, agree, 1)
    margin = float(student.ppf((1 + CONFIDENCE) / 2, len(each) - 1)) * stdev(each) / math.sqrt(len(each))
    return Difference(mean, mean - margin, mean + margin, agree, len(each))


def nothing(gap: str, pairs: int) -> Difference:
    """No mean, and why."""
    return Difference(math.nan, math.nan, math.nan, 0, pairs, gap)


def per_cent(logarithm: float) -> float:
    """A ratio's logarithm as a change in per cent; what no float holds is infinite."""
    return 100 * float(np.expm1(np.float64(logarithm)))


def pairs_of(runs: Sequence[Record], baseline: Sequence[Record], models: bool = True) -> list[tuple[Record, Record]]:
    """(run, baseline's run) of every seed that both have; ``models``: a pair has to share the model, too."""
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
    """How runs differ from others in a metric of a split or after so many steps; None where no pair has it.

    ``where_beside``: of another split of the others, which may also be the same runs; ``models`` as for
    :func:`pairs_of`.
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
