"""Records, tables and plots of experiments: statistics over seeds, verdicts, and what is committed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from benchmarks import published
from benchmarks.commands import InputError
from benchmarks.environment import ROOT, without_paths
from benchmarks.published import SPACE
from benchmarks.quality import advice, headlines, names, paper, plots, records, report, several_digits, tables
from benchmarks.quality.compare import RECORDED, configurations
from benchmarks.quality.configuration import WITHOUT_EFFECT, differences, plain
from benchmarks.quality.losses import NTL, title, was
from benchmarks.quality.records import ERROR_BINS, Record, by_dataset, record_of, steps_of, value_of, values_of
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
        for split, value in {"test": error, "interpolate": error, **others}.items()
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


def both(dataset: str, model: str = "llama", **medians: float) -> list[Record]:
    """CE that errs by 10 and some, and CE + NTL that errs by a tenth less; their medians as said."""
    found = []
    for seed in SEEDS:
        sampled = {name: value + 0.01 * seed for name, value in medians.items()}
        found.append(record(dataset, "CE", seed, 10 + 0.1 * seed, model, **sampled))
        found.append(record(dataset, NTL, seed, 9 + 0.1 * seed, model, **sampled))
    return found


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


def test_committed_records_are_joined_with_new_runs(runs: Path, tmp_path: Path) -> None:
    """A run that has become a record is read once; another run in its place is refused."""
    out, more = tmp_path / "out", tmp_path / "more"
    assert report.main([str(runs), "--out", str(out)]) == 0
    written = (out / records.FILE).read_text()
    write_run(more / "a", run_of("ce", 4, 9.5, 0.1))
    (more / "unfinished").mkdir()
    texts = []
    for _ in range(2):
        assert report.main([str(out), str(more), "--out", str(out)]) == 0
        texts.append((out / records.FILE).read_text())
    assert texts[0] == texts[1] and set(written.splitlines()) < set(texts[0].splitlines())
    write_run(more / "b", {**run_of("ce", 1, 9.0, 0.1), "environment": {**ENVIRONMENT, "date": "2026-02-02"}})
    with pytest.raises(InputError, match="two runs of diamonds, llama, CE, 1"):
        records.read([out, more], out)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ce1/metrics.json", "{", "ce1/metrics.json: not the metrics of a run"),
        ("ce1/predictions-test.jsonl", "{}\n", "ce1/metrics.json: not the metrics .*'answer'"),
        ("runs.jsonl", "{}\n", "runs.jsonl: not a file of records: .*'dataset'"),
    ],
)
def test_malformed_runs_are_named(file: str, content: str, said: str, runs: Path, capsys: Any) -> None:
    (runs / file).write_text(content)
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


def test_a_regression_head_on_a_pretrained_model_is_compared_with_its_token_head() -> None:
    heads = [record("finetuned_taxis", "MSE", seed, 8 + 0.08 * seed, names.PRETRAINED) for seed in SEEDS]
    for head in heads:
        head["config"]["model"]["head"] = "regression"
    datasets = by_dataset([*both("finetuned_taxis", names.PRETRAINED), *heads])
    groups = datasets["finetuned_taxis"]
    rows = tables.difference_table(groups, "test").splitlines()
    assert any(row.startswith(f"| {names.PRETRAINED} | MSE | −20.0% ") for row in rows)
    boosted = {"finetuned_taxis": {"metrics": {names.BOOSTED: {"mae": 7.0, "median_error": 3.5}}}}
    _, _, *rows = tables.yardstick_table(datasets, boosted).splitlines()
    answers = [f"{names.PRETRAINED}, {loss}" for loss in ("CE", NTL, "MSE")]
    assert [row.split(" | ")[1] for row in rows] == [*answers, names.BOOSTED]
    heads[0]["config"]["model"]["hidden_size"] = 64
    with pytest.raises(InputError, match=r"cannot be compared with CE: model\.hidden_size"):
        tables.difference_table(groups, "test")
    with pytest.raises(InputError, match=r"cannot be compared with MSE: model\.hidden_size"):
        headlines.targets([run for runs in groups.values() for run in runs], {})


def test_tables_have_losses_by_rows(runs: Path) -> None:
    groups = by_dataset(records.read([runs]))["diamonds"]
    *_, plain, ours = tables.mean_table(groups, "test").splitlines()
    assert plain == "| llama | CE | 3 | 0.500 ± 0 | 10.0 ± 1.0 | 10.0 ± 1.0 | 0.100 ± 0 | 0 ± 0 | 0 ± 0 |"
    assert ours.startswith(f"| llama | {NTL} | 3 | 0.500 ± 0 | 5.00 ± 1.0 ▼ | 5.00 ± 1.0 ▼ | 0.620 ± 0.010 ▲ |")
    *_, row = tables.difference_table(groups, "test").splitlines()
    assert row.startswith(f"| llama | {NTL} | −50.5% [−68.7,{SPACE}−21.7] ▼ 3/3 | ")


def test_the_scope_of_the_headlines_follows_the_records() -> None:
    runs = both("taxis")
    runs[0]["parameters"] = 1_040_000
    runs += both("rents_quick")
    for run in runs[len(runs) // 2 :]:
        run["config"]["trainer"]["arguments"]["max_steps"] = 2000
    told = headlines.scope(runs, {"taxis": {"metrics": {names.BOOSTED: {"median_error": 0.8721}}}})
    assert "of 0.00 to 1.04 million parameters, were trained from scratch for 20 to 2,000 steps" in told
    assert told.endswith("smaller median error than every language model: 0.872 for taxi fares.")
    with pytest.raises(InputError, match="taxis: a language model has a smaller median error than gradient boosting"):
        headlines.scope(runs, {"taxis": {"metrics": {names.BOOSTED: {"median_error": 5.3}}}})


def test_fine_tuning_comes_first() -> None:
    """With the error of the model before it, that of gradient boosting, and the regression head of the same model."""
    name, model = "finetuned_diamonds", names.PRETRAINED
    untrained = [record(name, "CE", seed, 500.0, names.UNTRAINED) for seed in (1, 2)]
    runs = [*both(name, model), *untrained, *both("taxis")]
    heads = [record(name, "MSE", seed, 10.0, model) for seed in SEEDS]
    for run in runs + heads:
        run["config"]["model"]["lora"] = {"r": 16}
        run["metrics"]["test"]["no_number"] = 0.6
    untrained[1]["metrics"]["test"]["no_number"] = 0.9
    boosted = {name: {"metrics": {names.BOOSTED: {"median_error": 1.5}}}}
    told, table, _ = report.finetuned_parts(runs, boosted)
    assert "fine-tuned with LoRA (rank 16) for 20 steps of 4 rows. Before that, " in told
    assert "Before that, at most 40.0% of its answers in any task were numbers. On the real tables" in told
    assert told.endswith("language model: 1.50 for prices of diamonds.")
    (row,) = table.splitlines()[2:]
    assert row.startswith("| prices of diamonds, dollars | 5.12 | 4.62 | −9.8% [")
    assert len(headlines.table(runs).splitlines()) == 3, "taxi fares are in the other table"
    assert report.finetuned_parts(both("taxis"), {}) == []
    claims = [claim for claim, *_ in headlines.targets(runs + heads, {})]
    assert claims[1:] == [f"fine-tuning: prices of diamonds, test: MAE of {NTL} / of the regression head ≤ 1"]


def test_what_a_step_costs() -> None:
    spread = {"low": 900.0, "median": 1000.0, "high": 1100.0}
    found = {
        "overrides": ["model.adapter=null"],
        "all_tokens": True,
        "seconds": {"stock": [1.0, 2.0], "ntl": [1.1, 1.8]},
    }
    found |= {"milliseconds": dict.fromkeys(found["seconds"], spread), "peak_bytes": {"stock": 2**30, "ntl": 2**20}}
    *_, row = tables.cost_table([found]).splitlines()
    step = "1,000 ms (900 to 1,100)"
    assert row == f"| all weights | all tokens | {names.CONTESTANTS['ntl']} | {step} | 1.000 | 1 |"
    assert tables.cost_table([]) == ""


def test_medians_of_sampled_answers_are_compared_with_greedy_ones() -> None:
    assert tables.decoding_table(by_dataset(both("taxis"))) == ""
    tuned = by_dataset(both("finetuned_housing", names.PRETRAINED, test_median_of_16=8.0))
    assert len(tables.decoding_table(tuned).splitlines()) == 2 + 4
    runs = both("housing", test_median_of_16=8.0)
    groups = by_dataset(runs)["housing"]
    assert records.median_splits(groups) == {"test": "test_median_of_16"}
    _, _, *rows = tables.decoding_table(by_dataset(runs)).splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[1] for row in cells] == ["CE, greedy", f"{NTL}, greedy", "CE, median of 16", f"{NTL}, median of 16"]
    assert cells[0][4:] == ["-"] * 4 and cells[1][6:] == ["-", "-"], "nothing is compared with itself, or twice"
    assert [cells[1][4][:5], cells[2][4][:6], cells[2][6][:6]] == ["−9.8%", "−21.7%", "−13.2%"]
    (claim,) = advice.about("housing", "CE", NTL, "test_median_of_16", beside_split="test", mae="lower")
    assert report.evidence_of(by_dataset(runs), claim).verdict == "lower"


def test_ratings_are_compared_by_way_of_answering() -> None:
    runs = both("rjokes", "llama_scores", test_expected=8.0, test_median_of_16=7.0)
    runs += [record("rjokes", "MSE", seed, 12.0, "regression_head") for seed in SEEDS]
    for run in runs:
        run["config"]["dataset"]["ratings"] = True
        for measured in run["metrics"].values():
            measured["qwk"] = 1 / measured["mae"]
    groups = by_dataset(runs)["rjokes"]
    means, to_ce, to_greedy, to_head = (part.splitlines() for part in report.rating_tables(groups, "test"))
    assert means[6].startswith("| regression_head | MSE | greedy | 4 | 0.0833 ± 0 | ") and "12.0 ± 0" in means[6]
    answers = [row.split(" | ")[1:3] for row in to_ce[4:]]
    assert answers == [[NTL, "greedy"], [NTL, "expected"], [NTL, "median of 16"]], "CE is not compared with itself"
    assert f"| CE | expected | +0.027 [+0.025,{SPACE}+0.029] ▲ 0/4 |" in to_greedy[4]
    assert [len(to_greedy), len(to_head)] == [4 + 4, 4 + 6]


def test_the_advice_on_several_digits_follows_the_records() -> None:
    """A loss that reduced two errors and increased one is told by the one."""
    several, model = both("diamonds"), "llama_triples"
    for seed in SEEDS:
        mixed = record("diamonds", was(1, "triples"), seed, 19 + 0.1 * seed, model)
        mixed["metrics"]["test"]["median_error"] *= 2
        several += [mixed, record("diamonds", "CE", seed, 20 + 0.1 * seed, model)]
        several.append(record("diamonds", was(0.1, "triples"), seed, 19 + 0.1 * seed, model))
        several.append(record("diamonds", was(0.3, "triples", group_by=None), seed, 40 + 0.2 * seed, model))
    for run in several:
        run["metrics"]["test"] |= {"no_number": 0.0, "too_short": 0.0}
    told = report.report(several, {}, {}, advised=False)
    own = "\n\n".join(several_digits.section(several))
    digits = [run for run in several if run["model"] == "llama"]
    assert told.replace(f"{own}\n\n", "") == report.report(digits, {}, {}, advised=False) != told
    found = several_digits.advice(by_dataset(several))
    assert found.startswith("**With digits as tokens, 3 of 3 errors of CE are smaller")
    better, worse = found.split("increased none:**")[1].split("**It increased these:**")
    assert better.strip() == "- Llama-3-like, CE + 0.1 NTL-WAS, same length: 3 of 3 errors"
    assert worse.strip().splitlines() == [
        f"- Llama-3-like, {NTL}, all number tokens compared: 3 of 3 errors",
        "- Llama-3-like, CE + 1 NTL-WAS, same length: 1 of 3 errors",
    ]


def test_claims_of_the_paper_are_counted() -> None:
    """Of T5's two test splits with three measures each: all better, all worse, and too few pairs to tell."""
    runs = [record("paper_arithmetic", "CE", seed, 10 + 0.1 * seed, "t5") for seed in SEEDS]
    runs += [record("paper_arithmetic", NTL, seed, 9 + 0.1 * seed, "t5") for seed in SEEDS]
    runs += [record("paper_arithmetic", "CE + 2 NTL-MSE", seed, 12 + 0.1 * seed, "t5") for seed in SEEDS]
    runs += [record("paper_arithmetic", "CE + MSE", 1, 8.0, "xval")]
    for loss, error in (("CE", 9.0), (NTL, 8.0)):
        runs += [record("paper_mathematics", loss, seed, error, "t5") for seed in SEEDS]
        runs[-1]["metrics"]["interpolate/mul"] = runs[-1]["metrics"]["interpolate"]
    told = "\n\n".join(paper.section(runs))
    for row in (
        f"| arithmetic: {NTL} is better than CE | 6 | 6 | 0 | 0 |",
        "| arithmetic: CE + 2 NTL-MSE is better than CE | 6 | 0 | 6 | 0 |",
        "| arithmetic: T5 with NTL is better than xVal | 6 | 0 | 0 | 6 |",
        "| arithmetic: RT with NTL is better than RT | 0 | 0 | 0 | 0 |",
        f"| mathematics_dataset: {NTL} is better than CE | 6 | 6 | 0 | 0 |",
        "| interpolate/mul | 0.111 | 0.810 | - | ",
    ):
        assert row in told
    assert (
        "of 18 differences between T5 with CE + NTL and T5 with CE, 12 are reliably better and 6 reliably worse" in told
    )
    assert "This was also seen here: of" in told
    assert paper.section([run for run in runs if "paper" not in run["dataset"]]) == []
    assert paper.TITLE not in report.report(both("diamonds"), {}, {}, advised=False)


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


