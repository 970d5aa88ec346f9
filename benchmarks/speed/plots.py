"""PNG plots of results. An opaque light background with dark text is readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..published import pyplot, save
from .memory import FRESH
from .results import Record, Records, median, medians, of_group, of_way, percentiles, preferred, timed
from .tables import label, objective, problem, rate, three_digits

GROUND, INK, GRID = "#fbfbf8", "#26262b", "#d4d4cf"
STYLE = (
    dict.fromkeys(("axes.facecolor", "savefig.facecolor", "legend.facecolor"), GROUND)
    | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    | dict.fromkeys(("grid.color", "legend.edgecolor"), GRID)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right"), False)
    | {"font.size": 11, "axes.titlesize": 11, "figure.titlesize": 13, "legend.fontsize": 10, "axes.axisbelow": True}
    | {"figure.constrained_layout.use": True, "savefig.dpi": 120, "savefig.bbox": "tight"}
)
PROVIDERS_OF = {
    "#1f6fd1": ("ours", "ours_inplace", "ours_linear"),
    "#6aa5e8": ("ours_logits", "ours_all_rows", "ours_of_logits", "ours_off", "ours_given", "ours_linear_given"),
    "#9cc3f0": ("ours_reference", "ours_rows"),
    "#3b3b40": ("copy", "matmuls"),
    "#e07b1a": ("torch_ce", "torch_linear", "stock"),
    "#c9a227": ("torch_ce_float",),
    "#a85a0c": ("torch_ce_compiled", "torch_linear_compiled"),
    "#c0335a": ("torch_ce_ntloss", "torch_linear_ntloss", "stock_ntloss", "ntloss"),
    "#8a1f3d": ("torch_ce_ntloss_compiled",),
    "#b58fd6": ("torch_fused", "torch_fused_whole", "torch_fused_compact", "torch_fused_accurate"),
    "#2f9e5a": ("liger_ce", "liger_linear"),
    "#16a3a3": ("quack_ce", "quack_linear"),
    "#7a7f2c": ("cce_linear", "cce_linear_all"),
    "#5b6b73": ("unsloth_ce", "fla_ce"),
}
COLOURS = {name: colour for colour, names in PROVIDERS_OF.items() for name in names}
"""A provider's colour is the same in every plot."""
TITLES = {
    "logits": "Forward + backward, from logits",
    "hidden": "Forward + backward, from hidden states",
    "host": "Host time of forward + backward, without running kernels",
    "vocabulary": "Bandwidth relative to a copy, by vocabulary size",
}
"""File -> title of its plot. The first three show the providers of a family side by side."""
PALE = 0.3
BAR_GROUPS = ("main", "host")
"""The groups of workloads whose providers are drawn side by side."""
SWEEPS = ("vocabulary-fp32", "vocabulary-bf16")


def figures(records: Records) -> dict[str, Callable[[], Any]]:
    """File name -> function that draws its figure, for every plot that has results."""
    records, fresh = preferred(records), of_way(records, FRESH)
    found = {}
    for family in ("logits", "hidden", "host"):
        chosen = [r for group in BAR_GROUPS for r in of_group(records, group) if r["family"] == family]
        if chosen:
            found[family] = partial(bars, TITLES[family], chosen, fresh)
    sweeps = {group: [r for r in of_group(records, group) if "copy" in timed(r)] for group in SWEEPS}
    sweeps = {group: chosen for group, chosen in sweeps.items() if chosen}
    return {**found, "vocabulary": partial(copy_shares, sweeps)} if sweeps else found


def draw(make: Callable[[], Any], path: Path, source: str) -> None:
    """Write a figure, with ``source`` in its metadata."""
    with pyplot().rc_context(STYLE):
        save(make(), path, source)


