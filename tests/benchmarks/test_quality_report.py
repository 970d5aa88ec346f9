"""Records, tables and plots of experiments: statistics over seeds, verdicts, and what is committed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import published
from benchmarks.quality import figures, records, summary
from benchmarks.quality.records import ERROR_BINS, at_step, by_dataset, record_of, steps_of

ENVIRONMENT = {
    "command": "python -m benchmarks.quality -m",
    "commit": "0123456789abcdef",
    "changed_files": [],
    "date": "2026-01-02 03:04 UTC",
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
    "python": "3.11.7",
    "device": "Some Processor",
    "threads": 1,
}
STEPS = (10, 20, 30)


def run_of(
    loss: str, seed: int, mae: float, r2: float, dataset: str = "arithmetic", model: str = "llama"
) -> dict[str, Any]:
    """A ``metrics.json`` whose curve falls linearly to ``mae``."""
    arguments = {"per_device_train_batch_size": 4, "max_steps": 30}
    config = {
        "dataset": {"name": dataset},
        "model": {"name": model},
        "loss": {"name": loss, "weight": 0.3, "reweigh": True, "squash_factor": None},
        "trainer": {"arguments": arguments},
        "seed": seed,
    }
    log: list[dict[str, Any]] = [{"step": 5, "loss": 1.0}]
    log += [{"step": step, "eval_loss": 1.0, "eval_mae": mae * 30 / step, "eval_r2": r2 - 30 / step} for step in STEPS]
    log += [{"step": 30, "train_runtime": 7.0}]
    metrics = {"mae": mae, "r2": r2, "exact_match": 0.5, "no_number": 0.0, "median_error": mae}
    return {
        "config": config,
        "loss": loss,
        "environment": ENVIRONMENT,
        "sizes": {"train": 100, "test": 3},
        "parameters": 1234,
        "log": log,
        "metrics": {"test": metrics},
    }


def write_run(folder: Path, run: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(run))
    answers = ("3", "13", "none")
    entries = [{"question": "q", "truth": "3", "answer": answer} for answer in answers]
    (folder / "predictions-test.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two losses, two seeds: at every step CE + NTL is better, by more than the deviations only at the end."""
    folder = tmp_path / "runs"
    for loss, seed, mae, r2 in (
        ("ce", 1, 9.0, 0.1),
        ("ce", 2, 11.0, 0.2),
        ("ntl_was", 1, 5.0, 0.6),
        ("ntl_was", 2, 6.0, 0.7),
    ):
        write_run(folder / f"{loss}{seed}", run_of(loss, seed, mae, r2))
    return folder


def test_a_record_keeps_what_tables_and_plots_need(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", run_of("ntl_was", 3, 2.0, 0.5))
    record = record_of(json.loads((folder / "metrics.json").read_text()), folder)
    assert (record["dataset"], record["model"], record["loss"]) == ("arithmetic", "llama", "CE + 0.3 NTL-WAS")
    assert record["seed"] == 3 and record["seconds"] == 7
    assert [point["step"] for point in record["curve"]] == list(STEPS)
    histogram = record["errors"]["test"]
    assert sum(histogram) == 2 and histogram[0] == 1
    (place,) = [index for index, count in enumerate(histogram) if count and index]
    assert ERROR_BINS[place] <= math.log10(11) < ERROR_BINS[place + 1]


@pytest.mark.parametrize(
    ("trained_by", "changes", "expected"),
    [
        ("ce", {"reweigh": False}, "CE"),
        ("ntl_mse", {"weight": 1.5}, "CE + 1.5 NTL-MSE"),
        ("ntl_was", {"reweigh": False}, "CE + 0.3 NTL-WAS (reweigh=False)"),
        ("ntl_was", {"reweigh": False, "squash_factor": 2.0}, "CE + 0.3 NTL-WAS (reweigh=False, squash_factor=2)"),
        ("mse", {}, "MSE"),
    ],
)
def test_losses_say_what_differs_from_the_defaults(trained_by: str, changes: dict[str, Any], expected: str) -> None:
    config = {"weight": 0.3, "reweigh": True, "squash_factor": None}
    assert records.loss_name(trained_by, {**config, **changes}) == expected


def test_errors_beyond_the_last_bin_count_in_it(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"answer": "9" * 30, "truth": "1"}) + "\n")
    assert records.error_histogram(path)[-1] == 1


