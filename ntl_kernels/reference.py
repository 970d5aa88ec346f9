"""The specification in code: the page "Mathematics" of the documentation in plain PyTorch, differentiated by autograd.

It is not optimised for speed; tests compare everything else in the package with it. float64 logits are computed in
float64, all other dtypes in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .problem import Field, Forward, Problem, in_dtype, is_kept, losses_of_rows
from .spec import LossSpec
from .tokens import NumberTable
from .value_losses import VALUE_LOSSES


def transform_logits(logits: Tensor, spec: LossSpec) -> Tensor:
    """x [..., V] (eq. 1)."""
    scaled = spec.logit_scale * logits
    return scaled if spec.softcap is None else spec.softcap * torch.tanh(scaled / spec.softcap)


def cross_entropy(x: Tensor, labels: Tensor, spec: LossSpec) -> Tensor:
    """CE_i of transformed logits x [N, V] and labels [N] (eq. 3)."""
    if spec.ce_weight == 0:  # 0 even if CE is infinite
        return torch.zeros_like(x[:, 0])
    log_p = x.log_softmax(-1)  # x - lse, without loss of precision for a large lse
    nll = -log_p.gather(-1, labels[:, None]).squeeze(-1)
    eps = spec.label_smoothing
    smooth = -eps * log_p.mean(-1) if eps else 0.0
    # Avoid 0 * lse ** 2, which is NaN for a large lse.
    squared = spec.z_loss * x.logsumexp(-1) ** 2 if spec.z_loss else 0.0
    return spec.ce_weight * ((1 - eps) * nll + smooth + squared)


def costs(values: Tensor, targets: Tensor, spec: LossSpec) -> Tensor:
    """c_k [n, K]: the cost of probability on value k when the label's value is ``targets`` [n] (eq. 6 and 7)."""
    distance = (values - targets[:, None]).abs()
    if spec.cost_offset == 0:
        return distance if spec.cost_slope == 1 else spec.cost_slope * distance
    return torch.where(distance > 0, spec.cost_offset + spec.cost_slope * distance, 0.0)


def cumulative_distance(q: Tensor, values: Tensor, targets: Tensor, label_sigma: float) -> Tensor:
    """L [n]: Wasserstein-1 distance of q [n, K] to a Gaussian around ``targets`` over the (sorted) values (eq. 9)."""
    t = torch.softmax(-(((values - targets[:, None]) / label_sigma) ** 2) / 2, -1)
    return ((q.cumsum(-1) - t.cumsum(-1)).abs()[:, :-1] * values.diff()).sum(-1)


def value_loss(error: Tensor, spec: LossSpec) -> Tensor:
    """f(error) of the expected-value losses, elementwise (eq. 11)."""
    return VALUE_LOSSES[spec.kind].loss(error, spec.huber_delta)


def value_slope(error: Tensor, spec: LossSpec) -> Tensor:
    """f'(error), elementwise, for backends that do not use autograd."""
    return VALUE_LOSSES[spec.kind].slope(error, spec.huber_delta)


def number_losses(x: Tensor, targets: Tensor, table: NumberTable, spec: LossSpec) -> tuple[Tensor, Tensor, Tensor]:
    """(NTL_i, |yhat - v_y|, m), each [n], of number rows x [n, V] whose labels have the values ``targets`` [n]."""
    values = table.values.to(x.dtype)
    number_logits = x[:, table.ids.long()]
    q = number_logits.softmax(-1)  # eq. 4
    error = (q * (values - targets[:, None])).sum(-1)  # yhat - v_y (eq. 5); differences, for large values
    if spec.kind != "wasserstein":
        loss = value_loss(error, spec)
    elif spec.label_sigma > 0:
        loss = cumulative_distance(q, values, targets, spec.label_sigma)
    else:
        loss = (q * costs(values, targets, spec)).sum(-1)
    mass = x.softmax(-1)[:, table.ids.long()].sum(-1).clamp_min(torch.finfo(x.dtype).tiny)  # eq. 5
    if spec.reweigh:
        loss = loss * mass + spec.worst_loss * (1 - mass)  # eq. 15
    return loss, error.abs(), mass


