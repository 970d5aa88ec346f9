"""The README's one table on speed: a few workloads, what they cost with ours and with the ways people know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..published import markdown
from .results import Record, Records, medians, timed
from .tables import label, problem, scaled

MOST_ROWS = 8


@dataclass(frozen=True)
class Headline:
    """A workload, and who stands in which column."""

    workload: str
    words: str
    """Before the size of the problem."""
    ours: str = "ours"
    plain: str = "torch_ce"
    """Cross-entropy alone, as torch or the model computes it."""
    package: str = "torch_ce_ntloss"
    """The same with the `ntloss` package beside it."""
    peers: tuple[str, ...] = ()
    """Fused cross-entropies without NTL: the fastest that was timed."""

    def row(self, record: Record, device: str) -> list[str]:
        """The cells; ``device`` is empty where there is but one."""
        entries, times = timed(record), medians(record)
        mine = times[self.ours]
        others = [beside(times[name], mine) if name in times else "" for name in (self.plain, self.package)]
        peer = min((name for name in self.peers if name in times), key=times.__getitem__, default=None)
        fused = "" if peer is None else f"{beside(times[peer], mine)} {label(record, peer)}"
        peaks = [entries.get(name, {}).get("peak_bytes") for name in (self.ours, self.plain)]
        memory = f"{peaks[0] / peaks[1]:.2f}" if all(peaks) else ""
        words = f"{device}: {self.words}" if device else self.words
        size = problem(record).split(", K =")[0]  # [N, V] or [N, H] x [V, H], and the dtype
        return [f"{words}: {size}", scaled(mine), *others, fused, memory]


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
        Headline("host-logits", "host time of a GPU call that runs nothing", peers=("liger_ce",)),
        Headline("host-hidden", "the same", "ours_linear", **LINEAR, peers=("liger_linear",)),
    ),
}
"""By kind of device, in the order of what matters."""
HEADER = [
    "forward + backward",
    "ours: CE + NTL",
    "CE alone",
    "CE + `ntloss`",
    "fused CE without NTL",
    "peak memory / CE alone",
]


def headline_table(devices: Sequence[tuple[str, str, Records]]) -> str:
    """The table of (name, kind, records) of each device, in this order; nothing where nothing was timed."""
    rows = [
        headline.row(records[headline.workload], name if len(devices) > 1 else "")
        for name, kind, records in devices
        for headline in HEADLINES[kind]
        if headline.workload in records and headline.ours in timed(records[headline.workload])
    ]
    if not rows:
        return ""
    columns = zip(HEADER, *rows[:MOST_ROWS], strict=True)
    header, *filled = zip(*(column for column in columns if any(column[1:])), strict=True)
    return markdown(header, filled)


def beside(other: float, mine: float) -> str:
    """A time, and what multiple of ours it is."""
    return f"{scaled(other)} ({other / mine:.2f} x)"
