"""What runs say about a loss: runs with the same seed share weights and order, so they are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.stats import t as student

from ..errors import InputError
from .records import Groups, Record, unlike, value_of

CONFIDENCE = 0.95
FEWEST_PAIRS = 3
"""Fewer are never called certain: Student's t rests on their spread alone."""
DECIMALS = 12
"""What is below is an error of rounding, and no difference."""
IN_PER_CENT = ("mae", "median_error", "log_mae", "mse", "perplexity", "ce")
"""Metrics above 0, whose difference is told in per cent of the baseline's mean."""
IN_POINTS = ("exact_match", "number_accuracy", "no_number", "run_on", "token_accuracy")
"""Shares, whose difference is told in percentage points; all others differ as they are."""


class Difference(NamedTuple):
    """The mean of paired differences, ours less theirs, and its 95 % interval; NaN where there is one pair."""

    mean: float
    low: float
    high: float
    agree: int
    """Pairs whose difference has the mean's sign."""
    pairs: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.pairs >= FEWEST_PAIRS and (self.low > 0 or self.high < 0)

    @property
    def verdict(self) -> str:
        """``lower``, ``higher`` or ``undecided``."""
        return "undecided" if not self.is_certain else "lower" if self.mean < 0 else "higher"


def difference(ours: Sequence[float], theirs: Sequence[float], scale: float = 1.0) -> Difference:
    """Student's t on the pairs, times ``scale``."""
    each = [round(scale * (one - other), DECIMALS) for one, other in zip(ours, theirs, strict=True)]
    if not each:
        raise ValueError("no pair to compare")
    mean = round(fmean(each), DECIMALS) + 0.0  # no minus 0
    agree = sum(value * mean > 0 for value in each)
    if len(each) == 1 or not all(map(math.isfinite, each)):
        return Difference(mean, math.nan, math.nan, agree, len(each))
    margin = float(student.ppf((1 + CONFIDENCE) / 2, len(each) - 1)) * stdev(each) / math.sqrt(len(each))
    return Difference(mean, mean - margin, mean + margin, agree, len(each))


def scale_of(metric: str, theirs: Sequence[float]) -> float:
    """What makes a difference per cent of the baseline's mean, or percentage points, or leaves it as it is."""
    if metric in IN_PER_CENT:
        mean = fmean(theirs)
        return 100 / mean if mean else math.nan
    return 100.0 if metric in IN_POINTS else 1.0


def pairs_of(runs: Sequence[Record], baseline: Sequence[Record], models: bool = True) -> list[tuple[Record, Record]]:
    """(run, baseline's run) of every seed that both have; ``models``: a pair has to share the model, too."""
    of_seed = {run["seed"]: run for run in baseline}
    pairs = [(run, of_seed[run["seed"]]) for run in runs if run["seed"] in of_seed]
    for one, other in pairs:
        if wrong := unlike(one, other, models):
            names = ", ".join(map(str, (one["dataset"], one["model"], one["loss"])))
            raise InputError(f"{names}, seed {one['seed']} cannot be compared with {other['loss']}: {', '.join(wrong)}")
    return pairs


def compare(runs: Sequence[Record], baseline: Sequence[Record], where: str | int, metric: str) -> Difference | None:
    """How runs differ from their baseline in a metric of a split or after so many steps; None where no pair has it."""
    pairs = [[value_of(run, where, metric) for run in pair] for pair in pairs_of(runs, baseline)]
    both = [pair for pair in pairs if None not in pair]
    if not both:
        return None
    ours, theirs = zip(*both, strict=True)
    return difference(ours, theirs, scale_of(metric, theirs))


def baseline(groups: Groups, model: str) -> list[Record]:
    """The runs of a model with plain cross-entropy."""
    return groups.get((model, "CE"), [])
