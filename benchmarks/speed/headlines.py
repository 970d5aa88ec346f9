"""The README's table on speed: a few workloads, with the times of our loss and of well-known alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..published import SPACE
from ..table import Table
from .results import Record, Records, medians, preferred, timed
from .tables import MARK, is_disturbed, label, over, problem, scaled

NOT_TIMED = "not timed"
UNBROKEN = re.compile(r" (?=[mµ]?s\b|=)|(?<==) ")
"""The spaces before a unit and around an equals sign."""


@dataclass(frozen=True)
class Headline:
    """A workload, and the provider of each column."""

    workload: str
    words: str
    """The label, printed before the size of the problem."""
    ours: str = "ours"
    ours_alone: str = "ours_off"
    """The provider of our cross-entropy without NTL; empty if there is none."""
    baselines: tuple[str, str] = ("torch_ce", "torch_ce_compiled")
    """The providers of cross-entropy alone, as torch or the model computes it, and compiled; empty if there is none."""
    package: str = "torch_ce_ntloss"
    """The provider of cross-entropy plus the `ntloss` package."""
    peers: tuple[str, ...] = ()
    """Providers of fused cross-entropy without NTL; the fastest that was timed is shown."""

    def row(self, record: Record, device: str) -> list[str]:
        """The cells. ``device`` is empty if there is only one."""
        times = medians(record)
        peer = min((name for name in self.peers if name in times), key=times.__getitem__, default="")
        others = [self.compared(times, name) for name in (self.ours_alone, *self.baselines, self.package, peer)]
        others[-1] += f" {label(record, peer)}" * bool(peer)
        peaks = {name: entry["peak_bytes"] for name, entry in timed(record).items() if entry.get("peak_bytes")}
        plain = self.baselines[0]
        memory = over(peaks[self.ours], peaks[plain]) if {self.ours, plain} <= set(peaks) else ""
        words = f"{device}: {self.words}" if device else self.words
        start = f"{words}: {problem(record)}{MARK * is_disturbed(record)}"
        return [start, scaled(times[self.ours]), *others, memory]

    def compared(self, times: Mapping[str, float], name: str) -> str:
        """A provider's time, and ours / theirs."""
        return f"{scaled(times[name])} ({over(times[self.ours], times[name])})" if name in times else NOT_TIMED


LINEAR = {
    "ours_alone": "",
    "baselines": ("torch_linear", "torch_linear_compiled"),
    "package": "torch_linear_ntloss",
}
STEP = {"ours_alone": "", "baselines": ("stock", ""), "package": "stock_ntloss"}
MANY = "as many number tokens as Llama 3"
GPU_LOGITS, GPU_HIDDEN = ("liger_ce", "quack_ce"), ("liger_linear", "cce_linear", "cce_linear_all", "quack_linear")
FIRST = "first-128256-bf16"
"""Of a GPU's first times, which need not be taken where its suite was."""
HEADLINES = {
    "gpu": (
        Headline("logits-bf16", "logits", peers=GPU_LOGITS),
        Headline("logits-fp32", "logits", peers=GPU_LOGITS),
        Headline(FIRST, "logits", peers=GPU_LOGITS),
        Headline("numbers-1110-share-100", MANY, peers=GPU_LOGITS),
        Headline("hidden-bf16", "hidden states", **LINEAR, peers=GPU_HIDDEN),
        Headline("step-bf16", "training step of a small Llama", **STEP),
        Headline("launch", "very small, host time", peers=GPU_LOGITS),
    ),
    "cpu": (
        Headline("logits-fp32", "logits"),
        Headline("logits-bf16", "logits"),
        Headline("hidden-fp32", "hidden states", **LINEAR),
        Headline("numbers-1110-share-100", MANY),
        Headline("eager-4x64-fp32", "very small"),
    ),
}
"""Headlines by kind of device, most important first."""
HEADER = [
    "forward + backward",
    "ours: CE + NTL",
    "ours: CE alone",
    "CE alone: `F.cross_entropy`",
    "CE alone, compiled",
    "CE + `ntloss`",
    "fused CE without NTL",
    "peak memory / CE",
]


def not_measured(devices: Iterable[tuple[str, Records]]) -> str:
    """What to say if the headlines of a GPU are missing in the (kind, records) of all devices, or some of them."""
    found = [name for kind, records in devices if kind == "gpu" for name in records]
    if {headline.workload for headline in HEADLINES["gpu"]} <= {*found, FIRST}:
        return ""
    return f"**{'Other ' if found else ''}GPU timings are missing**: `benchmarks/on_gpu.sh` will measure them."


def headline_table(devices: Sequence[tuple[str, str, Records]]) -> str:
    """The table for (name, kind, records) of each device, in this order; empty if nothing was timed."""
    rows = []
    for name, kind, records in devices:
        found = preferred(records)
        rows += [
            headline.row(found[headline.workload], name if len(devices) > 1 else "")
            for headline in HEADLINES[kind]
            if headline.workload in found and headline.ours in timed(found[headline.workload])
        ]
    return UNBROKEN.sub(SPACE, Table(HEADER, rows).filled(NOT_TIMED).markdown(words=1))