def test_records_survive_their_file(runs: Path, tmp_path: Path) -> None:
    found = records.read([runs])
    folder = tmp_path / "records"
    folder.mkdir()
    records.write(found, folder / records.FILE)
    assert records.read([folder]) == found and len(found) == 4


def test_runs_that_cannot_be_told_apart_are_refused(runs: Path) -> None:
    write_run(runs / "again", run_of("ce", 1, 9.0, 0.1))
    with pytest.raises(ValueError, match="two runs of arithmetic, llama, CE, 1"):
        records.read([runs])
    with pytest.raises(ValueError, match="no metrics.json"):
        records.read([runs.parent / "nothing"])


def test_only_steps_that_all_runs_have_make_a_curve(runs: Path) -> None:
    found = records.read([runs])
    found[0]["curve"].pop()
    assert steps_of(found) == [10, 20]
    assert at_step(found[1:], 30, "mae") == [11.0, 5.0, 6.0]
    assert steps_of([]) == []


def test_spread_is_mean_and_sample_deviation() -> None:
    assert summary.spread([2.0, 4.0]) == "3 ± 1.4"
    assert summary.spread([2.0]) == "2" and summary.spread([]) == "-"
    assert summary.spread([2.0, math.nan]) == "nan"
    assert summary.spread([1234.0, 1000.0]) == "1120 ± 170"
    assert summary.spread([0.0012345]) == "0.00123" and summary.spread([-2.5e7]) == "-2.5e+07"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [5.0, 6.0], " ▼"),
        ([5.0, 6.0], [1.0, 2.0], " ▲"),
        ([1.0, 5.0], [4.0, 6.0], ""),
        ([1.0], [5.0, 6.0], ""),
        ([math.nan, 1.0], [5.0, 6.0], ""),
        ([1.0, 2.0], [1.0, 2.0], ""),
    ],
)
def test_marks_need_deviations_apart(ours: list[float], theirs: list[float], expected: str) -> None:
    assert summary.mark(ours, theirs) == expected


def test_tables_have_losses_by_rows(runs: Path) -> None:
    groups = by_dataset(records.read([runs]))["arithmetic"]
    rows = summary.test_table(groups, "test", ["mae", "r2"]).splitlines()
    assert rows[0] == "| model | loss | seeds | MAE | R2 |"
    assert rows[2:] == [
        "| llama | CE | 2 | 10 ± 1.4 | 0.15 ± 0.071 |",
        "| llama | CE + 0.3 NTL-WAS | 2 | 5.5 ± 0.71 ▼ | 0.65 ± 0.071 ▲ |",
    ]
    rows = summary.budget_table(groups, "mae").splitlines()
    assert rows[0] == "| model | loss | MAE at 10 | MAE at 20 | MAE at 30 |"
    assert rows[2].endswith("| 10 ± 1.4 |") and rows[3].endswith("| 5.5 ± 0.71 ▼ |")


