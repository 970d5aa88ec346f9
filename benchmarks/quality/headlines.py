"""The headline results: one table row per task, plots, and the project's targets for learning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import eq
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from . import plots
from .advice import REWEIGHED, SOFT
from .losses import NTL
from .names import (
    BOOSTED,
    BUDGETS,
    EXACT,
    FINETUNED,
    LONG,
    METRICS,
    PRETRAINED,
    RENTS,
    SHORT,
    UNITS,
    UNTRAINED,
    WITH_BINS,
    in_order,
    models_of,
    subject,
    words,
)
from .records import Groups, Record, by_dataset, splits_of, steps_of, values_of
from .statistics import Difference, baseline, compare, pairs_of
from .tables import MARKS, brief, in_words, markdown, rounded, told, told_as_factor


class Headline(NamedTuple):
    """A row: runs with a loss, compared with CE of the same model."""

    dataset: str
    loss: str = NTL
    model: str = "llama"
    split: str = "test"


HEADLINES = (
    *(Headline(dataset, model=PRETRAINED) for dataset in FINETUNED),
    *(Headline(dataset, SOFT, WITH_BINS) for dataset in FINETUNED[:2]),
    Headline(SHORT),
    Headline(RENTS),
    Headline(LONG),
    Headline("housing"),
    Headline("taxis"),
    Headline("diamonds"),
    Headline("readings"),
    Headline("expressions", REWEIGHED, split="interpolate"),
    Headline("arithmetic", model="llama_pretrained", split="interpolate"),
)
"""The rows of tables and plots."""
FROM_SCRATCH = (SHORT, LONG, "housing", "taxis", "diamonds", "arithmetic")
"""The data sets of the second table's rows; the first is about fine-tuning."""
CHOSEN = "†"
"""Marks the rows on whose data the setting was chosen."""
SHOWN = "median_error"
"""The measure of a row: wild answers do not dominate it, and every task has it."""
UNMOVED = "mae"
"""The measure of a row whose median error is the same in every pair, as with answers that are whole numbers."""
TRAINED = (*FINETUNED[:3], "housing", "taxis", "diamonds", RENTS)
"""The data sets whose difference is plotted over training."""
Pair = tuple[Headline, list[Record], list[Record]]
"""A row, its runs, and the CE runs with the same seeds."""


def pairs(runs: Sequence[Record]) -> list[Pair]:
    """The rows for which there are runs."""
    datasets = by_dataset(runs)
    return [found for row in HEADLINES if (found := pair_of(row, datasets.get(row.dataset, {})))]


def pair_of(row: Headline, groups: Groups) -> Pair | None:
    both = pairs_of(groups.get((row.model, row.loss), []), baseline(groups, row.model))
    return (row, [one for one, _ in both], [other for _, other in both]) if both else None


def in_table(runs: Sequence[Record], datasets: Sequence[str]) -> list[Pair]:
    return [pair for pair in pairs(runs) if pair[0].dataset in datasets]


def table(runs: Sequence[Record], datasets: Sequence[str] = FROM_SCRATCH) -> str:
    """A row per task: an error with CE and with CE + NTL, and how it and the mean error change."""
    found = in_table(runs, datasets)
    ours = NTL if {row.loss for row, _, _ in found} <= {NTL} else "CE + NTL"
    header = ["task", "error", "CE", ours, "change [95% interval]", "seeds with a smaller error", "change in MAE"]
    return markdown(header, [table_row(*pair) for pair in found], words=2)


def table_row(row: Headline, ours: list[Record], plain: list[Record]) -> list[str]:
    unit = f", {UNITS[row.dataset]}" if row.dataset in UNITS else ""
    name = subject(row.dataset) + variant(row) + unit + CHOSEN * (row.dataset in BUDGETS)
    shown = measure(row, ours, plain)
    means = [rounded(fmean(values_of(side, row.split, shown)), 3) for side in (plain, ours)]
    found, mae = (compare(ours, plain, row.split, metric) for metric in (shown, "mae"))
    seeds = f"{found.lower} of {found.pairs}" if found else ""
    return [name, METRICS[shown], *means, marked(found, shown), seeds, marked(mae, "mae") * (shown != UNMOVED)]


