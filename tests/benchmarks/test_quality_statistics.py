"""Differences by pairs: against scipy, by hand, and where nothing can be said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from benchmarks.errors import InputError
from benchmarks.quality.statistics import Difference, compare, difference, pairs_of, scale_of

FLOATS = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=2, max_size=12))
def test_intervals_are_those_of_a_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    found = difference(ours, theirs)
    if np.ptp(ours - theirs) == 0:
        assert found.low == pytest.approx(found.mean) == pytest.approx(found.high)
        return
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-6)
    assert found.agree == sum((ours - theirs) * found.mean > 0) and found.pairs == len(pairs)


def test_errors_of_rounding_are_no_difference() -> None:
    found = difference([0.1 + 0.2, 0.5, 0.7], [0.3, 0.7, 0.5])
    assert (found.mean, found.agree) == (0, 0) and found.low == -found.high != 0
    assert difference([0.1 + 0.2], [0.3], 100)[:1] == (0,)


def test_pairs_see_what_deviations_hide() -> None:
    """Every seed is better by one, though seeds differ by far more."""
    ours, theirs = [9.0, 19.1, 29.0, 38.9], [10.0, 20.0, 30.0, 40.0]
    found = difference(ours, theirs)
    assert found.agree == found.pairs == 4 and found.is_certain and found.mean == pytest.approx(-1)
    shuffled = difference(ours, [*theirs[1:], theirs[0]])
    assert not shuffled.is_certain


@pytest.mark.parametrize(
    ("found", "certain"),
    [
        (Difference(1, 0.1, 2, 3, 3), True),
        (Difference(-1, -2, -0.1, 3, 3), True),
        (Difference(1, -0.1, 2, 3, 3), False),
        (Difference(1, 0.0, 2, 3, 3), False),
        (Difference(1, 1, 1, 2, 2), False),
        (Difference(1, math.nan, math.nan, 1, 1), False),
    ],
)
def test_certain_is_an_interval_of_three_pairs_without_zero(found: Difference, certain: bool) -> None:
    assert found.is_certain == certain


def test_what_cannot_be_said_is_nan() -> None:
    alone = difference([1.0], [2.0])
    assert alone.mean == -1 and math.isnan(alone.low) and alone.agree == 1
    broken = difference([1.0, math.nan, 2.0], [2.0, 1.0, 4.0])
    assert math.isnan(broken.mean) and not broken.is_certain
    with pytest.raises(ValueError, match="no pair"):
        difference([], [])


def test_units() -> None:
    assert scale_of("mae", [40.0, 60.0]) == 2
    assert scale_of("run_on", [0.5]) == 100 and scale_of("r2", [0.5]) == 1
    assert math.isnan(scale_of("mae", [0.0]))


def record(seed: int, loss: str, **changes: Any) -> dict[str, Any]:
    config = {
        "dataset": {"name": "d", "limits": {"train": 9}},
        "model": {"name": "m", "size": "tiny"},
        "loss": {"name": loss},
        "trainer": {"name": "curve", "arguments": {"max_steps": 5, "disable_tqdm": seed == 2}},
        "seed": seed,
        "data_seed": 0,
    }
    config.update(changes)
    return {
        "dataset": "d",
        "model": "m",
        "loss": loss,
        "seed": seed,
        "config": config,
        "metrics": {"test": {"mae": seed}},
    }


def test_pairs_are_runs_of_the_same_seed() -> None:
    ours, theirs = [record(seed, "ntl_was") for seed in (1, 2, 5)], [record(seed, "ce") for seed in (5, 1, 3)]
    assert [(one["seed"], other["seed"]) for one, other in pairs_of(ours, theirs)] == [(1, 1), (5, 5)]
    assert compare(ours, theirs, "test", "mae") == Difference(0, 0, 0, 0, 2)
    assert compare(ours, theirs, "test", "r2") is compare(ours, theirs, "other", "mae") is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data_seed": 1}, "data_seed"),
        ({"dataset": {"name": "d", "limits": {"train": 8}}}, "dataset.limits.train"),
        ({"trainer": {"name": "curve", "arguments": {"max_steps": 6}}}, "trainer.arguments.max_steps"),
        ({"model": {"name": "m", "size": "mini"}}, "model.size"),
    ],
)
def test_pairs_share_all_but_the_loss(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"d, m, ntl_was, seed 1 cannot be compared with ce: {named}"):
        pairs_of([record(1, "ntl_was", **changes)], [record(1, "ce")])
    if named == "model.size":
        assert pairs_of([record(1, "ntl_was", **changes)], [record(1, "ce")], models=False)
