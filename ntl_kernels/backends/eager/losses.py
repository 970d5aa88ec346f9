"""The loss of every row and its gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...problem import Field, Forward, Problem, losses_of_rows
from ...spec import LossSpec
from ..layout import loss_dtype
from .blocks import Block
from .labels import Coefficients, Labels, coefficients, for_each_block, read_labels, weight_sums, weighted
from .normaliser import Normaliser, normaliser_of, normaliser_of_rows, rounded_up_, softmax_and_normaliser
from .numbers import NumberLoss, expected_error, number_softmax, solve_numbers
from .scalars import Scalar
from .softcap import chain_, transform_logits
from .totals import finish


class Pulls(NamedTuple):
    """The contribution of cross-entropy to the gradient of rows."""

    slope: Any
    """The factor of p in every column."""
    pull: Any
    """A constant in every column."""
    label: Any
    """An additional constant in the label's column."""


def forward(logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
    labels = read_labels(problem, logits.shape[-1], loss_dtype(logits.dtype))
    if problem.lacks_denominators:
        problem = problem.counted(*weight_sums(labels))
    fields = solve(logits, labels, problem, gradient)
    loss, parts = finish(fields, problem)
    if problem.reduction == "none":
        loss = losses_of_rows(fields, problem)
    return Forward(loss, parts, fields)


def row_losses(logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
    fields.copy_(solve(logits, read_labels(problem, logits.shape[-1], fields.dtype), problem, gradient))


def row_gradients(logits: Tensor, problem: Problem, fields: Tensor, upstream: Tensor, gradient: Tensor) -> None:
    spec, labels = problem.spec, read_labels(problem, logits.shape[-1], fields.dtype)
    shares = coefficients(labels, problem, upstream)

    def work(block: Block, part: Labels) -> None:
        x, normaliser = transform_logits(block, spec), normaliser_of_rows(fields, block.rows)
        q, part = number_softmax(x, part, problem, False)
        powers = torch.sub(x, normaliser.peak, out=block.target(x, keep=spec.softcap is not None)).exp_()
        numbers = None
        if part.has_numbers:
            number_p = powers.index_select(-1, problem.table.ids) / normaliser.total
            numbers = solve_numbers(number_p, q, part, problem)
        own = shares.part(block.rows)
        block.write(row_gradient(x, powers, normaliser, normaliser.total, part, numbers, own, problem))

    for_each_block(logits, labels, gradient, work)


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    if upstream.device.type == "cpu":  # reading it on a GPU would wait
        factor = upstream.item()
        if math.isfinite(factor):
            if factor != 1:
                gradient.mul_(upstream)
            return
    is_zero = torch.linalg.vector_norm(gradient, torch.inf, -1, keepdim=True) == 0
    gradient.mul_(torch.where(is_zero, 0.0, upstream))


def solve(logits: Tensor, labels: Labels, problem: Problem, gradient: Tensor | None) -> Tensor:
    """The fields [len(Field), N] of all rows, and their gradient."""
    shares = Coefficients(0.0, 0.0) if gradient is None else coefficients(labels, problem)
    fields = logits.new_zeros((len(Field), labels.ids.shape[0]), dtype=loss_dtype(logits.dtype))

    def work(block: Block, part: Labels) -> None:
        fields[:, block.rows] = solve_block(block, part, shares.part(block.rows), problem)

    for_each_block(logits, labels, gradient, work)
    return fields


def solve_block(block: Block, labels: Labels, shares: Coefficients, problem: Problem) -> Tensor:
    """The fields [len(Field), n] of a block, all of whose rows count, and their gradient."""
    spec, ids = problem.spec, problem.table.ids
    x = transform_logits(block, spec)
    label_logits, peak = x.gather(-1, labels.ids), x.amax(-1, keepdim=True)
    distance = mean_distance(x, peak, block.buffer("powers")) if spec.label_smoothing else None
    q, measured = number_softmax(x, labels, problem, problem.wants_parts)
    number_p = None
    if block.gradient is None:
        powers = block.buffer("powers") if x is block.logits else x
        normaliser = normaliser_of(x, peak, powers)
        number_p = powers.index_select(-1, ids).div_(normaliser.total) if labels.has_numbers else None
    else:
        # The softmax may overwrite x, except with a softcap, whose derivative needs x.
        p, normaliser = softmax_and_normaliser(x, peak, block.target(x, keep=spec.softcap is not None))
        number_p = p.index_select(-1, ids) if labels.has_numbers else None
    numbers = None if number_p is None else solve_numbers(number_p, q, measured, problem)
    if block.gradient is not None:
        block.write(row_gradient(x, p, normaliser, None, labels, numbers, shares, problem))
    ce = weighted(cross_entropy(normaliser, label_logits, distance, spec), labels)
    is_correct = weights = ntl = error = mass = number_weights = torch.zeros_like(ce)
    if numbers is not None:
        ntl = weighted(numbers.ntl, labels).masked_fill(measured.is_other, 0)
    if problem.wants_parts:
        is_correct = (label_logits >= normaliser.peak).to(ce.dtype)
        weights = torch.ones_like(ce) if labels.weights is None else labels.weights
        if number_p is not None and q is not None:
            error = expected_error(q, labels.targets, problem.table).abs_().masked_fill_(measured.is_other, 0)
            mass = rounded_up_(number_p.sum(-1, keepdim=True)).masked_fill_(measured.is_other, 0)
            number_weights = weights.masked_fill(labels.is_other, 0)
    return torch.stack([ce, is_correct, weights, *normaliser, ntl, error, mass, number_weights]).squeeze(-1)


def mean_distance(x: Tensor, peak: Tensor, buffer: Tensor) -> Tensor:
    """The mean of x - peak [n, 1] over the columns of x [n, V]."""
    return torch.sub(x, peak, out=buffer).mean(-1, keepdim=True)


def cross_entropy(normaliser: Normaliser, label_logits: Tensor, distance: Tensor | None, spec: LossSpec) -> Tensor:
    """CE_i [n, 1]; ``distance`` is the rows' mean x - peak, needed with label smoothing.

    All terms except the z-loss are differences, which stay precise if all logits of a row are large.
    """
    if spec.ce_weight == 0:  # 0 even if CE is infinite
        return torch.zeros_like(label_logits)
    log_total = normaliser.total.log()
    loss = normaliser.peak - label_logits + log_total
    if distance is not None:
        # No lerp: if one of the two is infinite, it may compute inf - inf.
        loss = torch.add((1 - spec.label_smoothing) * loss, log_total - distance, alpha=spec.label_smoothing)
    if spec.z_loss:  # avoid 0 times the square of a large lse, which is NaN
        loss = loss + spec.z_loss * normaliser.lse**2
    return loss if spec.ce_weight == 1 else loss * spec.ce_weight


def row_gradient(
    x: Tensor,
    p: Tensor,
    normaliser: Normaliser,
    total: Tensor | None,
    labels: Labels,
    numbers: NumberLoss | None,
    shares: Coefficients,
    problem: Problem,
) -> Tensor:
    """The gradient [n, V] of a block (docs, Mathematics, eq. 28 to 32), in the memory of its probabilities p [n, V].

    p may not be divided by ``total`` [n, 1] yet.
    """
    spec, (a, b) = problem.spec, shares
    slope, pull, label = cross_entropy_pulls(a, normaliser, p.shape[-1], spec)
    if numbers is not None and numbers.drain is not None:
        slope = (numbers.drain * -b).add_(slope)
    g = p.mul_(slope if total is None else slope / total)
    if spec.label_smoothing:
        g.add_(pull)
    if numbers is not None:
        add_to_columns_(g, problem.table.ids, numbers.pulls, b)
    add_to_labels_(g, labels.ids, label)
    return chain_(g, x, spec)


def cross_entropy_pulls(a: Scalar, normaliser: Normaliser, vocab_size: int, spec: LossSpec) -> Pulls:
    """The Pulls of rows whose cross-entropy has the coefficient ``a``: numbers if that is a number, else [n, 1]."""
    label = a * (spec.label_smoothing - 1)
    pull = a * (-spec.label_smoothing / vocab_size) if spec.label_smoothing else 0.0
    slope = a * (1 + 2 * spec.z_loss * normaliser.lse) if spec.z_loss else a
    return Pulls(slope, pull, label)


def add_to_columns_(g: Tensor, ids: Tensor, entries: Tensor, factor: Scalar) -> None:
    """Add factor times entries [n, K] to the columns ids [K] of g [n, V]."""
    ids = ids.long()  # index_add_ is several times slower with int32 indices
    if isinstance(factor, Tensor):
        g.index_add_(-1, ids, entries * factor)
    else:
        g.index_add_(-1, ids, entries, alpha=factor)


def add_to_labels_(g: Tensor, ids: Tensor, entry: Scalar) -> None:
    """Add one number per row to the columns ids [n, 1] of g [n, V]."""
    if isinstance(entry, Tensor):
        g.scatter_add_(-1, ids, entry.expand(ids.shape))
    else:
        g.scatter_(-1, ids, entry, reduce="add")
