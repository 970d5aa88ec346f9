"""The header that every rank sends once per call, with its first statistics: headers show whether the columns and
arguments of all ranks are consistent.

Differences that change the size or number of messages cannot be detected this way, because the ranks never read each
other's headers.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends.layout import loss_dtype
from ..checks import can_look
from ..loss import rows_that_count
from ..problem import Header, Problem
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
SCRAMBLER = 0x1E3779B97F4A7C15
"""An odd number of 61 bits, with bits at random."""
ONE = 0x3F800000
"""The bits of 1.0 in float32."""
UNCOUNTED = -(2**40)
"""Stands for the labels and weights of rows that do not count."""
NOT_GIVEN = -1.0
"""Stands for a denominator of None."""
TOLERANCE = 1e-5
"""The allowed relative difference, because ranks often sum denominators over different groups, in different orders."""


def header_of(problem: Problem, first: int, width: int, like: Tensor) -> Tensor:
    """The header [7] of a rank's columns and a problem as the caller passed it, in the losses' dtype of ``like``."""
    header = like.new_full((SIZE,), NOT_GIVEN, dtype=loss_dtype(like.dtype))
    entries = Header(
        first=first,
        width=width,
        options_hash=hash_of_options(problem.spec, problem.backend, problem.vocab_size, problem.table.key),
        rows_hash=hash_of_rows(problem),
        num_tokens=problem.num_tokens,
        num_numbers=problem.num_numbers,
        ntl_weight=problem.ntl_weight,
    )
    for place, entry in zip(header, entries, strict=True):
        if entry is not None:
            place.fill_(entry)
    return header


@lru_cache(maxsize=256)
def hash_of_options(spec: LossSpec, *others: str | int) -> int:
    """A hash of everything that all rows share, without denominators and lambda. Unlike Python's own, it is equal in
    all processes."""
    return zlib.crc32(repr((spec, *others)).encode()) & HASH_MASK


def hash_of_rows(problem: Problem) -> Tensor:
    """int64 0-d: a hash of the labels, weights and positions of the rows that count."""
    labels, *weights = problem.rows
    x = labels.long() * SCRAMBLER  # wraps around, as all products here
    for place, given in enumerate(weights, 1):
        if given is not None:  # adds 0 if all are 1, as without them
            x = x + (given.float().view(torch.int32).long() - ONE) * (SCRAMBLER >> 7 * place | 1)
    x = x.masked_fill(~rows_that_count(problem), UNCOUNTED)
    x = scrambled(x + torch.arange(x.shape[0], device=x.device)).sum()
    return (x >> 16) & HASH_MASK


def scrambled(x: Tensor) -> Tensor:
    """64-bit numbers in which every bit depends on all bits of ``x``."""
    x = (x ^ (x >> 32)) * SCRAMBLER
    return x ^ (x >> 29)


def disagreement(headers: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether the headers [R, 7] of all ranks disagree, or the columns do not cover the vocabulary exactly
    once. Where its value may be read, raises on every rank if it is true."""
    found = ~torch.cat([agreements(headers).flatten(), ends_meet(headers, vocab_size)]).all()
    if can_look(headers) and found:
        raise ValueError(explanation(headers.cpu(), vocab_size))
    return found


def agreements(headers: Tensor) -> Tensor:
    """bool [R, 5]: which entries of the headers [R, 7] equal those of rank 0."""
    given = headers[:, SIZE - len(EXACT | ROUGH) :]
    exact, rough = (given - given[:1]).abs().split((len(EXACT), len(ROUGH)), -1)
    return torch.cat([exact == 0, rough <= TOLERANCE * given[:1, len(EXACT) :].abs()], -1)


def ends_meet(headers: Tensor, vocab_size: int) -> Tensor:
    """bool [R + 1]: whether each rank's columns begin where another's end, or at 0, and whether the last end at V.

    All are true only if every column from 0 to V is covered exactly once.
    """
    first, width = headers[:, 0], headers[:, 1]
    starts, ends = F.pad(first, (0, 1), value=vocab_size), F.pad(first + width, (0, 1))
    return starts.sort().values == ends.sort().values


def explanation(headers: Tensor, vocab_size: int) -> str:
    """What is wrong with the headers [R, 7], as an error message."""
    found, sent = [], Header(*headers.t().tolist())
    for (name, argument), agrees in zip((EXACT | ROUGH).items(), agreements(headers).t(), strict=True):
        others = ", ".join(map(str, (~agrees).nonzero().view(-1).tolist()))
        if others and name in EXACT:
            found.append(f"{argument} (rank 0 differs from rank{'s' * (',' in others)} {others})")
        elif others:
            listed = ("None" if value == NOT_GIVEN else f"{value:.7g}" for value in getattr(sent, name))
            found.append(f"{argument} ({', '.join(listed)} in rank order)")
    if found:
        return (
            f"all ranks of the group must be called with the same arguments, except for their columns; these differ: "
            f"{'; '.join(found)}"
        )
    bounds = (f"[{int(first)}, {int(first + width)})" for first, width in zip(sent.first, sent.width, strict=True))
    return (
        f"the ranks' columns, each from its vocab_start on, must cover the vocabulary [0, {vocab_size}) without gaps "
        f"or overlaps; the ranks of the group have {', '.join(bounds)}"
    )
