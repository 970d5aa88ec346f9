"""Ordered tokens: answers of one token (a bin of a number, a corner of a box), and losses that know their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .names import DECODERS, FINETUNED, METRICS, in_order, split_of, words
from .records import Groups, Record, by_dataset, values_of
from .tables import markdown, marked, rounded, settings, spread, to_baseline, told

TITLE = "Ordered tokens"
SPLIT = "test"
WAYS = {"greedy": SPLIT, **{name.split()[0]: split_of(SPLIT, decoder) for decoder, name in DECODERS.items()}}
"""Way to read an answer -> the split of its metrics: the likeliest bin, the median or the mean of the distribution."""
SHOWN = [(metric, way) for metric in ("mae", "median_error", "log_mae") for way in WAYS] + [("ce", "greedy")]
COMPARED = [(metric, way) for metric in ("mae", "median_error") for way in ("greedy", "median")] + [("ce", "greedy")]
OF_BOXES = ("iou", "iou_50", "iou_75", "mae")
READ = (
    "A number is one token: one of 256 bins of its logarithm, or of as many as the model's name says. The values of "
    "the bins go from 0 to 10, and the widths of targets are in that unit: 0.3 is about 8 bins of 256, 0.12 about 3. "
    "`greedy`: the centre of the likeliest bin; `median`, `mean`: of the distribution over the bins. Cross-entropy is "
    "that of the bin. `90% intervals`: the share of true bins from the quantile 0.05 to the quantile 0.95 of the "
    "distribution; 0.9 is right, more is too cautious, less too sure. Beside them, the same rows with digits as tokens "
    "(`llama`, `smollm2`), with a regression head (`MSE`), and with the methods of [What tables "
    "allow](#what-tables-allow), in the columns of greedy answers. The options of the losses were fixed on the "
    "validation rows of seed 6, which is in no other table. Small models read their few rows many times; the best of "
    "eight validations was tested."
)
BOXES = (
    "Pictures of 48 x 48 pixels with one ellipse among rectangles, generated; its box is four tokens of 128 places. "
    "A run reads each of its pictures about 19 times, 32 a step. IoU is the overlap of a greedy answer with the true "
    "box; MAE: of a corner, in pixels."
)


def is_ordered(run: Record) -> bool:
    """Whether a run belongs to this section alone."""
    return bool(run["config"]["model"].get("bins")) or run["dataset"].startswith(("bins_", "boxes_", "select_"))


def section(runs: Sequence[Record], yardsticks: Record) -> list[str]:
    """The section of the report; empty without such runs."""
    datasets = with_ordered(runs)
    if not datasets:
        return []
    parts = [f"## {TITLE}", READ]
    for name in in_order(datasets):
        groups = datasets[name]
        if name.startswith("boxes_"):
            parts += [f"### {words(name)}", *([] if BOXES in parts else [BOXES]), box_table(groups)]
            continue
        heading = f"### {words(name)}" + ", bins beside digits" * (name in FINETUNED)
        others = yardsticks[name]["metrics"] if name in yardsticks else {}
        parts += [heading, settings(groups), table(groups, others)]
        parts += ["Paired differences to CE with the same model:", differences(groups)]
    return parts


def with_ordered(runs: Iterable[Record]) -> dict[str, Groups]:
    """The data sets with such runs, and all runs on their rows."""
    return {
        name: groups
        for name, groups in by_dataset(runs).items()
        if any(is_ordered(run) for group in groups.values() for run in group)
    }


def table(groups: Groups, others: Record) -> str:
    """Means of every metric and way to read an answer, marked where the difference to CE is certain; and the metrics of
    ``others``, methods without a language model."""
    rows = [
        [
            *key,
            str(len(found)),
            *(marked(groups, key, WAYS[way], metric) for metric, way in SHOWN),
            spread(values_of(found, WAYS["median"], "coverage")),
        ]
        for key, found in sorted(groups.items())
    ]
    for name, metrics in others.items():
        cells = (rounded(metrics[metric], 3) if way == "greedy" and metric in metrics else "-" for metric, way in SHOWN)
        rows.append([name, "-", "-", *cells, "-"])
    header = ["model", "loss", "seeds", *(f"{METRICS[metric]}, {way}" for metric, way in SHOWN), METRICS["coverage"]]
    return markdown(header, rows)


def differences(groups: Groups) -> str:
    """The same as differences."""
    rows = []
    for key in sorted(groups):
        cells = [told(to_baseline(groups, key, WAYS[way], metric), metric) for metric, way in COMPARED]
        if set(cells) != {"-"}:
            rows.append([*key, *cells])
    return markdown(["model", "loss", *(f"{METRICS[metric]}, {way}" for metric, way in COMPARED)], rows)


def box_table(groups: Groups) -> str:
    """Means of the overlap, and differences to CE in the mean overlap."""
    rows = [
        [
            key[1],
            str(len(found)),
            *(spread(values_of(found, SPLIT, metric)) for metric in OF_BOXES),
            told(to_baseline(groups, key, SPLIT, "iou"), "iou"),
        ]
        for key, found in sorted(groups.items())
    ]
    return markdown(["loss", "seeds", *(METRICS[metric] for metric in OF_BOXES), "mean IoU vs CE"], rows, words=1)
