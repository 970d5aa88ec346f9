"""Records, tables and plots of experiments: statistics over seeds, verdicts, and what is committed."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from benchmarks import files, published
from benchmarks.commands import InputError
from benchmarks.environment import ROOT, without_paths
from benchmarks.published import SPACE
from benchmarks.quality import advice, headlines, names, ordered, plots, records, report, several_digits, tables
from benchmarks.quality.compare import RECORDED, configurations
from benchmarks.quality.configuration import WITHOUT_EFFECT, differences, plain
from benchmarks.quality.losses import NTL, title, was
from benchmarks.quality.records import ERROR_BINS, Record, by_dataset, record_of, steps_of, value_of, values_of
from benchmarks.quality.statistics import Difference, compare

PAGES = Path(__file__).parent / "pages"
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
SPLITS = dict.fromkeys(("arithmetic", "paper_arithmetic", "paper_mathematics"), ("test", "interpolate"))
SEEDS = (1, 2, 3, 4)


def run_of(loss: str, seed: int, mae: float, r2: float, dataset: str = "diamonds") -> dict[str, Any]:
    """A ``metrics.json`` whose curve falls linearly to ``mae``."""
    config = {
        "dataset": {"name": dataset},
        "model": {"name": "llama"},
        "loss": {"name": loss, "weight": 0.3, "reweigh": False, "squash_factor": None},
        "trainer": {"arguments": {"per_device_train_batch_size": 4, "max_steps": 30}},
        "seed": seed,
    }
    log: list[dict[str, Any]] = [{"step": 5, "loss": 1.0}]
    log += [{"step": step, "eval_loss": 1.0, "eval_mae": mae * 30 / step, "eval_r2": r2 - 30 / step} for step in STEPS]
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
    entries = [{"question": "q", "truth": "3", "answer": answer} for answer in ("3", "13", "none")]
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


def record(dataset: str, loss: str, seed: int, error: float, model: str = "llama", **others: float) -> Record:
    """A run whose greedy answers err by ``error``, and others on other splits."""
    metrics = {
        split: {"mae": value, "median_error": value / 2, "log_mae": value**2 / 100, "number_accuracy": 1 / value}
        | {"r2": 1 - value / 20}
        for split, value in (dict.fromkeys(SPLITS.get(dataset, ["test"]), error) | others).items()
    }
    config: dict[str, Any] = {
        "dataset": {"name": dataset},
        "model": {"name": model},
        "loss": {"name": loss},
        "trainer": {"arguments": {"max_steps": 20, "per_device_train_batch_size": 4}},
        "seed": seed,
        "samples": 16 if others else 0,
    }
    known = {"dataset": dataset, "model": model, "loss": loss, "seed": seed, "config": config, "metrics": metrics}
    curve = [{"step": step, "mae": 20 * error / step, "median_error": error, "r2": 0.5} for step in (10, 20)]
    errors = dict.fromkeys(metrics, [0] * 20 + [5, 5, 10] + [0] * 57)
    known |= {"errors": errors, "curve": curve, "environment": ENVIRONMENT}
    return known | {"parameters": 1000, "sizes": {"train": 10, "test": 5}, "seconds": 3.0}


def both(dataset: str, model: str = "llama", ours: str = NTL, factor: float = 0.9, **others: float) -> list[Record]:
    """CE that errs by 10 and some, and a loss whose error is ``factor`` of that; on other splits both as said."""
    found = []
    for seed in SEEDS:
        sampled = {name: value + 0.01 * seed for name, value in others.items()}
        for loss, error in (("CE", 10.0), (ours, 10 * factor)):
            found.append(record(dataset, loss, seed, error + 0.1 * seed, model, **sampled))
    return found


def fine_tuned(dataset: str) -> list[Record]:
    """With the model before it and the regression head of the same model."""
    runs = both(dataset, names.PRETRAINED, test_median_of_16=8.0)
    runs += [record(dataset, "MSE", seed, 8 + 0.08 * seed, names.PRETRAINED) for seed in SEEDS]
    runs += [record(dataset, "CE", seed, 500.0, names.UNTRAINED) for seed in (1, 2)]
    for run in runs:
        run["config"]["model"] |= {"lora": {"r": 16}} | ({"head": "regression"} if run["loss"] == "MSE" else {})
        run["metrics"]["test"]["no_number"] = 0.5 + 0.1 * run["seed"]
    return runs


def several_digits_runs() -> list[Record]:
    """A loss that lowers two errors and raises one, and two that lower or raise all."""
    runs, model = both("diamonds"), "llama_triples"
    for seed in SEEDS:
        mixed = record("diamonds", was(1, "triples"), seed, 19 + 0.1 * seed, model)
        mixed["metrics"]["test"]["median_error"] *= 2
        runs += [mixed, record("diamonds", "CE", seed, 20 + 0.1 * seed, model)]
        runs.append(record("diamonds", was(0.1, "triples"), seed, 19 + 0.1 * seed, model))
        runs.append(record("diamonds", was(0.3, "triples", group_by=None), seed, 40 + 0.2 * seed, model))
    for run in runs:
        run["metrics"]["test"] |= {"no_number": 0.0, "too_short": 0.0}
    return runs


def rated() -> list[Record]:
    runs = both("rjokes", "llama_scores", test_expected=8.0, test_median_of_16=7.0)
    runs += [record("rjokes", "MSE", seed, 12.0, "regression_head") for seed in SEEDS]
    for run in runs:
        run["config"]["dataset"]["ratings"] = True
        for measured in run["metrics"].values():
            measured["qwk"] = 1 / measured["mae"]
    return runs


def of_the_paper() -> list[Record]:
    """Claims about two splits with three measures each: all better, all worse, and too few pairs to tell."""
    runs = both("paper_arithmetic", "t5")
    runs += [record("paper_arithmetic", "CE + 2 NTL-MSE", seed, 12 + 0.1 * seed, "t5") for seed in SEEDS]
    runs += [record("paper_arithmetic", "CE + MSE", 1, 8.0, "xval")]
    for run in both("paper_mathematics", "t5"):
        run["metrics"]["interpolate/mul"] = run["metrics"]["interpolate"]
        runs.append(run)
    return runs


# Records


def test_a_record_keeps_what_tables_and_plots_need(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", run_of("ntl_was", 3, 2.0, 0.5))
    found = record_of(json.loads((folder / "metrics.json").read_text()), folder)
    assert (found["dataset"], found["model"], found["loss"]) == ("diamonds", "llama", "CE + 0.3 NTL-WAS")
    assert found["seed"] == 3 and found["seconds"] == 7
    assert [point["step"] for point in found["curve"]] == list(STEPS)
    histogram = found["errors"]["test"]
    assert sum(histogram) == 2 and histogram[0] == 1
    (place,) = [index for index, count in enumerate(histogram) if count and index]
    assert ERROR_BINS[place] <= math.log10(11) < ERROR_BINS[place + 1]
    assert found["metrics"]["test"]["too_short"] == 0 and found["metrics"]["test"]["mae"] == 2
    assert records.error_histogram([(1e30, 1.0)])[-1] == 1, "errors beyond the last bin count in it"


@pytest.mark.parametrize(
    ("trained_by", "codec", "changes", "expected"),
    [
        ("ce", "plain", {"reweigh": True}, "CE"),
        ("ntl_was", "digits", {"reweigh": True, "squash_factor": 2.0}, f"{NTL} (reweigh=True, squash_factor=2)"),
        ("ntl_was", "plain", {}, f"{NTL}, same length"),
        ("ntl_was", "triples", {"group_by": None}, f"{NTL}, all number tokens compared"),
    ],
)
def test_losses_say_what_differs_from_the_defaults(trained_by: str, codec: str, changes: Any, expected: str) -> None:
    assert title(trained_by, {"weight": 0.3, "reweigh": False, "squash_factor": None, **changes}, codec) == expected


def test_runs_that_cannot_be_told_apart_are_refused(runs: Path) -> None:
    write_run(runs / "again", run_of("ce", 1, 9.0, 0.1))
    with pytest.raises(InputError, match="two runs of diamonds, llama, CE, 1: .* they differ in nothing"):
        records.read([runs])
    with pytest.raises(InputError, match=r"no metrics.json"):
        records.read([runs.parent / "nothing"])


@pytest.mark.parametrize("out", ["runs/report", "runs"])
def test_a_report_does_not_read_its_own_output(out: str, runs: Path, tmp_path: Path) -> None:
    """Below the runs or in the same folder; the second time as the first."""
    found, texts = records.read([runs]), []
    for _ in range(2):
        assert report.main([str(runs), "--out", str(tmp_path / out)]) == 0
        texts.append((tmp_path / out / "report.md").read_text())
    assert texts[0] == texts[1] and records.read([tmp_path / out], tmp_path / out) == found and len(found) == 6


def test_records_are_joined_with_new_runs(runs: Path, tmp_path: Path, capsys: Any) -> None:
    """A run that has become a record is read once; another run in its place is refused, unless it is to replace it."""
    out, more = tmp_path / "out", tmp_path / "more"
    assert report.main([str(runs), "--out", str(out)]) == 0
    written = (out / records.FILE).read_text()
    write_run(more / "a", run_of("ce", 4, 9.5, 0.1))
    (more / "unfinished").mkdir()
    texts = []
    for folders in ([str(out), str(more)], [str(more)]):
        assert report.main([*folders, "--out", str(out)]) == 0
        texts.append((out / records.FILE).read_text())
    assert texts[0] == texts[1] and set(written.splitlines()) < set(texts[0].splitlines())
    newer = run_of("ce", 1, 8.0, 0.1)
    changed = {"config": {**newer["config"], "samples": 2}, "environment": {**ENVIRONMENT, "date": "2026-02-02"}}
    for field, value in changed.items():
        shutil.rmtree(more / "b", ignore_errors=True)
        write_run(more / "b", {**newer, field: value})
        assert report.main([str(more), "--out", str(out)]) == 2 and (out / records.FILE).read_text() == texts[0]
        assert re.search("two runs of diamonds, llama, CE, 1: .*--replace drops that in .*out", capsys.readouterr().err)
    assert report.main([str(more), "--out", str(out), "--replace"]) == 0
    found = {records.key_of(record): record["metrics"]["test"]["mae"] for record in records.read([], out)}
    assert len(found) == 7 and found["diamonds", "llama", "CE", 1] == 8


def test_names_in_records_name_files_in_the_folder_alone(runs: Path, tmp_path: Path) -> None:
    """Each of them another."""
    found, escaping = records.read([runs]), ("../../escaped", "/escaped", ".escaped", "a/b", "a_b", "n" * 300)
    (tmp_path / "in").mkdir()
    records.write([{**each, "dataset": name} for each in found for name in escaping], tmp_path / "in" / records.FILE)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert report.main([str(tmp_path / "in"), "--out", str(tmp_path / "a" / "out")]) == 0
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.parent for path in written} == {tmp_path / "a" / "out"}
    assert len([path for path in written if path.suffix == ".png"]) == len(escaping)


BARE = json.dumps({**run_of("ce", 1, 1.0, 0.1), "environment": {}})
NESTED = json.dumps({**record("n", "CE", 1, 1.0), "curve": [{}], "metrics": {"test": 5, "n": {"a": "x"}}})


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ce1/metrics.json", "{", "ce1/metrics.json: not the metrics of a run"),
        ("ce1/metrics.json", BARE, "ce1/metrics.json: not the metrics of a run .*without environment.device, "),
        ("ce1/predictions-test.jsonl", "{}\n", "ce1/metrics.json: not the metrics .*'answer'"),
        ("runs.jsonl", "{}\n", "runs.jsonl, line 1: not a record: without dataset, .*; delete this line"),
        ("runs.jsonl", '\n{"dat\n{}', "runs.jsonl, line 2: not a record: .* go on with the other 1$"),
        ("runs.jsonl", '\n{"a": "\udcff"}', "runs.jsonl, line 2: not a record: .*byte 0xff"),
        ("runs.jsonl", "\ufeff[]", "runs.jsonl, line 1: not a record: without fields;"),
        ("runs.jsonl", NESTED, "runs.jsonl, line 1: not a record: without curve.0.step, metrics.test, metrics.n.a;"),
    ],
)
def test_malformed_runs_are_named(file: str, content: str, said: str, runs: Path, capsys: Any) -> None:
    (runs / file).write_text(content, errors="surrogateescape")
    assert report.main([str(runs), "--out", str(runs.parent / "out")]) == 2
    error = capsys.readouterr().err
    assert re.search(f"{runs}/{said}", error) and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dataset.folder=/srv/me/data/mathematics seed=1", "dataset.folder=DATA seed=1"),
        ("a=[/srv/one,~/two.csv] b='../three'", "a=[DATA,DATA/two.csv] b='DATA'"),
        ("model.checkpoint=runs/quality/ce-seed${seed}/model", "model.checkpoint=runs/quality/ce-seed${seed}/model"),
        ("MAE / ours, 1/2, 3 GB/s, vocab-*/b, https://a.org/b", "MAE / ours, 1/2, 3 GB/s, vocab-*/b, https://a.org/b"),
    ],
)
def test_results_name_no_place_of_a_machine(text: str, expected: str) -> None:
    assert without_paths({"a": [text, 1, None]}) == {"a": [expected, 1, None]}


# Tables


def test_only_steps_that_all_runs_have_make_a_curve(runs: Path) -> None:
    found = records.read([runs])
    assert tables.budgets(by_dataset(found)["diamonds"]) == [10, 20, 30]
    found[0]["curve"].pop()
    assert steps_of(found) == [10, 20] and steps_of([]) == []
    assert values_of(found[1:], 30, "mae") == [11.0, 10.0, 5.0, 6.0, 4.0]


def test_differences_are_told_with_their_interval() -> None:
    assert tables.spread([2.0, 4.0]) == "3.00 ± 1.4" and tables.spread([2.0, math.nan]) == "nan"
    fell = Difference(-12.34, -15.0, -9.7, 5, 5)
    assert tables.told(fell, "mae") == f"−12.3% [−15.0,{SPACE}−9.7] ▼ 5/5"
    assert tables.told(Difference(math.nan, math.nan, math.nan, 0, 2, "why not"), "mae") == "- (why not)"
    assert tables.in_words(Difference(4.0, 1.0, 7.0, 0, 3), "r2") == f"rose by 4.0 [1.0,{SPACE}7.0]"
    assert tables.in_words(Difference(-2.3, -6.3, 2.0, 3, 3), "mae").startswith("did not change reliably")
    assert tables.told_as_factor(Difference(-12.34, -15.0, 9.7, 5, 5)) == f"0.877 [0.850,{SPACE}1.097] over 5 seeds"


@pytest.mark.parametrize(("error", "met"), [(9.0, True), (11.0, False)])
def test_targets_are_met_or_missed(error: float, met: bool) -> None:
    """The regression target is about one setting, over the seeds that both have, and not the best of several losses."""
    verdict = "met" if met else "**missed**"
    runs = [record("arithmetic", "CE", seed, 10 + 0.1 * seed) for seed in SEEDS]
    runs += [record("arithmetic", NTL, seed, error + 0.11 * seed) for seed in SEEDS]
    (row,) = headlines.targets(runs, {})
    assert row[-1] == verdict and row[1].startswith("MAE ") and ", R2 " in row[1]
    runs = [record("rents_long", "MSE", seed, 10.0, "regression_head") for seed in SEEDS]
    runs += [record("rents_long", NTL, 1, error), record("rents_long", "CE + 0.3 NTL-MSE", 1, 5.0)]
    row = headlines.targets(runs, {})[-1]
    claim = "rents, 2,000 steps, test: MAE of CE + 0.3 NTL-WAS / of the regression head ≤ 1"
    assert row == [claim, f"{error / 10:.3f} over 1 seed", verdict]
    ratio = {"median": error / 10, "low": 0.9, "high": 1.1}
    assert headlines.targets([], {"ratios": {"stock": ratio}})[0][-1] == verdict


def test_answers_without_a_number_leave_gaps(tmp_path: Path) -> None:
    for seed, mae in ((1, 2.0), (2, math.nan)):
        write_run(tmp_path / str(seed), run_of("ce", seed, mae, mae))
    groups = by_dataset(records.read([tmp_path]))["diamonds"]
    plots.draw(groups, "title", tmp_path / "a.png", "source")
    assert published.source_of(tmp_path / "a.png") == "source"
    assert "nan" in tables.mean_table(groups, "test")


# The report


SPREAD = {"low": 900.0, "median": 1000.0, "high": 1100.0}
BESIDE = {
    "timing.json": {"ratios": {"stock": {"median": 1.004, "low": 0.99, "high": 1.02}}},
    "timing-all.json": {
        "overrides": ["model.adapter=null"],
        "all_tokens": True,
        "seconds": {"stock": [1.0, 2.0], "ntl": [1.1, 1.8]},
        "milliseconds": {"stock": SPREAD, "ntl": SPREAD},
        "peak_bytes": {"stock": 2**30, "ntl": 2**20},
    },
    records.YARDSTICKS: {
        name: {"metrics": {names.BOOSTED: {"mae": 7.0, "median_error": 1.5}}, "environment": ENVIRONMENT}
        for name in ("finetuned_diamonds", "taxis")
    },
}
"""The files beside the records: times of training steps, and errors of gradient boosting."""
ADVISED = (
    advice.Advice("Use it: MAE {0}.", tuple(advice.about("taxis", NTL, mae="lower")), "But not always."),
    advice.Advice(
        "Or sample: MAE {0}.",
        tuple(advice.about("finetuned_diamonds", "CE", NTL, advice.MEDIANS, names.PRETRAINED, "test", mae="lower")),
    ),
)

HELPS = (advice.Advice("**Fares:** MAE {0}.", tuple(advice.about("taxis", NTL, mae="lower"))),)


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that the report takes for the committed one, with records for each of its parts, and a README."""
    out, readme = tmp_path / "out", tmp_path / "README.md"
    begin, end = published.markers(report.SECTION)
    readme.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nafter\n")
    for name, value in {"README": readme, "ROOT": tmp_path, "FOLDER": out, "ADVICE": ADVISED, "HELP": HELPS}.items():
        monkeypatch.setattr(report, name, value)
    monkeypatch.setattr(plots, "draw", lambda *_: published.save(published.pyplot().figure(), *_[-2:]))  # is slow
    out.mkdir()
    for name, content in BESIDE.items():
        (out / name).write_text(json.dumps(content))
    runs = both("taxis") + both("rents_quick")
    for run in runs[-2 * len(SEEDS) :]:
        run["config"]["trainer"]["arguments"]["max_steps"], run["parameters"] = 2000, 1_040_000
    runs += fine_tuned("finetuned_diamonds") + several_digits_runs() + rated() + of_the_paper()
    for run in runs:
        run["curve"] *= run["dataset"] == "taxis"  # the other pages would only be longer
    records.write(runs, out / records.FILE)
    return out


