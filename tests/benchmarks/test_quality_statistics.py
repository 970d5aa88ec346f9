"""Differences by pairs: against scipy, by hand, and where nothing can be said."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from benchmarks.commands import InputError
from benchmarks.quality.statistics import Difference, compare, difference, pairs_of, ratio

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
    assert found.lower == sum(ours < theirs) and found.pairs == len(pairs)


def test_errors_of_rounding_are_no_difference() -> None:
    found = difference([0.1 + 0.2, 0.5, 0.7], [0.3, 0.7, 0.5])
    assert (found.mean, found.lower) == (0, 1) and found.low == -found.high != 0
    assert difference([0.1 + 0.2], [0.3], 100)[:1] == (0,)


def test_pairs_see_what_deviations_hide() -> None:
    """Every seed is better by one, though seeds differ by far more."""
    ours, theirs = [9.0, 19.1, 29.0, 38.9], [10.0, 20.0, 30.0, 40.0]
    found = difference(ours, theirs)
    assert found.lower == found.pairs == 4 and found.is_certain and found.mean == pytest.approx(-1)
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
    assert alone.mean == -1 and math.isnan(alone.low) and alone.lower == 1
    broken = difference([1.0, math.nan, 2.0], [2.0, 1.0, 4.0])
    assert math.isnan(broken.mean) and not broken.is_certain and broken.gap
    for compared in (difference, ratio):
        with pytest.raises(ValueError, match="no pair"):
            compared([], [])


POSITIVE = st.floats(1e-6, 1e6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=12))
def test_ratios_are_a_paired_t_test_of_logarithms(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (np.array(side) for side in zip(*pairs, strict=True))
    found = ratio(ours, theirs)
    assert -100 <= found.low <= found.mean <= found.high
    logarithms = np.log(ours) - np.log(theirs)
    assert found.mean == pytest.approx(100 * (np.exp(logarithms.mean()) - 1), rel=1e-6, abs=1e-6)
    if np.ptp(logarithms) > 1e-9:
        with np.errstate(over="ignore"):
            expected = 100 * np.expm1(ttest_rel(np.log(ours), np.log(theirs)).confidence_interval(0.95))
        assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-4, abs=1e-4)


def test_ratios_by_hand() -> None:
    found = ratio([50.0, 200.0, 100.0], [100.0, 100.0, 100.0])
    assert found.mean == 0 and found.lower == 1, "half and double cancel"
    assert (1 + found.low / 100) * (1 + found.high / 100) == pytest.approx(1), "as far down as up"
    assert ratio([80.0, 80.0, 80.0], [100.0, 100.0, 100.0])[:4] == pytest.approx((-20, -20, -20, 3))
    wild = ratio([10.0, 10.0, 4000.0], [10.0, 10.0, 10.0])
    assert wild.low > -100 and not wild.is_certain


@pytest.mark.parametrize(
    ("ours", "theirs", "gap"),
    [
        ([1.0, 0.0, 2.0], [1.0, 1.0, 1.0], "0 in some runs has no ratio"),
        ([1.0, 1.0, 2.0], [1.0, 0.0, 1.0], "0 in some runs has no ratio"),
        ([0.0], [0.0], "0 in some runs has no ratio"),
        ([1.0, math.nan], [1.0, 1.0], "no number in some runs"),
        ([1.0, 0.0], [math.inf, 1.0], "no number in some runs"),
    ],
)
def test_what_has_no_ratio_is_not_left_out_in_silence(ours: list[float], theirs: list[float], gap: str) -> None:
    found = ratio(ours, theirs)
    assert math.isnan(found.mean) and found.verdict == "undecided"
    assert (found.gap, found.pairs, found.lower) == (gap, len(ours), 0)


def of_metric(metric: str, seed: int, loss: str, **splits: float) -> dict[str, Any]:
    return {**record(seed, loss), "metrics": {split: {metric: value} for split, value in splits.items()}}


@pytest.mark.parametrize(("metric", "expected"), [("mae", -20), ("run_on", -0.1 * 100), ("r2", -0.1)])
def test_units(metric: str, expected: float) -> None:
    ours = [of_metric(metric, seed, "ntl_was", test=0.4) for seed in (1, 2)]
    theirs = [of_metric(metric, seed, "ce", test=0.5) for seed in (1, 2)]
    found = compare(ours, theirs, "test", metric)
    assert found is not None and found.mean == pytest.approx(expected)


def test_splits_of_the_same_runs_are_compared() -> None:
    runs = [of_metric("mae", seed, "ce", test=2.0, drawn=1.0) for seed in (1, 2, 3)]
    found = compare(runs, runs, "drawn", "mae", "test")
    assert found is not None and found.mean == pytest.approx(-50) and found.pairs == 3
    assert compare(runs, runs, "drawn", "mae", "nowhere") is None


def record(seed: int, loss: str, **changes: Any) -> dict[str, Any]:
    config = {
        "dataset": {"name": "d", "limits": {"train": 9}},
        "model": {"name": "m", "size": "tiny"},
        "loss": {"name": loss},
        "trainer": {"name": "curve", "arguments": {"max_steps": 5, "disable_tqdm": seed == 2}},
        "seed": seed,
        "data_seed": 0,
    }
    key = {"dataset": "d", "model": "m", "loss": loss, "seed": seed}
    return {**key, "config": {**config, **changes}, "metrics": {"test": {"mae": seed}}}


def test_pairs_are_runs_of_the_same_seed() -> None:
    ours, theirs = [record(seed, "ntl_was") for seed in (1, 2, 5)], [record(seed, "ce") for seed in (5, 1, 3)]
    assert [(one["seed"], other["seed"]) for one, other in pairs_of(ours, theirs)] == [(1, 1), (5, 5)]
    assert compare(ours, theirs, "test", "mae") == Difference(0, 0, 0, 0, 2)
    assert compare(ours, theirs, "test", "r2") is compare(ours, theirs, "other", "mae") is None


def test_pairs_may_have_read_a_table_in_different_places() -> None:
    ours, theirs = (
        record(1, loss, dataset={"name": "d", "file": file})
        for loss, file in (("ntl_was", "data/rows.csv"), ("ce", "DATA/rows.csv.gz"))
    )
    assert pairs_of([ours], [theirs]) == [(ours, theirs)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data_seed": 1}, "data_seed"),
        ({"dataset": {"name": "d", "limits": {"train": 8}}}, "dataset.limits.train"),
        ({"dataset": {"name": "d", "file": "data/rows.csv"}}, "dataset.file"),
        ({"trainer": {"name": "curve", "arguments": {"max_steps": 6}}}, "trainer.arguments.max_steps"),
        ({"model": {"name": "m", "size": "mini"}}, "model.size"),
    ],
)
def test_pairs_share_all_but_the_loss(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"d, m, ntl_was, seed 1 cannot be compared with ce: {named}"):
        pairs_of([record(1, "ntl_was", **changes)], [record(1, "ce")])
    if named == "model.size":
        assert compare([record(1, "ntl_was", **changes)], [record(1, "ce")], "test", "mae", models=False)
        assert pairs_of([record(1, "ntl_was", **changes)], [record(1, "ce")], models=False)
