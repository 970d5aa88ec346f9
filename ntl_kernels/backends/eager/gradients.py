"""The gradients of rows in a pass of its own, from the fields of their losses: of all columns, or of one rank's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...formulas import costs
from ...problem import Problem, RowResult
from ...tokens import NumberTable
from .blocks import Block, Blocks
from .labels import Labels, Relative, chosen, picked, read_labels
from .numbers import (
    NumberLoss,
    NumberTerms,
    cumulative_terms,
    mass_gradient_of,
    number_gradient,
    soft_gradient,
    value_terms,
)
from .rows import cross_entropy_gradient, row_gradient
from .softmax import Normaliser, share_of, transform_logits


class LocalNumbers(NamedTuple):
    """The number tokens among the columns that are here."""

    places: Tensor | None  # int64 [k]: their indices among all number tokens; None if all are here
    columns: slice | Tensor  # their columns, from the first: a slice, or int64 [k]
    values: Tensor  # [k]


def local_numbers(table: NumberTable, first: int | None, width: int, dtype: torch.dtype) -> LocalNumbers:
    values = table.values.to(dtype)
    if first is None:
        return LocalNumbers(None, table.columns, values)
    columns = table.ids.long()
    places = ((columns >= first) & (columns < first + width)).nonzero().squeeze(-1)
    return LocalNumbers(places, columns[places] - first, values[places])


def local_column(ids: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """(the columns of token ids among the rank's, whether they are there), in the ids' shape; column 0 if not."""
    column = ids - first
    is_here = (column >= 0) & (column < width)
    return torch.where(is_here, column, 0), is_here


def row_gradients(
    logits: Tensor,
    problem: Problem,
    first: int | None,
    fields: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    width, spec = logits.shape[-1], problem.spec
    if width == 0:
        return
    labels = read_labels(problem, problem.vocab_size, fields.dtype).with_coefficients(problem, upstream)
    numbers_here = local_numbers(problem.table, first, width, fields.dtype)

    def work(block: Block) -> None:
        x, numbers, part = transform_logits(block, spec), None, block.labels
        known = RowResult(*fields[:, block.rows].unsqueeze(-1).unbind())
        whole = Normaliser(known.peak, known.total)
        of_ce = cross_entropy_gradient(part.a, whole, problem.vocab_size, spec)
        if first is not None:
            column, is_here = local_column(part.tokens, first, width)
            part = part._replace(tokens=column)
            of_ce = of_ce._replace(label=of_ce.label * is_here.to(fields.dtype))
        if part.has_numbers:
            relative = part.relative(numbers_here.values, numbers_here.places)
            number_x = relative.own(picked(x, numbers_here.columns), -torch.inf)
            every_x = None if number_logits is None else chosen(number_logits, block.rows)
            numbers = numbers_from_fields(number_x, known, every_x, part, relative, numbers_here.places, problem)
        powers = torch.sub(x, known.peak, out=block.target(x, keep=spec.softcap is not None)).exp_()
        block.write(row_gradient(x, powers, known.total, of_ce, part, numbers, numbers_here.columns, spec))

    Blocks(logits, labels, gradient).for_each(work)


def numbers_from_fields(
    x: Tensor,
    known: RowResult,
    every_x: Tensor | None,
    labels: Labels,
    relative: Relative,
    places: Tensor | None,
    problem: Problem,
) -> NumberLoss:
    """The terms of the gradient by the number logits x [n, k] that are here, at ``places`` [k] among all or all of
    them; ``every_x`` [n, K]: those of all ranks."""
    spec = labels.spec_of_rows(problem.spec)
    whole, over_numbers = Normaliser(known.peak, known.total), Normaliser(known.number_peak, known.number_total)
    if spec.is_soft:
        t = labels.relative(problem.table.values).exponents(spec).softmax(-1)
        return soft_gradient(t if places is None else t[:, places], labels)
    if spec.is_cumulative:
        terms = all_terms(x if every_x is None else every_x, labels, problem)
        if places is not None:
            terms = terms._replace(dloss_dq=terms.dloss_dq[:, places])
    elif spec.kind == "wasserstein":
        terms = NumberTerms(costs(relative.offsets, spec.cost_line), known.mean_dloss_dq, known.mean_dloss_dq)
    else:
        terms = value_terms(relative.offsets, known.mean_dloss_dq, spec)
    probabilities = (whole if spec.reweigh else over_numbers).probabilities(x)
    is_unmeasured = known.number_total == 0
    of_columns = number_gradient(probabilities, terms, spec).masked_fill_(is_unmeasured, 0)
    if not spec.reweigh:
        return NumberLoss(of_columns)
    mass_gradient = mass_gradient_of(terms.mean_dloss_dq, share_of(over_numbers, whole), spec, terms.remainder)
    return NumberLoss(of_columns, mass_gradient.masked_fill_(is_unmeasured, 0))


def all_terms(number_logits: Tensor, labels: Labels, problem: Problem) -> NumberTerms:
    """The terms with ``label_sigma`` of all number tokens, from their transformed logits [n, K]."""
    relative, values = labels.relative(problem.table.values), problem.table.values.to(number_logits.dtype)
    return cumulative_terms(relative.own(number_logits, -torch.inf).softmax(-1), relative, values, problem.spec)
