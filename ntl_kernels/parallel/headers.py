"""Whether the ranks were called alike: with columns that make up the vocabulary, and with one problem.

Every rank says so beside its statistics, every time. What makes them different in size, or in number, is beyond it:
such ranks do not get as far as to read what others say.
"""

from __future__ import annotations

from torch import Tensor

from ..backends.shards import NOT_GIVEN, Header, disagreements
from ..checks import can_look
from ..problem import Problem

NAMES = {
    Header.OPTIONS_HASH: "options, reduction, numbers or backend",
    Header.ROWS_HASH: "labels or token_weights",
    Header.NUM_TOKENS: "num_tokens",
    Header.NUM_NUMBERS: "num_numbers",
    Header.NTL_WEIGHT: "config.weight",
}
"""Of arguments."""


def check_headers(gathered: Tensor, problem: Problem) -> None:
    """Raise, and on every rank alike, unless all ranks have one problem, and its vocabulary's columns, each once.

    ``gathered`` are the statistics [R, S, N + 1]. On a GPU, where looking would wait for the device, only under
    NTL_KERNELS_VALIDATE=1: there the merge turns the losses into NaN instead.
    """
    if can_look(gathered):
        headers = gathered[:, : len(Header), -1].cpu()
        check_agreement(headers)
        bounds = [(int(first), int(width)) for first, width in headers[:, : Header.OPTIONS_HASH].tolist()]
        check_cover(bounds, problem.vocab_size)


def check_agreement(headers: Tensor) -> None:
    """Raise unless the headers [R, 7] are of one problem, up to the rounding of sums."""
    listed = headers[:, Header.OPTIONS_HASH :].tolist()
    if all(one == listed[0] for one in listed):
        return
    differ = disagreements(headers)
    found = []
    for part, (argument, name) in enumerate(NAMES.items()):
        others = [rank for rank, differs in enumerate(differ[:, part].tolist()) if differs]
        if others and argument < Header.NUM_TOKENS:
            found.append(f"{name} (rank 0 has others than {listing('rank', others)})")
        elif others:
            values = ["None" if one[part] == NOT_GIVEN else f"{one[part]:.7g}" for one in listed]
            found.append(f"{name} ({', '.join(values)} in the order of the ranks)")
    if found:
        raise ValueError(
            f"all ranks of the group must be called with the same arguments but for their columns; what differs: "
            f"{'; '.join(found)}"
        )


def listing(noun: str, numbers: list[int]) -> str:
    """For messages."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def check_cover(bounds: list[tuple[int, int]], vocab_size: int) -> None:
    """Raise unless the bounds (first, width), in the order of the ranks, split the vocabulary."""
    place = 0
    for first, last in sorted((first, first + width) for first, width in bounds if width):
        place = last if first == place else -1
    if place != vocab_size:
        listed = ", ".join(f"[{first}, {first + width})" for first, width in bounds)
        raise ValueError(
            f"the ranks' columns, from vocab_start on, must make up the vocabulary [0, {vocab_size}) without gap or "
            f"overlap; the ranks of the group have {listed}"
        )
