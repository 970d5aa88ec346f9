"""The functions of the row contract: every row's results and gradient, and the sums over all rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...problem import (
    AT,
    NUM_FIELDS,
    Forward,
    Problem,
    RowResult,
    label_losses,
    losses_of_rows,
    parts_of,
    reduced_terms,
)
from ...spec import LossSpec
from ...value_losses import VALUE_LOSSES
from ..layout import loss_dtype
from .blocks import Block, Blocks
from .labels import Factor, Labels, number_of, picked, read_labels
from .numbers import NumberLoss, expected_error, number_softmax, soft_labels, solve_numbers
from .softmax import Normaliser, chain_, normaliser_from, normaliser_of, rounded_up_, transform_logits


class CrossEntropyGradient(NamedTuple):
    """The contribution of cross-entropy to the gradient of rows."""

    slope: Factor  # The factor of p in every column
    every: Factor  # A constant in every column
    label: Factor  # An additional constant in the label's column


def forward(logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
    labels = read_labels(problem, logits.shape[-1], loss_dtype(logits.dtype))
    if problem.lacks_denominators:
        problem = problem.counted(*labels.weight_sums())
    fields = solve(logits, labels, problem, gradient)
    loss, parts = finish(fields, problem)
    if problem.spec.reduction == "none":
        loss = losses_of_rows(fields, problem)
    return Forward(loss, parts, fields)


def count(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
    sums = read_labels(problem, vocab_size, dtype).weight_sums()
    return torch.tensor(sums, dtype=dtype, device=problem.rows.labels.device)


def row_losses(logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
    fields.copy_(solve(logits, read_labels(problem, logits.shape[-1], fields.dtype), problem, gradient))


def solve(logits: Tensor, labels: Labels, problem: Problem, gradient: Tensor | None) -> Tensor:
    """The fields [NUM_FIELDS, N] of all rows, and their gradient."""
    if gradient is not None:
        labels = labels.with_coefficients(problem)
    fields = logits.new_zeros((NUM_FIELDS, labels.tokens.shape[0]), dtype=loss_dtype(logits.dtype))

    def work(block: Block) -> None:
        fields[:, block.rows] = solve_block(block, problem)

    Blocks(logits, labels, gradient).for_each(work)
    return fields


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    factor = upstream.item()
    if math.isfinite(factor):
        if factor != 1:
            gradient.mul_(upstream)
        return
    is_zero = torch.linalg.vector_norm(gradient, torch.inf, -1, keepdim=True) == 0
    gradient.mul_(torch.where(is_zero, 0.0, upstream))


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor | None]:
    sums = RowResult(*fields.sum(-1).tolist())
    num_tokens = sums.row_weight if problem.num_tokens is None else number_of(problem.num_tokens)
    num_numbers = sums.number_row_weight if problem.num_numbers is None else number_of(problem.num_numbers)
    of_labels = sums.cross_entropy if problem.spec.label_share == 1 else label_losses(fields, problem.spec).sum().item()
    ce, ntl = reduced_terms(of_labels, sums.ntl, num_tokens, num_numbers, problem)
    # Not `full`, which refuses a number beyond the dtype instead of making it infinite.
    loss = torch.tensor(ce + number_of(problem.ntl_weight) * ntl, dtype=fields.dtype, device=fields.device)
    if not problem.wants_parts:
        return loss, None
    parts = parts_of(sums, RowResult(*fields.count_nonzero(-1).tolist()), num_tokens, num_numbers, problem)
    return loss, torch.tensor(parts, dtype=fields.dtype, device=fields.device)


def solve_block(block: Block, problem: Problem) -> Tensor:
    """The fields [NUM_FIELDS, n] of a block, all of whose rows count, and their gradient."""
    spec, labels, columns = problem.spec, block.labels, problem.table.columns
    x = transform_logits(block, spec)
    label_logits, peak = x.gather(-1, labels.tokens), x.amax(-1, keepdim=True)
    distance = None
    if spec.label_smoothing:
        distance = torch.sub(x, peak, out=block.buffer("powers")).mean(-1, keepdim=True)
    is_later = block.gradient is None  # a later pass may compute the gradient, from the fields
    relative = labels.relative(problem.table.values) if labels.has_numbers else None
    number_x = q = error = None
    measured = labels
    if relative is not None:
        number_x, q, measured = number_softmax(x, relative, labels, problem, problem.wants_parts or is_later)
        if q is not None and (problem.wants_parts or spec.kind in VALUE_LOSSES):
            error = expected_error(q, relative.offsets)
    if is_later:
        p = block.buffer("powers") if x is block.logits else x
        normaliser = normaliser_of(x, peak, p)
    else:
        # The softmax may overwrite x, except with a softcap, whose derivative needs x.
        p = torch.softmax(x, -1, out=block.target(x, keep=spec.softcap is not None))
        normaliser = normaliser_from(p, peak)
    number_p = numbers = None
    if number_x is not None and relative is not None:
        number_p = relative.own(picked(p, columns), 0)
        if is_later:
            number_p.div_(normaliser.total)
        if spec.is_soft:
            numbers = soft_labels(relative.exponents(spec), number_x, peak, normaliser.total.log(), labels)
        else:
            numbers = solve_numbers(number_p, q, error, relative, measured, problem)
    if not is_later:
        of_ce = cross_entropy_gradient(labels.a, normaliser, problem.vocab_size, spec)
        block.write(row_gradient(x, p, None, of_ce, labels, numbers, columns, spec))

    ce = labels.weighted(cross_entropy(normaliser, label_logits, distance, spec))
    found: dict[str, Any] = {"cross_entropy": ce, "peak": peak, "total": normaliser.total}
    if problem.wants_parts or spec.label_share != 1:
        found["row_weight"], found["number_row_weight"] = labels.weights_like(ce)
    if problem.wants_parts:
        found["is_correct"] = (label_logits >= peak).to(ce.dtype)
    if numbers is not None and number_p is not None:
        found["ntl"] = labels.weighted_numbers(numbers.ntl)
        if is_later and q is not None and number_x is not None:
            found["number_peak"], found["number_total"] = normaliser_from(q, number_x.amax(-1, keepdim=True))
            found["mean_dloss_dq"] = numbers.mean_dloss_dq if spec.kind == "wasserstein" else error
        if problem.wants_parts and error is not None:
            found["absolute_error"] = error.abs() if labels.group is None else error.abs() * labels.group.unit
            found["mass"] = rounded_up_(number_p.sum(-1, keepdim=True))
    return as_fields(RowResult(**found), labels.is_other, measured.is_other, spec)


def as_fields(found: RowResult, is_other: Tensor, is_unmeasured: Tensor, spec: LossSpec) -> Tensor:
    """The fields [NUM_FIELDS, n] of results [n, 1]; None stands for zeros. What belongs to numbers may be
    arbitrary outside number rows (bool [n, 1]), and in those that are unmeasured, with -inf for all number tokens:
    they have no distribution, and so no NTL unless it compares all probabilities."""
    zeros = torch.zeros_like(found.cross_entropy)
    fields = torch.stack([zeros if part is None else part for part in found])
    fields[AT.ntl].masked_fill_(is_other if spec.is_soft else is_unmeasured, 0)
    fields[AT.absolute_error :].masked_fill_(is_unmeasured, 0)
    return fields.squeeze(-1)


def cross_entropy(normaliser: Normaliser, label_logits: Tensor, distance: Tensor | None, spec: LossSpec) -> Tensor:
    """CE_i [n, 1]; ``distance`` is the rows' mean x - peak, needed with label smoothing.

    All terms except the z-loss are differences, which stay precise if all logits of a row are large.
    """
    if not spec.has_cross_entropy:  # 0 even if CE is infinite
        return torch.zeros_like(label_logits)
    log_total = normaliser.total.log()
    loss = normaliser.peak - label_logits + log_total
    if distance is not None:
        # No lerp: if one of the two is infinite, it may compute inf - inf.
        loss = torch.add((1 - spec.label_smoothing) * loss, log_total - distance, alpha=spec.label_smoothing)
    if spec.z_loss:  # avoid 0 times the square of a large lse, which is NaN
        loss = loss + spec.z_loss * normaliser.lse**2
    return loss


def cross_entropy_gradient(a: Factor, normaliser: Normaliser, vocab_size: int, spec: LossSpec) -> CrossEntropyGradient:
    """The CrossEntropyGradient of rows whose cross-entropy has the coefficient ``a``."""
    slope = a * (1 + 2 * spec.z_loss * normaliser.lse) if spec.z_loss else a
    every = a * (-spec.label_smoothing / vocab_size) if spec.label_smoothing else 0.0
    return CrossEntropyGradient(slope, every, a * (spec.label_smoothing - 1))


def row_gradient(
    x: Tensor,
    p: Tensor,
    total: Tensor | None,
    of_ce: CrossEntropyGradient,
    labels: Labels,
    numbers: NumberLoss | None,
    columns: slice | Tensor,
    spec: LossSpec,
) -> Tensor:
    """The gradient [n, V] of a block (docs, Mathematics, eq. 28 to 32), in the memory of its probabilities p [n, V].

    p may not be divided by ``total`` [n, 1] yet; ``columns`` are those of the number tokens.
    """
    slope = of_ce.slope
    if numbers is not None and numbers.mass_gradient is not None:
        slope = (numbers.mass_gradient * -labels.b).add_(slope)
    g = p.mul_(slope if total is None else slope / total)
    if spec.label_smoothing:
        g.add_(of_ce.every)
    if numbers is not None:
        if isinstance(columns, slice):
            g[:, columns].add_(numbers.number_gradient * labels.b)
        elif isinstance(labels.b, Tensor):  # index_add_ is several times slower with int32 indices
            g.index_add_(-1, columns.long(), numbers.number_gradient * labels.b)
        else:
            g.index_add_(-1, columns.long(), numbers.number_gradient, alpha=labels.b)
    if isinstance(of_ce.label, Tensor):
        g.scatter_add_(-1, labels.tokens, of_ce.label.expand(labels.tokens.shape))
    else:
        g.scatter_(-1, labels.tokens, of_ce.label, reduce="add")
    return chain_(g, x, spec)