def measure(row: Headline, ours: list[Record], plain: list[Record]) -> str:
    """The error that a row shows."""
    both = (values_of(side, row.split, SHOWN) for side in (ours, plain))
    return UNMOVED if all(map(eq, *both)) else SHOWN


def marked(found: Difference | None, metric: str) -> str:
    """A difference with its interval and mark."""
    return brief(found, metric) + (MARKS[found.verdict] if found else "")


def finetuning(runs: Sequence[Record], yardsticks: Record) -> str:
    """What was fine-tuned, and how far the model before it and a method for tables are from the answers."""
    found, datasets = in_table(runs, FINETUNED), by_dataset(runs)
    if not found:
        return ""
    untrained = [(datasets[row.dataset].get((UNTRAINED, "CE"), []), row.split) for row, _, _ in found]
    shares = [1 - share for group, split in untrained for share in values_of(group, split, "no_number")]
    asked = f"Before that, at most {max(shares):.1%} of its answers in any task were numbers." if shares else ""
    return " ".join(filter(None, [made(runs), asked, beyond(runs, yardsticks, FINETUNED)]))


def made(runs: Sequence[Record]) -> str:
    """The sentence on the model that was fine-tuned, and how."""
    (_, ours, _), *_ = in_table(runs, FINETUNED)
    training, lora = ours[0]["config"]["trainer"]["arguments"], ours[0]["config"]["model"]["lora"]
    return (
        "SmolLM2-135M-Instruct, a pretrained model of 135 million parameters, was fine-tuned with LoRA (rank "
        f"{lora['r']}) for {training['max_steps']} steps of {training['per_device_train_batch_size']} rows."
    )


def scope(runs: Sequence[Record], yardsticks: Record) -> str:
    """The two sentences above the table: which models these are, and what a method for tables achieves."""
    found = in_table(runs, FROM_SCRATCH)
    if not found:
        return ""
    trained = [run for _, ours, plain in found for run in (*ours, *plain)]
    sizes = [run["parameters"] / 1e6 for run in trained]
    steps = [run["config"]["trainer"]["arguments"]["max_steps"] for run in trained]
    models = (
        f"Small models, of {min(sizes):.2f} to {max(sizes):.2f} million parameters, were trained from scratch for "
        f"{min(steps):,} to {max(steps):,} steps (for sums, after training on expressions); rents and sums are "
        "generated data, the others are real tables."
    )
    return f"{models} {beyond(runs, yardsticks, FROM_SCRATCH)}".strip()


def beyond(runs: Sequence[Record], yardsticks: Record, shown: Sequence[str]) -> str:
    """The sentence on gradient boosting beside the language model that came closest; empty without tables."""
    datasets = by_dataset(run for run in runs if run["loss"] != "MSE" and run["dataset"] in shown)
    found = []
    for name in in_order(set(yardsticks) & set(datasets)):
        smallest = min(fmean(values_of(group, "test", SHOWN)) for group in datasets[name].values())
        both = [rounded(error, 3) for error in (yardsticks[name]["metrics"][BOOSTED][SHOWN], smallest)]
        found.append(f"{both[0]} for {subject(name)} ({both[1]})")
    told = (
        f"On the real tables, the {METRICS[SHOWN]} of {BOOSTED} is {', '.join(found)}; in brackets, the smallest of a "
    )
    return told + "language model with any loss." if found else ""


def harm(runs: Sequence[Record]) -> str:
    """The sentence on readings, whose log MAE NTL increases; empty without such runs."""
    pair = pair_of(Headline("readings"), by_dataset(runs).get("readings", {}))
    found = compare(pair[1], pair[2], pair[0].split, "log_mae") if pair else None
    return (
        f"On generated sensor readings, the mean error of the logarithm (log MAE) {in_words(found, 'log_mae')}."
        if found
        else ""
    )


def draw_differences(runs: Sequence[Record], path: Path, source: str) -> None:
    """Plot the rows' relative changes of errors."""
    label = f"change in error with {NTL}, relative to CE (95% interval)"
    plots.draw_differences(errors(runs), label, path, source)


def errors(runs: Sequence[Record]) -> dict[str, dict[str, Difference | None]]:
    """Row -> metric -> the relative change."""
    rows = {}
    for row, ours, plain in plotted(runs):
        metrics = ("log_mae",) if row.dataset in EXACT else ("median_error", "mae", "log_mae")
        rows[task(row)] = {METRICS[metric]: compare(ours, plain, row.split, metric) for metric in metrics}
    return rows


