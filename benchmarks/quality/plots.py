"""Learning curves, what every seed has come to, distributions of errors, and differences by pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..published import pyplot, save
from .records import ERROR_BINS, Groups, Record, splits_of, steps_of, values_of
from .statistics import Difference

Style = dict[str, Any]
Styled = list[tuple[list[Record], Style]]
"""Runs of a group, and the style that all their marks share."""

CURVES = {"mae": "MAE", "median_error": "median error", "r2": "R2"}
LEAST_R2 = -0.5
"""Where the axis of R2 ends; runs that have learned nothing are below."""
FARTHEST = 4
"""Axes of errors reach to so many times the largest error at the end of training."""
MOST_ANSWERS = 0.995
"""The plot of errors ends where so many of the answers are."""
MOST_BANDS = 4
"""More curves than these are drawn without bands, which would hide each other."""
LARGEST_DIFFERENCE = 60
"""Per cent; intervals that single wild answers have widened go on beyond, and means beyond are written at the edge."""


def draw(groups: Groups, title: str, path: Path, source: str) -> None:
    """A data set's picture: learning curves of the answers to the validation questions, mean over seeds (with a band of
    one standard deviation where few curves share a plot); every seed's MAE of the test answers; and their errors.
    ``source`` goes into the PNG's metadata.
    """
    styled = list(zip([runs for _, runs in sorted(groups.items())], styles_of(groups), strict=True))
    figure = pyplot().figure(figsize=(14, 5 + 0.25 * len(groups)), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 2 + 0.25 * len(groups)))
    for axis, (metric, name) in zip(upper.subplots(1, len(CURVES)), CURVES.items(), strict=True):
        draw_curves(axis, styled, metric)
        axis.set(xlabel="training step", ylabel=f"{name}, validation")
        axis.grid(alpha=0.3)
    seeds, errors = lower.subplots(1, 2, width_ratios=(3, 2))
    draw_seeds(seeds, styled, splits_of(groups)[-1])
    draw_errors(errors, styled)
    figure.suptitle(title)
    save(figure, path, source, dpi=90)


def styles_of(groups: Groups) -> list[Style]:
    """Colour, line and name of every sorted group; the model that most of them share is not named."""
    models = [model for model, _ in groups]
    usual = max(models, key=models.count)
    names = [loss if model == usual else f"{model}, {loss}" for model, loss in sorted(groups)]
    return [{"color": f"C{i % 10}", "linestyle": "-" if i < 10 else "--", "label": n} for i, n in enumerate(names)]


def draw_curves(axis: Any, styled: Styled, metric: str) -> None:
    """A metric over steps; what is far from where the curves end is cut off."""
    ends = [end for runs, style in styled for end in curve(axis, runs, metric, style, len(styled) <= MOST_BANDS)]
    if ends and metric == "r2":
        axis.set_ylim(max(1 - 2 * (1 - min(ends)), LEAST_R2), 1.01)
    elif ends:
        axis.set_ylim(0, FARTHEST * max(ends) or None)


def draw_seeds(axis: Any, styled: Styled, split: str) -> None:
    """The MAE of every run's test answers, a line of dots for each loss, and their mean."""
    everything = []
    for place, (runs, style) in enumerate(styled):
        values = [value for value in values_of(runs, split, "mae") if np.isfinite(value)]
        axis.plot(values, [place] * len(values), "o", color=style["color"], alpha=0.6)
        if values:
            axis.plot(np.mean(values), place, "|", color="black", markersize=18)
        everything += values
    if everything and max(everything) > FARTHEST * min(everything) > 0:
        axis.set_xscale("log")
    axis.set_yticks(range(len(styled)), [style["label"] for _, style in styled])
    axis.set(xlabel=f"MAE, {split}: every seed, and the mean", ylim=(len(styled) - 0.5, -0.5))
    axis.grid(alpha=0.3)


def draw_errors(axis: Any, styled: Styled) -> None:
    """How far the test answers are from the truth: the share of them that errs by at most so much."""
    together = np.zeros(len(ERROR_BINS) - 1)
    for runs, style in styled:
        counts = np.sum([histogram for run in runs for histogram in run["errors"].values()], axis=0).cumsum()
        axis.plot(ERROR_BINS[1:], counts / max(counts[-1], 1), **style)
        together += counts
    end = ERROR_BINS[int(np.searchsorted(together, MOST_ANSWERS * together[-1])) + 1]
    axis.set(xlabel="log10(1 + |error|), tests", ylabel="share of the answers", xlim=(0, end))
    axis.legend(fontsize="small", loc="lower right")
    axis.grid(alpha=0.3)


def draw_differences(rows: dict[str, dict[str, Difference | None]], path: Path, source: str) -> None:
    """Differences to CE in per cent with their 95 % intervals: a line for each row, a colour for each metric."""
    figure, axis = pyplot().subplots(figsize=(9, 0.5 * len(rows) + 1.2))
    axis.axvline(0, color="black", linewidth=0.8)
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    for number, metric in enumerate(metrics):
        found = [(place, row[metric]) for place, row in enumerate(rows.values())]
        known = [(place, each) for place, each in found if each is not None and np.isfinite(each.mean)]
        heights = [place + 0.2 * (number - (len(metrics) - 1) / 2) for place, _ in known]
        margins = [0 if np.isnan(each.low) else each.high - each.mean for _, each in known]
        axis.errorbar([each.mean for _, each in known], heights, xerr=margins, fmt="o", capsize=3, label=metric)
        for height, mean in zip(heights, [each.mean for _, each in known], strict=True):
            if abs(mean) > LARGEST_DIFFERENCE:
                end, side = (0.99, "right") if mean > 0 else (0.01, "left")
                place = {"transform": axis.get_yaxis_transform(), "ha": side, "va": "center"}
                axis.text(end, height, f"{mean:+.0f} %", **place, color=f"C{number}", backgroundcolor="white")
    axis.set_xlabel("difference to CE at the same seed, per cent (95 % interval)")
    axis.set_xlim(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.tight_layout()
    save(figure, path, source, dpi=90)


def curve(axis: Any, runs: list[Record], metric: str, style: Style, has_band: bool) -> list[float]:
    """Mean over seeds, and a band of one standard deviation; returns the last mean, if there is one."""
    at_steps = [(step, values_of(runs, step, metric)) for step in steps_of(runs)]
    measured = [(step, values) for step, values in at_steps if values and np.isfinite(values).all()]
    if not measured:
        return []
    steps = [step for step, _ in measured]
    means = np.array([np.mean(values) for _, values in measured])
    axis.plot(steps, means, marker=".", **style)
    if has_band:
        spread = np.array([np.std(values, ddof=len(values) > 1) for _, values in measured])
        axis.fill_between(steps, means - spread, means + spread, color=style["color"], alpha=0.15, linewidth=0)
    return [float(means[-1])]
