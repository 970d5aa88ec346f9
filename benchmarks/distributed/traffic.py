"""Counts collectives and the bytes that they send."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reduce": "all-reduce",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
    "alltoall": "all-to-all",
}
"""(Part of an operator's name, kind of collective); the first match decides."""


class Traffic(TorchDispatchMode):
    """Counts the collectives of this process, and the bytes that it passes to each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # operations on local tensors are counted instead
        library, name = str(func).split(".")[:2]
        kind = next((kind for word, kind in KINDS.items() if word in name), None)
        if "c10d" in library and kind is not None:
            # Operators that write into a tensor take that tensor first and the one to send second.
            is_functional, sends_another = "functional" in library, kind in ("all-gather", "reduce-scatter")
            self.counts[kind] += 1
            self.bytes[kind] += size_of(args[0 if is_functional or not sends_another else 1])
        return func(*args, **(kwargs or {}))


def size_of(given: Any) -> int:
    """The bytes of a tensor or of all tensors in a list."""
    if isinstance(given, Tensor):
        return given.numel() * given.element_size()
    return sum(size_of(part) for part in given) if isinstance(given, (list, tuple)) else 0
