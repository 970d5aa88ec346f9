"""Tables, plots and advice from the records of runs, and the README's section made of them.

Losses by rows, metrics or budgets by columns: mean and standard deviation over seeds, and differences by pairs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from .. import published
from ..environment import ROOT
from ..errors import InputError, in_one_line, writable
from ..published import README, Draw, Pages, commit_of, digest
from . import plots, records
from .advice import ADVICE, CHOICE, LONG, NTL, RENTS, REWEIGHED, SHORT, Evidence
from .plots import CURVES
from .records import Groups, Record, by_dataset, splits_of, steps_of, values_of
from .statistics import IN_PER_CENT, IN_POINTS, Difference, baseline, compare, pairs_of

FOLDER = Path(__file__).parents[1] / "results" / "quality"
"""The committed results."""
SECTION = "quality"
TIMING, TEXT, ADVICE_TEXT, DIFFERENCES = "timing.json", "report.md", "advice.md", "differences.png"
METRICS = {
    "exact_match": "exact match",
    "number_accuracy": "right number",
    "mae": "MAE",
    "median_error": "median error",
    "log_mae": "log MAE",
    "r2": "R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "log_r2": "log R2",
    "no_number": "no number",
    "run_on": "run on",
    "token_accuracy": "token accuracy",
    "ce": "cross-entropy",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "rougeL": "ROUGE-L",
}
COMPARED = ("mae", "median_error", "log_mae", "r2", "number_accuracy", "run_on", "token_accuracy", "ce")
"""The metrics whose differences by pairs are shown."""
MOST_BUDGETS = 6
markdown = partial(published.markdown, words=2)
LOWER, HIGHER = "▼", "▲"
MARKS = {"lower": f" {LOWER}", "higher": f" {HIGHER}", "undecided": ""}
"""Marks of a difference to CE whose interval excludes 0."""


LEGEND = (
    "Mean ± standard deviation over seeds. Runs with the same seed share weights and order, so differences to CE "
    "alone, of the same model, are taken in pairs: their mean, in per cent of CE's mean or in percentage points, "
    f"its 95 % interval (Student's t), and how many seeds agree with its sign. {LOWER} and {HIGHER} mark those "
    "whose interval excludes 0, of at least three pairs; one in twenty would without any effect. Errors are over "
    "the answers that are numbers, `no number` is the share of the others, `run on` that of answers with more "
    "digits than the true number. MAE and R2 hang on single wild answers, median error and log MAE do not."
)


class Headline(NamedTuple):
    """A row of the README's table."""

    dataset: str
    task: str
    model: str
    loss: str
    split: str


HEADLINES = (
    Headline(SHORT, "estimate rents, 300 steps", "llama", NTL, "test"),
    Headline(RENTS, "estimate rents, 800 steps", "llama", NTL, "test"),
    Headline(LONG, "estimate rents, 2,000 steps", "llama", NTL, "test"),
    Headline("diamonds", "estimate prices of diamonds", "llama", NTL, "test"),
    Headline("diamonds", "estimate prices of diamonds", "llama", REWEIGHED, "test"),
    Headline("readings", "estimate from readings", "llama", NTL, "test"),
    Headline("expressions", "compute expressions", "llama", REWEIGHED, "interpolate"),
    Headline("arithmetic", "compute sums", "llama_pretrained", NTL, "interpolate"),
)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; the value alone where there is one. NaN where a run has no such number."""
    if not values:
        return "-"
    mean = fmean(values)
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return rounded(mean, 3)
    return f"{rounded(mean, 3)} ± {rounded(stdev(values), 2)}"


def rounded(value: float, digits: int) -> str:
    """So many significant digits; in full below a million."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


def told(found: Difference | None, metric: str) -> str:
    """A difference to CE with its interval, its mark and the seeds that agree."""
    if found is None or not math.isfinite(found.mean):
        return "-"
    unit = " %" if metric in IN_PER_CENT else " points" if metric in IN_POINTS else ""
    interval = "" if math.isnan(found.low) else f" [{signed(found.low)}, {signed(found.high)}]"
    return f"{signed(found.mean)}{unit}{interval}{MARKS[found.verdict]} {found.agree}/{found.pairs}"


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + rounded(value, 2 if abs(value) < 10 else 3)


def test_table(groups: Groups, split: str) -> str:
    """Every metric of a test split after the last step: mean and standard deviation, marked by pairs."""
    metrics = [metric for metric in METRICS if any(values_of(runs, split, metric) for runs in groups.values())]
    rows = [
        [*key, str(len(runs)), *(marked(groups, key, split, metric) for metric in metrics)]
        for key, runs in sorted(groups.items())
    ]
    return markdown(["model", "loss", "seeds", *(METRICS[metric] for metric in metrics)], rows)


