"""Labels and weights of the rows, and the rows' coefficients in the loss."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from ...formulas import divide, other_groups, target_exponents, value_offsets
from ...problem import Problem, Rows, is_kept
from ...spec import LossSpec
from ...tokens import Group

Factor: TypeAlias = Union[float, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""One number for all rows (a Python number or a 0-d tensor), or one for each [n, 1]."""


class Relative(NamedTuple):
    """Number tokens [n, k] as the labels of n rows see them."""

    offsets: Tensor  # v_k - v_y; 0 in other groups than the label's
    others: Tensor | None  # bool: which are in other groups; None if there is one group

    def own(self, columns: Tensor, fill: float) -> Tensor:
        """Columns [n, k] of the number tokens, filled where they are of other groups."""
        return columns if self.others is None else columns.masked_fill(self.others, fill)

    def exponents(self, spec: LossSpec) -> Tensor:
        """The :func:`~ntl_kernels.formulas.target_exponents` of a smooth target."""
        return target_exponents(self.offsets, self.others, spec.label_sigma, spec.label_temperature)


class Labels(NamedTuple):
    """The labels, weights and coefficients of n rows."""

    tokens: Tensor  # int64 [n, 1]: the labels, 0 where the row does not count or the label is out of range
    counts: Tensor | None  # bool [n]: not ignored, and with a weight other than 0; None if all do
    row_weights: Tensor | None
    """[n, 1]: 0 where the row does not count, NaN where its label or weight is out of range; None if all are 1."""
    number_weights: Tensor | None  # [n, 1]: the additional weight of NTL, NaN if it is out of range; None if all are 1
    is_other: Tensor  # bool [n, 1]: whether the row is not a number row
    num_others: int  # the number of rows that are not number rows
    targets: Tensor  # [n]: the values of the labels of number rows; this and the next are arbitrary for other rows
    group: Group | None  # the labels' groups, with fields [n, 1]; None if there is one group
    a: Factor = 0.0  # the coefficient of CE in the loss, times the upstream gradient (docs, Mathematics, eq. 19)
    b: Factor = 0.0  # the same of NTL

    def spec_of_rows(self, spec: LossSpec) -> LossSpec:
        """The spec with what depends on the labels' groups."""
        return spec if self.group is None else spec.in_group(self.group)

    def relative(self, values: Tensor, places: Tensor | None = None) -> Relative:
        """The number tokens with these values [k]: all, or those at ``places`` [k] among all."""
        others = None
        if self.group is not None:
            places = torch.arange(values.shape[0], device=values.device) if places is None else places
            others = other_groups(self.group, places)
        return Relative(value_offsets(values.to(self.targets.dtype), self.targets, others), others)

    @property
    def has_numbers(self) -> bool:
        """Whether there are number rows."""
        return self.num_others < self.is_other.shape[0]

    def part(self, rows: Rows) -> Labels:
        """The labels of some of the rows that count."""

        def of_rows(part: Any) -> Any:
            return chosen(part, rows) if isinstance(part, Tensor) and part.ndim else part

        part = Labels(*map(of_rows, self._replace(counts=None)))
        group = None if self.group is None else Group(*map(of_rows, self.group))
        return part._replace(num_others=count_true(part.is_other), group=group)

    def weighted(self, terms: Any) -> Any:
        """Terms of the rows, [n, 1] or one number for all, times w."""
        return terms if self.row_weights is None else terms * self.row_weights

    def weighted_numbers(self, terms: Any) -> Any:
        """Terms of the number rows, likewise, times w u."""
        terms = self.weighted(terms)
        return terms if self.number_weights is None else terms * self.number_weights

    def weights_like(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """(w, w u) [n, 1] in the dtype of ``like`` [n, 1]; the latter is 0 outside number rows."""
        ones = torch.ones_like(like)
        return self.weighted(ones), self.weighted_numbers(ones).masked_fill(self.is_other, 0)

    def weight_sums(self) -> tuple[float, float]:
        """The sum of w over all rows and that of w u over the number rows."""
        rows, numbers = self.tokens.shape[0], self.weighted_numbers(1.0)
        if self.row_weights is not None:
            tokens = self.row_weights.sum().item()
        else:
            tokens = rows if self.counts is None else count_true(self.counts)
        if isinstance(numbers, Tensor):
            return tokens, numbers.masked_fill(self.is_other, 0).sum().item()
        return tokens, rows - self.num_others

    def with_coefficients(self, problem: Problem, upstream: Tensor | float = 1.0) -> Labels:
        """The same with coefficients for an upstream gradient (one number, or [n])."""
        if isinstance(upstream, Tensor) and upstream.ndim:
            upstream = upstream.unsqueeze(-1)
        a, b = upstream * float(problem.spec.has_cross_entropy), upstream * number_of(problem.ntl_weight)
        if problem.spec.reduction == "mean":
            assert problem.num_tokens is not None and problem.ntl_denominator is not None
            a, b = divide(a, number_of(problem.num_tokens)), divide(b, number_of(problem.ntl_denominator))
        if problem.spec.label_share != 1:
            a = a * self.is_other.to(self.targets.dtype).clamp_min_(problem.spec.label_share)
        return self._replace(a=self.weighted(a), b=self.weighted_numbers(b))


def read_labels(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Labels:
    """Look up the labels; no label causes an access out of bounds."""
    labels, weights, table = problem.rows.labels.view(-1).long(), problem.rows.token_weights, problem.table
    counts = is_bad = None
    if weights is not None:
        weights = weights.view(-1)
        counts = is_kept(labels, problem.spec.ignore_index) & (weights != 0)
    elif not are_all_kept(labels, problem.spec.ignore_index):
        counts = is_kept(labels, problem.spec.ignore_index)
    if labels.device.type != "cpu":  # on a CPU they have been checked
        is_bad = (labels < 0) | (labels >= vocab_size)
        labels = labels.masked_fill(is_bad, 0)
        weights = labels.new_ones(labels.shape, dtype=dtype) if weights is None else weights
        is_bad |= ~(weights >= 0)
        weights = weights.masked_fill(is_bad, torch.nan)
    if counts is not None and bool(counts.all()):
        counts = None
    tokens = labels if counts is None else torch.where(counts, labels, 0)
    index = table.lookup.index_select(0, tokens)
    is_other = index.signbit()  # half the cost of < 0, which creates a tensor for the 0
    number_weights = None
    if problem.rows.number_weights is not None:
        given = problem.rows.number_weights.view(-1)
        is_other |= given == 0
        number_weights = given.masked_fill(~(given >= 0), torch.nan).unsqueeze(-1)
    for out in (None if counts is None else ~counts, is_bad):
        is_other = is_other if out is None else is_other | out
    targets = table.values.to(dtype).index_select(0, index.clamp_min_(0))
    group = table.groups_of(index, dtype)
    if weights is not None:
        weights = (weights if counts is None else torch.where(counts, weights, 0.0)).unsqueeze(-1)
    return Labels(
        tokens=tokens.unsqueeze(-1),
        counts=counts,
        row_weights=weights,
        number_weights=number_weights,
        is_other=is_other.unsqueeze(-1),
        num_others=count_true(is_other),
        targets=targets,
        group=group,
    )


def are_all_kept(labels: Tensor, ignore_index: int) -> bool:
    """Whether it is known at little cost that no label is the ignore index: that is negative, and no label is."""
    return labels.numel() == 0 or (ignore_index < 0 and labels.min().item() >= 0)


def chosen(tensor: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor [n, ...]."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def picked(x: Tensor, columns: slice | Tensor) -> Tensor:
    """A copy of some columns of x [..., V]."""
    return x[..., columns].clone() if isinstance(columns, slice) else x.index_select(-1, columns)


def count_true(mask: Tensor) -> int:
    """The number of true entries of a mask."""
    return int(mask.count_nonzero().item())


def number_of(given: Tensor | float) -> float:
    """A scalar as a Python number."""
    return given.item() if isinstance(given, Tensor) else given