def test_headlines_use_the_runs_that_there_are() -> None:
    datasets = ("rents_quick", "rents_linear_decay", "housing", "readings")
    runs = [run for dataset in datasets for run in both(dataset)]
    assert [steps for steps, _ in headlines.budgets(runs)] == [20, 20]
    assert [step for step, _ in headlines.training(runs)["house values"]] == [10, 20]
    assert len(headlines.table(runs).splitlines()) == 2 + 2 and headlines.table([]) == ""
    assert headlines.harm(runs).endswith(f" (log MAE) fell by 18.6% [18.2,{SPACE}18.9].") and headlines.harm([]) == ""


def test_answers_without_a_number_leave_gaps(tmp_path: Path) -> None:
    for seed, mae in ((1, 2.0), (2, math.nan)):
        write_run(tmp_path / str(seed), run_of("ce", seed, mae, mae))
    groups = by_dataset(records.read([tmp_path]))["diamonds"]
    plots.draw(groups, "title", tmp_path / "a.png", "source")
    assert published.source_of(tmp_path / "a.png") == "source"
    assert "nan" in tables.mean_table(groups, "test")


# The report


def claim(verdict: str) -> advice.Evidence:
    return advice.Evidence("diamonds", "CE + 0.3 NTL-WAS", "mae", verdict)


