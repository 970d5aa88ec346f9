"""The columns of the vocabulary that a rank has."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...tokens import NumberTable
from .labels import Labels


class OwnNumbers(NamedTuple):
    """The number tokens among a rank's columns."""

    places: Tensor
    """int64 [k]: their indices among all number tokens."""
    columns: Tensor
    """int64 [k]: their columns, from the rank's first."""
    values: Tensor
    """[k]"""


def own_numbers(table: NumberTable, first: int, width: int, dtype: torch.dtype) -> OwnNumbers:
    columns = table.ids.long() - first
    places = ((columns >= 0) & (columns < width)).nonzero().squeeze(-1)
    return OwnNumbers(places, columns[places], table.values[places].to(dtype))


def own_column(ids: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """(the columns of token ids among the rank's, whether they are there), in the ids' shape; column 0 if not."""
    column = ids - first
    is_own = (column >= 0) & (column < width)
    return torch.where(is_own, column, 0), is_own


def number_rows(labels: Labels) -> Tensor:
    """int64 [n], ascending: which rows are number rows."""
    return (~labels.is_other).view(-1).nonzero().view(-1)
