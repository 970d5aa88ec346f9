"""The project's targets for learning, with the measured values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .losses import NTL
from .names import in_order, words
from .records import Groups, Record, by_dataset, splits_of
from .statistics import baseline, compare
from .tables import told, told_as_factor


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
            ours, heads = groups.get(("llama", NTL), []), groups.get(("regression_head", "MSE"), [])
            if found := compare(ours, heads, split, "mae", models=False):
                claim = f"{words(dataset)}, {split}: MAE of {NTL} / of the regression head ≤ 1"
                yield claim, told_as_factor(found), found.mean <= 0


def timing_targets(timing: Record) -> Iterator[tuple[str, str, bool]]:
    """The time of a training step with CE + NTL relative to one with CE."""
    for base, ratio in timing.get("ratios", {}).items():
        what = {"stock": "the stock Trainer's CE", "ce": "our CE"}[base]
        measured = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        yield f"training step with CE + NTL-WAS / with {what} ≤ 1.01", measured, ratio["median"] <= 1.01