def plotted(runs: Sequence[Record]) -> list[Pair]:
    """The rows for plots: without bins, whose differences are of another size."""
    return [pair for pair in pairs(runs) if pair[0].model != WITH_BINS]


def task(row: Headline) -> str:
    """The display name of the row."""
    return words(row.dataset) + variant(row)


def variant(row: Headline) -> str:
    """How the row's model or loss differs from the usual one."""
    return " in 256 bins, soft labels" if row.model == WITH_BINS else row.loss.removeprefix(NTL)


def draw_training(runs: Sequence[Record], path: Path, source: str) -> None:
    """Plot the difference to CE over training steps."""
    plots.draw_training(budgets(runs), training(runs), path, source)


def budgets(runs: Sequence[Record]) -> list[tuple[int, Difference]]:
    """(steps, difference in MAE to CE on the test split) for rents; each budget has its own learning-rate schedule."""
    found = [(row, compare(ours, plain, row.split, "mae"), ours) for row, ours, plain in pairs(runs)]
    return [
        (ours[0]["config"]["trainer"]["arguments"]["max_steps"], difference)
        for row, difference, ours in found
        if row.dataset in BUDGETS and difference
    ]


def training(runs: Sequence[Record]) -> dict[str, list[tuple[int, Difference]]]:
    """Data set -> (step, difference in MAE to CE on the validation split) at each evaluation."""
    shown = [pair for pair in plotted(runs) if pair[0].dataset in TRAINED]
    return {words(row.dataset): list(differences(ours, plain)) for row, ours, plain in shown}


def differences(ours: list[Record], plain: list[Record]) -> Iterator[tuple[int, Difference]]:
    for step in steps_of([*ours, *plain]):
        if (found := compare(ours, plain, step, "mae")) and not found.gap:
            yield step, found


def targets(runs: Sequence[Record], timing: Record) -> list[list[str]]:
    """The project's targets: claim, measured value, verdict."""
    groups = by_dataset(runs)
    rows = [*arithmetic_targets(groups.get("arithmetic", {})), *regression_targets(groups), *timing_targets(timing)]
    return [[claim, measured, "met" if met else "**missed**"] for claim, measured, met in rows]


def arithmetic_targets(groups: Groups) -> Iterator[tuple[str, str, bool]]:
    """Lower MAE and higher R2 with CE + NTL-WAS than with CE, paired by seed."""
    for (model, loss), runs in sorted(groups.items()):
        mae, r2 = (compare(runs, baseline(groups, model), "interpolate", metric) for metric in ("mae", "r2"))
        if "NTL-WAS" not in loss or mae is None or r2 is None:
            continue
        claim = f"{words('arithmetic')}, interpolate: {loss} has a lower MAE and a higher R2 than CE"
        yield claim, f"MAE {told(mae, 'mae')}, R2 {told(r2, 'r2')}", (mae.verdict, r2.verdict) == ("lower", "higher")


def regression_targets(datasets: dict[str, Groups]) -> Iterator[tuple[str, str, bool]]:
    """A token head with the recommended loss has no larger error than a regression head, paired by seed.

    It uses one setting for all data sets: the best of many per data set would be selected by the errors that it is
    judged by.
    """
    for dataset in in_order(datasets):
        groups = datasets[dataset]
        for split in splits_of(groups):
            model, head = models_of(dataset)
            ours, heads = groups.get((model, NTL), []), groups.get((head, "MSE"), [])
            if found := compare(ours, heads, split, "mae", models=model == head):
                claim = f"{words(dataset)}, {split}: MAE of {NTL} / of the regression head ≤ 1"
                yield claim, told_as_factor(found), found.mean <= 0


def timing_targets(timing: Record) -> Iterator[tuple[str, str, bool]]:
    """The time of a training step with CE + NTL relative to one with CE."""
    for base, ratio in timing.get("ratios", {}).items():
        what = {"stock": "the stock Trainer's CE", "ce": "our CE"}[base]
        measured = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        yield f"training step with CE + NTL-WAS / with {what} ≤ 1.01", measured, ratio["median"] <= 1.01
