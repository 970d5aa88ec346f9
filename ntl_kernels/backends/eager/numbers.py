"""The Number Token Loss of a block's rows, and its gradient (docs, Mathematics, eq. 4 to 15 and 23 to 30)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...problem import Problem
from ...reference import costs, value_loss, value_slope
from ...spec import LossSpec
from ...tokens import NumberTable
from .labels import Labels
from .scalars import Scalar


class NumberTerms(NamedTuple):
    """The terms of the loss L of n number rows, before reweighing, and of its gradient."""

    effects: Tensor
    """e [n, K]: dL/dx_k = q_k * (e_k - mean_effect)."""
    mean_effect: Tensor
    """[n, 1]: sum_k q_k e_k."""
    loss: Tensor
    """[n, 1]: L; equal to the mean effect if L is linear in q."""

    @property
    def remainder(self) -> Scalar:
        """[n, 1], or one number for all rows: L minus the mean effect."""
        return 0.0 if self.loss is self.mean_effect else self.loss - self.mean_effect


class NumberLoss(NamedTuple):
    """The Number Token Loss of n rows, and the terms of its gradient (docs, Mathematics, eq. 28 to 32)."""

    ntl: Tensor
    """[n, 1]: NTL_i; arbitrary outside number rows."""
    pulls: Tensor
    """[n, K]: the part of dNTL_i/dx_k that only number columns have; 0 outside number rows."""
    drain: Tensor | None
    """[n, 1]: ``-p_j * drain`` is the part that every column has; 0 outside number rows. None without reweigh."""


def number_softmax(x: Tensor, labels: Labels, problem: Problem, is_shown: bool) -> tuple[Tensor | None, Labels]:
    """(q [n, K] of transformed logits x [n, V], labels): the softmax over the number tokens alone, or None if no row
    needs it, and the labels without number rows whose number tokens are all -inf, which have no distribution.

    Call it before x is overwritten.
    """
    if not labels.has_numbers:
        return None, labels
    number_logits = x.index_select(-1, problem.table.ids)
    if x.device.type != "cpu" or not number_logits.amin().item() > -torch.inf:  # otherwise every row has a distribution
        has_none = number_logits.amax(-1, keepdim=True) == -torch.inf
        labels = labels._replace(is_other=labels.is_other | has_none)
    is_needed = is_shown or not (problem.spec.reweigh and is_linear(problem.spec))
    return number_logits.softmax(-1) if is_needed else None, labels


def is_linear(spec: LossSpec) -> bool:
    """Whether L is linear in q, and so, reweighed, in p."""
    return spec.kind == "wasserstein" and spec.label_sigma == 0


def solve_numbers(p: Tensor, q: Tensor | None, labels: Labels, problem: Problem) -> NumberLoss:
    """The NumberLoss from the probabilities [n, K] of number tokens among all tokens (p) and among themselves (q)."""
    spec = problem.spec
    if not spec.reweigh:
        assert q is not None
        terms = number_terms(q, labels.targets, problem.table, spec)
        pulls = (q * (terms.effects - terms.mean_effect)).masked_fill_(labels.is_other, 0)
        return NumberLoss(terms.loss, pulls, None)
    if q is None:
        pulls = drain_of(costs(problem.table.values.to(p.dtype), labels.targets, spec), p, spec)
    else:
        terms = number_terms(q, labels.targets, problem.table, spec)
        pulls = drain_of(terms.effects, p, spec, terms.remainder)
    pulls.masked_fill_(labels.is_other, 0)
    drain = pulls.sum(-1, keepdim=True)
    return NumberLoss(reweighed(drain, spec), pulls, drain)


def drain_of(effects: Tensor, p: Tensor, spec: LossSpec, remainder: Scalar = 0.0) -> Tensor:
    """The change of the loss, relative to the worst loss, by probability p on number tokens with these effects.

    Per token, it is also the contribution of NTL_i to the gradient of a number column; with the mass and the mean
    effect, the sum over all number columns.
    """
    return (effects + (remainder - spec.worst_loss)).mul_(p)


def reweighed(drain: Tensor, spec: LossSpec) -> Tensor:
    """NTL_i (eq. 15)."""
    return drain + spec.worst_loss


def number_terms(q: Tensor, targets: Tensor, table: NumberTable, spec: LossSpec) -> NumberTerms:
    """The terms of number rows from q [n, K] and the values [n] of their labels."""
    values = table.values.to(q.dtype)
    if is_linear(spec):
        effects = costs(values, targets, spec)
        loss = (q * effects).sum(-1, keepdim=True)
        return NumberTerms(effects, loss, loss)
    if spec.kind == "wasserstein":
        return cumulative_terms(q, targets, table, spec)
    return value_terms(values, targets, expected_error(q, targets, table), spec)


def value_terms(values: Tensor, targets: Tensor, error: Tensor, spec: LossSpec) -> NumberTerms:
    """The terms of the expected-value losses, from yhat - v_y [n, 1], for number tokens with these values [k]."""
    slope = value_slope(error, spec)
    return NumberTerms((values - targets[:, None]) * slope, error * slope, value_loss(error, spec))


def expected_error(q: Tensor, targets: Tensor, table: NumberTable) -> Tensor:
    """yhat - v_y [n, 1], from differences, which stay precise if all values are large."""
    offsets = table.values.to(q.dtype) - targets[:, None]
    return (q * offsets).sum(-1, keepdim=True)  # no matmul: autocast would round it


def cumulative_terms(q: Tensor, targets: Tensor, table: NumberTable, spec: LossSpec) -> NumberTerms:
    """The terms with ``label_sigma``."""
    values = table.values.to(q.dtype)
    t = gaussian_target(values - targets[:, None], spec.label_sigma)
    effects, loss = cumulative_effects(q, t, gaps_after(values))
    return NumberTerms(effects, (q * effects).sum(-1, keepdim=True), loss)


def gaussian_target(offsets: Tensor, label_sigma: float) -> Tensor:
    """t [n, K]: a Gaussian around the label's value over the number tokens, from their offsets to that value."""
    return torch.softmax(-((offsets / label_sigma) ** 2) / 2, -1)


def gaps_after(values: Tensor) -> Tensor:
    """v_{k+1} - v_k [K]; 0 after the last value."""
    return torch.nn.functional.pad(values.diff(), (0, 1))


def cumulative_effects(q: Tensor, t: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """(effects [n, K], L [n, 1]) for the distance between the running sums of q and t, weighted by gaps to the next
    value."""
    difference = q.cumsum(-1) - t.cumsum(-1)
    effects = (difference.sign() * gaps).flip(-1).cumsum(-1).flip(-1)
    return effects, (difference.abs() * gaps).sum(-1, keepdim=True)
