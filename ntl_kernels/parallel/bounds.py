"""Whether the ranks' columns make up the vocabulary. Every rank says which it has beside its statistics, every time."""

from __future__ import annotations

import os

from torch import Tensor

from ..backends.shards import Bound


def check_bounds(gathered: Tensor) -> None:
    """Raise, and on every rank alike, unless the columns of all ranks are the vocabulary, each once.

    ``gathered`` are the statistics [R, S, N + 1]. On a GPU, where looking would wait for the device, only under
    NTL_KERNELS_VALIDATE=1: there the merge turns the losses into NaN instead.
    """
    if gathered.device.type == "cpu" or os.environ.get("NTL_KERNELS_VALIDATE") == "1":
        check_cover([[int(bound) for bound in bounds] for bounds in gathered[:, : len(Bound), -1].tolist()])


def check_cover(bounds: list[list[int]]) -> None:
    """Raise unless the bounds, in the order of the ranks, split one vocabulary."""
    sizes = sorted({size for *_, size in bounds})
    if len(sizes) > 1:
        raise ValueError(f"numbers must be of the same vocabulary on all ranks; got vocabularies of {sizes} tokens")
    place = 0
    for first, last in sorted((first, first + width) for first, width, _ in bounds if width):
        place = last if first == place else -1
    if place != sizes[0]:
        listed = ", ".join(f"[{first}, {first + width})" for first, width, _ in bounds)
        raise ValueError(
            f"the ranks' columns, from vocab_start on, must make up the vocabulary [0, {sizes[0]}) without gap or "
            f"overlap; the ranks of the group have {listed}"
        )
