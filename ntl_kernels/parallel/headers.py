"""The headers that ranks send with their statistics: they show whether columns and arguments are consistent.

Differences that change the size or number of messages cannot be detected this way, because the ranks never read each
other's headers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from ..checks import can_look
from ..loss import rows_that_count
from ..problem import Header, Problem, Statistics
from ..spec import LossSpec

SIZE = len(Header._fields)
EXACT = {
    "options_hash": "options, reduction, numbers or backend",
    "rows_hash": "labels, token_weights or number_weights",
}
"""The entries of a header that must be equal, and the arguments that they come from."""
ROUGH = {"num_tokens": "num_tokens", "num_numbers": "num_numbers", "ntl_weight": "config.weight"}
"""The same for entries that must be equal up to rounding."""
HASH_MASK = 2**24 - 1
"""A mask of the bits of a hash that are sent; float32 holds them exactly."""
WORD_MASK = 2**32 - 1
SCRAMBLER = 0x45D9F3B
NOT_GIVEN = -1.0
"""Stands for a denominator of None."""
TOLERANCE = 1e-5
"""The allowed relative difference, because ranks often sum denominators over different groups, in different orders."""


def with_header(statistics: Tensor, problem: Problem, first: int, width: int) -> Tensor:
    """The statistics [S, N + 1] with this rank's header, padded with 0, written to their last column."""
    header = Header(
        first=first,
        width=width,
        options_hash=hash_of_options(problem) & HASH_MASK,
        rows_hash=hash_of_rows(problem) & HASH_MASK,
        num_tokens=NOT_GIVEN if problem.num_tokens is None else problem.num_tokens,
        num_numbers=NOT_GIVEN if problem.num_numbers is None else problem.num_numbers,
        ntl_weight=problem.ntl_weight,
    )
    column = statistics[:, -1].zero_()
    for place, entry in zip(column[:SIZE], header, strict=True):
        place.fill_(entry)
    return statistics


def hash_of_options(problem: Problem) -> Tensor:
    """int64 0-d: a hash of everything that all rows share, without denominators and lambda."""
    of_spec = hash_of(problem.spec, problem.reduction, problem.backend, problem.vocab_size)
    table = problem.table
    of_groups = 0 if table.groups is None else hash_of_pairs(table.ids, table.groups.sum(-1))
    return hash_of_pairs(table.ids, table.values) + of_spec + of_groups


@lru_cache(maxsize=256)
def hash_of(spec: LossSpec, *others: str | int) -> int:
    """A hash that, unlike Python's own, is equal in all processes, and for traced and plain specs."""
    return zlib.crc32(repr((spec.pack(), *others)).encode()) >> 1


def hash_of_rows(problem: Problem) -> Tensor:
    """int64 0-d: a hash of the labels, weights and positions of the rows that count."""
    counts = rows_that_count(problem)
    labels = problem.labels.masked_fill(~counts, 0)

    def hashed(weights: Tensor | None) -> Tensor:
        return hash_of_pairs(labels, counts if weights is None else weights.masked_fill(~counts, 0))

    found = hashed(problem.token_weights)
    if problem.number_weights is not None:  # 0 if all are 1, as without them
        found += scrambled(hashed(problem.number_weights) - hashed(None))
    return found


def hash_of_pairs(whole: Tensor, real: Tensor) -> Tensor:
    """int64 0-d: a hash of pairs of an integer and a real number [n], and of their positions."""
    places = torch.arange(whole.shape[0], device=whole.device)
    bits = real.float().view(torch.int32).long() & WORD_MASK
    return scrambled(scrambled(scrambled(places) ^ whole) ^ bits).sum()


def scrambled(x: Tensor) -> Tensor:
    """32-bit numbers, in int64, in which every bit depends on all bits of ``x``."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * SCRAMBLER) & WORD_MASK
    return x ^ (x >> 16)


def checked_statistics(gathered: Tensor, problem: Problem) -> Tensor:
    """The statistics [R, S, N + 1] of all ranks; raises on every rank unless all have the same problem and together
    have every column exactly once.

    On a GPU, where reading them would wait for the device, totals become NaN instead, and with them losses and
    gradients, unless NTL_KERNELS_VALIDATE=1 is set.
    """
    is_wrong = are_wrong(gathered[:, :SIZE, -1], problem.vocab_size)
    if is_wrong is None:
        return gathered
    poisoned = gathered.clone()
    sent = Statistics(*poisoned.unbind(1))
    sent.total.masked_fill_(is_wrong, torch.nan)
    sent.number_total.masked_fill_(is_wrong, torch.nan)
    return poisoned


def are_wrong(headers: Tensor, vocab_size: int) -> Tensor | None:
    """bool 0-d: whether the headers [R, 7] are inconsistent. Where their values may be read, this raises an error if
    they are, and otherwise returns None."""
    is_wrong = disagreements(headers).any() | ~are_covered(headers, vocab_size)
    if not can_look(headers):
        return is_wrong
    if is_wrong:
        raise ValueError(explanation(headers.cpu(), vocab_size))
    return None


def disagreements(headers: Tensor) -> Tensor:
    """bool [R, 5]: which entries of the headers [R, 7] differ from those of rank 0."""
    exact, rough = (entries(headers, names) for names in (EXACT, ROUGH))
    is_close = torch.isclose(rough, rough[:1], rtol=TOLERANCE, atol=0.0, equal_nan=True)
    return torch.cat([exact != exact[:1], ~is_close], -1)


def entries(headers: Tensor, names: Iterable[str]) -> Tensor:
    """The entries of the headers [R, 7] with these names."""
    header = Header(*headers.unbind(-1))
    return torch.stack([getattr(header, name) for name in names], -1)


def are_covered(headers: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether the columns of all ranks cover the vocabulary exactly once."""
    first, width = entries(headers, ("first", "width")).unbind(-1)
    ranks = torch.arange(first.shape[0], device=first.device)
    is_before = (first < first[:, None]) | ((first == first[:, None]) & (ranks < ranks[:, None]))
    expected = (is_before * width).sum(-1)
    return ((width == 0) | (first == expected)).all() & (width.sum() == vocab_size)


def explanation(headers: Tensor, vocab_size: int) -> str:
    """What is wrong with the headers [R, 7], as an error message."""
    found = []
    for (name, argument), differs in zip((EXACT | ROUGH).items(), disagreements(headers).t(), strict=True):
        others = ", ".join(map(str, differs.nonzero().view(-1).tolist()))
        if others and name in EXACT:
            found.append(f"{argument} (rank 0 differs from rank{'s' * (',' in others)} {others})")
        elif others:
            values = entries(headers, (name,)).view(-1).tolist()
            listed = ("None" if value == NOT_GIVEN else f"{value:.7g}" for value in values)
            found.append(f"{argument} ({', '.join(listed)} in rank order)")
    if found:
        return (
            f"all ranks of the group must be called with the same arguments, except for their columns; these differ: "
            f"{'; '.join(found)}"
        )
    bounds = entries(headers, ("first", "width")).tolist()
    return (
        f"the ranks' columns, each from its vocab_start on, must cover the vocabulary [0, {vocab_size}) without gaps "
        f"or overlaps; the ranks of the group have {', '.join(f'[{int(a)}, {int(a + b)})' for a, b in bounds)}"
    )