def claim(verdict: str) -> advice.Evidence:
    return advice.Evidence("diamonds", "CE + 0.3 NTL-WAS", "mae", verdict)


def test_pages_are_written_from_the_records(committed: Path) -> None:
    """If a page is meant to change, copy it from where the message says to `pages`."""
    assert report.main([]) == 0
    for page in ("out/report.md", "out/advice.md", "README.md"):
        made = committed.parent / page
        assert made.read_text() == (PAGES / f"quality-{made.name}").read_text(), made
    assert "commit `0123456789`" in (committed / "commands.md").read_text()
    plotted = {path.stem for path in committed.glob("*.png")}
    assert plotted == {"differences", "training"} | set(by_dataset(report.without_sections(records.read([committed]))))
    assert report.main(["--check"]) == 0


def test_what_does_not_agree_is_named(committed: Path, capsys: Any) -> None:
    assert report.main([]) == 0
    found = records.read([committed])
    for run in found:
        if (run["dataset"], run["loss"]) == ("taxis", NTL):
            run["metrics"]["test"]["mae"] = 20.0
    records.write(found, committed / records.FILE)
    pages = ("report.md", "advice.md", "taxis.png", "differences.png", "README.md: the section on quality")
    wrong = (*pages, "advice '**Fares:** MAE {0}.'", "advice 'Use it: MAE {0}.'")
    assert [name in problem for problem, name in zip(report.check(committed), wrong, strict=True)] == [True] * 7
    readme = committed.parent / "README.md"
    readme.write_text(readme.read_text().replace("| 5.12 |", "| 5.11 |"))
    assert any("README" in problem for problem in report.check(committed)) and report.main(["--check"]) == 1
    assert report.main([str(committed), "--out", str(readme / "in")]) == 2
    assert "cannot write there" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "name"), [(headlines.scope, "taxis"), (headlines.finetuning, "finetuned_diamonds")])
