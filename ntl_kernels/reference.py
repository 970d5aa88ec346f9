"""The specification in code: the page "Mathematics" of the documentation in plain PyTorch, differentiated by autograd.

It is not optimised for speed; tests compare everything else in the package with it. float64 logits are computed in
float64, all other dtypes in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .formulas import costs, other_groups, target_exponents, value_offsets
from .problem import (
    Forward,
    Problem,
    RowResult,
    as_tensor,
    is_kept,
    label_losses,
    losses_of_rows,
    parts_of,
    reduced_terms,
)
from .spec import LossSpec
from .tokens import NumberTable
from .value_losses import VALUE_LOSSES


def transform_logits(logits: Tensor, spec: LossSpec) -> Tensor:
    """x [B..., V] (eq. 1)."""
    scaled = spec.logit_scale * logits
    return scaled if spec.softcap is None else spec.softcap * torch.tanh(scaled / spec.softcap)


def cross_entropy(x: Tensor, labels: Tensor, spec: LossSpec) -> Tensor:
    """CE_i of transformed logits x [N, V] and labels [N] (eq. 3)."""
    if not spec.has_cross_entropy:  # 0 even if CE is infinite
        return torch.zeros_like(x[:, 0])
    log_p = x.log_softmax(-1)  # x - lse, without loss of precision for a large lse
    nll = -log_p.gather(-1, labels[:, None]).squeeze(-1)
    eps = spec.label_smoothing
    smooth = -eps * log_p.mean(-1) if eps else 0.0
    # Avoid 0 * lse ** 2, which is NaN for a large lse.
    squared = spec.z_loss * x.logsumexp(-1) ** 2 if spec.z_loss else 0.0
    return (1 - eps) * nll + smooth + squared


def cumulative_distance(q: Tensor, values: Tensor, offsets: Tensor, own: Tensor, label_sigma: float) -> Tensor:
    """L [n, 1]: Wasserstein-1 distance of q [n, K] to a Gaussian around the label, over sorted values (eq. 9)."""
    t = target_exponents(offsets, ~own, label_sigma, 0.0).softmax(-1)
    gaps = torch.where(own[:, 1:] & own[:, :-1], values.diff(), 0.0)
    return ((q.cumsum(-1) - t.cumsum(-1)).abs()[:, :-1] * gaps).sum(-1, keepdim=True)


def number_losses(x: Tensor, index: Tensor, table: NumberTable, spec: LossSpec) -> tuple[Tensor, Tensor, Tensor]:
    """(NTL_i, |yhat - v_y|, m), each [n, 1], of number rows x [n, V] with the number tokens ``index`` [n] as labels."""
    values, own, ids = table.values.to(x.dtype), own_group(index, table), table.ids.long()
    unit, group = 1.0, table.groups_of(index, x.dtype)
    offsets = value_offsets(values, values[index], ~own)
    if group is not None:
        spec, unit = spec.in_group(group), group.unit
    q = x[:, ids].masked_fill(~own, -torch.inf).softmax(-1)  # eq. 4
    error = (q * offsets).sum(-1, keepdim=True)  # yhat - v_y (eq. 5); differences, for large values
    if spec.kind in VALUE_LOSSES:
        loss = VALUE_LOSSES[spec.kind].loss(error, spec.huber_delta)  # eq. 11
    elif spec.is_cumulative:
        loss = cumulative_distance(q, values, offsets, own, spec.label_sigma)
    else:
        loss = (q * costs(offsets, spec.cost_line)).sum(-1, keepdim=True)
    p = x.softmax(-1)[:, ids].masked_fill(~own, 0.0)
    mass = p.sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)  # eq. 5
    if spec.reweigh:
        loss = loss * mass + spec.worst_loss * (1 - mass)  # eq. 15
    return loss, error.abs() * unit, mass


def soft_label_losses(x: Tensor, index: Tensor, table: NumberTable, spec: LossSpec) -> Tensor:
    """KL(t || p) [n] of number rows x [n, V] with the number tokens ``index`` [n] as labels (eq. 37)."""
    values, others = table.values.to(x.dtype), ~own_group(index, table)
    offsets = value_offsets(values, values[index], others)
    exponents = target_exponents(offsets, others, spec.label_sigma, spec.label_temperature)
    log_t, log_p = exponents.log_softmax(-1), x.log_softmax(-1)[:, table.ids.long()]
    return (log_t.exp() * torch.where(log_t > -torch.inf, log_t - log_p, 0.0)).sum(-1)


def own_group(index: Tensor, table: NumberTable) -> Tensor:
    """bool [n, K]: which number tokens are in the groups of the labels, the number tokens ``index`` [n]."""
    places, group = torch.arange(table.ids.numel(), device=index.device), table.groups_of(index, torch.float32)
    return (places >= 0).expand(index.numel(), -1) if group is None else ~other_groups(group, places)


def row_fields(logits: Tensor, problem: Problem) -> Tensor:
    """The fields [NUM_FIELDS, N] of logits [N, V]; 0 for rows that do not count, whatever their logits are.

    An out-of-range label or weight (detected beforehand only on a CPU) makes its row NaN, without out-of-bounds access.
    """
    (labels, *given), table = problem.rows, problem.table
    labels, ones = labels.reshape(-1).long(), logits.new_ones(labels.numel())
    weights, number_weights = (ones if each is None else each.reshape(-1) for each in given)
    counts = is_kept(labels, problem.spec.ignore_index) & (weights != 0)
    in_range = (labels >= 0) & (labels < logits.shape[-1])
    validity = torch.where(counts & ~(in_range & (weights >= 0)), torch.nan, torch.ones_like(weights))
    labels = torch.where(counts & in_range, labels, 0)
    index = table.lookup[labels].long()
    is_number = counts & in_range & (index >= 0) & (number_weights != 0)

    weights = weights * validity
    x = transform_logits(torch.where(counts[:, None], logits * validity[:, None], 0.0), problem.spec)
    ce = cross_entropy(x, labels, problem.spec)
    index = index.clamp_min(0)
    is_possible = (x[:, table.ids.long()] != -torch.inf) & own_group(index, table)
    is_measured = is_number & is_possible.any(-1)  # else q does not exist
    terms = number_losses(torch.where(is_measured[:, None], x, 0.0), index, table, problem.spec)
    ntl, absolute_error, mass = (torch.where(is_measured, term.squeeze(-1), 0.0) for term in terms)
    if problem.spec.is_soft:
        soft = soft_label_losses(torch.where(is_number[:, None], x, 0.0), index, table, problem.spec)
        ntl = torch.where(is_number, soft, 0.0)
    peak = x.amax(-1)
    weights = torch.where(counts, weights, 0.0)
    weights_of_ntl = weights * torch.where(counts, number_weights.where(number_weights >= 0, torch.nan), 0.0)
    found = RowResult(
        cross_entropy=torch.where(counts, weights * ce, 0.0),
        is_correct=(counts & (x.gather(-1, labels[:, None]).squeeze(-1) >= peak)).to(logits.dtype),
        row_weight=weights,
        number_row_weight=torch.where(is_number, weights_of_ntl, 0.0),
        peak=torch.where(counts, peak, 0.0),
        total=torch.where(counts, (x - peak[:, None]).exp().sum(-1), 0.0),
        ntl=weights_of_ntl * ntl,
        absolute_error=absolute_error,
        mass=mass,
    )
    return torch.stack([torch.zeros_like(peak) if each is None else each for each in found])  # autograd needs no more


def forward(logits: Tensor, problem: Problem) -> Forward:
    """CE + lambda * NTL of logits [B..., V] (eq. 16 to 18) and its parts, differentiable by autograd."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    fields = row_fields(logits.reshape(-1, logits.shape[-1]).to(dtype), problem)
    sums, counts = (RowResult(*each.sum(-1).to(dtype).unbind()) for each in (fields, fields != 0))
    tokens, numbers, ntl_weight = (
        as_tensor(given, dtype, logits.device).to(dtype)
        for given in (
            sums.row_weight if problem.num_tokens is None else problem.num_tokens,
            sums.number_row_weight if problem.num_numbers is None else problem.num_numbers,
            problem.ntl_weight,
        )
    )
    parts = parts_of(sums, counts, tokens, numbers, problem)
    of_labels = label_losses(fields, problem.spec).sum().to(dtype)
    ce, ntl = reduced_terms(of_labels, sums.ntl, tokens, numbers, problem)
    loss = ce + ntl_weight * ntl
    if problem.spec.reduction == "none":
        loss = losses_of_rows(fields, problem)
    return Forward(loss, torch.stack(parts).detach(), fields.detach())
