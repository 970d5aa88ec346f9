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

    first: Tensor  # bool: whether a position is its number's first digit
    joins: Tensor  # bool: whether it is a "." inside a number
    number: Tensor  # int64: the index of the position's number in its row, from 1; positions after a number keep it


def number_runs(is_digit: Tensor, is_joint: Tensor) -> Runs:
    """The runs of digits of each row of bool [B, T]; a joint (".") with a digit on both sides continues one."""
    follows_digit = behind(is_digit)
    joins = is_joint & follows_digit & ahead(is_digit, 1, 0)
    first = is_digit & ~follows_digit & ~behind(joins)
    return Runs(first, joins, first.cumsum(-1))


def digits_from_leading(is_digit: Tensor, first: Tensor, is_nonzero: Tensor) -> Tensor:
    """int64 [B, T]: which digit of its number a position is, from 1 for the leading digit, the first that is not 0.

    0 for leading zeros and outside numbers.
    """
    count, nonzero = is_digit.cumsum(-1), is_nonzero.cumsum(-1)
    in_earlier_numbers = latest(first, nonzero - is_nonzero.long())
    is_leading = is_nonzero & (nonzero == in_earlier_numbers + 1)
    place = count - latest(is_leading, count) + 1
    return torch.where(is_digit & (nonzero > in_earlier_numbers), place, 0)


def latest(marks: Tensor, counts: Tensor) -> Tensor:
    """[B, T]: the count (non-negative, ascending along a row) at the last mark up to each position, 0 without one."""
    return torch.where(marks, counts, 0).cummax(-1).values


def run_sums(values: Tensor, number: Tensor) -> Tensor:
    """[..., B, T]: at each position, the sum over the rest of its number; at the first digit, over the whole number.

    Each step doubles the length of the sums. ``index_add`` would be shorter, but is not deterministic on a GPU.
    """
    reach = 1
    # One compiled graph handles rows of every length, so it takes as many steps as the longest needs.
    length = LONGEST_COMPILED if torch.compiler.is_compiling() else number.shape[-1]
    while reach < length:
        is_same = ahead(number, reach, -1) == number
        values = values + torch.where(is_same, ahead(values, reach, 0), 0.0)
        reach *= 2
    return values


def behind(marks: Tensor) -> Tensor:
    """[..., T]: at each position, the mark before it; False at the first."""
    return F.pad(marks, (1, 0))[..., :-1]


def ahead(tensor: Tensor, places: int, rest: int) -> Tensor:
    """[..., T]: at each position, the value this many places further on; ``rest`` beyond the end."""
    return F.pad(tensor, (0, places), value=rest)[..., places:]