def test_gradient_boosting_stands_beside_the_best_language_model(make: Any, name: str) -> None:
    runs = both("taxis") + fine_tuned("finetuned_diamonds")
    for run in runs:
        if (run["dataset"], run["loss"]) == (name, NTL):
            run["metrics"]["test"]["median_error"] = run["seed"]
    yardsticks = {name: {"metrics": {names.BOOSTED: {"median_error": 5.3}}}}
    found = np.mean([run["seed"] for run in runs if (run["dataset"], run["loss"]) == (name, NTL)])
    assert f"gradient boosting is 5.30 for {names.subject(name)} ({found:.2f})" in make(runs, yardsticks)


def test_regression_heads_of_other_models_are_not_compared() -> None:
    runs = fine_tuned("finetuned_taxis")
    runs[8]["config"]["model"]["hidden_size"] = 64
    assert runs[8]["loss"] == "MSE"
    with pytest.raises(InputError, match=r"cannot be compared with CE: model\.hidden_size"):
        tables.difference_table(by_dataset(runs)["finetuned_taxis"], "test")
    with pytest.raises(InputError, match=r"cannot be compared with MSE: model\.hidden_size"):
        headlines.targets(runs, {})


def test_plots_over_training_use_the_runs_that_there_are() -> None:
    runs = both("rents_quick") + both("rents_linear_decay") + both("housing")
    assert [steps for steps, _ in headlines.budgets(runs)] == [20, 20]
    assert [step for step, _ in headlines.training(runs)["house values"]] == [10, 20]