def test_budgets_end_with_the_last_step(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = by_dataset(records.read([runs]))["arithmetic"]
    assert summary.budgets(groups) == [10, 20, 30]
    monkeypatch.setattr(summary, "MOST_BUDGETS", 2)
    assert summary.budgets(groups) == [10, 30]


def test_the_arithmetic_target_needs_both_metrics(tmp_path: Path, runs: Path) -> None:
    (row,) = summary.targets(records.read([runs]), None)
    assert row[1:] == ["at 10, 20, 30 of the 3 measured steps", "met"]
    worse = tmp_path / "worse"
    for seed, r2 in ((1, 0.1), (2, 0.2)):
        write_run(worse / f"ce{seed}", run_of("ce", seed, 9.0 + seed, r2))
        write_run(worse / f"ntl{seed}", run_of("ntl_was", seed, 4.0 + seed, r2))
    (row,) = summary.targets(records.read([worse]), None)
    assert row[1:] == ["at none of the 3 measured steps", "**missed**"]


@pytest.mark.parametrize(("mae", "verdict"), [(10.4, "met"), (10.6, "**missed**")])
def test_the_regression_target_takes_the_best_token_head(mae: float, verdict: str, tmp_path: Path) -> None:
    write_run(tmp_path / "head", run_of("mse", 1, 10.0, 0.5, "rents", "regression_head"))
    write_run(tmp_path / "was", run_of("ntl_was", 1, mae, 0.5, "rents"))
    write_run(tmp_path / "worse", run_of("ntl_mse", 1, 20.0, 0.5, "rents"))
    write_run(tmp_path / "ce", run_of("ce", 1, 1.0, 0.5, "rents"))
    (row,) = summary.targets(records.read([tmp_path]), None)
    assert row[1:] == [f"{mae / 10:.3f} (llama, CE + 0.3 NTL-WAS)", verdict]


def test_timing_is_judged_by_its_median() -> None:
    ratio = {"median": 1.005, "low": 0.99, "high": 1.02}
    rows = summary.targets([], {"ratios": {"stock": ratio, "ce": {**ratio, "median": 1.02}}})
    assert [row[-1] for row in rows] == ["met", "**missed**"]


def test_report_writes_and_checks(runs: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    out, readme = tmp_path / "out", tmp_path / "README.md"
    begin, end = published.markers(summary.SECTION)
    readme.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nafter\n")
    for name, value in (("README", readme), ("ROOT", tmp_path), ("FOLDER", out)):
        monkeypatch.setattr(summary, name, value)
    assert summary.main([str(runs), "--out", str(out)]) == 0
    assert (out / "arithmetic.png").read_bytes().startswith(b"\x89PNG")
    text = readme.read_text()
    assert text.startswith("# Title\n\n") and text.endswith("\n\nafter\n") and "old" not in text
    for expected in (
        "5.5 ± 0.71 ▼",
        "[report](out/report.md)",
        "(out/arithmetic.png)",
        "1,234 parameters",
        "7 s a run",
    ):
        assert expected in text
    assert "commit `0123456789`" in (out / "report.md").read_text()
    assert summary.main(["--check"]) == 0
    assert summary.main([]) == 0, "the committed records alone give the same"
    assert summary.main(["--check"]) == 0
    readme.write_text(text.replace("5.5 ±", "5.4 ±"))
    found = records.read([out])
    found[0]["curve"][0]["mae"] = 1.0
    records.write(found, out / records.FILE)
    problems = summary.check(out)
    assert [name in problem for problem, name in zip(problems, ("report.md", "arithmetic.png", "README"), strict=True)]
    assert summary.main(["--check"]) == 1
    capsys.readouterr()
    assert summary.main([str(tmp_path / "nothing")]) == 2
    assert "no metrics.json" in capsys.readouterr().err


def test_answers_without_a_number_leave_gaps(tmp_path: Path) -> None:
    for seed, mae in ((1, 2.0), (2, math.nan)):
        write_run(tmp_path / str(seed), run_of("ce", seed, mae, mae))
    groups = by_dataset(records.read([tmp_path]))["arithmetic"]
    figures.draw(groups, "title", tmp_path / "a.png", "source")
    assert published.source_of(tmp_path / "a.png") == "source"
    assert "nan" in summary.test_table(groups, "test", ["mae"])


def test_committed_results_agree_with_their_tables() -> None:
    assert summary.check(summary.FOLDER) == []
