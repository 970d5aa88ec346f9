"""Records, tables and plots of experiments: statistics over seeds, verdicts, and what is committed."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import published
from benchmarks.environment import ROOT, describe, without_paths
from benchmarks.errors import InputError
from benchmarks.quality import advice, headlines, plots, records, report, tables, targets
from benchmarks.quality.compare import RECORDED, configurations
from benchmarks.quality.configuration import WITHOUT_EFFECT, differences, plain
from benchmarks.quality.losses import title
from benchmarks.quality.records import ERROR_BINS, by_dataset, record_of, steps_of, values_of
from benchmarks.quality.statistics import Difference, compare

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
    loss: str, seed: int, mae: float, r2: float, dataset: str = "diamonds", model: str = "llama"
) -> dict[str, Any]:
    """A ``metrics.json`` whose curve falls linearly to ``mae``."""
    arguments = {"per_device_train_batch_size": 4, "max_steps": 30}
    config = {
        "dataset": {"name": dataset},
        "model": {"name": model},
        "loss": {"name": loss, "weight": 0.3, "reweigh": False, "squash_factor": None},
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
        "seconds": 7,
        "log": log,
        "metrics": {"test": metrics},
    }


def write_run(folder: Path, run: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(run))
    answers = ("3", "13", "none")
    entries = [{"question": "q", "truth": "3", "answer": answer} for answer in answers]
    for split in run["metrics"]:
        (folder / f"predictions-{split}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two losses, three seeds: CE + NTL is better by 4, 5 and 6 points of MAE, and by as much of R2."""
    folder = tmp_path / "runs"
    for seed, ce, ntl in ((1, 9.0, 5.0), (2, 11.0, 6.0), (3, 10.0, 4.0)):
        write_run(folder / f"ce{seed}", run_of("ce", seed, ce, 0.1))
        write_run(folder / f"ntl{seed}", run_of("ntl_was", seed, ntl, 0.6 + 0.01 * seed))
    return folder


def test_a_record_keeps_what_tables_and_plots_need(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", run_of("ntl_was", 3, 2.0, 0.5))
    record = record_of(json.loads((folder / "metrics.json").read_text()), folder)
    assert (record["dataset"], record["model"], record["loss"]) == ("diamonds", "llama", "CE + 0.3 NTL-WAS")
    assert record["seed"] == 3 and record["seconds"] == 7
    assert [point["step"] for point in record["curve"]] == list(STEPS)
    histogram = record["errors"]["test"]
    assert sum(histogram) == 2 and histogram[0] == 1
    (place,) = [index for index, count in enumerate(histogram) if count and index]
    assert ERROR_BINS[place] <= math.log10(11) < ERROR_BINS[place + 1]


@pytest.mark.parametrize(
    ("trained_by", "changes", "expected"),
    [
        ("ce", {"reweigh": True}, "CE"),
        ("ntl_mse", {"weight": 1.5}, "CE + 1.5 NTL-MSE"),
        ("ntl_was", {"reweigh": True}, "CE + 0.3 NTL-WAS (reweigh=True)"),
        ("ntl_was", {"reweigh": True, "squash_factor": 2.0}, "CE + 0.3 NTL-WAS (reweigh=True, squash_factor=2)"),
        ("mse", {}, "MSE"),
    ],
)
def test_losses_say_what_differs_from_the_defaults(trained_by: str, changes: dict[str, Any], expected: str) -> None:
    config = {"weight": 0.3, "reweigh": False, "squash_factor": None}
    assert title(trained_by, {**config, **changes}) == expected


def test_errors_beyond_the_last_bin_count_in_it(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"answer": "9" * 30, "truth": "1"}) + "\n")
    assert records.error_histogram(path)[-1] == 1


def test_records_survive_their_file(runs: Path, tmp_path: Path) -> None:
    found = records.read([runs])
    folder = tmp_path / "records"
    folder.mkdir()
    records.write(found, folder / records.FILE)
    assert records.read([folder]) == found and len(found) == 6


def test_runs_that_cannot_be_told_apart_are_refused(runs: Path) -> None:
    write_run(runs / "again", run_of("ce", 1, 9.0, 0.1))
    with pytest.raises(InputError, match="two runs of diamonds, llama, CE, 1: .* they differ in nothing"):
        records.read([runs])
    with pytest.raises(InputError, match="no metrics.json"):
        records.read([runs.parent / "nothing"])


def test_a_report_does_not_read_its_own_output(runs: Path, capsys: Any) -> None:
    """Wherever it goes: below the runs, beside them, or into the same folder; the second time as the first."""
    for out in (runs / "report", runs.parent / "other", runs):
        texts = []
        for _ in range(2):
            assert report.main([str(runs), "--out", str(out)]) == 0, capsys.readouterr().err
            texts.append((out / "report.md").read_text())
        assert texts[0] == texts[1] and len(records.read([out], out)) == 6