def test_rows_with_bins_name_their_loss_and_are_not_plotted() -> None:
    runs = fine_tuned("finetuned_diamonds") + both("finetuned_housing", names.WITH_BINS, advice.SOFT)
    _, table, caption = report.finetuned_parts(runs, {})
    assert "| CE + NTL | " in table and caption.endswith(report.IN_BINS)
    assert "| house values in 256 bins, soft labels, dollars | " in table
    assert len(headlines.training(runs)) == len(headlines.errors(runs)) == 1


def test_rows_whose_median_error_cannot_move_show_the_mean_error() -> None:
    runs = both("taxis")
    for run in runs:
        run["metrics"]["test"]["median_error"] = 1.0
    table = headlines.table(runs)
    assert "| taxi fares, dollars | MAE |" in table and table.endswith(" |  |") and "| 1.00 |" not in table
    assert "| taxi fares, dollars | median error |" in headlines.table(both("taxis"))


def test_parts_without_runs_are_left_out() -> None:
    runs = both("diamonds")
    assert report.report(runs, {}, {}, advised=False).count("## ") == 1
    assert headlines.harm(both("readings")).endswith(f" (log MAE) fell by 18.6% [18.2,{SPACE}18.9].")
    assert headlines.table([]) == headlines.harm([]) == "" and report.finetuned_parts(runs, {}) == []


