"""Headline tables, what decoding does, and the pictures, of records made up for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import published
from benchmarks.quality import advice, headlines, names, plots, report, tables
from benchmarks.quality.losses import NTL
from benchmarks.quality.records import Record, by_dataset, median_splits, splits_of
from benchmarks.quality.statistics import Difference, compare

SEEDS = (1, 2, 3, 4)
BINS = [0] * 20 + [5, 5, 10] + [0] * 57


def record(dataset: str, loss: str, seed: int, error: float, model: str = "llama", **others: float) -> Record:
    """A run whose greedy answers err by ``error``, and others on other splits."""
    metrics = {
        split: {"mae": value, "median_error": value / 2, "log_mae": value**2 / 100, "number_accuracy": 1 / value}
        for split, value in {"test": error, "interpolate": error, **others}.items()
    }
    config: dict[str, Any] = {
        "dataset": {"name": dataset},
        "model": {"name": model},
        "loss": {"name": loss},
        "trainer": {"arguments": {"max_steps": 20, "per_device_train_batch_size": 4}},
        "seed": seed,
    }
    return {
        "dataset": dataset,
        "model": model,
        "loss": loss,
        "seed": seed,
        "config": config | ({"samples": 16} if others else {}),
        "metrics": metrics,
        "errors": dict.fromkeys(metrics, BINS),
        "curve": [{"step": step, "mae": 20 * error / step, "median_error": error, "r2": 0.5} for step in (10, 20)],
        "parameters": 1000,
        "sizes": {"train": 10, "test": 5},
        "seconds": 3.0,
    }


def both(dataset: str, model: str = "llama", **medians: float) -> list[Record]:
    """CE that errs by 10 and some, and CE + NTL that errs by a tenth less; their medians as said."""
    runs = []
    for seed in SEEDS:
        drawn = {name: value + 0.01 * seed for name, value in medians.items()}
        runs.append(record(dataset, "CE", seed, 10 + 0.1 * seed, model, **drawn))
        runs.append(record(dataset, NTL, seed, 9 + 0.1 * seed, model, **drawn))
    return runs


def test_the_table_has_the_rows_that_there_are_runs_for() -> None:
    assert headlines.table([]) == ""
    (header, _, row) = headlines.table(both("taxis")).splitlines()
    assert header == "| task | measure | CE → with NTL | change | change in MAE (exact tasks: log MAE) |"
    assert row.startswith("| taxi fares | median error | 5.12 → 4.62 | -9.8 % [") and row.count(" ▼ 4/4 |") == 2


def test_exact_tasks_are_told_by_right_numbers() -> None:
    _, _, estimated, computed = headlines.table(
        [*both("arithmetic", "llama_pretrained"), *both("housing")]
    ).splitlines()
    assert estimated.startswith("| house values | median error |") and " % [" in estimated.split(" | ")[3]
    assert computed.startswith("| sums | right numbers | 9.76 → 10.8 % | +1.1 points [")
    assert estimated.split(" | ")[4].startswith("-9.8 % [") and computed.split(" | ")[4].startswith("-18.6 % [")


def test_medians_of_drawn_answers_are_no_split_of_their_own() -> None:
    groups = by_dataset(both("housing", test_median_of_16=8.0))["housing"]
    assert splits_of(groups) == ["interpolate", "test"]
    assert median_splits(groups) == {"test": "test_median_of_16"}
    assert median_splits(by_dataset(both("taxis"))["taxis"]) == {}


def test_decoding_is_compared_with_training() -> None:
    assert tables.decoding_table(by_dataset(both("taxis"))) == ""
    runs = both("housing", test_median_of_16=8.0)
    header, _, *rows = tables.decoding_table(by_dataset(runs)).splitlines()
    assert "MAE vs CE, greedy" in header and f"median error vs {NTL}, greedy" in header
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == ["house values, test"] * 4
    assert [row[1] for row in cells] == ["CE, greedy", f"{NTL}, greedy", "CE, median of 16", f"{NTL}, median of 16"]
    assert cells[0][4:] == ["-"] * 4 and cells[1][6:] == ["-", "-"], "nothing is compared with itself, or twice"
    assert cells[1][4].startswith("-9.8 %")
    assert cells[2][4].startswith("-21.7 %") and cells[2][6].startswith("-13.2 %")
    alone = tables.decoding_table(by_dataset([run for run in runs if run["loss"] == "CE"])).splitlines()
    assert len(alone) == 4 and alone[-1].endswith("| - | - |")


def test_a_claim_may_compare_two_ways_to_answer() -> None:
    (claim,) = advice.about("housing", "CE", NTL, "test_median_of_16", beside_split="test", mae="lower")
    datasets = by_dataset(both("housing", test_median_of_16=8.0))
    found = report.evidence_of(datasets, claim)
    assert found.verdict == "lower" and found.pairs == len(SEEDS)
    groups = datasets["housing"]
    assert found == compare(groups["llama", "CE"], groups["llama", NTL], "test_median_of_16", "mae", "test")
    table = report.evidence_table(both("housing", test_median_of_16=8.0), [claim])
    assert f"(report.md#house-values), test_median_of_16 | CE vs {NTL}, test | MAE | -13.2 %" in table


def test_a_report_of_runs_that_are_not_committed_has_everything_but_advice() -> None:
    runs = [{**run, "environment": {}} for run in both("housing", test_median_of_16=8.0)]
    written = report.report(runs, {}, {}, advised=False)
    assert "## What decoding does" in written and "## house values\n\n`housing`: llama" in written
    assert "advice" not in written


def test_sentences_are_filled_with_their_evidence() -> None:
    evidence = advice.about("taxis", NTL, mae="lower")
    assert report.filled("MAE {0} it is.", evidence, both("taxis")).startswith("MAE -9.8 % [-10, -9.6] it is")
    assert report.filled("Nothing.", evidence, both("taxis")) == "Nothing."


def test_headings_have_the_anchors_that_pages_give_them() -> None:
    assert names.anchor("rents, 2,000 steps") == "rents-2000-steps"
    assert names.in_order(["zebra", "taxis", "apple", "rents_long"]) == ["rents_long", "taxis", "apple", "zebra"]
    assert names.words("apple") == "apple"


@pytest.mark.parametrize(
    ("split", "where", "expected"),
    [("test", "test", "greedy"), ("test", "test_median_of_16", "median of 16")],
)
def test_ways_to_answer_have_names(split: str, where: str, expected: str) -> None:
    assert tables.answers(split, where) == expected


def test_the_gain_is_followed_by_budget_and_through_training() -> None:
    runs = [run for dataset in ("rents_quick", "rents_linear_decay", "housing") for run in both(dataset)]
    assert [steps for steps, _ in headlines.budgets(runs)] == [20, 20]
    followed = headlines.training(runs)
    assert list(followed) == ["rents, 800 steps", "house values"]
    assert [step for step, _ in followed["house values"]] == [10, 20]


def limits_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved from now on."""
    kept: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, *_, **__: kept.append(figure))
    return kept