def row_fields(logits: Tensor, problem: Problem) -> Tensor:
    """The fields [len(Field), N] of logits [N, V]; 0 for rows that do not count, whatever their logits are.

    A label or weight out of range (detected beforehand only on a CPU) makes its row NaN, without access out of bounds.
    """
    labels, table = problem.labels.reshape(-1).long(), problem.table
    weights = logits.new_ones(labels.shape) if problem.token_weights is None else problem.token_weights.reshape(-1)
    counts = is_kept(labels, problem.spec.ignore_index) & (weights != 0)
    in_range = (labels >= 0) & (labels < logits.shape[-1])
    validity = torch.where(counts & ~(in_range & (weights >= 0)), torch.nan, torch.ones_like(weights))
    labels = torch.where(counts & in_range, labels, 0)
    index = table.lookup[labels].long()
    is_number = counts & in_range & (index >= 0)
    targets = table.values.to(logits.dtype)[index.clamp_min(0)]

    weights = weights * validity
    x = transform_logits(torch.where(counts[:, None], logits * validity[:, None], 0.0), problem.spec)
    ce = cross_entropy(x, labels, problem.spec)
    is_measured = is_number & ~(x[:, table.ids.long()] == -torch.inf).all(-1)  # else q does not exist
    terms = number_losses(torch.where(is_measured[:, None], x, 0.0), targets, table, problem.spec)
    ntl, absolute_error, mass = (torch.where(is_measured, term, 0.0) for term in terms)
    peak = x.amax(-1)
    is_correct = counts & (x.gather(-1, labels[:, None]).squeeze(-1) >= peak)
    weights = torch.where(counts, weights, 0.0)
    fields = {
        Field.CROSS_ENTROPY: torch.where(counts, weights * ce, 0.0),
        Field.IS_CORRECT: is_correct.to(logits.dtype),
        Field.WEIGHT: weights,
        Field.PEAK: torch.where(counts, peak, 0.0),
        Field.TOTAL: torch.where(counts, (x - peak[:, None]).exp().sum(-1), 0.0),
        Field.NTL: weights * ntl,
        Field.ABSOLUTE_ERROR: absolute_error,
        Field.MASS: mass,
        Field.NUMBER_WEIGHT: weights * is_number,
    }
    return torch.stack([fields[field] for field in Field])


def divide(total: Tensor | float, denominator: Tensor | float) -> Any:
    """total / denominator, or 0 with zero gradient if the denominator is 0; for tensors and numbers."""
    if not isinstance(denominator, Tensor):
        if denominator == 0:
            return torch.zeros_like(total) if isinstance(total, Tensor) else 0.0
        return total / denominator
    is_zero = denominator == 0
    return torch.where(is_zero, 0.0, total / torch.where(is_zero, 1.0, denominator))


def forward(logits: Tensor, problem: Problem) -> Forward:
    """CE + lambda * NTL of logits [..., V] (eq. 16 to 18) and its parts, differentiable by autograd."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    fields = row_fields(logits.reshape(-1, logits.shape[-1]).to(dtype), problem)
    sums, counts = fields.sum(-1), (fields != 0).sum(-1).to(dtype)
    tokens, numbers, ntl_weight = (
        in_dtype(given, dtype, logits.device)
        for given in (
            sums[Field.WEIGHT] if problem.num_tokens is None else problem.num_tokens,
            sums[Field.NUMBER_WEIGHT] if problem.num_numbers is None else problem.num_numbers,
            problem.ntl_weight,
        )
    )
    ce, ntl = sums[Field.CROSS_ENTROPY], sums[Field.NTL]
    if problem.reduction == "mean":
        ce, ntl = divide(ce, tokens), divide(ntl, problem.divisor_of_ntl(tokens, numbers))
    loss = losses_of_rows(fields, problem) if problem.reduction == "none" else ce + ntl_weight * ntl
    parts = [
        ce,
        ntl,
        tokens,
        numbers,
        divide(sums[Field.IS_CORRECT], counts[Field.WEIGHT]),
        divide(sums[Field.ABSOLUTE_ERROR], counts[Field.MASS]),
        divide(sums[Field.MASS], counts[Field.MASS]),
    ]
    return Forward(loss, torch.stack(parts).detach(), fields.detach())
