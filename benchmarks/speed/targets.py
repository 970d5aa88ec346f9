"""The table of targets: ratios of two measured values, each compared with a limit in the report.

No test asserts them: they would fail on a machine with other load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .memory import FRESH, KEPT, WAYS
from .providers import HIDDEN, TORCH_FUSED
from .results import Record, Records, key, median, timed
from .workloads import SHORT, VOCAB_SIZES


@dataclass(frozen=True)
class Target:
    """``ours`` / ``others`` on a workload, in time unless stated otherwise. Lower is better, except for shares."""

    kind: str
    """"cpu" or "gpu"."""
    claim: str
    workload: str
    limit: float
    others: tuple[str, ...] = ()
    """The providers to compare with; the fastest that was timed is used."""
    ours: str = "ours"
    other_workload: str | None = None
    measure: str = "time"
    """"time", "copy share" (of the bandwidth of a copy) or "memory" (peak, relative to ``others`` or to a size)."""
    size: str = "gradient_bytes"
    """The size to compare memory with if there are no ``others``."""
    beyond_gradients: bool = False
    """Whether to exclude the gradients themselves from memory."""
    memory: str | None = KEPT
    """The way of memory; None on a GPU and where it makes no difference."""

    @property
    def is_share(self) -> bool:
        return self.measure == "copy share"

    @property
    def key(self) -> str:
        """The target's key in the file of causes."""
        return f"{self.record}: {self.claim}"

    @property
    def record(self) -> str:
        """The key of the target's record."""
        return key(self.workload, self.memory)

    def value(self, records: Records) -> float | None:
        """The measured ratio; None if a part of it is not measured."""
        ours = self.least(records, self.workload, (self.ours,))
        if ours is None:
            return None
        if self.measure == "memory" and not self.others:
            return ours[0] / records[self.record][self.size]
        other = self.other(records)
        if other is None:
            return None
        return other[0] / ours[0] if self.is_share else ours[0] / other[0]

    def other(self, records: Records) -> tuple[float, str] | None:
        """The time or memory to compare with, and its provider."""
        return self.least(records, self.other_workload or self.workload, self.others or (self.ours,))

    def least(self, records: Records, workload: str, names: tuple[str, ...]) -> tuple[float, str] | None:
        """The smallest time or memory of some providers, and its provider; None if none of them was timed."""
        record = records.get(key(workload, self.memory), {"providers": {}})
        found = timed(record)
        return min(((self.amount(record, found[name]), name) for name in names if name in found), default=None)

    def amount(self, record: Record, found: Record) -> float:
        """A provider's time or memory."""
        if self.measure != "memory":
            return median(found)
        return found["peak_bytes"] - (record["gradient_bytes"] if self.beyond_gradients else 0)

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_share else value <= self.limit


cpu, gpu = partial(Target, "cpu"), partial(Target, "gpu", memory=None)
FP32, BF16, LINEAR, LINEAR_BF16 = "logits-fp32", "logits-bf16", "hidden-fp32", "hidden-bf16"
FASTEST_LINEAR = "time / the fastest of F.linear + F.cross_entropy and four F.linear_cross_entropy (uncompiled)"
PLAIN, PACKAGE = ("torch_ce",), ("torch_ce_ntloss",)
EAGER_LIMITS = {"256x1000": (1.5, 1.5), "64x32000": (1.0, 1.3)}
"""Size of small problems -> limits for fp32 and bf16."""
SWEEP = [
    f"vocab-{vocab}-{dtype}" for dtype in SHORT.values() for vocab in VOCAB_SIZES if (vocab, dtype) != (32000, "bf16")
]
"""The vocabularies on a CPU, except the one that equals logits-bf16."""
TARGETS = (
    *(cpu("time / F.cross_entropy", name, 1.05, PLAIN) for name in (FP32, BF16, *SWEEP)),
    *(
        cpu("time / F.cross_entropy, all cores busy with another process", f"load-{dtype}", 1.5, PLAIN, memory=way)
        for dtype in SHORT.values()
        for way in WAYS
    ),
    cpu("time / F.cross_entropy", FP32, 0.6, PLAIN, memory=FRESH),
    cpu("time / F.cross_entropy", BF16, 0.75, PLAIN, memory=FRESH),
    cpu("time / F.cross_entropy(logits.float())", BF16, 0.3, ("torch_ce_float",), memory=FRESH),
    cpu("time / (F.cross_entropy + ntloss)", FP32, 0.25, PACKAGE, memory=FRESH),
    *(cpu("time / compiled F.cross_entropy", name, 1.0, ("torch_ce_compiled",)) for name in (FP32, BF16)),
    *(cpu("peak memory / the gradient", name, 1.1, measure="memory") for name in (FP32, BF16)),
    cpu("time / three bare matmuls", LINEAR, 1.15, ("matmuls",)),
    cpu(FASTEST_LINEAR, LINEAR, 1.0, ("torch_linear", *TORCH_FUSED)),
    cpu("time with half the rows ignored / none ignored", f"{LINEAR}-ignored-50", 0.6, other_workload=LINEAR),
    cpu(
        "peak memory beyond the gradients / (a chunk of logits + an fp32 accumulator)",
        LINEAR,
        1.0,
        measure="memory",
        size="allowance_bytes",
        beyond_gradients=True,
    ),
    *(
        cpu("time / F.cross_entropy, one thread", f"eager-{size}-{dtype}", limit, PLAIN)
        for size, limits in EAGER_LIMITS.items()
        for dtype, limit in zip(SHORT.values(), limits, strict=True)
    ),
    cpu("host time / Liger's", "host-logits", 1.0, ("liger_ce",), memory=None),
    cpu("host time / Liger's fused linear", "host-hidden", 1.0, ("liger_linear",), "ours_linear", memory=None),
    gpu("time / V = 50304, as many rows", "vocab-50257-bf16", 1.1, other_workload="vocab-50304-bf16"),
    *(
        gpu("bandwidth / a copy", name, limit, ("copy",), measure="copy share")
        for vocab in VOCAB_SIZES
        for name in [BF16 if vocab == 128256 else f"vocab-{vocab}-bf16"]
        for limit in [0.85 if vocab in (50257, 262144) else 0.9]
    ),
    gpu("time / the same kernel without NTL", BF16, 1.01, ("ours_off",)),
    gpu("time / the same kernel without NTL", "numbers-1110-share-100", 1.03, ("ours_off",)),
    gpu("time / (F.cross_entropy + ntloss)", BF16, 0.1, PACKAGE),
    gpu("time / (F.cross_entropy + ntloss), compiled", BF16, 1 / 3, ("torch_ce_ntloss_compiled",)),
    gpu("time / Liger cross-entropy", BF16, 1.0, ("liger_ce",)),
    gpu("time / quack cross-entropy", BF16, 1.05, ("quack_ce",)),
    gpu("host time / F.cross_entropy, 16 rows", "launch", 1.0, PLAIN),
    gpu("time / three bare matmuls", LINEAR_BF16, 1.1, ("matmuls",)),
    *(
        gpu(f"time / {provider.name}", LINEAR_BF16, 1.0, (provider.name,))
        for provider in HIDDEN
        if provider.name.startswith(("liger", "cce"))
    ),
    gpu("peak memory / Liger fused linear", LINEAR_BF16, 1.0, ("liger_linear",), measure="memory"),
)


def targets_of(kind: str) -> list[Target]:
    return [target for target in TARGETS if target.kind == kind]
