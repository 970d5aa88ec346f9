"""Tables of results: a row per loss, a column per metric or budget, with means over seeds and paired differences."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, stdev
from statistics import median as middle

from ..published import MINUS, SPACE, commit_of
from ..table import Table
from .losses import NTL
from .names import CONTESTANTS, METRICS, in_order, models_of, split_of, words
from .records import Groups, Key, Record, median_splits, steps_of, values_of
from .statistics import AS_RATIOS, IN_POINTS, Difference, as_ratio, baseline, compare

COMPARED = ("mae", "median_error", "log_mae", "r2", "number_accuracy", "run_on", "token_accuracy", "ce")
"""The metrics with a table of paired differences."""
DECODED = ("mae", "median_error")
"""The metrics that compare ways of decoding."""
RATED = ("qwk", "spearman", "pearson", "within_one", "mae")
"""The metrics of ratings."""
CURVES = {metric: METRICS[metric] for metric in ("mae", "median_error", "r2")}
"""The validation metrics that are shown over training steps."""
MOST_BUDGETS = 6
LOWER, HIGHER = "▼", "▲"
MARKS = {"lower": f" {LOWER}", "higher": f" {HIGHER}", "undecided": ""}
"""Marks of a difference to CE whose interval excludes 0."""

LEGEND = (
    "Mean ± standard deviation over seeds. Runs with the same seed share initial weights and data order, so "
    "differences to CE, with the same model, are computed in pairs. Errors and likelihoods: geometric mean of the "
    "pairs' ratios, as a change in per cent. Shares: mean difference in percentage points. Brackets contain the 95% "
    "interval (Student's t; for ratios on their logarithms), followed by the number of seeds with a lower value. "
    f"{LOWER} and {HIGHER} mark intervals that exclude 0, given at least three pairs; without any effect, one in "
    "twenty would. Errors are computed over the answers that are numbers. `no number` is the share of the other "
    "answers, `run on` the share of answers with more digits than the true number, `too short` of those with fewer. A "
    "few wild answers can dominate MAE and R2, but not median error and log MAE."
)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]], words: int = 2) -> str:
    """A Markdown table that starts with columns of words; empty without rows."""
    return Table(header, rows).markdown(words)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation; a single value without deviation. NaN if a run lacks the value."""
    if not values:
        return "-"
    mean = fmean(values)
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return rounded(mean, 3)
    return f"{rounded(mean, 3)} ± {rounded(stdev(values), 2)}"


def rounded(value: float, digits: int) -> str:
    """A number with this many significant digits and a real minus sign; without an exponent below a million."""
    text = f"{value:#.{digits}g}".rstrip(".") if value else "0"
    is_long = abs(value) < 1e6 and ("e+" in text or abs(float(text)) >= 1000)
    return (f"{float(text):,.0f}" if is_long else text).replace("-", MINUS)


def told(found: Difference | None, metric: str) -> str:
    """A difference with interval, mark and the number of seeds with a lower value; "-" and the reason if undefined."""
    if found is None or found.gap:
        return brief(found, metric)
    return f"{brief(found, metric)}{MARKS[found.verdict]} {found.lower}/{found.pairs}"


def brief(found: Difference | None, metric: str) -> str:
    """A difference with its interval."""
    if found is None or found.gap:
        return f"- ({found.gap})" if found else "-"
    return f"{signed(found.mean)}{unit_of(metric)}{interval(found.low, found.high, signed)}"


def unit_of(metric: str) -> str:
    """The unit of differences in a metric."""
    return "%" if metric in AS_RATIOS else f"{SPACE}points" if metric in IN_POINTS else ""


def in_words(found: Difference, metric: str) -> str:
    """A change, after the name of what changed: "fell by 7.0% [3.9, 9.9]"."""
    if not found.is_certain:
        return f"did not change reliably ({brief(found, metric)})"
    if found.mean < 0:
        return f"fell by {plain(-found.mean)}{unit_of(metric)}{interval(-found.high, -found.low, plain)}"
    return f"rose by {plain(found.mean)}{unit_of(metric)}{interval(found.low, found.high, plain)}"


def interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """An interval in brackets that does not break over lines; empty for a single pair."""
    return "" if math.isnan(low) else f" [{write(low)},{SPACE}{write(high)}]"


