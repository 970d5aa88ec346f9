"""Which columns of the vocabulary each rank has, and whether they make up the whole."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from ..tracing import is_plain

Bounds = tuple[int, int, int]
"""(first column, width, size of the vocabulary) of a rank."""
known: WeakKeyDictionary[ProcessGroup, set[Bounds]] = WeakKeyDictionary()
"""What the ranks of a group have agreed on."""


def check_bounds(first: int, width: int, vocab_size: int, group: ProcessGroup, device: torch.device) -> None:
    """Raise, and on every rank alike, unless the ranks' columns are the whole vocabulary, each once.

    The first call with these bounds asks the other ranks, which waits for the device; later ones remember. A trace
    cannot ask.
    """
    bounds, agreed = (first, width, vocab_size), known.setdefault(group, set())
    if bounds in agreed or not is_plain():
        return
    mine = torch.tensor(bounds, dtype=torch.int64, device=device)
    everyones = mine.new_empty(dist.get_world_size(group) * len(bounds))
    dist.all_gather_into_tensor(everyones, mine, group)
    check_cover([(f, w, v) for f, w, v in everyones.view(-1, len(bounds)).tolist()])
    agreed.add(bounds)


def check_cover(bounds: list[Bounds]) -> None:
    """Raise unless the bounds, in the order of the ranks, split one vocabulary."""
    sizes = sorted({vocab_size for *_, vocab_size in bounds})
    spans = [(first, first + width) for first, width, _ in bounds]
    listed = ", ".join(f"[{first}, {last})" for first, last in spans)
    if len(sizes) > 1:
        raise ValueError(f"numbers must be of the same vocabulary on all ranks; got sizes {sizes}")
    place = 0
    for first, last in sorted(span for span in spans if span[0] != span[1]):
        if first != place:
            break
        place = last
    if place != sizes[0]:
        raise ValueError(
            f"the ranks' columns, from vocab_start to vocab_start + width, must make up the vocabulary [0, {sizes[0]}) "
            f"without gap or overlap; the ranks of the group have {listed}"
        )
