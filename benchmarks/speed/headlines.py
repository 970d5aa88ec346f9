"""The README's table on speed: a few workloads, with the times of our loss and of well-known alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..published import markdown
from .memory import FRESH, KEPT
from .results import Record, Records, medians, of_group, of_way, preferred, timed
from .tables import MARK, is_disturbed, label, problem, scaled
from .workloads import SHORT

MOST_ROWS = 8
SWEEP = "vocabulary-"
"""Prefix of the names of the vocabulary groups, before the dtype."""


@dataclass(frozen=True)
class Headline:
    """A workload, and the provider of each column."""

    workload: str
    words: str
    """The label, printed before the size of the problem."""
    ours: str = "ours"
    plain: str = "torch_ce"
    """The provider of cross-entropy alone, as torch or the model computes it."""
    package: str = "torch_ce_ntloss"
    """The provider of the same plus the `ntloss` package."""
    peers: tuple[str, ...] = ()
    """Providers of fused cross-entropy without NTL; the fastest that was timed is shown."""

    def row(self, record: Record, fresh: Record | None, device: str) -> list[str]:
        """The cells, with kept memory if there is a choice; ``device`` is empty if there is only one."""
        entries, times = timed(record), medians(record)
        mine = times[self.ours]
        others = [beside(times[name], mine) if name in times else "" for name in (self.plain, self.package)]
        peer = min((name for name in self.peers if name in times), key=times.__getitem__, default=None)
        fused = "" if peer is None else f"{beside(times[peer], mine)} {label(record, peer)}"
        peaks = [entries.get(name, {}).get("peak_bytes") for name in (self.ours, self.plain)]
        peak = f"{peaks[0] / peaks[1]:.2f}" if all(peaks) else ""
        mapped = medians(fresh) if fresh and record["memory"] == KEPT else {}
        in_fresh = f"{mapped[self.plain] / mapped[self.ours]:.2f} x" if {self.plain, self.ours} <= set(mapped) else ""
        words = f"{device}: {self.words}" if device else self.words
        size = problem(record).split(", K =")[0]  # [N, V] or [N, H] x [V, H], and the dtype
        mark = MARK * any(is_disturbed(found) for found in (record, fresh) if found)
        return [f"{words}: {size}{mark}", scaled(mine), *others, fused, in_fresh, peak]


LINEAR = {"plain": "torch_linear", "package": "torch_linear_ntloss"}
STEP = {"plain": "stock", "package": "stock_ntloss"}
GPU_LOGITS, GPU_HIDDEN = ("liger_ce", "quack_ce"), ("liger_linear", "cce_linear", "cce_linear_all", "quack_linear")
HEADLINES = {
    "gpu": (
        Headline("logits-bf16", "logits", peers=GPU_LOGITS),
        Headline("logits-fp32", "logits", peers=GPU_LOGITS),
        Headline("hidden-bf16", "hidden states", **LINEAR, peers=GPU_HIDDEN),
        Headline("step-bf16", "training step of a small Llama", **STEP),
        Headline("launch", "few rows, host time", peers=GPU_LOGITS),
    ),
    "cpu": (
        Headline("logits-fp32", "logits"),
        Headline("logits-bf16", "logits"),
        Headline("hidden-fp32", "hidden states", **LINEAR),
        Headline("step-fp32", "training step of a small Llama", **STEP),
        Headline("eager-4x64-fp32", "logits, one thread"),
    ),
}
"""Headlines by kind of device, most important first."""
HEADER = [
    "forward + backward",
    "ours: CE + NTL",
    "CE alone",
    "CE + `ntloss`",
    "fused CE without NTL",
    "CE alone, fresh memory",
    "peak memory / CE alone",
]


def headline_table(devices: Sequence[tuple[str, str, Records]]) -> str:
    """The table for (name, kind, records) of each device, in this order; empty if nothing was timed."""
    rows = []
    for name, kind, records in devices:
        found, fresh = preferred(records), of_way(records, FRESH)
        rows += [
            headline.row(found[headline.workload], fresh.get(headline.workload), name if len(devices) > 1 else "")
            for headline in HEADLINES[kind]
            if headline.workload in found and headline.ours in timed(found[headline.workload])
        ]
    if not rows:
        return ""
    columns = zip(HEADER, *rows[:MOST_ROWS], strict=True)
    header, *filled = zip(*(column for column in columns if any(column[1:])), strict=True)
    return markdown(header, filled)


def ratio_lines(records: Records) -> str:
    """A text that explains the ways of memory and gives the range of ours / CE alone for each."""
    ways = [(way, ratios_in_words(of_way(records, way))) for way in (KEPT, FRESH)]
    found = [f"with {way} memory {words}" for way, words in ways if words]
    if not found:
        return ""
    way = KEPT if of_way(records, KEPT) else FRESH
    vocabularies = [record["vocab"] for record in records.values() if record["group"].startswith(SWEEP)]
    return (
        f"Times are with {way} memory. Kept: memory that a step frees stays with the process. Fresh: the allocator "
        "maps it anew at every step, the default of PyTorch on Linux for large tensors. Ours / CE alone for "
        f"vocabularies of {min(vocabularies)} to {max(vocabularies)} tokens: {'; '.join(found)}."
    )


def ratios_in_words(records: Records) -> str:
    """Ours / `F.cross_entropy` by dtype: over the vocabularies, and while another process keeps all cores busy."""
    sweeps = {short: ratios(of_group(records, SWEEP + short)) for short in SHORT.values()}
    spans = [f"{min(found):.2f} to {max(found):.2f} in {short}" for short, found in sweeps.items() if found]
    loaded = [
        f"{ratio:.2f} in {SHORT[record['dtype']]}" for record in of_group(records, "load") for ratio in ratios([record])
    ]
    beside_load = f" ({' and '.join(loaded)} while another process keeps all cores busy)" if loaded and spans else ""
    return " and ".join(spans) + beside_load


def ratios(records: Sequence[Record]) -> list[float]:
    """Ours / cross-entropy alone on each workload that has both."""
    times = [medians(record) for record in records]
    return [found["ours"] / found["torch_ce"] for found in times if {"ours", "torch_ce"} <= set(found)]


def beside(other: float, mine: float) -> str:
    """A time, and the time as a multiple of ours."""
    return f"{scaled(other)} ({other / mine:.2f} x)"