@pytest.fixture
def committed(runs: Path, tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder that the report takes for the committed one, with a README, a row and a sentence of advice."""
    out, readme = tmp_path / "out", tmp_path / "README.md"
    begin, end = published.markers(report.SECTION)
    readme.write_text(f"# Title\n\n{begin}\nold\n{end}\n\nafter\n")
    monkeypatch.setattr(headlines, "HEADLINES", (headlines.Headline("diamonds"),))
    told = (advice.Advice("Use it: MAE {0}.", (claim("lower"),), "But not always."),)
    for name, value in {"README": readme, "ROOT": tmp_path, "FOLDER": out, "ADVICE": told}.items():
        monkeypatch.setattr(report, name, value)
    assert report.main([str(runs), "--out", str(out)]) == 0
    return out


def test_report_writes_and_checks(committed: Path, tmp_path: Path, capsys: Any) -> None:
    out, readme = committed, tmp_path / "README.md"
    for plot in ("diamonds.png", "differences.png", "training.png"):
        assert (out / plot).read_bytes().startswith(b"\x89PNG")
    text = readme.read_text()
    assert text.startswith("# Title\n\n") and text.endswith("\n\nafter\n") and "old" not in text
    change = f"−50.5% [−68.7,{SPACE}−21.7]"
    assert f"| prices of diamonds, dollars | 10.0 | 5.00 | {change} ▼ | 3 of 3 |" in text
    assert "## prices of diamonds" in (out / "report.md").read_text()
    assert "commit `0123456789`" in (out / "commands.md").read_text()
    advised = (out / "advice.md").read_text()
    assert f"| MAE | {change} ▼ 3/3 |" in advised
    assert f"\n\n**Use it: MAE fell by 50.5% [21.7,{SPACE}68.7].**\n\nBut not always.\n\n" in advised
    assert report.main([]) == 0 and report.main(["--check"]) == 0, "the committed records alone give the same"
    readme.write_text(text.replace("| 10.0 | 5.00 |", "| 10.0 | 4.00 |"))
    found = records.read([out])
    found[0]["metrics"]["test"]["mae"] = 1.0
    records.write(found, out / records.FILE)
    problems = report.check(out)
    wrong = ("report.md", "advice.md", "diamonds.png", "differences.png", "README", "advice 'Use it: MAE {0}.'")
    assert [name in problem for problem, name in zip(problems, wrong, strict=True)] == [True] * 6
    assert report.main(["--check"]) == 1
    assert report.main([str(out), "--out", str(readme / "in")]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_advice_that_the_records_do_not_bear_out_is_found(committed: Path, monkeypatch: Any) -> None:
    runs = records.read([committed])
    for verdict in ("higher", "undecided"):
        monkeypatch.setattr(report, "ADVICE", (advice.Advice("Do not.", (claim(verdict),)),))
        assert report.wrong_advice(runs) == ["advice 'Do not.': diamonds, CE + 0.3 NTL-WAS: mae is lower"]
    elsewhere = (advice.Evidence("nowhere", "CE", "mae", "lower"),)
    monkeypatch.setattr(report, "ADVICE", (advice.Advice("Else?", elsewhere),))
    with pytest.raises(InputError, match="no pairs of nowhere"):
        report.wrong_advice(runs)


# What is committed


def test_committed_results_agree_with_their_tables() -> None:
    assert report.check(report.FOLDER) == []
    assert all(one.evidence for one in advice.ADVICE)


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
    errors = f"{counts[0]} errors (three measures, three tasks) with a tokenizer like Llama 3's"
    assert f"reduced {errors} and {counts[1]} with one like GPT-2's" in told
    assert f"too few digits in {short.count('higher')} of {len(short)} comparisons" in told


def test_what_the_readme_says_of_sampled_answers() -> None:
    """The median answer with CE against the greedy one with NTL, on the data sets with samples."""
    datasets = by_dataset(records.read([report.FOLDER]))
    sampled = {name: groups for name, groups in datasets.items() if records.median_splits(groups)}
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