def told_as_factor(found: Difference) -> str:
    """A change in per cent as a ratio, with its interval."""
    if found.gap:
        return f"- ({found.gap})"
    between = interval(found.low, found.high, factor)
    return f"{factor(found.mean)}{between} over {found.pairs} seed{'s' * (found.pairs > 1)}"


def factor(change: float) -> str:
    return f"{as_ratio(change):.3f}"


def plain(value: float) -> str:
    """A change with one decimal, or with two digits below 1 and three from 100 on."""
    value = round(value, 1) if abs(value) >= 1 else value
    return rounded(value, 2 if abs(value) < 10 else 3)


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + plain(value)


def cost_table(timings: Iterable[Record]) -> str:
    """Time and memory of a fine-tuning step, by what is trained and which tokens have labels."""
    rows = []
    for found in timings:
        trained = "all weights" if "model.adapter=null" in found["overrides"] else "LoRA"
        setting = [trained, "all tokens" if found["all_tokens"] else "answers"]
        for name, each in found["milliseconds"].items():
            ratio = middle(a / b for a, b in zip(found["seconds"][name], found["seconds"]["stock"], strict=True))
            times = f"{each['median']:,.0f} ms ({each['low']:,.0f} to {each['high']:,.0f})"
            rows.append(
                [*setting, CONTESTANTS[name], times, f"{ratio:.3f}", f"{found['peak_bytes'][name] / 2**20:,.0f}"]
            )
    return markdown(["trained", "labels", "with", "step", "time / stock", "peak MiB"], rows)


def mean_table(groups: Groups, split: str, metrics: Iterable[str] = METRICS, first: str = "model") -> str:
    """Metrics of a test split after training: mean and standard deviation, with marks from paired differences."""
    metrics = [metric for metric in metrics if any(values_of(runs, split, metric) for runs in groups.values())]
    rows = [
        [*key, str(len(runs)), *(marked(groups, key, split, metric) for metric in metrics)]
        for key, runs in sorted(groups.items())
    ]
    return markdown([first, "loss", "seeds", *(METRICS[metric] for metric in metrics)], rows)


def difference_table(groups: Groups, split: str, metrics: Sequence[str] = COMPARED, first: str = "model") -> str:
    """Paired differences to CE of the same model after training; empty without CE runs."""
    rows = []
    for key in sorted(groups):
        cells = [told(to_baseline(groups, key, split, metric), metric) for metric in metrics]
        if set(cells) != {"-"}:
            rows.append([*key, *cells])
    return markdown([first, "loss", *(METRICS[metric] for metric in metrics)], rows)


def marked(groups: Groups, key: tuple[str, str], where: str | int, metric: str) -> str:
    """Mean and standard deviation, marked if the interval of the difference to CE excludes 0."""
    found = to_baseline(groups, key, where, metric)
    return spread(values_of(groups[key], where, metric)) + (MARKS[found.verdict] if found else "")


def to_baseline(groups: Groups, key: tuple[str, str], where: str | int, metric: str) -> Difference | None:
    """The difference to CE of the same model; None for CE itself or without CE runs."""
    plain = baseline(groups, key[0])
    return None if plain is groups[key] else compare(groups[key], plain, where, metric)


def decoding_table(datasets: dict[str, Groups]) -> str:
    """Medians of sampled answers compared with greedy answers, with CE and with CE + NTL, for one model per data set.

    Empty if no run has such medians.
    """
    rows = [row for name in in_order(datasets) for row in decoding_rows(name, datasets[name])]
    beside = [f"{METRICS[metric]} vs {loss}, greedy" for loss in ("CE", NTL) for metric in DECODED]
    return markdown(["task", "answers", *(METRICS[metric] for metric in DECODED), *beside], rows)


def decoding_rows(dataset: str, groups: Groups) -> Iterator[list[str]]:
    """The rows of a data set."""
    model, _ = models_of(dataset)
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
    """Errors of models with CE and the recommended loss, and of methods without a language model; may be empty."""
    rows = []
    for dataset in in_order(set(yardsticks) & set(datasets)):
        groups, (model, head) = datasets[dataset], models_of(dataset)
        for key in ((model, "CE"), (model, NTL), (head, "MSE")):
            if key in groups:
                cells = [spread(values_of(groups[key], "test", metric)) for metric in DECODED]
                rows.append([words(dataset), ", ".join(key), *cells])
        for method, metrics in yardsticks[dataset]["metrics"].items():
            rows.append([words(dataset), method, *(rounded(metrics[metric], 3) for metric in DECODED)])
    return markdown(["task", "answers", *(METRICS[metric] for metric in DECODED)], rows)