def test_advice_that_the_records_do_not_bear_out_is_found(committed: Path, monkeypatch: Any) -> None:
    runs = records.read([committed])
    for verdict in ("higher", "undecided"):
        for name, other in (("ADVICE", "HELP"), ("HELP", "ADVICE")):
            monkeypatch.setattr(report, name, (advice.Advice("Do not.", (claim(verdict),)),))
            monkeypatch.setattr(report, other, ())
            assert report.wrong_advice(runs) == ["advice 'Do not.': diamonds, CE + 0.3 NTL-WAS: mae is lower"]
    elsewhere = (advice.Evidence("nowhere", "CE", "mae", "lower"),)
    monkeypatch.setattr(report, "ADVICE", (advice.Advice("Else?", elsewhere),))
    with pytest.raises(InputError, match="no pairs of nowhere"):
        report.wrong_advice(runs)


# What is committed


def test_committed_results_agree_with_their_tables() -> None:
    assert report.check(report.FOLDER) == []
    assert all(one.evidence for one in advice.HELP + advice.ADVICE)


def test_committed_yardsticks_are_of_the_rows_of_the_runs() -> None:
    datasets = by_dataset(records.read([report.FOLDER]))
    for name, yardstick in files.read_json(report.FOLDER / records.YARDSTICKS).items():
        sizes = [run["sizes"] for group in datasets[name].values() for run in group]
        assert sizes == [yardstick["sizes"]] * len(sizes), name