def test_where_a_report_goes_is_tried_first(runs: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(records, "read", lambda *_: pytest.fail("read before the folder was tried"))
    assert report.main([str(runs), "--out", str(tmp_path / "file" / "in")]) == 2
    assert "cannot write there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ce1/metrics.json", "{", "ce1/metrics.json: not the metrics of a run"),
        ("ce1/metrics.json", "[]", "ce1/metrics.json: not the metrics of a run"),
        ("ce1/metrics.json", '{"log": [], "config": {}}', "ce1/metrics.json: no field 'dataset'"),
        ("ce1/metrics.json", b"\xff", "ce1/metrics.json: not the metrics of a run"),
        ("ce1/predictions-test.jsonl", "{}\n", "ce1/metrics.json: no field 'answer'"),
        ("runs.jsonl", "{}\n", "runs.jsonl, line 1: not a record: 'dataset'"),
        ("runs.jsonl", "{", "runs.jsonl, line 1: not a record"),
    ],
)
def test_malformed_runs_are_named(file: str, content: Any, said: str, runs: Path, capsys: Any) -> None:
    (runs / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert report.main([str(runs), "--out", str(runs.parent / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{runs}/{said}" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dataset.folder=/srv/me/data/mathematics seed=1", "dataset.folder=DATA seed=1"),
        ("dataset.file=/srv/me/a.csv.gz", "dataset.file=DATA/a.csv.gz"),
        ("dataset.file=../shared/a.csv x=~/b", "dataset.file=DATA/a.csv x=DATA"),
        ("model.checkpoint=runs/quality/ce-seed${seed}/model", "model.checkpoint=runs/quality/ce-seed${seed}/model"),
        (f"a={ROOT}/runs/x", "a=runs/x"),
        ("MAE / ours, 1/2, https://example.org/a", "MAE / ours, 1/2, https://example.org/a"),
    ],
)
def test_records_name_no_place_of_a_machine(text: str, expected: str) -> None:
    assert without_paths({"a": [text, 1, None]}) == {"a": [expected, 1, None]}


def test_records_of_runs_name_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("ce", 1, 2.0, 0.5)
    run["config"]["dataset"]["folder"] = "/data/x"
    monkeypatch.setattr(sys, "argv", ["python", "dataset.folder=/data/x"])
    run["environment"] = describe("quality", torch.device("cpu"))
    record = record_of(run, write_run(tmp_path / "a", run))
    assert "/data" not in json.dumps(record)
    assert record["environment"]["command"] == "python -m benchmarks.quality dataset.folder=DATA"


def test_committed_results_name_no_place_of_a_machine() -> None:
    """No path from the root, from home or from above the project in any stored command, configuration or report."""
    files = [path for path in report.FOLDER.iterdir() if path.suffix in (".json", ".jsonl", ".md")]
    assert {path.name for path in files} >= {"runs.jsonl", "report.md"}
    for path in files:
        for line in path.read_text().splitlines():
            text = line.replace("1 / 2", "")
            found = re.search(r"(?:^|[\s\"'=(\[,])((?:/|~/|\.\./)[\w.-]+)", text)
            assert found is None, f"{path.name}: {found.group(1) if found else ''}"


def test_only_steps_that_all_runs_have_make_a_curve(runs: Path) -> None:
    found = records.read([runs])
    found[0]["curve"].pop()
    assert steps_of(found) == [10, 20]
    assert values_of(found[1:], 30, "mae") == [11.0, 10.0, 5.0, 6.0, 4.0]
    assert steps_of([]) == []


def test_spread_is_mean_and_sample_deviation() -> None:
    assert tables.spread([2.0, 4.0]) == "3 ± 1.4"
    assert tables.spread([2.0]) == "2" and tables.spread([]) == "-"
    assert tables.spread([2.0, math.nan]) == "nan"
    assert tables.spread([1234.0, 1000.0]) == "1120 ± 170"
    assert tables.spread([0.0012345]) == "0.00123" and tables.spread([-2.5e7]) == "-2.5e+07"


def test_differences_are_told_with_their_interval() -> None:
    assert tables.told(Difference(-12.34, -15.0, -9.7, 5, 5), "mae") == "-12.3 % [-15, -9.7] ▼ 5/5"
    assert tables.told(Difference(1.5, -1.0, 4.0, 4, 5), "run_on") == "+1.5 points [-1, +4] 4/5"
    assert tables.told(Difference(0.25, math.nan, math.nan, 1, 1), "r2") == "+0.25 1/1"
    assert tables.told(None, "mae") == "-"
    assert tables.told(Difference(math.nan, math.nan, math.nan, 0, 2, "why not"), "mae") == "- (why not)"
    assert tables.brief(Difference(-12.34, -15.0, -9.7, 5, 5), "mae") == "-12.3 % [-15, -9.7]"
    assert tables.told_as_factor(Difference(-12.34, -15.0, 9.7, 5, 5)) == "0.877 [0.850, 1.097] over 5 seeds"
    assert tables.told_as_factor(Difference(5.0, math.nan, math.nan, 1, 1)) == "1.050 over 1 seed"


def test_tables_have_losses_by_rows(runs: Path) -> None:
    groups = by_dataset(records.read([runs]))["diamonds"]
    rows = tables.test_table(groups, "test").splitlines()
    assert rows[0] == "| model | loss | seeds | exact match | MAE | median error | R2 | no number |"
    assert rows[2] == "| llama | CE | 3 | 0.5 ± 0 | 10 ± 1 | 10 ± 1 | 0.1 ± 0 | 0 ± 0 |"
    assert rows[3].startswith("| llama | CE + 0.3 NTL-WAS | 3 | 0.5 ± 0 | 5 ± 1 ▼ | 5 ± 1 ▼ | 0.62 ± 0.01 ▲ |")
    rows = tables.difference_table(groups, "test").splitlines()
    assert len(rows) == 3, "CE itself has no difference to CE"
    assert rows[2].startswith(
        "| llama | CE + 0.3 NTL-WAS | -50.5 % [-68.7, -21.7] ▼ 3/3 | -50.5 % [-68.7, -21.7] ▼ 3/3 | - |"
    )
    rows = tables.budget_table(groups, "mae").splitlines()
    assert rows[0] == "| model | loss | MAE at 10 | MAE at 20 | MAE at 30 |"
    assert rows[2].endswith("| 10 ± 1 |") and rows[3].endswith("| 5 ± 1 ▼ |")


def test_budgets_end_with_the_last_step(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = by_dataset(records.read([runs]))["diamonds"]
    assert tables.budgets(groups) == [10, 20, 30]
    monkeypatch.setattr(tables, "MOST_BUDGETS", 2)
    assert tables.budgets(groups) == [10, 30]


@pytest.mark.parametrize(("mae", "r2", "met"), [(5.0, 0.6, True), (5.0, 0.1, False), (15.0, 0.6, False)])
def test_the_arithmetic_target_needs_both_metrics(mae: float, r2: float, met: bool, tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for loss, run in (("ce", (10.0 + seed, 0.1)), ("ntl_was", (mae + 1.1 * seed, r2 + 0.01 * (seed - 2)))):
            content = run_of(loss, seed, *run, "arithmetic")
            content["metrics"] = {"interpolate": content["metrics"]["test"]}
            write_run(tmp_path / f"{loss}{seed}", content)
    (row,) = targets.targets(records.read([tmp_path]), {})
    assert row[-1] == ("met" if met else "**missed**") and row[1].startswith("MAE ") and ", R2 " in row[1]


@pytest.mark.parametrize(("mae", "factor", "verdict"), [(9.0, "0.900", "met"), (11.0, "1.100", "**missed**")])
def test_the_regression_target_is_about_one_setting(mae: float, factor: str, verdict: str, tmp_path: Path) -> None:
    """Over the seeds that both have, and not the best of several losses."""
    write_run(tmp_path / "head", run_of("mse", 1, 10.0, 0.5, "rents_long", "regression_head"))
    write_run(tmp_path / "head2", run_of("mse", 2, 99.0, 0.5, "rents_long", "regression_head"))
    write_run(tmp_path / "was", run_of("ntl_was", 1, mae, 0.5, "rents_long"))
    write_run(tmp_path / "better", run_of("ntl_mse", 1, 5.0, 0.5, "rents_long"))
    (row,) = targets.targets(records.read([tmp_path]), {})
    claim = "rents, 2,000 steps, test: MAE of CE + 0.3 NTL-WAS / of the regression head ≤ 1"
    assert row == [claim, f"{factor} over 1 seed", verdict]


def test_timing_is_judged_by_its_median() -> None:
    ratio = {"median": 1.005, "low": 0.99, "high": 1.02}
    rows = targets.targets([], {"ratios": {"stock": ratio, "ce": {**ratio, "median": 1.02}}})
    assert [row[-1] for row in rows] == ["met", "**missed**"]


def claim(verdict: str) -> advice.Evidence:
    return advice.Evidence("diamonds", "CE + 0.3 NTL-WAS", "mae", verdict)


@pytest.fixture
def committed(runs: Path, tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that the report takes for the committed one, with a README, a row and a sentence of advice."""
    out, readme = tmp_path / "out", tmp_path / "README.md"
    begin, end = published.markers(report.SECTION)
    readme.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nafter\n")
    monkeypatch.setattr(headlines, "HEADLINES", (headlines.Headline("diamonds"),))
    told = (advice.Advice("Use it: {0}.", (claim("lower"),), "But not always."),)
    changes = {"README": readme, "ROOT": tmp_path, "FOLDER": out, "ADVICE": told}
    for name, value in changes.items():
        monkeypatch.setattr(report, name, value)
    assert report.main([str(runs), "--out", str(out)]) == 0
    return out


def test_report_writes_and_checks(committed: Path, tmp_path: Path, capsys: Any) -> None:
    out, readme = committed, tmp_path / "README.md"
    for plot in ("diamonds.png", "differences.png", "training.png"):
        assert (out / plot).read_bytes().startswith(b"\x89PNG")
    text = readme.read_text()
    assert text.startswith("# Title\n\n") and text.endswith("\n\nafter\n") and "old" not in text
    change = "-50.5 % [-68.7, -21.7]"
    row = f"| prices of diamonds | median error | 10 → 5 | {change} ▼ 3/3 | {change} ▼ 3/3 |"
    for expected in (row, "[report](out/report.md)", "[advice](out/advice.md)"):
        assert expected in text
    written = (out / "report.md").read_text()
    for expected in ("1,234 parameters", "7 s per run", "(advice.md)", "## prices of diamonds"):
        assert expected in written
    assert "commit `0123456789`" in (out / "commands.md").read_text()
    task = "[prices of diamonds](report.md#prices-of-diamonds), test"
    row = f"| {task} | CE + 0.3 NTL-WAS vs CE | MAE | {change} ▼ 3/3 |"
    advised = (out / "advice.md").read_text()
    assert row in advised and f"\n\n**Use it: {change}.**\n\nBut not always.\n\n" in advised
    assert "Use it" not in text
    assert report.main(["--check"]) == 0
    assert report.main([]) == 0, "the committed records alone give the same"
    assert report.main(["--check"]) == 0
    readme.write_text(text.replace("10 → 5", "10 → 4"))
    found = records.read([out])
    found[0]["metrics"]["test"]["mae"] = 1.0
    records.write(found, out / records.FILE)
    problems = report.check(out)
    names = ("report.md", "advice.md", "diamonds.png", "differences.png", "README", "advice 'Use it: {0}.'")
    assert [name in problem for problem, name in zip(problems, names, strict=True)] == [True] * 6
    assert report.main(["--check"]) == 1
    capsys.readouterr()
    assert report.main([str(tmp_path / "nothing")]) == 2
    assert "no metrics.json" in capsys.readouterr().err


@pytest.mark.parametrize("verdict", ["higher", "undecided"])
def test_advice_that_the_records_do_not_bear_out_is_found(verdict: str, committed: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(report, "ADVICE", (advice.Advice("Do not.", (claim(verdict),)),))
    assert report.wrong_advice(records.read([committed])) == [
        "advice 'Do not.': diamonds, CE + 0.3 NTL-WAS: mae is lower"
    ]
    elsewhere = (advice.Evidence("nowhere", "CE", "mae", "lower"),)
    monkeypatch.setattr(report, "ADVICE", (advice.Advice("Else?", elsewhere),))
    with pytest.raises(InputError, match="no pairs of nowhere"):
        report.wrong_advice(records.read([committed]))


def test_answers_without_a_number_leave_gaps(tmp_path: Path) -> None:
    for seed, mae in ((1, 2.0), (2, math.nan)):
        write_run(tmp_path / str(seed), run_of("ce", seed, mae, mae))
    groups = by_dataset(records.read([tmp_path]))["diamonds"]
    plots.draw(groups, "title", tmp_path / "a.png", "source")
    assert published.source_of(tmp_path / "a.png") == "source"
    assert "nan" in tables.test_table(groups, "test")


def test_committed_results_agree_with_their_tables() -> None:
    assert report.check(report.FOLDER) == []


def test_the_readme_has_one_small_table() -> None:
    runs = records.read([report.FOLDER])
    text = report.section(runs, report.FOLDER)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    found = headlines.pairs(runs)
    assert len(rows) - 2 == len(found) <= len(headlines.HEADLINES) <= 9
    assert "![" not in text and len(text.splitlines()) <= 20
    assert all(one.evidence for one in advice.ADVICE)


def test_ten_recorded_seeds_of_the_main_job_agree() -> None:
    """What the main job does is what was recorded, and the sign of its difference is that of nine seeds in ten."""
    groups = by_dataset(records.read([report.FOLDER]))["rents_quick"]
    found = compare(*(groups[key] for key in RECORDED), "test", "mae")
    assert found is not None and found.pairs == 10 and found.agree >= 9 and found.is_certain
    for (_, config), key in zip(configurations([], seeds=1), reversed(RECORDED), strict=True):
        recorded = next(run for run in groups[key] if run["seed"] == 1)
        unlike = differences(json.loads(json.dumps(plain(config))), recorded["config"])
        assert [option for option in unlike if option not in WITHOUT_EFFECT] == []
