"""Tables and plots over the runs of experiments, and the README's section made of them.

Losses by rows, metrics or budgets by columns; mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..environment import ROOT
from ..published import README, commit_of, digest, outdated, with_section
from . import figures, records
from .records import Groups, Record, at_step, by_dataset, steps_of

FOLDER = Path(__file__).parents[1] / "results" / "quality"
"""The committed results."""
SECTION = "quality"
TIMING = "timing.json"
METRICS = {
    "exact_match": "exact match",
    "number_accuracy": "right number",
    "mae": "MAE",
    "median_error": "median error",
    "r2": "R2",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "log_mae": "log MAE",
    "log_r2": "log R2",
    "no_number": "no number",
    "token_accuracy": "token accuracy",
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "rougeL": "ROUGE-L",
}
SHORT = ("exact_match", "mae", "median_error", "r2", "no_number")
"""The metrics that the README shows."""
CURVES = {"mae": "MAE", "median_error": "median error", "r2": "R2"}
SHORT_CURVES = ("mae", "median_error")
MOST_BUDGETS = 6
LOWER, HIGHER = "▼", "▲"
"""Marks of a value below or above that of CE with standard deviations that do not overlap."""


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


def below(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the standard deviations around the means do not overlap, these below the others."""
    if min(len(values), len(others)) < 2 or not all(map(math.isfinite, [*values, *others])):
        return False
    return fmean(values) + stdev(values) < fmean(others) - stdev(others)


def mark(values: Sequence[float], others: Sequence[float]) -> str:
    """The mark of a value beside that of CE."""
    return f" {LOWER}" if below(values, others) else f" {HIGHER}" if below(others, values) else ""


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns are right-aligned from the third on."""
    rule = ["---" if index < 2 else "---:" for index in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def baseline(groups: Groups, model: str) -> list[Record]:
    """The runs of a model with plain cross-entropy."""
    return groups.get((model, "CE"), [])


def cells(groups: Groups, key: tuple[str, str], columns: Sequence[Callable[..., list[float]]]) -> list[str]:
    """A row's values over seeds, beside those of CE; a column reads its values off runs."""
    sides = groups[key], baseline(groups, key[0])
    values = [[column(runs) for runs in sides] for column in columns]
    return [spread(ours) + mark(ours, theirs) for ours, theirs in values]


def test_table(groups: Groups, split: str, metrics: Sequence[str]) -> str:
    """Metrics of a test split after the last step."""
    columns = [partial(values_of, split=split, metric=metric) for metric in metrics]
    rows = [[*key, str(len(groups[key])), *cells(groups, key, columns)] for key in sorted(groups)]
    return markdown(["model", "loss", "seeds", *(METRICS[metric] for metric in metrics)], rows)


def values_of(runs: Sequence[Record], split: str, metric: str) -> list[float]:
    return [run["metrics"][split][metric] for run in runs if metric in run["metrics"].get(split, {})]


def budget_table(groups: Groups, metric: str) -> str:
    """A metric on the validation split after several numbers of steps."""
    steps = budgets(groups)
    columns = [partial(at_step, step=step, metric=metric) for step in steps]
    rows = [[*key, *cells(groups, key, columns)] for key in sorted(groups)]
    return markdown(["model", "loss", *(f"{CURVES[metric]} at {step}" for step in steps)], rows)


