"""Plots of learning curves, errors, results of every seed and paired differences.

Pages show the figures about 800 pixels wide, so fonts are large and lines are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..published import MINUS, pyplot, save
from .losses import NTL
from .names import EXACT, METRICS
from .records import ERROR_BINS, Groups, Record, splits_of, steps_of, values_of
from .statistics import Difference, as_ratio

Style = dict[str, Any]
Styled = list[tuple[list[Record], Style]]
"""The runs of each group with its plot style."""

WIDTH, DPI = 9.0, 100
FONT = {"font.size": 12, "axes.titlesize": 12, "legend.fontsize": 11, "lines.markersize": 5}
CURVES = {False: ("mae", "median_error"), True: ("exact_match", "median_error")}
"""Whether answers are exact -> the validation metrics that are plotted."""
MOST_CURVES = 6
"""With more losses than this, only those of the headlines are drawn as curves; all are drawn seed by seed."""
FARTHEST = 4
"""Error axes end at this multiple of the largest error at the end of training."""
MOST_ANSWERS = 0.995
"""The plot of errors ends at this quantile of the answers."""
CHANGES = (-90, -80, -70, -60, -50, -40, -30, -20, -10, 0, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 900, 1900)
"""Candidate tick labels, in per cent, of ratio axes; axes with a wide range use fewer."""
MOST_TICKS = 9


def draw(groups: Groups, title: str, path: Path, source: str) -> None:
    """Draw a data set's figure: validation metrics over steps (mean over seeds), errors of the test answers, and the
    test error of every seed, for all losses. ``source`` is stored in the PNG's metadata.
    """
    styled = list(zip([runs for _, runs in sorted(groups.items())], styles_of(groups), strict=True))
    curves = [each for each in styled if is_headline(each[0])] if len(styled) > MOST_CURVES else styled
    is_exact = styled[0][0][0]["dataset"] in EXACT
    with pyplot().rc_context(FONT):
        below = 0.9 + 0.34 * len(styled)
        figure = pyplot().figure(figsize=(WIDTH, 3.7 + below), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(3.7, below))
        *axes, errors = upper.subplots(1, 3)
        for axis, metric in zip(axes, CURVES[is_exact], strict=True):
            draw_curves(axis, curves, metric)
        draw_errors(errors, curves, splits_of(groups))
        legend_below(upper, axes[0])
        draw_seeds(lower.subplots(), styled, splits_of(groups)[-1], "log_mae" if is_exact else "mae")
        figure.suptitle(title)
        save(figure, path, source, dpi=DPI)


def is_headline(runs: Sequence[Record]) -> bool:
    return runs[0]["loss"] in ("CE", NTL, "MSE")


def legend_below(figure: Any, axis: Any) -> None:
    """One legend for all axes, below them."""
    handles, labels = axis.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if longest > 25 else 3, frameon=False)


def styles_of(groups: Groups) -> list[Style]:
    """Colour, line style and label of every sorted group; labels omit the most common model."""
    models = [model for model, _ in groups]
    usual = max(models, key=models.count)
    names = [loss if model == usual else f"{model}, {loss}".replace("_", " ") for model, loss in sorted(groups)]
    return [{"color": f"C{i % 10}", "linestyle": "-" if i < 10 else "--", "label": n} for i, n in enumerate(names)]


def draw_curves(axis: Any, styled: Styled, metric: str) -> None:
    """A metric over steps, mean over seeds; values far above the ends of the curves are cut off."""
    drawn = [means for runs, style in styled if (means := curve(axis, runs, metric, style))]
    highest = max((max(means) for means in drawn), default=0)
    far = math.inf if metric == "exact_match" else FARTHEST * max((means[-1] for means in drawn), default=0)
    axis.set_ylim(0, min(1.05 * highest, far) or None)
    axis.set(xlabel="training step", title=f"{METRICS[metric]},\nvalidation")
    axis.grid(alpha=0.3)


def curve(axis: Any, runs: list[Record], metric: str, style: Style) -> list[float]:
    """Draw the means over seeds at steps where every seed has a value; return them."""
    at_steps = [(step, values_of(runs, step, metric)) for step in steps_of(runs)]
    measured = [(step, float(np.mean(values))) for step, values in at_steps if values and np.isfinite(values).all()]
    axis.plot([step for step, _ in measured], [mean for _, mean in measured], marker=".", **style)
    return [mean for _, mean in measured]


def draw_errors(axis: Any, styled: Styled, splits: Sequence[str]) -> None:
    """The cumulative distribution of the errors of greedy test answers."""
    together = np.zeros(len(ERROR_BINS) - 1)
    for runs, style in styled:
        found = [run["errors"][split] for run in runs for split in splits]
        counts = np.sum(found, axis=0).cumsum()
        axis.plot([10**edge - 1 for edge in ERROR_BINS[1:]], counts / max(counts[-1], 1), **style)
        together += counts
    start, end = (int(np.searchsorted(together, share * together[-1])) for share in (0.05, MOST_ANSWERS))
    start = min(max(start, 1), len(ERROR_BINS) - 2)
    end = max(start + 1, min(end + 1, len(ERROR_BINS) - 1))
    axis.set(xscale="log", xlim=(10 ** ERROR_BINS[start] - 1, 10 ** ERROR_BINS[end] - 1), ylim=(0, 1.02))
    axis.set(xlabel="error", title="share of answers with at\nmost this error, test")
    axis.grid(alpha=0.3)


def draw_seeds(axis: Any, styled: Styled, split: str, metric: str) -> None:
    """The test error of every run, a row of dots per loss, and its mean."""
    everything = []
    for place, (runs, style) in enumerate(styled):
        values = [value for value in values_of(runs, split, metric) if np.isfinite(value)]
        axis.plot(values, [place] * len(values), "o", color=style["color"], alpha=0.6)
        if values:
            axis.plot(np.mean(values), place, "|", color="black", markersize=16)
        everything += values
    if everything and max(everything) > FARTHEST * min(everything) > 0:
        axis.set_xscale("log")
    axis.set_yticks(range(len(styled)), [style["label"] for _, style in styled])
    axis.set(xlabel=f"{METRICS[metric]}, {split}: all seeds and their mean", ylim=(len(styled) - 0.5, -0.5))
    axis.grid(alpha=0.3)


def draw_differences(rows: dict[str, dict[str, Difference | None]], label: str, path: Path, source: str) -> None:
    """Relative changes with their 95% intervals on a ratio axis: a line per row, a colour per metric."""
    with pyplot().rc_context(FONT):
        figure, axis = pyplot().subplots(figsize=(WIDTH, 0.55 * len(rows) + 1.4), layout="constrained")
        axis.axvline(1, color="black", linewidth=0.8)
        metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
        shown = []
        for number, metric in enumerate(metrics):
            for place, row in enumerate(rows.values()):
                if (found := row.get(metric)) and not found.gap:
                    height = place + 0.24 * (list(row).index(metric) - (len(row) - 1) / 2)
                    with_interval(axis, found, (as_ratio(found.mean), height), "x", f"C{number}")
                    shown += [found.low, found.high]
            axis.plot([], [], "o", color=f"C{number}", label=metric)
        changes_axis(axis, "x", shown)
        axis.set_xlabel(label)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(alpha=0.3)
        figure.legend(loc="outside upper right", ncols=len(metrics), frameon=False)
        save(figure, path, source, dpi=DPI)


def with_interval(axis: Any, found: Difference, place: tuple[float, float], which: str, color: str) -> None:
    """A dot at a place, with its interval along x or y; the dot is filled if the interval excludes 0."""
    mean, low, high = map(as_ratio, (found.mean, found.low, found.high))
    error = {f"{which}err": [[mean - low], [high - mean]]}
    axis.errorbar(*place, **error, fmt="o", capsize=4, color=color, mfc=color if found.is_certain else "white")


def changes_axis(axis: Any, which: str, changes: Sequence[float]) -> None:
    """A logarithmic axis of ratios, labelled as changes in per cent, over the range of these changes."""
    known = [change for change in changes if math.isfinite(change)]
    low, high = min([-10, *known]), max([10, *known])
    ticks = [change for change in CHANGES if low <= change <= high]
    every = math.ceil(len(ticks) / MOST_TICKS)
    thinned = [tick for place, tick in enumerate(ticks) if (place - ticks.index(0)) % every == 0]
    bound = getattr(axis, f"{which}axis")
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}lim")(as_ratio(low) / 1.05, as_ratio(high) * 1.05)
    labels = [f"{tick:+d}%".replace("-", MINUS) if tick else "0" for tick in thinned]
    bound.set_ticks([as_ratio(tick) for tick in thinned], labels)
    bound.set_minor_locator(pyplot().NullLocator())


def draw_training(
    budgets: Sequence[tuple[int, Difference]],
    training: dict[str, list[tuple[int, Difference]]],
    path: Path,
    source: str,
) -> None:
    """The change in MAE relative to CE over steps: at the end of several budgets, and during training of others."""
    with pyplot().rc_context(FONT):
        figure, (left, right) = pyplot().subplots(1, 2, figsize=(WIDTH, 4.2), layout="constrained")
        for steps, found in budgets:
            with_interval(left, found, (steps, as_ratio(found.mean)), "y", "C0")
        ends = [end for _, found in budgets for end in (found.low, found.high)]
        changes_axis(left, "y", ends)
        left.set(title="rents, end of each budget, test", ylabel="change in MAE, relative to CE")
        for number, (name, points) in enumerate(training.items()):
            color = f"C{number + 1}"
            right.plot([step for step, _ in points], [as_ratio(f.mean) for _, f in points], color=color, label=name)
            for step, found in points:
                face = color if found.is_certain else "white"
                right.plot(step, as_ratio(found.mean), "o", color=color, mfc=face)
        changes_axis(right, "y", [found.mean for points in training.values() for _, found in points])
        right.set(title="during training, validation")
        for axis in (left, right):
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_xlabel("training step")
            axis.set_xlim(0, None)
            axis.grid(alpha=0.3)
        legend_below(figure, right)
        save(figure, path, source, dpi=DPI)
