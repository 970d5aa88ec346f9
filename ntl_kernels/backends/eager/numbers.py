"""The Number Token Loss of a block's rows, and its gradient (docs, Mathematics, eq. 4 to 15 and 23 to 30)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...formulas import costs, divergence
from ...problem import Problem
from ...spec import LossSpec
from ...value_losses import VALUE_LOSSES
from .labels import Factor, Labels, Relative, picked


class NumberTerms(NamedTuple):
    """The terms of the loss L of n number rows, before reweighing, and of its gradient."""

    dloss_dq: Tensor  # e [n, K]: dL/dx_k = q_k * (e_k - mean_dloss_dq)
    mean_dloss_dq: Any  # [n, 1]: sum_k q_k e_k; this and the loss are None without q, which a linear loss allows
    loss: Any  # [n, 1]: L; equal to the mean of dloss_dq if L is linear in q

    @property
    def remainder(self) -> Factor:
        """L minus the mean of dloss_dq."""
        return 0.0 if self.loss is self.mean_dloss_dq else self.loss - self.mean_dloss_dq


class NumberLoss(NamedTuple):
    """The Number Token Loss of n rows, and the terms of its gradient (docs, Mathematics, eq. 28 to 32)."""

    number_gradient: Tensor  # [n, K]: the part of dNTL_i/dx_k that only number columns have; 0 outside number rows
    mass_gradient: Tensor | None = None
    """[n, 1]: ``-p_j`` times it is the part that every column has: with reweigh m dNTL_i/dm, with soft labels -1. 0
    outside number rows; None if no other column has a part."""
    ntl: Any = None  # [n, 1]: NTL_i; this and the next are arbitrary outside number rows, None if not computed
    mean_dloss_dq: Any = None  # [n, 1]: the mean of dloss_dq


def number_softmax(
    x: Tensor, relative: Relative, labels: Labels, problem: Problem, needs_q: bool
) -> tuple[Tensor, Tensor | None, Labels]:
    """(the number logits [n, K] of transformed logits x [n, V]; q [n, K], the softmax over them alone, or None if
    neither the caller nor the loss needs it; the labels without number rows whose number logits are all -inf, which
    have no distribution).

    Call it before x is overwritten.
    """
    number_logits = relative.own(picked(x, problem.table.columns), -torch.inf)
    if not number_logits.amin().item() > -torch.inf:  # otherwise every row has a distribution
        has_none = number_logits.amax(-1, keepdim=True) == -torch.inf
        labels = labels._replace(is_other=labels.is_other | has_none)
    needs_q = needs_q or not (problem.spec.is_soft or (problem.spec.reweigh and is_linear(problem.spec)))
    return number_logits, number_logits.softmax(-1) if needs_q else None, labels


def is_linear(spec: LossSpec) -> bool:
    """Whether L is linear in q, and so, reweighed, in p."""
    return spec.kind == "wasserstein" and spec.label_sigma == 0


def solve_numbers(
    p: Tensor, q: Tensor | None, error: Tensor | None, relative: Relative, labels: Labels, problem: Problem
) -> NumberLoss:
    """The NumberLoss from the probabilities [n, K] of number tokens among all tokens (p; 0 in other groups than the
    label's) and among themselves (q), and from the :func:`expected_error`."""
    spec = labels.spec_of_rows(problem.spec)
    terms = number_terms(q, error, relative, problem.table.values.to(p.dtype), spec)
    probabilities = p if spec.reweigh else q
    assert probabilities is not None
    of_columns = number_gradient(probabilities, terms, spec).masked_fill_(labels.is_other, 0)
    if not spec.reweigh:
        return NumberLoss(of_columns, None, terms.loss, terms.mean_dloss_dq)
    mass_gradient = of_columns.sum(-1, keepdim=True)
    return NumberLoss(of_columns, mass_gradient, mass_gradient + spec.worst_loss, terms.mean_dloss_dq)  # eq. 15


def soft_labels(exponents: Tensor, number_x: Tensor, peak: Tensor, log_total: Tensor, labels: Labels) -> NumberLoss:
    """The NumberLoss KL(t || p) (eq. 37), from the target's exponents and the number logits [n, K] and the logsumexp of
    all logits, peak + log_total."""
    t, terms = divergence(exponents, number_x, peak)
    return soft_gradient(t, labels)._replace(ntl=terms.sum(-1, keepdim=True) + log_total)


def soft_gradient(t: Tensor, labels: Labels) -> NumberLoss:
    """The terms of the gradient p - t, from the target t [n, k]."""
    of_row = labels.is_other.to(t.dtype).sub_(1)
    return NumberLoss(t * of_row, of_row)


def number_gradient(probabilities: Tensor, terms: NumberTerms, spec: LossSpec) -> Tensor:
    """The number gradient [n, k] in number rows with these terms, from the probabilities [n, k] of number tokens: with
    reweigh among all tokens, else among themselves."""
    if spec.reweigh:
        return mass_gradient_of(terms.dloss_dq, probabilities, spec, terms.remainder)
    return probabilities * (terms.dloss_dq - terms.mean_dloss_dq)


def mass_gradient_of(dloss_dq: Tensor, p: Tensor, spec: LossSpec, remainder: Factor = 0.0) -> Tensor:
    """The change of the loss, relative to the worst loss, by probability p on number tokens with this dloss_dq.

    Per token, it is also the contribution of NTL_i to the gradient of a number column; with the mass and the mean of
    dloss_dq, the sum over all number columns.
    """
    return (dloss_dq + (remainder - spec.worst_loss)).mul_(p)


def number_terms(
    q: Tensor | None, error: Tensor | None, relative: Relative, values: Tensor, spec: LossSpec
) -> NumberTerms:
    """The terms of number rows from q [n, K], yhat - v_y [n, 1], the values [K] and the spec of the rows."""
    if is_linear(spec):
        dloss_dq = costs(relative.offsets, spec.cost_line)
        loss = None if q is None else (q * dloss_dq).sum(-1, keepdim=True)
        return NumberTerms(dloss_dq, loss, loss)
    if spec.is_cumulative:
        assert q is not None
        return cumulative_terms(q, relative, values, spec)
    assert error is not None
    return value_terms(relative.offsets, error, spec)


def value_terms(offsets: Tensor, error: Tensor, spec: LossSpec) -> NumberTerms:
    """The terms of the expected-value losses, from v_k - v_y [n, k] and yhat - v_y [n, 1]."""
    of_kind = VALUE_LOSSES[spec.kind]
    slope = of_kind.slope(error, spec.huber_delta)
    return NumberTerms(offsets * slope, error * slope, of_kind.loss(error, spec.huber_delta))


def expected_error(q: Tensor, offsets: Tensor) -> Tensor:
    """yhat - v_y [n, 1], from the differences v_k - v_y [n, K], which stay precise if all values are large."""
    return (q * offsets).sum(-1, keepdim=True)  # no matmul: autocast would round it


def cumulative_terms(q: Tensor, relative: Relative, values: Tensor, spec: LossSpec) -> NumberTerms:
    """The terms with ``label_sigma``: L is the distance between the running sums of q and of the Gaussian target."""
    difference, others = q.cumsum(-1) - relative.exponents(spec).softmax(-1).cumsum(-1), relative.others
    gaps = values.diff() if others is None else torch.where(others[:, 1:] | others[:, :-1], 0.0, values.diff())
    gaps = torch.nn.functional.pad(gaps, (0, 1))  # to the next value; 0 after the last of a group
    dloss_dq = (difference.sign() * gaps).flip(-1).cumsum(-1).flip(-1)
    loss = (difference.abs() * gaps).sum(-1, keepdim=True)
    return NumberTerms(dloss_dq, (q * dloss_dq).sum(-1, keepdim=True), loss)
