"""Numbers as runs of digits along a row: where each begins, how long it is, and sums over its digits."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST_COMPILED = 2**12
"""Digits of one number, as far as a compiled graph sums them. Those that tell anything follow the leading one within
400, so that only some thousands of leading zeros would be too many."""


class Runs(NamedTuple):
    """The numbers that digits write, each tensor [B, T]."""

    first: Tensor
    """bool: whether a position is its number's first digit."""
    joins: Tensor
    """bool: whether it is a "." inside a number."""
    number: Tensor
    """int64: which number of its row it belongs to, from 1 on; what follows a number has its index, too."""


def number_runs(is_digit: Tensor, is_joint: Tensor) -> Runs:
    """The runs of digits of each row of bool [B, T]; a joint (".") with a digit on both sides continues one."""
    joins = is_joint & moved(is_digit, 1) & moved(is_digit, -1)
    first = is_digit & ~moved(is_digit, 1) & ~moved(joins, 1)
    return Runs(first, joins, first.cumsum(-1))


def moved(mask: Tensor, places: int) -> Tensor:
    """bool [B, T] moved to the right (left if negative) by so many places."""
    return F.pad(mask, (places, -places))


def digits_after(is_digit: Tensor, first: Tensor) -> Tensor:
    """int64 [B, T]: how many digits of its number follow a digit."""
    count = is_digit.cumsum(-1)
    total = count[:, -1:]
    before_next = upcoming(first, count - 1, default=total)[:, 1:]  # digits of the row ahead of the next number
    return torch.cat([before_next, total], -1) - count


def digits_around_leading(is_digit: Tensor, first: Tensor, is_nonzero: Tensor) -> tuple[Tensor, Tensor]:
    """How many digits lie between the leading one of a number, its first that is not 0, and one end.

    Returns:
        int64 [B, T] each: from the leading digit to a digit at or after it, and, at a number's first digit, from the
        leading one to the last. Leading zeros contribute nothing, whatever the first tells of them, and a number of
        zeros has a loss of 0 whatever the second does.
    """
    count, nonzero = is_digit.cumsum(-1), is_nonzero.cumsum(-1)
    earlier = latest(first, nonzero - is_nonzero.long())  # in the numbers before this one
    leading = is_nonzero & (nonzero == earlier + 1)
    total = count[:, -1:]
    to_last = digits_after(is_digit, first) + count - upcoming(leading, count, default=total)
    return count - latest(leading, count), to_last.clamp_min(0)


def latest(marks: Tensor, counts: Tensor) -> Tensor:
    """[B, T]: the count (not negative, ascending along a row) at the last mark up to here, 0 before the first."""
    return torch.where(marks, counts, 0).cummax(-1).values


def upcoming(marks: Tensor, counts: Tensor, default: Tensor) -> Tensor:
    """[B, T]: the count (ascending along a row) at the first mark from here on, the default [B, 1] if none is left."""
    return torch.where(marks, counts, default).flip(-1).cummin(-1).values.flip(-1)


def power_of_tenth(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """0.1 ** exponent, which is 0 where it is too small for the dtype."""
    return torch.pow(10.0, -exponents.to(dtype))


def run_sums(values: Tensor, run: Tensor) -> Tensor:
    """[..., B, T]: at each position, the sum over the rest of its run, which is the whole run for its first position.

    Doubles the reach of the sums at each step. Adding at an index would be shorter, but on a GPU not deterministic.
    """
    reach = 1
    # One graph serves rows of every length, so it takes the steps of the longest.
    length = LONGEST_COMPILED if torch.compiler.is_compiling() else run.shape[-1]
    while reach < length:
        is_same = ahead(run, reach, -1) == run
        values = values + torch.where(is_same, ahead(values, reach, 0), 0.0)
        reach *= 2
    return values


def ahead(tensor: Tensor, places: int, rest: int) -> Tensor:
    """[..., T]: at each position what stands so many places further on, ``rest`` beyond the end."""
    return F.pad(tensor, (0, places), value=rest)[..., places:]
