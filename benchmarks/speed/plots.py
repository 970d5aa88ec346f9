"""PNG plots of results. An opaque light ground with dark ink reads the same on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .results import Record, Records, percentiles
from .tables import label, objective, problem, rate, timed

GROUND, INK, GRID = "#fbfbf8", "#26262b", "#d4d4cf"
COLOURS = {
    "ours": "#1f6fd1",
    "ours_inplace": "#1f6fd1",
    "ours_logits": "#6aa5e8",
    "ours_all_rows": "#6aa5e8",
    "ours_of_logits": "#6aa5e8",
    "ours_off": "#6aa5e8",
    "ours_reference": "#9cc3f0",
    "ours_given": "#6aa5e8",
    "ours_rows": "#9cc3f0",
    "ours_linear": "#1f6fd1",
    "ours_linear_given": "#6aa5e8",
    "copy": "#3b3b40",
    "matmuls": "#3b3b40",
    "torch_ce": "#e07b1a",
    "torch_linear": "#e07b1a",
    "stock": "#e07b1a",
    "torch_ce_float": "#c9a227",
    "torch_ce_compiled": "#a85a0c",
    "torch_linear_compiled": "#a85a0c",
    "torch_ce_ntloss": "#c0335a",
    "torch_linear_ntloss": "#c0335a",
    "stock_ntloss": "#c0335a",
    "ntloss": "#c0335a",
    "torch_ce_ntloss_compiled": "#8a1f3d",
    "torch_fused": "#b58fd6",
    "torch_fused_whole": "#b58fd6",
    "torch_fused_compact": "#b58fd6",
    "torch_fused_accurate": "#b58fd6",
    "liger_ce": "#2f9e5a",
    "liger_linear": "#2f9e5a",
    "quack_ce": "#16a3a3",
    "quack_linear": "#16a3a3",
    "cce_linear": "#7a7f2c",
    "cce_linear_all": "#7a7f2c",
}
"""A provider's colour is the same in every plot."""
BARS = {
    "logits": "Forward + backward, from logits",
    "hidden": "Forward + backward, from hidden states",
    "host": "Host time of forward + backward whose kernels do not run",
}
BAR_GROUPS = ("main", "host")
"""The groups of workloads whose providers are drawn side by side."""
SWEEPS = {"vocabulary": ("vocabulary-fp32", "vocabulary-bf16")}


def draw(records: Records, folder: Path, source: str) -> list[Path]:
    """Every plot that the results allow; each carries ``source`` in its metadata."""
    import matplotlib

    matplotlib.use("Agg")
    drawn = {name: figure for name, make in figures(records).items() if (figure := make()) is not None}
    paths = []
    for name, figure in drawn.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120, facecolor=GROUND, bbox_inches="tight", metadata={"Source": source})
        matplotlib.pyplot.close(figure)
    return paths


def figures(records: Records) -> dict[str, Callable[[], Any]]:
    """File name -> what draws it."""
    return {
        **{family: lambda family=family: bars(records, family) for family in BARS},
        "vocabulary": lambda: copy_shares(records),
    }


def plain_axes(axes: Any) -> None:
    """Ground, ink and grid."""
    axes.set_facecolor(GROUND)
    axes.tick_params(colors=INK, labelsize=8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def bars(records: Records, family: str) -> Any:
    """Median time of each provider on a family's main workloads, with the 20th to 80th percentile."""
    from matplotlib import pyplot

    chosen = drawn_as_bars(records, family)
    if not chosen:
        return None
    heights = [len(timed(record)) for record in chosen]
    size = (8, 0.9 * len(chosen) + 0.28 * sum(heights))
    figure, grid = pyplot.subplots(
        len(chosen), 1, squeeze=False, figsize=size, height_ratios=heights, layout="constrained"
    )
    figure.suptitle(BARS[family], color=INK, fontsize=11)
    for axes, record in zip(grid[:, 0], chosen, strict=True):
        draw_bars(axes, record)
    return figure


def drawn_as_bars(records: Records, family: str) -> list[Record]:
    """The workloads of a family whose providers stand side by side in its plot."""
    return [r for r in records.values() if r["family"] == family and r["group"] in BAR_GROUPS and timed(r)]


def draw_bars(axes: Any, record: Any) -> None:
    """One workload: the fastest on top."""
    entries = sorted(timed(record).items(), key=lambda pair: -percentiles(pair[1]["samples_s"])[1])
    times = [[1e3 * value for value in percentiles(found["samples_s"])] for _, found in entries]
    medians = [median for _, median, _ in times]
    errors = [[median - low for low, median, _ in times], [high - median for _, median, high in times]]
    names = [f"{label(record, name)} ({objective(record, name)})" for name, _ in entries]
    colours = [COLOURS.get(name, INK) for name, _ in entries]
    axes.barh(names, medians, xerr=errors, color=colours, error_kw={"ecolor": INK, "elinewidth": 1})
    for position, (_, median, high) in enumerate(times):
        axes.text(high, position, f"  {median:.3g}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, 1.12 * max(high for *_, high in times))
    axes.grid(axis="x", color=GRID)
    axes.set_xlabel("median ms, with the 20th to 80th percentile", color=INK, fontsize=8)
    axes.set_title(f"{record['name']}: {problem(record)}", color=INK, fontsize=9, loc="left")
    plain_axes(axes)


def copy_shares(records: Records) -> Any:
    """Effective bandwidth over that of a copy, by vocabulary."""
    from matplotlib import pyplot

    groups = ("vocabulary-fp32", "vocabulary-bf16")
    members = {group: [r for r in records.values() if r["group"] == group and "copy" in timed(r)] for group in groups}
    members = {group: chosen for group, chosen in members.items() if chosen}
    if not members:
        return None
    figure, grid = pyplot.subplots(
        1, len(members), squeeze=False, sharey=True, figsize=(4.2 * len(members), 3.4), layout="constrained"
    )
    for axes, (group, chosen) in zip(grid[0], members.items(), strict=True):
        draw_shares(axes, chosen)
        axes.set_title(group.removeprefix("vocabulary-"), color=INK, fontsize=9)
    grid[0][0].set_ylabel("share of the bandwidth of a copy", color=INK, fontsize=8)
    figure.suptitle("Forward + backward, one read and one write of the logits counted", color=INK, fontsize=10)
    return figure


def draw_shares(axes: Any, chosen: list[Any]) -> None:
    names = list(dict.fromkeys(name for record in chosen for name in timed(record) if name != "copy"))
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
    axes.grid(color=GRID)
    axes.set_xlabel("vocabulary V", color=INK, fontsize=8)
    axes.legend(fontsize=7, facecolor=GROUND, labelcolor=INK, edgecolor=GRID)
    plain_axes(axes)
