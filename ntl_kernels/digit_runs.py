"""Numbers as runs of digits along a row: where each one starts, its length, and sums over its digits."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST_COMPILED = 2**12
"""How many digits of one number a compiled graph sums. Only the 400 digits after the leading one affect the result, so
a number would need thousands of leading zeros to exceed this."""


class Runs(NamedTuple):
    """The numbers written by digits, each tensor [B, T]."""

    first: Tensor
    """bool: whether a position is its number's first digit."""
    joins: Tensor
    """bool: whether it is a "." inside a number."""
    number: Tensor
    """int64: the index of the position's number in its row, from 1; positions after a number keep its index."""


def number_runs(is_digit: Tensor, is_joint: Tensor) -> Runs:
    """The runs of digits of each row of bool [B, T]; a joint (".") with a digit on both sides continues one."""
    joins = is_joint & moved(is_digit, 1) & moved(is_digit, -1)
    first = is_digit & ~moved(is_digit, 1) & ~moved(joins, 1)
    return Runs(first, joins, first.cumsum(-1))


def moved(mask: Tensor, places: int) -> Tensor:
    """bool [B, T] shifted to the right (left if negative) by this many places."""
    return F.pad(mask, (places, -places))


def digits_after(is_digit: Tensor, first: Tensor) -> Tensor:
    """int64 [B, T]: how many digits of the same number follow each digit."""
    count = is_digit.cumsum(-1)
    total = count[:, -1:]
    before_next = upcoming(first, count - 1, default=total)[:, 1:]  # digits of the row before the next number
    return torch.cat([before_next, total], -1) - count


def digits_around_leading(is_digit: Tensor, first: Tensor, is_nonzero: Tensor) -> tuple[Tensor, Tensor]:
    """How many digits are between a number's leading digit (its first that is not 0) and one of its ends.

    Returns:
        Two int64 [B, T]: from the leading digit to each digit at or after it; and, at a number's first digit, from
        the leading digit to the last. The first is arbitrary at leading zeros, which contribute nothing; the second is
        arbitrary for a number of zeros, whose loss is 0.
    """
    count, nonzero = is_digit.cumsum(-1), is_nonzero.cumsum(-1)
    earlier = latest(first, nonzero - is_nonzero.long())  # in the numbers before this one
    leading = is_nonzero & (nonzero == earlier + 1)
    total = count[:, -1:]
    to_last = digits_after(is_digit, first) + count - upcoming(leading, count, default=total)
    return count - latest(leading, count), to_last.clamp_min(0)


def latest(marks: Tensor, counts: Tensor) -> Tensor:
    """[B, T]: the count (non-negative, ascending along a row) at the last mark up to each position, 0 without one."""
    return torch.where(marks, counts, 0).cummax(-1).values


def upcoming(marks: Tensor, counts: Tensor, default: Tensor) -> Tensor:
    """[B, T]: the count (ascending along a row) at the next mark from each position, the default [B, 1] without one."""
    return torch.where(marks, counts, default).flip(-1).cummin(-1).values.flip(-1)


def power_of_tenth(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """0.1 ** exponent; 0 where that is too small for the dtype."""
    return torch.pow(10.0, -exponents.to(dtype))


def run_sums(values: Tensor, run: Tensor) -> Tensor:
    """[..., B, T]: at each position, the sum over the rest of its run; at the first position, over the whole run.

    Each step doubles the length of the sums. ``index_add`` would be shorter, but is not deterministic on a GPU.
    """
    reach = 1
    # One compiled graph handles rows of every length, so it takes as many steps as the longest needs.
    length = LONGEST_COMPILED if torch.compiler.is_compiling() else run.shape[-1]
    while reach < length:
        is_same = ahead(run, reach, -1) == run
        values = values + torch.where(is_same, ahead(values, reach, 0), 0.0)
        reach *= 2
    return values


def ahead(tensor: Tensor, places: int, rest: int) -> Tensor:
    """[..., T]: at each position, the value this many places further on; ``rest`` beyond the end."""
    return F.pad(tensor, (0, places), value=rest)[..., places:]