def rating_table(groups: Groups, split: str) -> str:
    """A row per loss and way of answering: how well the ratings agree with the true ones."""
    rows = [
        [*key, answers(split, where), str(len(groups[key])), *(spread(values_of(groups[key], where, m)) for m in RATED)]
        for where, key in rated(groups, split)
    ]
    return markdown(["model", "loss", "answers", "seeds", *(METRICS[metric] for metric in RATED)], rows)


def rating_differences(groups: Groups, split: str, beside: Callable[[str, Key], tuple[str, Key]]) -> str:
    """The same rows, compared in pairs with other runs or other answers; ``beside`` says with which of a row."""
    rows = []
    for where, key in rated(groups, split):
        other_where, other = beside(where, key)
        if (other_where, other) == (where, key):
            continue
        models = key[0] == other[0]
        each = [compare(groups[key], groups.get(other, []), where, m, other_where, models) for m in RATED]
        if any(each):
            rows.append([*key, answers(split, where), *map(told, each, RATED)])
    return markdown(["model", "loss", "answers", *(METRICS[metric] for metric in RATED)], rows)


def rated(groups: Groups, split: str) -> list[tuple[str, Key]]:
    """(split, (model, loss)) of every way in which a test split was rated, greedy answers first."""
    ways = [split, split_of(split, "expected"), *filter(None, [median_splits(groups).get(split)])]
    return [(where, key) for where in ways for key in sorted(groups) if values_of(groups[key], where, "qwk")]


def answers(split: str, where: str) -> str:
    """How the answers of a split were decoded: "greedy" or, for its medians, their name."""
    return where.removeprefix(split).replace("_", " ").strip() or "greedy"


def budget_table(groups: Groups, metric: str) -> str:
    """A validation metric after several numbers of steps: mean and standard deviation, with marks."""
    steps = budgets(groups)
    rows = [[*key, *(marked(groups, key, step, metric) for step in steps)] for key in sorted(groups)]
    return markdown(["model", "loss", *(f"{CURVES[metric]} at {step}" for step in steps)], rows)


def budgets(groups: Groups) -> list[int]:
    """At most :data:`MOST_BUDGETS` evenly spaced steps at which all runs were measured, including the last."""
    steps = steps_of(run for runs in groups.values() for run in runs)
    count = min(MOST_BUDGETS, len(steps))
    return [steps[(index + 1) * len(steps) // count - 1] for index in range(count)]


def settings(groups: Groups) -> str:
    """The settings of a data set's runs."""
    runs = [run for group in groups.values() for run in group]
    sizes: dict[str, list[int]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run["model"]):
        sizes[run["model"]].append(run["parameters"])
    models = [
        f"{model} with {min(found):,}" + (f" to {max(found):,}" if min(found) < max(found) else "") + " parameters"
        for model, found in sizes.items()
    ]
    trained = [run for run in runs if run["seconds"]] or runs
    arguments = [run["config"]["trainer"]["arguments"] for run in trained]
    train = listed(run["sizes"]["train"] for run in trained)
    steps, batch = (listed(a[name] for a in arguments) for name in ("max_steps", "per_device_train_batch_size"))
    seconds = [run["seconds"] for run in trained]
    return (
        f"`{runs[0]['dataset']}`: {', '.join(models)}; {train} training pairs, {steps} steps of batch size {batch}; "
        f"{min(seconds):.0f} to {max(seconds):.0f} s per run."
    )


def listed(values: Iterable[int]) -> str:
    """The distinct numbers as text."""
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def provenance(runs: Iterable[Record]) -> str:
    """The distinct commands with commit, versions and machine, each with the date of its last run."""
    lines = {}
    for known in (run["environment"] for run in runs):
        versions, day = known["versions"], known["date"].split()[0]
        told_apart_by = [known[key] for key in ("command", "commit", "changed_files", "versions", "device", "threads")]
        lines[json.dumps(told_apart_by)] = (
            f"- `{known['command']}`  \n  {commit_of(known)}, {day}, torch {versions['torch']}, transformers "
            f"{versions['transformers']}, Python {known['python']}, {known['device']}, {known['threads']} thread(s)"
        )
    return "\n".join(sorted(lines.values()))