def test_a_cell_of_a_table_worked_out_by_other_means() -> None:
    runs = [run for run in records.read([report.FOLDER]) if run["dataset"] == "rents_quick" and run["model"] == "llama"]
    sides = [
        {run["seed"]: value_of(run, "test", "median_error") for run in runs if run["loss"] == loss}
        for loss in (NTL, "CE")
    ]
    ours, theirs = (np.log([side[seed] for seed in sorted(side)]) for side in sides)
    interval = ttest_rel(ours, theirs).confidence_interval(0.95)
    mean, low, high = (100 * math.expm1(each) for each in ((ours - theirs).mean(), interval.low, interval.high))
    cell = f"| {mean:.1f}% [{low:.1f},{SPACE}{high:.1f}] ▼ | {sum(ours < theirs)} of 10 |".replace("-", "−")
    assert high < -7 and len(ours) == 10
    assert cell in (report.FOLDER / report.ADVICE_TEXT).read_text()


def test_the_setting_that_was_chosen_is_the_best_of_ten() -> None:
    """As the advice says of rents after 800 steps, by the MAE on both splits."""
    groups = by_dataset(records.read([report.FOLDER]))["rents_linear_decay"]
    losses = {loss: runs for (model, loss), runs in groups.items() if model == "llama" and loss != "CE"}
    assert len(losses) == 10
    for split in ("test", 800):
        assert min(losses, key=lambda loss: np.mean(values_of(losses[loss], split, "mae"))) == NTL


def test_what_the_readme_says_of_tokens_of_several_digits() -> None:
    datasets = several_digits.with_several(records.read([report.FOLDER]))
    found = several_digits.outcomes(datasets)
    like_llama, like_gpt2 = (found[tokenizer, f"{NTL}, same length"] for tokenizer in ("Llama-3-like", "GPT-2-like"))
    counts = []
    for each in (like_llama, like_gpt2):
        verdicts = [difference.verdict for metric in several_digits.ERRORS for difference in each[metric]]
        assert "higher" not in verdicts
        counts += [f"{verdicts.count('lower')} of {len(verdicts)}"]
    short = [difference.verdict for each in (like_llama, like_gpt2) for difference in each["too_short"]]
    told = " ".join(report.README.read_text().replace("\n>", "").split())
    helped = (
        f"{counts[0]} comparisons (three errors, three tasks) with Llama 3-like tokens and in {counts[1]} with GPT-2"
    )
    assert f"NTL then helped in {helped}-like ones" in told
    assert f"answers were too short more often in {short.count('higher')} of {len(short)}." in told


