"""Checks that the ranks were called consistently: with columns that cover the vocabulary and with the same problem.

Every rank sends a header with its statistics in each call. Differences that change the size or number of messages
cannot be detected this way: such ranks never get to read each other's headers.
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
"""Header fields and the names of the arguments that they come from."""


def check_headers(gathered: Tensor, problem: Problem) -> None:
    """Raise on every rank unless all ranks have the same problem and together have every column exactly once.

    ``gathered`` are the statistics [R, S, N + 1]. On a GPU, where reading them would wait for the device, this runs
    only under NTL_KERNELS_VALIDATE=1; without it the merge sets the losses to NaN.
    """
    if can_look(gathered):
        headers = gathered[:, : len(Header), -1].cpu()
        check_agreement(headers)
        bounds = [(int(first), int(width)) for first, width in headers[:, : Header.OPTIONS_HASH].tolist()]
        check_cover(bounds, problem.vocab_size)


def check_agreement(headers: Tensor) -> None:
    """Raise unless the headers [R, 7] describe the same problem, up to rounding of sums."""
    listed = headers[:, Header.OPTIONS_HASH :].tolist()
    if all(one == listed[0] for one in listed):
        return
    differ = disagreements(headers)
    found = []
    for part, (argument, name) in enumerate(NAMES.items()):
        others = [rank for rank, differs in enumerate(differ[:, part].tolist()) if differs]
        if others and argument < Header.NUM_TOKENS:
            found.append(f"{name} (rank 0 differs from {listing('rank', others)})")
        elif others:
            values = ["None" if one[part] == NOT_GIVEN else f"{one[part]:.7g}" for one in listed]
            found.append(f"{name} ({', '.join(values)} in rank order)")
    if found:
        raise ValueError(
            f"all ranks of the group must be called with the same arguments, except for their columns; these differ: "
            f"{'; '.join(found)}"
        )


def listing(noun: str, numbers: list[int]) -> str:
    """A noun and numbers, for error messages."""
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def check_cover(bounds: list[tuple[int, int]], vocab_size: int) -> None:
    """Raise unless the bounds (first, width), in the order of the ranks, split the vocabulary."""
    place = 0
    for first, last in sorted((first, first + width) for first, width in bounds if width):
        place = last if first == place else -1
    if place != vocab_size:
        listed = ", ".join(f"[{first}, {first + width})" for first, width in bounds)
        raise ValueError(
            f"the ranks' columns, each from its vocab_start on, must cover the vocabulary [0, {vocab_size}) without "
            f"gaps or overlaps; the ranks of the group have {listed}"
        )
