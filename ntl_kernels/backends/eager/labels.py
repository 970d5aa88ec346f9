"""Labels and weights of the rows, and the rows' coefficients in the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...problem import Problem, is_kept
from ...reference import divide
from .blocks import Block, Rows, blocks_of, chosen
from .scalars import Scalar, as_scalar, count_true


class Labels(NamedTuple):
    """The labels and weights of n rows."""

    ids: Tensor
    """int64 [n, 1], 0 where the row does not count or the label is out of range."""
    counts: Tensor | None
    """bool [n]: not ignored, and with a weight other than 0; None if all do."""
    weights: Tensor | None
    """[n, 1]: 0 where the row does not count, NaN where its label or weight is out of range; None if all are 1."""
    is_other: Tensor
    """bool [n, 1]: whether the row is not a number row."""
    num_others: Scalar
    """The number of rows that are not number rows."""
    targets: Tensor
    """[n]: the values of the labels of number rows; arbitrary for other rows."""

    @property
    def has_numbers(self) -> bool:
        """Whether there may be number rows; always true except on a CPU, because reading the count would wait."""
        return isinstance(self.num_others, Tensor) or self.num_others < self.is_other.shape[0]

    def part(self, rows: Rows) -> Labels:
        """The labels of some of the rows that count."""
        weights = None if self.weights is None else chosen(self.weights, rows)
        is_other = chosen(self.is_other, rows)
        return Labels(chosen(self.ids, rows), None, weights, is_other, count_true(is_other), chosen(self.targets, rows))


class Coefficients(NamedTuple):
    """The coefficients of each row's CE and NTL, times the upstream gradient (docs, Mathematics, eq. 19)."""

    a: Scalar
    """The coefficient of CE: [n, 1], or one number for all rows."""
    b: Scalar
    """The coefficient of NTL: [n, 1], or one number for all rows."""

    def part(self, rows: Rows) -> Coefficients:
        return Coefficients(*(chosen(part, rows) if isinstance(part, Tensor) and part.ndim else part for part in self))


def for_each_block(
    logits: Tensor, labels: Labels, gradient: Tensor | None, work: Callable[[Block, Labels], object]
) -> None:
    """Call ``work`` for each block of the rows that count, with the labels of its rows, in torch's threads."""

    def work_with_labels(block: Block) -> None:
        is_only = block.logits.shape[0] == labels.ids.shape[0]
        work(block, labels if is_only else labels.part(block.rows))

    blocks_of(logits, labels.counts, gradient).for_each(work_with_labels)


def read_labels(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Labels:
    """Look up the labels; no label causes an access out of bounds."""
    labels, weights, table = problem.labels.view(-1).long(), problem.token_weights, problem.table
    counts = None
    if weights is not None:
        weights = weights.view(-1)
        counts = is_kept(labels, problem.spec.ignore_index) & (weights != 0)
    elif not are_all_above(labels, problem.spec.ignore_index):
        counts = is_kept(labels, problem.spec.ignore_index)
    is_bad = None
    if labels.device.type != "cpu":  # on a CPU they have been checked
        is_bad = (labels < 0) | (labels >= vocab_size)
        labels = labels.masked_fill(is_bad, 0)
        weights = labels.new_ones(labels.shape, dtype=dtype) if weights is None else weights
        is_bad |= ~(weights >= 0)
        weights = weights.masked_fill(is_bad, torch.nan)
    if counts is not None and bool(counts.all()):
        counts = None
    ids = labels if counts is None else torch.where(counts, labels, 0)
    index = table.lookup.index_select(0, ids)
    is_other = index.signbit()  # half the cost of < 0, which creates a tensor for the 0
    for out in (None if counts is None else ~counts, is_bad):
        is_other = is_other if out is None else is_other | out
    targets = table.values.to(dtype).index_select(0, index.clamp_min_(0))
    if weights is not None:
        weights = (weights if counts is None else torch.where(counts, weights, 0.0)).unsqueeze(-1)
    return Labels(ids.unsqueeze(-1), counts, weights, is_other.unsqueeze(-1), count_true(is_other), targets)


def are_all_above(labels: Tensor, ignore_index: int) -> bool:
    """Whether it is known that no label is the ignore index: on a CPU, if that is negative and no label is."""
    return labels.numel() == 0 or (ignore_index < 0 and labels.device.type == "cpu" and labels.min().item() >= 0)


def weighted(terms: Tensor, labels: Labels) -> Tensor:
    """The terms of rows [n, 1] times w."""
    return terms if labels.weights is None else terms * labels.weights


def weight_sums(labels: Labels) -> tuple[Scalar, Scalar]:
    """The sums of w over all rows and over the number rows."""
    if labels.weights is not None:
        return labels.weights.sum(), labels.weights.masked_fill(labels.is_other, 0).sum()
    rows = labels.ids.shape[0]
    return rows if labels.counts is None else count_true(labels.counts), rows - labels.num_others


def coefficients(labels: Labels, problem: Problem, upstream: Scalar = 1.0) -> Coefficients:
    """(a, b) of the rows; with weights or an upstream gradient [n], one per row."""
    if isinstance(upstream, Tensor) and upstream.ndim:
        upstream = upstream.unsqueeze(-1)
    a, b = upstream * problem.spec.ce_weight, upstream * as_scalar(problem.ntl_weight)
    if problem.reduction == "mean":
        assert problem.num_tokens is not None and problem.ntl_denominator is not None
        a, b = divide(a, as_scalar(problem.num_tokens)), divide(b, as_scalar(problem.ntl_denominator))
    return Coefficients(a, b) if labels.weights is None else Coefficients(a * labels.weights, b * labels.weights)
