"""Tables of results: losses by rows, metrics or budgets by columns, means over seeds and differences by pairs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import fmean, stdev

from .. import published
from ..published import commit_of
from .losses import NTL
from .names import METRICS, in_order, words
from .records import Groups, Record, median_splits, steps_of, values_of
from .statistics import AS_RATIOS, IN_POINTS, Difference, baseline, compare

COMPARED = ("mae", "median_error", "log_mae", "r2", "number_accuracy", "run_on", "token_accuracy", "ce")
"""The metrics whose differences by pairs are shown."""
DECODED = ("mae", "median_error")
"""The metrics that ways to answer are compared by."""
CURVES = {metric: METRICS[metric] for metric in ("mae", "median_error", "r2")}
"""The metrics of the validation split that are shown by steps."""
MOST_BUDGETS = 6
markdown = partial(published.markdown, words=2)
LOWER, HIGHER = "▼", "▲"
MARKS = {"lower": f" {LOWER}", "higher": f" {HIGHER}", "undecided": ""}
"""Marks of a difference to CE whose interval excludes 0."""

LEGEND = (
    "Mean ± standard deviation over seeds. Runs with the same seed share weights and order, so differences to CE "
    "alone, of the same model, are taken in pairs. Errors and likelihoods: the geometric mean of the pairs' ratios, as "
    "a change in per cent. Shares: the mean difference, in percentage points. In brackets the 95 % interval (Student's "
    f"t, of ratios on their logarithms), then how many seeds agree with the sign. {LOWER} and {HIGHER} mark those "
    "whose interval excludes 0, of at least three pairs; one in twenty would without any effect. Errors are over "
    "the answers that are numbers, `no number` is the share of the others, `run on` that of answers with more "
    "digits than the true number. MAE and R2 hang on single wild answers, median error and log MAE do not."
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
    """A difference to CE with its interval, its mark and the seeds that agree; "-" and why where there is none."""
    if found is None or found.gap:
        return brief(found, metric)
    return f"{brief(found, metric)}{MARKS[found.verdict]} {found.agree}/{found.pairs}"


def brief(found: Difference | None, metric: str) -> str:
    """A difference with its interval."""
    if found is None or found.gap:
        return f"- ({found.gap})" if found else "-"
    unit = " %" if metric in AS_RATIOS else " points" if metric in IN_POINTS else ""
    interval = "" if math.isnan(found.low) else f" [{signed(found.low)}, {signed(found.high)}]"
    return f"{signed(found.mean)}{unit}{interval}"


def told_as_factor(found: Difference) -> str:
    """A change in per cent as what one side is of the other, with its interval."""
    if found.gap:
        return f"- ({found.gap})"
    mean, low, high = (f"{1 + value / 100:.3f}" for value in (found.mean, found.low, found.high))
    interval = "" if math.isnan(found.low) else f" [{low}, {high}]"
    return f"{mean}{interval} over {found.pairs} seed{'s' * (found.pairs > 1)}"


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


def decoding_table(datasets: dict[str, Groups]) -> str:
    """What the median of drawn answers changes beside greedy ones, with CE and with CE + NTL, of one model each.

    Nothing where no run has such medians.
    """
    rows = [row for name in in_order(datasets) for row in decoding_rows(name, datasets[name])]
    if not rows:
        return ""
    beside = [f"{METRICS[metric]} beside {loss}, greedy" for loss in ("CE", NTL) for metric in DECODED]
    return markdown(["task", "answers", *(METRICS[metric] for metric in DECODED), *beside], rows)


def decoding_rows(dataset: str, groups: Groups, model: str = "llama") -> Iterator[list[str]]:
    """The rows of a data set."""
    plain, ours = groups.get((model, "CE"), []), groups.get((model, NTL), [])
    for split, median in median_splits(groups).items():
        for where in (split, median):
            for runs in filter(None, (plain, ours)):
                cells = [spread(values_of(runs, where, metric)) for metric in DECODED]
                is_plain, is_median = runs is plain, where != split
                for other, is_shown in ((plain, is_median or not is_plain), (ours, is_median)):
                    found = [compare(runs, other, where, metric, split) if is_shown else None for metric in DECODED]
                    cells += map(told, found, DECODED)
                yield [f"{words(dataset)}, {split}", f"{runs[0]['loss']}, {answers(split, where)}", *cells]


def yardstick_table(datasets: dict[str, Groups], yardsticks: Record) -> str:
    """The errors of models with the advised loss beside those of methods without a language model; may be empty."""
    rows = []
    for dataset in in_order(yardsticks):
        groups = datasets.get(dataset, {})
        for key in (("llama", "CE"), ("llama", NTL), ("regression_head", "MSE")):
            cells = [spread(values_of(groups.get(key, []), "test", metric)) for metric in DECODED]
            rows.append([words(dataset), ", ".join(key), *cells])
        for method, metrics in yardsticks[dataset]["metrics"].items():
            rows.append([words(dataset), method, *(rounded(metrics[metric], 3) for metric in DECODED)])
    return markdown(["task", "answers", *(METRICS[metric] for metric in DECODED)], rows) if rows else ""


def answers(split: str, where: str) -> str:
    """How the answers were found that were measured there, on this split or on the medians that belong to it."""
    return where.removeprefix(split).replace("_", " ").strip() or "greedy"


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
        f"`{runs[0]['dataset']}`: {', '.join(models)}; {train} training pairs, {steps} steps of {batch}; "
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
