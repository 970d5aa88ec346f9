"""Learning curves, error histograms and differences by pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .records import ERROR_BINS, Groups, at_step, steps_of
from .statistics import Difference

LEAST_R2 = -0.5
"""Where the axis of R2 ends; runs that have learned nothing are below."""
DIFFERENCE_LIMITS = (-60, 60)
"""Per cent; intervals that single wild answers have widened go on beyond."""


def draw(groups: Groups, title: str, path: Path, source: str) -> None:
    """MAE, median error and R2 over steps on the validation split, mean and standard deviation over seeds, and the
    errors of the answers to the test questions. ``source`` goes into the PNG's metadata.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = {model for model, _ in groups}
    figure, axes = plt.subplots(2, 2, figsize=(12, 8))
    mae, median, r2, errors = axes.flat
    for index, ((model, loss), runs) in enumerate(sorted(groups.items())):
        style = {"color": f"C{index % 10}", "label": loss if len(models) == 1 else f"{model}, {loss}"}
        for axis, metric in ((mae, "mae"), (median, "median_error"), (r2, "r2")):
            curve(axis, runs, metric, style)
        counts = np.sum([histogram for run in runs for histogram in run["errors"].values()], axis=0)
        errors.stairs(counts / max(counts.sum(), 1), ERROR_BINS, **style)
    mae.set(xlabel="training step", ylabel="MAE of the answers, validation", yscale="log")
    median.set(xlabel="training step", ylabel="median error of the answers, validation", ylim=(0, None))
    r2.set(xlabel="training step", ylabel="R2 of the answers, validation")
    r2.set_ylim(max(r2.get_ylim()[0], LEAST_R2), min(r2.get_ylim()[1], 1.02))
    errors.set(xlabel="log10(1 + |error|), tests", ylabel="share of the answers", xlim=(0, largest_bin(groups)))
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    errors.legend(fontsize="small", loc="upper right")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Source": source})
    plt.close(figure)


def draw_differences(rows: dict[str, dict[str, Difference | None]], path: Path, source: str) -> None:
    """Differences to CE in per cent with their 95 % intervals: a line for each row, a colour for each metric."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.2))
    axis.axvline(0, color="black", linewidth=0.8)
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    for number, metric in enumerate(metrics):
        found = [(place, row[metric]) for place, row in enumerate(rows.values())]
        known = [(place, each) for place, each in found if each is not None and np.isfinite(each.mean)]
        heights = [place + 0.2 * (number - (len(metrics) - 1) / 2) for place, _ in known]
        margins = [0 if np.isnan(each.low) else each.high - each.mean for _, each in known]
        axis.errorbar([each.mean for _, each in known], heights, xerr=margins, fmt="o", capsize=3, label=metric)
    axis.set(xlabel="difference to CE at the same seed, per cent (95 % interval)", xlim=DIFFERENCE_LIMITS)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Source": source})
    plt.close(figure)


def curve(axis: Any, runs: list[dict[str, Any]], metric: str, style: dict[str, Any]) -> None:
    """Mean over seeds, a band of one standard deviation."""
    at_steps = [(step, at_step(runs, step, metric)) for step in steps_of(runs)]
    measured = [(step, values) for step, values in at_steps if values and np.isfinite(values).all()]
    if not measured:
        return
    steps = [step for step, _ in measured]
    means = np.array([np.mean(values) for _, values in measured])
    deviations = np.array([np.std(values, ddof=len(values) > 1) for _, values in measured])
    axis.plot(steps, means, marker=".", **style)
    axis.fill_between(steps, means - deviations, means + deviations, color=style["color"], alpha=0.15, linewidth=0)


def largest_bin(groups: Groups) -> float:
    """The right end of the last bin that holds an error."""
    counts = np.sum([h for runs in groups.values() for run in runs for h in run["errors"].values()], axis=0)
    filled = np.flatnonzero(counts)
    return ERROR_BINS[int(filled[-1]) + 1] if filled.size else ERROR_BINS[-1]