def difference_table(groups: Groups, split: str) -> str:
    """Differences to CE of the same model by pairs, after the last step; nothing where there is no CE."""
    rows = []
    for key in sorted(groups):
        cells = [told(to_baseline(groups, key, split, metric), metric) for metric in COMPARED]
        if set(cells) != {"-"}:
            rows.append([*key, *cells])
    return markdown(["model", "loss", *(METRICS[metric] for metric in COMPARED)], rows) if rows else ""


def marked(groups: Groups, key: tuple[str, str], where: str | int, metric: str) -> str:
    """Mean and standard deviation, with the mark of a difference to CE that is certain."""
    found = to_baseline(groups, key, where, metric)
    return spread(values_of(groups[key], where, metric)) + (MARKS[found.verdict] if found else "")


def to_baseline(groups: Groups, key: tuple[str, str], where: str | int, metric: str) -> Difference | None:
    """The difference to CE of the same model; None for CE itself and where there is none."""
    plain = baseline(groups, key[0])
    return None if plain is groups[key] else compare(groups[key], plain, where, metric)


def budget_table(groups: Groups, metric: str) -> str:
    """A metric on the validation split after several numbers of steps: mean and standard deviation, marked by pairs."""
    steps = budgets(groups)
    rows = [[*key, *(marked(groups, key, step, metric) for step in steps)] for key in sorted(groups)]
    return markdown(["model", "loss", *(f"{CURVES[metric]} at {step}" for step in steps)], rows)