def test_no_interval_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = limits_of(monkeypatch)
    wild = Difference(65.0, -58.0, 548.0, 3, 5)
    plots.draw_differences({"sums": {"MAE": wild}, "none": {"MAE": None}}, "change", tmp_path / "a.png", "")
    (axis,) = kept[0].axes
    low, high = axis.get_xlim()
    assert low < 0.42 and high > 6.48 and axis.get_xscale() == "log"
    labels = [label.get_text() for label in axis.get_xticklabels()]
    assert "0" in labels and len(labels) <= plots.MOST_TICKS


def test_pictures_have_few_lines_and_no_empty_panel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [*both("housing"), *(record("housing", "MSE", seed, 8.0, "regression_head") for seed in SEEDS)]
    runs += [record("housing", f"CE + {weight} NTL-MSE", seed, 9.5) for weight in range(1, 9) for seed in SEEDS]
    kept = limits_of(monkeypatch)
    plots.draw(by_dataset(runs)["housing"], "house values", tmp_path / "a.png", "")
    *curves, seeds = kept[0].axes
    assert [len(axis.lines) for axis in curves] == [3, 3, 3], "CE, CE + NTL and the regression head"
    assert len(seeds.get_yticks()) == 11


def test_pictures_name_their_source(tmp_path: Path) -> None:
    runs = [run for dataset in ("rents_quick", "rents_long", "taxis") for run in both(dataset)]
    headlines.draw_training(runs, tmp_path / "training.png", "one")
    headlines.draw_differences(runs, tmp_path / "differences.png", "two")
    assert [published.source_of(tmp_path / f"{name}.png") for name in ("training", "differences")] == ["one", "two"]