def test_what_the_readme_says_of_sampled_answers() -> None:
    """The median answer with CE against the greedy one with NTL, on the data sets with samples."""
    datasets = by_dataset(records.read([report.FOLDER]))
    sampled = {name: groups for name, groups in datasets.items() if records.median_splits(groups)}
    del sampled["diamonds_960_steps"]  # digits were trained with CE alone
    verdicts = {}
    for name, groups in sampled.items():
        model, _ = names.models_of(name)
        found = compare(groups[model, "CE"], groups[model, NTL], advice.MEDIANS, "mae", "test")
        assert found is not None
        verdicts[name] = found.verdict
    assert verdicts == dict.fromkeys(("finetuned_taxis", "rjokes", "taxis"), "lower") | dict.fromkeys(
        ("finetuned_diamonds", "finetuned_housing", "housing", "diamonds_60_steps", "diamonds_480_steps"), "undecided"
    )
    told = " ".join(report.README.read_text().split())
    where = "smaller than NTL's on taxi fares and jokes, and nowhere reliably larger"
    assert f"median of {advice.SAMPLES} sampled answers: its MAE was {where}" in told


def test_table_of_the_page_on_ordered_tokens() -> None:
    datasets = by_dataset(records.read([report.FOLDER]))
    of_rows = {
        "small model, 2,000 house values": ("bins_housing", "llama_bins"),
        "small model, 500 prices of diamonds": ("bins_diamonds_500", "llama_bins"),
        "small model, 2,000 prices of diamonds": ("bins_diamonds", "llama_bins"),
        "small model, 8,000 prices of diamonds": ("bins_diamonds_8000", "llama_bins"),
        "small model, 2,000 prices of diamonds, 64 bins": ("bins_diamonds", "llama_bins_64"),
        "small model, 2,000 prices of diamonds, 1,024 bins": ("bins_diamonds", "llama_bins_1024"),
        "small model, 2,000 taxi fares": ("bins_taxis", "llama_bins"),
        "SmolLM2, 3,840 prices of diamonds": ("finetuned_diamonds", names.WITH_BINS),
        "SmolLM2, 3,840 prices of diamonds, digits": ("finetuned_diamonds", names.PRETRAINED),
        "SmolLM2, 15,360 prices of diamonds, 960 steps": ("diamonds_960_steps", names.WITH_BINS),
        "SmolLM2, 15,360 prices of diamonds, 960 steps, digits": ("diamonds_960_steps", names.PRETRAINED),
        "SmolLM2, 3,840 house values": ("finetuned_housing", names.WITH_BINS),
        "SmolLM2, 3,840 house values, digits": ("finetuned_housing", names.PRETRAINED),
        "SmolLM2, 3,840 taxi fares": ("finetuned_taxis", names.WITH_BINS),
        "SmolLM2, 3,840 taxi fares, digits": ("finetuned_taxis", names.PRETRAINED),
    }
    losses, expected = ("CE", NTL, advice.SOFT, advice.GAUSSIAN), []
    for name, (dataset, model) in of_rows.items():
        for way in ("greedy", "median")[: 1 if "digits" in name else 2]:
            found = [values_of(datasets[dataset].get((model, loss), []), ordered.WAYS[way], "mae") for loss in losses]
            cells = (tables.rounded(np.mean(each), 3) if len(each) > 2 else "-" for each in found)
            expected.append([f"{name}, {way}", *cells])
    page = (ROOT / "docs" / "pages" / "ordered-tokens.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(("| small", "| SmolLM2"))]
    assert rows == expected


def test_more_steps_shrink_the_gain_of_soft_labels() -> None:
    """In SmolLM2, with the soft label alone. After 960 steps, medians gain less than greedy answers."""
    datasets, changes = by_dataset(records.read([report.FOLDER])), {}
    for steps, name in ((240, "finetuned_diamonds"), (960, "diamonds_960_steps")):
        for way, split in list(ordered.WAYS.items())[:2]:
            groups = datasets[name]
            found = compare(groups[names.WITH_BINS, advice.GAUSSIAN], groups[names.WITH_BINS, "CE"], split, "mae")
            assert found is not None and found.lower == found.pairs
            changes[steps, way] = -found.mean
    assert all(0 < 2 * changes[960, way] < changes[240, way] for way in ("greedy", "median"))
    assert changes[960, "median"] < changes[960, "greedy"]


def test_intervals_of_bins_are_usually_too_wide() -> None:
    shares = {
        (dataset, model, loss): np.mean(found)
        for dataset, groups in by_dataset(records.read([report.FOLDER])).items()
        for (model, loss), group in groups.items()
        if (found := values_of(group, ordered.WAYS["median"], "coverage"))
    }
    assert len(shares) >= 14
    assert {key: round(share, 2) for key, share in shares.items() if share < 0.89} == {
        ("bins_housing", "llama_bins", advice.STRONG): 0.87,
        ("bins_diamonds_500", "llama_bins", advice.GAUSSIAN): 0.8,
    }
    assert np.mean([share > 0.9 for share in shares.values()]) > 0.9, "usually a little too wide"


def test_gradient_boosting_on_the_page_on_ordered_tokens() -> None:
    """Beside the medians with soft labels."""
    datasets = by_dataset(records.read([report.FOLDER]))
    yardsticks = json.loads((report.FOLDER / records.YARDSTICKS).read_text())
    ratios = {}
    for name in ("diamonds", "housing", "taxis"):
        group = datasets[f"bins_{name}"][("llama_bins", advice.SOFT)]
        boosted = yardsticks[f"bins_{name}"]["metrics"][names.BOOSTED]["mae"]
        ratios[name] = np.mean(values_of(group, ordered.WAYS["median"], "mae")) / boosted
    assert ratios["diamonds"] < 1 < ratios["taxis"] < 1.1 < ratios["housing"]


def test_ten_recorded_seeds_of_the_main_job_agree() -> None:
    """What the main job does is what was recorded, and the sign of its difference is that of nine seeds in ten."""
    groups = by_dataset(records.read([report.FOLDER]))["rents_quick"]
    found = compare(*(groups[key] for key in RECORDED), "test", "mae")
    assert found is not None and found.pairs == 10 and found.lower >= 9 and found.is_certain
    for (_, config), key in zip(configurations([], seeds=1), reversed(RECORDED), strict=True):
        recorded = next(run for run in groups[key] if run["seed"] == 1)
        unlike = differences(json.loads(json.dumps(plain(config))), recorded["config"])
        of_digits = "loss.group_by"  # digits are one group
        assert [option for option in unlike if option not in (*WITHOUT_EFFECT, of_digits)] == []


def test_committed_results_name_no_place_of_a_machine() -> None:
    files = [path for path in (ROOT / "benchmarks" / "results").rglob("*") if path.suffix in (".json", ".jsonl", ".md")]
    assert {path.name for path in files} >= {"runs.jsonl", "report.md", "logits.json", "bytes.json"}
    assert [path.name for path in files if without_paths(path.read_text()) != path.read_text()] == []


def test_pages_by_hand_tell_no_results() -> None:
    """Results stand in what is made from the records; a page that repeated one would soon contradict it."""
    fenced = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    told = re.compile(r"[\d.]+ ?%|[\d.]+ per cent|[\d.]+ percentage points|\b\d+/\d+ seeds")
    pages = {path.name: fenced.sub("", path.read_text()) for path in (ROOT / "docs" / "pages").glob("*.md")}
    found = {name: told.findall(prose) for name, prose in pages.items() if name not in ("kernels.md", "mathematics.md")}
    assert {name: results for name, results in found.items() if results} == {}


def test_ordered_tokens_have_a_section_of_their_own(tmp_path: Path) -> None:
    """With every way to read an answer beside the digits on the same rows; and boxes."""
    for seed in (1, 2, 3):
        for loss, model, mae in (("ce", "llama_bins", 10.0), ("ntl_was", "llama_bins", 7.0), ("ce", "llama", 12.0)):
            run = run_of(loss, seed, mae + 0.1 * seed, 0.5, "bins_diamonds")
            run["config"]["model"] = {"name": model, **({"bins": 256} if model == "llama_bins" else {})}
            if model == "llama_bins":
                run["metrics"] |= {"test_median": {"mae": mae / 2, "coverage": 0.8}}
            write_run(tmp_path / f"{loss}-{model}-{seed}", run)
        box = run_of("ce", seed, 1.0, 0.5, "boxes_1000") | {
            "metrics": {"test": {"iou": 0.5, "iou_50": 0.6, "mae": 2.0}}
        }
        write_run(tmp_path / f"boxes{seed}", box | {"config": {**box["config"], "model": {"name": "locator"}}})
    found = records.read([tmp_path])
    yardsticks = {"bins_diamonds": {"metrics": {"gradient boosting": {"mae": 9.0, "median_error": 4.0}}}}
    text = "\n".join(ordered.section(found, yardsticks))
    assert "| gradient boosting | - | - | 9.00 | - | - | 4.00 | - |" in text
    assert "| llama_bins | CE + 0.3 NTL-WAS | 3 | 7.20 ± 0.10 ▼ | 3.50 ± 0 ▼ |" in text
    assert text.count(" | 0.800 ± 0 |") == 2
    assert "| llama | CE | 3 | 12.2 ± 0.10 | - |" in text and "| CE | 3 | 0.500 ± 0 | 0.600 ± 0 |" in text
    assert not report.without_sections(found) and "## Ordered tokens" in report.report(found, {}, {}, False)
    assert ordered.section([], yardsticks) == []