def budgets(groups: Groups) -> list[int]:
    """At most :data:`MOST_BUDGETS` of the steps at which all runs were measured, evenly spread, the last among them."""
    steps = steps_of(run for runs in groups.values() for run in runs)
    count = min(MOST_BUDGETS, len(steps))
    return [steps[(index + 1) * len(steps) // count - 1] for index in range(count)]


def settings(groups: Groups) -> str:
    """What the runs of a data set share."""
    runs = [run for group in groups.values() for run in group]
    sizes: dict[str, list[int]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run["model"]):
        sizes[run["model"]].append(run["parameters"])
    models = [
        f"{model} of {min(found):,}" + (f" to {max(found):,}" if min(found) < max(found) else "") + " parameters"
        for model, found in sizes.items()
    ]
    arguments = [run["config"]["trainer"]["arguments"] for run in runs]
    train = listed(run["sizes"]["train"] for run in runs)
    steps, batch = (listed(a[name] for a in arguments) for name in ("max_steps", "per_device_train_batch_size"))
    seconds = [run["seconds"] for run in runs]
    return (
        f"{', '.join(models)}; {train} training pairs, {steps} steps of {batch}; "
        f"{min(seconds):.0f} to {max(seconds):.0f} s a run."
    )


def listed(values: Iterable[int]) -> str:
    """The numbers that occur."""
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def provenance(runs: Iterable[Record]) -> str:
    """Commands, commits, versions and machines, each once, with the date of the last run."""
    lines = {}
    for known in (run["environment"] for run in runs):
        versions, day = known["versions"], known["date"].split()[0]
        told_apart_by = [known[key] for key in ("command", "commit", "changed_files", "versions", "device", "threads")]
        lines[json.dumps(told_apart_by)] = (
            f"- `{known['command']}`  \n  {commit_of(known)}, {day}, torch {versions['torch']}, transformers "
            f"{versions['transformers']}, Python {known['python']}, {known['device']}, {known['threads']} thread(s)"
        )
    return "\n".join(sorted(lines.values()))


def targets(runs: Sequence[Record], timing: Record | None) -> list[list[str]]:
    """The project's targets, each with what was measured: claim, measured, verdict."""
    groups = by_dataset(runs)
    rows = [*arithmetic_targets(groups.get("arithmetic", {})), *regression_targets(groups), *timing_targets(timing)]
    return [[claim, measured, "met" if met else "**missed**"] for claim, measured, met in rows]


def arithmetic_targets(groups: Groups) -> Iterator[tuple[str, str, bool]]:
    """Lower MAE and higher R2 with CE + NTL-WAS than with CE, by pairs."""
    for (model, loss), runs in sorted(groups.items()):
        mae, r2 = (compare(runs, baseline(groups, model), "interpolate", metric) for metric in ("mae", "r2"))
        if "NTL-WAS" not in loss or mae is None or r2 is None:
            continue
        claim = f"arithmetic, interpolate, {model}: {loss} has a lower MAE and a higher R2 than CE"
        yield claim, f"MAE {told(mae, 'mae')}, R2 {told(r2, 'r2')}", (mae.verdict, r2.verdict) == ("lower", "higher")


def regression_targets(datasets: dict[str, Groups]) -> Iterator[tuple[str, str, bool]]:
    """MAE of a token head with NTL within 5 % of the regression head's, at the same seeds."""
    for dataset, groups in sorted(datasets.items()):
        heads = groups.get(("regression_head", "MSE"), [])
        for split in splits_of(groups):
            ratios = {}
            for key, runs in groups.items():
                if "NTL" in key[1] and (pairs := pairs_of(runs, heads, models=False)):
                    ours, theirs = (fmean(values_of(side, split, "mae")) for side in zip(*pairs, strict=True))
                    ratios[key] = ours / theirs
            if ratios:
                (model, loss), best = min(ratios.items(), key=lambda item: item[1])
                claim = f"{dataset}, {split}: MAE of a token head with NTL / of the regression head ≤ 1.05"
                yield claim, f"{best:.3f} ({model}, {loss})", best <= 1.05


def timing_targets(timing: Record | None) -> Iterator[tuple[str, str, bool]]:
    """A training step with CE + NTL over one with CE."""
    for base, ratio in (timing or {}).get("ratios", {}).items():
        what = {"stock": "the stock Trainer's CE", "ce": "our CE"}[base]
        measured = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        yield f"training step with CE + NTL-WAS / with {what} ≤ 1.01", measured, ratio["median"] <= 1.01


def report(runs: Sequence[Record], timing: Record | None, advised: bool) -> str:
    """All tables, as Markdown; ``advised``: with the advice, which is about the committed records."""
    parts = ["# Does the Number Token Loss help?"]
    if advised:
        parts += [f"When to use it, and with which options: [advice]({ADVICE_TEXT})."]
    parts.append(LEGEND)
    if rows := targets(runs, timing):
        parts.append(markdown(["target", "measured", ""], rows))
    for dataset, groups in sorted(by_dataset(runs).items()):
        parts += [f"## {dataset}", settings(groups), f"![{dataset}]({dataset}.png)"]
        for split in splits_of(groups):
            parts.append(f"{split}, at the end:\n\n{test_table(groups, split)}")
            if table := difference_table(groups, split):
                parts.append(f"{split}, at the end, beside CE by pairs:\n\n{table}")
        if budgets(groups):
            parts += [f"Validation, by steps:\n\n{budget_table(groups, metric)}" for metric in CURVES]
        parts.append("Made by\n\n" + provenance([run for group in groups.values() for run in group]))
    return "\n\n".join(parts) + "\n"


def advice(runs: Sequence[Record]) -> str:
    """When to use NTL and with which options, each sentence with the table behind it, as a page of its own."""
    parts = ["# When the Number Token Loss helps", headlines(runs), f"![Differences]({DIFFERENCES})", CHOICE, LEGEND]
    parts += [f"{sentence}\n\n{evidence_table(runs, evidence)}" for sentence, evidence in ADVICE]
    return "\n\n".join([*parts, f"All tables and the commands: [report]({TEXT})."]) + "\n"


def evidence_table(runs: Sequence[Record], evidence: Sequence[Evidence]) -> str:
    """What the records say of a sentence's claims."""
    rows = []
    for each in evidence:
        task, loss = f"[{each.dataset}]({TEXT}#{each.dataset}), {each.split}", f"{each.loss} beside {each.beside}"
        rows.append([task, loss, METRICS[each.metric], told(evidence_of(by_dataset(runs), each), each.metric)])
    return markdown(["task", "loss", "metric", "difference by pairs"], rows)


def evidence_of(datasets: dict[str, Groups], evidence: Evidence) -> Difference:
    """What the records say of a claim."""
    groups = datasets.get(evidence.dataset, {})
    runs = groups.get((evidence.model, evidence.loss), [])
    found = compare(runs, groups.get((evidence.model, evidence.beside), []), evidence.split, evidence.metric)
    if found is None:
        raise InputError(f"no pairs of {evidence.dataset}, {evidence.model}, {evidence.loss} behind the advice")
    return found


def wrong_advice(runs: Sequence[Record]) -> list[str]:
    """Claims that the records do not bear out."""
    claims = [
        (sentence, each, evidence_of(by_dataset(runs), each)) for sentence, evidence in ADVICE for each in evidence
    ]
    return [
        f"advice {sentence!r}: {each.dataset}, {each.loss}: {each.metric} is {found.verdict}"
        for sentence, each, found in claims
        if found.verdict != each.verdict
    ]


def headlines(runs: Sequence[Record]) -> str:
    """The README's table."""
    rows = []
    for row, ours, plain in headline_pairs(runs):
        errors = [rounded(fmean(values_of(side, row.split, "median_error")), 3) for side in (plain, ours)]
        found = [compare(ours, plain, row.split, metric) for metric in ("median_error", "mae")]
        rows.append([row.task, row.loss, " → ".join(errors), *(told(each, "mae") for each in found)])
    header = ["task", "loss", "median error, CE → with NTL", "median error by pairs", "MAE by pairs"]
    return markdown(header, rows)


def headline_pairs(runs: Sequence[Record]) -> Iterator[tuple[Headline, list[Record], list[Record]]]:
    """(row, its runs, those of CE with the same seeds)."""
    groups = by_dataset(runs)
    for row in HEADLINES:
        pairs = pairs_of(groups[row.dataset][row.model, row.loss], baseline(groups[row.dataset], row.model))
        ours, plain = map(list, zip(*pairs, strict=True))
        yield row, ours, plain


def draw_headlines(runs: Sequence[Record], path: Path, source: str) -> None:
    """The README's plot."""
    rows = {
        f"{row.task}: {row.loss}": {METRICS[m]: compare(ours, plain, row.split, m) for m in ("median_error", "mae")}
        for row, ours, plain in headline_pairs(runs)
    }
    plots.draw_differences(rows, path, source)


def section(folder: Path) -> str:
    """The README's text on quality: one table, one plot, the advice."""
    runs = records.read([folder], folder)
    where = folder.resolve().relative_to(ROOT)
    parts = [
        headlines(runs),
        "Differences to cross-entropy alone at the same seeds, with their 95 % interval and the seeds that agree; "
        f"{LOWER} and {HIGHER}: the interval excludes 0. The table behind each sentence: "
        f"[advice]({where}/{ADVICE_TEXT}); every run and its command: [report]({where}/{TEXT}).",
        f"![What CE + NTL changes beside CE]({where}/{DIFFERENCES})",
        "\n".join(f"- {sentence}" for sentence, _ in ADVICE),
    ]
    return "\n\n".join(parts) + "\n"


def pages(folder: Path) -> Pages:
    """What follows from a folder's records; advice and the README's section from the committed ones alone."""
    runs, path = records.read([folder], folder), folder / TIMING
    timing = json.loads(path.read_text()) if path.exists() else None
    drawn: dict[Path, tuple[str, Draw]] = {}
    for dataset, groups in by_dataset(runs).items():
        source = digest([each for _, each in sorted(groups.items())])
        drawn[folder / f"{dataset}.png"] = source, partial(plots.draw, groups, dataset)
    if not is_committed(folder):
        return Pages(SECTION, folder, {folder / TEXT: report(runs, timing, advised=False)}, drawn, None)
    drawn[folder / DIFFERENCES] = digest(headlines(runs)), partial(draw_headlines, runs)
    texts = {folder / TEXT: report(runs, timing, advised=True), folder / ADVICE_TEXT: advice(runs)}
    return Pages(SECTION, folder, texts, drawn, section(folder))


def check(folder: Path) -> list[str]:
    """Where README, tables, plots and advice differ from the records."""
    problems = pages(folder).problems(README)
    return problems + (wrong_advice(records.read([folder], folder)) if is_committed(folder) else [])


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


@in_one_line
def main(arguments: list[str]) -> int:
    """``report [RUN_FOLDER...] [--out FOLDER] [--check]``"""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="folders with runs; without any, the committed records")
    parser.add_argument("--out", type=Path, help="folder for records, tables and plots (default: runs/quality/report)")
    parser.add_argument("--check", action="store_true", help="only say what does not agree with the committed records")
    chosen = parser.parse_args(arguments)
    if chosen.check and chosen.runs:
        parser.error("--check is about a folder of records (--out), not about runs")
    folder = chosen.out or (Path("runs/quality/report") if chosen.runs else FOLDER)
    if chosen.check:
        return published.verdict(check(folder))
    writable(folder)
    if chosen.runs:
        records.write(records.read(chosen.runs, folder), folder / records.FILE)
    written = pages(folder).write(README)
    print(written[0].read_text())
    print("\n".join(map(str, written)))
    return 0