def bars(title: str, chosen: list[Record], fresh: Records) -> Any:
    """Median time of each provider on some workloads, with the 20th to 80th percentile.

    For results with kept memory, a paler bar extends to the time with fresh memory.
    """
    heights = [len(timed(record)) for record in chosen]
    size = (9, 1.2 * len(chosen) + 0.3 * sum(heights))
    figure, grid = pyplot().subplots(len(chosen), 1, squeeze=False, figsize=size, height_ratios=heights)
    figure.suptitle(title)
    for axes, record in zip(grid[:, 0], chosen, strict=True):
        mapped = fresh.get(record["name"], record)
        draw_bars(axes, record, {} if mapped is record else medians(mapped))
    return figure


def draw_bars(axes: Any, record: Record, fresh: dict[str, float]) -> None:
    """One workload, the fastest provider on top. ``fresh``: times with fresh memory, if the record has kept memory."""
    entries = sorted(timed(record).items(), key=lambda pair: -median(pair[1]))
    times = [[1e3 * value for value in percentiles(found["samples_s"])] for _, found in entries]
    middles = [middle for _, middle, _ in times]
    errors = [[middle - low for low, middle, _ in times], [high - middle for _, middle, high in times]]
    names = [f"{label(record, name)} ({objective(record, name)})" for name, _ in entries]
    colours = [COLOURS.get(name, INK) for name, _ in entries]
    beyond = [1e3 * fresh.get(name, 0.0) for name, _ in entries]
    if fresh:
        axes.barh(names, beyond, color=colours, alpha=PALE)
    axes.barh(names, middles, xerr=errors, color=colours, error_kw={"ecolor": INK, "elinewidth": 1})
    ends = [max(high, reached) for (*_, high), reached in zip(times, beyond, strict=True)]
    for position, (middle, reached, end) in enumerate(zip(middles, beyond, ends, strict=True)):
        axes.text(
            end,
            position,
            f"  {three_digits(middle)}" + (f", fresh {three_digits(reached)}" if reached else ""),
            va="center",
        )
    axes.set_xlim(0, (1.35 if fresh else 1.12) * max(ends))
    axes.grid(axis="x")
    kept = "; kept memory (pale: fresh)" if fresh else ""
    axes.set_xlabel(f"median ms, with the 20th to 80th percentile{kept}")
    axes.set_title(problem(record), loc="left")


def copy_shares(sweeps: dict[str, list[Record]]) -> Any:
    """Effective bandwidth relative to that of a copy, by vocabulary."""
    size = (9, 3.6 * len(sweeps))
    figure, grid = pyplot().subplots(len(sweeps), 1, squeeze=False, sharex=True, figsize=size)
    for axes, (group, chosen) in zip(grid[:, 0], sweeps.items(), strict=True):
        draw_shares(axes, chosen, group)
        axes.set_title(chosen[0]["dtype"], loc="left")
        axes.set_ylabel("share of a copy's")
    grid[-1][0].set_xlabel("vocabulary V")
    figure.suptitle("Bandwidth of forward + backward, counting one read and one write of the logits")
    return figure


def draw_shares(axes: Any, chosen: list[Record], group: str) -> None:
    """A line for each provider of the group; a workload with its own plot has more providers."""
    members = [record for record in chosen if record["group"] == group]
    names = list(dict.fromkeys(name for record in members for name in timed(record) if name != "copy"))
    chosen = sorted(chosen, key=lambda record: record["vocab"])
    for name in names:
        points = [record for record in chosen if name in timed(record)]
        shares = [rate(record, timed(record)[name]) / rate(record, timed(record)["copy"]) for record in points]
        vocabularies = [record["vocab"] for record in points]
        axes.plot(vocabularies, shares, "o-", color=COLOURS.get(name, INK), label=label(points[0], name), markersize=4)
    axes.set_xscale("log")
    ticks = [record["vocab"] for record in chosen if record["vocab"] != 50257]
    axes.set_xticks(ticks, [f"{tick // 1000}k" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.grid()
    axes.legend()