def budgets(groups: Groups) -> list[int]:
    """At most :data:`MOST_BUDGETS` of the steps at which all runs were measured, evenly spread, the last among them."""
    steps = steps_of(run for runs in groups.values() for run in runs)
    count = min(MOST_BUDGETS, len(steps))
    return [steps[(index + 1) * len(steps) // count - 1] for index in range(count)]


def splits_of(groups: Groups) -> list[str]:
    return sorted({split for runs in groups.values() for run in runs for split in run["metrics"]})


def settings(groups: Groups) -> str:
    """What the runs of a data set share."""
    runs = [run for group in groups.values() for run in group]
    models = ", ".join(
        f"{model} of {min(sizes):,}" + (f" to {max(sizes):,}" if min(sizes) < max(sizes) else "") + " parameters"
        for model in sorted({model for model, _ in groups})
        for sizes in [[run["parameters"] for run in runs if run["model"] == model]]
    )
    train = sorted({run["sizes"]["train"] for run in runs})
    batch = sorted({run["config"]["trainer"]["arguments"]["per_device_train_batch_size"] for run in runs})
    steps = sorted({run["config"]["trainer"]["arguments"]["max_steps"] for run in runs})
    seconds = [run["seconds"] for run in runs]

    def listed(values: list[int]) -> str:
        return " or ".join(f"{value:,}" for value in values)

    return (
        f"{models}; {listed(train)} training pairs, {listed(steps)} steps of {listed(batch)}; "
        f"{min(seconds):.0f} to {max(seconds):.0f} s a run."
    )


def provenance(runs: Sequence[Record]) -> str:
    """Commands, commits, versions and machines."""
    lines = []
    for environment in {json.dumps(origin(run["environment"])): run["environment"] for run in runs}.values():
        versions = environment["versions"]
        lines.append(
            f"- `{environment['command']}`  \n  {commit_of(environment)}, "
            f"{environment['date'].split()[0]}, torch {versions['torch']}, transformers {versions['transformers']}, "
            f"Python {environment['python']}, {environment['device']}, {environment['threads']} thread(s)"
        )
    return "\n".join(sorted(lines))


def origin(environment: Record) -> list[Any]:
    """What makes two runs' lines of :func:`provenance` the same."""
    return [environment[key] for key in ("command", "commit", "changed_files", "versions", "device", "threads")]


def targets(runs: Sequence[Record], timing: Record | None) -> list[list[str]]:
    """The issue's targets, each with what was measured: claim, measured, verdict."""
    groups = by_dataset(runs)
    rows = [*arithmetic_target(groups), *regression_targets(groups), *timing_targets(timing)]
    return [[claim, measured, "met" if met else "**missed**"] for claim, measured, met in rows]


def arithmetic_target(datasets: dict[str, Groups]) -> Iterator[tuple[str, str, bool]]:
    """Lower MAE and higher R2 with CE + NTL-WAS than with CE at some budget, standard deviations apart."""
    groups = datasets.get("arithmetic", {})
    for (model, loss), runs in sorted(groups.items()):
        plain = baseline(groups, model)
        if "NTL-WAS" not in loss or not plain:
            continue
        steps = steps_of([*runs, *plain])
        won = [
            step
            for step in steps
            if below(at_step(runs, step, "mae"), at_step(plain, step, "mae"))
            and below(at_step(plain, step, "r2"), at_step(runs, step, "r2"))
        ]
        claim = f"arithmetic, {model}: {loss} has a lower MAE and a higher R2 than CE at some budget"
        where = "at " + ", ".join(map(str, won)) if won else "at none"
        yield claim, f"{where} of the {len(steps)} measured steps", bool(won)


def regression_targets(datasets: dict[str, Groups]) -> Iterator[tuple[str, str, bool]]:
    """MAE of a token head with NTL within 5 % of the regression head's."""
    for dataset, groups in sorted(datasets.items()):
        heads = groups.get(("regression_head", "MSE"))
        ours = {key: runs for key, runs in groups.items() if "NTL" in key[1]}
        if not heads or not ours:
            continue
        for split in splits_of(groups):
            head = fmean(values_of(heads, split, "mae"))
            ratios = {key: fmean(values_of(runs, split, "mae")) / head for key, runs in ours.items()}
            (model, loss), best = min(ratios.items(), key=lambda item: item[1])
            claim = f"{dataset}, {split}: MAE of a token head with NTL / of the regression head ≤ 1.05"
            yield claim, f"{best:.3f} ({model}, {loss})", best <= 1.05


def timing_targets(timing: Record | None) -> Iterator[tuple[str, str, bool]]:
    """A training step with CE + NTL over one with CE."""
    for base, ratio in (timing or {}).get("ratios", {}).items():
        what = {"stock": "the stock Trainer's CE", "ce": "our CE"}[base]
        measured = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        yield f"training step with CE + NTL-WAS / with {what} ≤ 1.01", measured, ratio["median"] <= 1.01


def report(runs: Sequence[Record], timing: Record | None) -> str:
    """Every table."""
    parts = ["# Does it help? All tables", legend()]
    if rows := targets(runs, timing):
        parts.append(markdown(["target", "measured", ""], rows))
    for dataset, groups in sorted(by_dataset(runs).items()):
        parts += [f"## {dataset}", settings(groups), f"![{dataset}]({dataset}.png)"]
        if budgets(groups):
            parts += [f"Validation, by steps:\n\n{budget_table(groups, metric)}" for metric in CURVES]
        parts += [f"{split}, at the end:\n\n{test_table(groups, split, list(METRICS))}" for split in splits_of(groups)]
        parts.append("Made by\n\n" + provenance([run for group in groups.values() for run in group]))
    return "\n\n".join(parts) + "\n"


def legend() -> str:
    return (
        f"Mean ± standard deviation over seeds. {LOWER} and {HIGHER}: below or above plain CE of the same model with "
        "standard deviations that do not overlap. Errors are over the answers that are numbers; the share of the "
        "others stands beside them."
    )


def section(folder: Path) -> str:
    """The README's text on quality."""
    runs, timing = load(folder)
    where = folder.resolve().relative_to(ROOT)
    parts = [
        legend() + f" All tables and the commands: [report]({where}/report.md); every run: [JSON]({where}).",
        markdown(["target", "measured", ""], targets(runs, timing)),
    ]
    for dataset, groups in sorted(by_dataset(runs).items()):
        parts += [f"**{dataset}**: {settings(groups)}"]
        if budgets(groups):
            parts += [budget_table(groups, metric) for metric in SHORT_CURVES]
        parts += [f"{split}, at the end:\n\n{test_table(groups, split, SHORT)}" for split in splits_of(groups)]
        parts.append(f"![{dataset}: learning curves and errors]({where}/{dataset}.png)")
    return "\n\n".join(parts) + "\n"


def load(folder: Path) -> tuple[list[Record], Record | None]:
    """The records of a report's folder, and its timing if there is one."""
    timing = folder / TIMING
    return records.read([folder]), json.loads(timing.read_text()) if timing.exists() else None


def write(folder: Path) -> list[Path]:
    """Write the tables and plots of a folder's records, and the README's section if they are the committed ones."""
    runs, timing = load(folder)
    written = [folder / "report.md"]
    written[0].write_text(report(runs, timing))
    for dataset, groups in by_dataset(runs).items():
        written.append(folder / f"{dataset}.png")
        figures.draw(groups, dataset, written[-1], source_of_plot(groups))
    if is_committed(folder):
        README.write_text(with_section(README.read_text(), SECTION, section(folder)))
        written.append(README)
    return written


def source_of_plot(groups: Groups) -> str:
    return digest([runs for _, runs in sorted(groups.items())])


def check(folder: Path) -> list[str]:
    """Where README, tables and plots differ from the records."""
    runs, timing = load(folder)
    plots = {folder / f"{dataset}.png": source_of_plot(groups) for dataset, groups in by_dataset(runs).items()}
    problems = outdated({folder / "report.md": report(runs, timing)}, plots)
    if is_committed(folder) and with_section(README.read_text(), SECTION, section(folder)) != README.read_text():
        problems.append(f"{README}: the section on quality differs from the records in {folder}")
    return [f"{problem}; `python -m benchmarks.quality report` writes it anew" for problem in problems]


def is_committed(folder: Path) -> bool:
    return folder.resolve() == FOLDER.resolve()


def main(arguments: list[str]) -> int:
    """``report [RUN_FOLDER...] [--out FOLDER] [--check]``"""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="*", help="folders with runs; without any, the committed records")
    parser.add_argument("--out", type=Path, help="folder for records, tables and plots (default: runs/quality/report)")
    parser.add_argument("--check", action="store_true", help="only say what does not agree with the committed records")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        problems = check(chosen.out or FOLDER)
        print("\n".join(problems) or "README, tables and plots agree with the records")
        return 1 if problems else 0
    folder = chosen.out or (Path("runs/quality/report") if chosen.runs else FOLDER)
    try:
        if chosen.runs:
            found = records.read(chosen.runs)
            folder.mkdir(parents=True, exist_ok=True)
            records.write(found, folder / records.FILE)
        written = write(folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(written[0].read_text())
    print("\n".join(map(str, written)))
    return 0
