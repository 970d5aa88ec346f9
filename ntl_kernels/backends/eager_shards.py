"""The contract of shards in torch operations, over the same blocks of rows as :mod:`.eager`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..problem import Problem
from ..reference import costs, value_losses
from ..spec import LossSpec
from ..tokens import NumberTable
from . import Field, Rows
from .eager import (
    Labels,
    blocks,
    cross_entropy,
    cumulative_effects,
    read_labels,
    reweighed,
    transform_,
    transform_logits,
    value_slope,
)
from .layout import loss_dtype
from .shards import Merged, Statistic

class OwnNumbers(NamedTuple):
    """The number tokens among a rank's columns."""

    places: Tensor
    """int64 [k]: their indices among all number tokens."""
    columns: Tensor
    """int64 [k]: their columns, from the rank's first."""
    values: Tensor
    """[k]"""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    labels = labels_of(problem, logits.dtype)
    statistics = nothing_known(logits.new_empty((), dtype=loss_dtype(logits.dtype)), labels.ids.shape[0])
    width = logits.shape[-1]
    if width == 0:
        return statistics
    own = own_numbers(problem.table, first, width, statistics.dtype)
    for block in blocks(logits, labels.counts, None):
        chosen = Labels(*(part[block.rows] for part in labels))
        x = transform_logits(block, problem.spec)
        entries = nothing_known(statistics, x.shape[0])
        column = chosen.ids - first
        label_logits = x.gather(-1, column.clamp(0, width - 1)[:, None]).squeeze(-1)
        entries[Statistic.LABEL_LOGIT] = torch.where((column >= 0) & (column < width), label_logits, -torch.inf)
        if problem.spec.label_smoothing:
            entries[Statistic.LOGIT_SUM] = x.sum(-1)
        rows = chosen.is_number.nonzero().squeeze(-1)
        if rows.numel() and own.places.numel():
            targets = targets_of(chosen.ids[rows], problem.table, x.dtype)
            entries[Statistic.NUMBER_PEAK :, rows] = number_sums(x[rows[:, None], own.columns], targets, own, problem.spec)
        entries[Statistic.PEAK] = peak = x.amax(-1)
        powers = block.buffer("x") if x is block.logits else x
        entries[Statistic.TOTAL] = torch.sub(x, anchor(peak)[:, None], out=powers).exp_().sum(-1)
        statistics[:, block.rows] = entries
    return statistics


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    labels, length = labels_of(problem, logits.dtype), logits.shape[1]
    own = own_numbers(problem.table, first, logits.shape[-1], loss_dtype(logits.dtype))
    columns = own.values.new_zeros((labels.ids.shape[0], problem.table.ids.numel()))
    rows = labels.is_number.nonzero()
    if rows.numel() and own.places.numel():
        x = logits[rows // length, rows % length, own.columns].to(columns.dtype)
        columns[rows, own.places] = transform_(x, problem.spec)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Tensor]:
    labels, spec = labels_of(problem, gathered.dtype), problem.spec
    statistics = dict(zip(Statistic, gathered.unbind(1), strict=True))
    peak, lse, _ = merged_sums(statistics[Statistic.PEAK], statistics[Statistic.TOTAL])
    label_logit = statistics[Statistic.LABEL_LOGIT].amax(0)
    mean = statistics[Statistic.LOGIT_SUM].sum(0) / vocab_size_of(problem) if spec.label_smoothing else None
    _, number_lse, (offset, cost) = merged_sums(
        statistics[Statistic.NUMBER_PEAK],
        statistics[Statistic.NUMBER_TOTAL],
        statistics[Statistic.OFFSET],
        statistics[Statistic.COST],
    )
    if spec.kind != "wasserstein":
        effect, loss = offset, value_losses(offset, spec)
    else:
        effect = loss = cost if number_logits is None else cumulative_losses(number_logits, labels, problem)
    mass = (number_lse - lse).exp()
    fields = gathered.new_zeros((len(Field), labels.ids.shape[0]))
    fields[Field.CROSS_ENTROPY] = labels.weights * cross_entropy(lse, label_logit, mean, spec)
    fields[Field.NTL] = labels.weights * reweighed(loss, mass, spec)
    fields[Field.ABSOLUTE_ERROR], fields[Field.MASS] = offset.abs(), mass
    fields[Field.IS_CORRECT], fields[Field.LSE] = label_logit >= peak, lse
    fields[Field.WEIGHT], fields[Field.NUMBER_WEIGHT] = labels.weights, labels.weights
    fields.masked_fill_(~labels.counts, 0.0)
    numbers_only = [Field.NTL, Field.ABSOLUTE_ERROR, Field.MASS, Field.NUMBER_WEIGHT]
    fields[numbers_only] = fields[numbers_only].masked_fill_(~labels.is_number, 0.0)
    return fields, torch.stack([lse, number_lse, effect])


def nothing_known(like: Tensor, num_rows: int) -> Tensor:
    """Statistics [len(Statistic), N] of no columns at all."""
    statistics = like.new_zeros((len(Statistic), num_rows))
    statistics[PEAKS] = -torch.inf
    return statistics

def shard_gradients(
    logits: Tensor,
    problem: Problem,
    first: int,
    merged: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    width = logits.shape[-1]
    if width == 0:
        return
    spec, labels = problem.spec, labels_of(problem, logits.dtype)
    factors = row_factors(labels, merged, upstream, problem)
    own = own_numbers(problem.table, first, width, merged.dtype)
    for block in blocks(logits, labels.counts, gradient):
        chosen, factor = Labels(*(part[block.rows] for part in labels)), Factors(*(f[block.rows] for f in factors))
        x, statistics = transform_logits(block, spec), merged[:, block.rows]
        rows = chosen.is_number.nonzero().squeeze(-1)  # of the block
        pulls = None
        if rows.numel() and own.places.numel():
            all_logits = None if number_logits is None else number_logits[block.rows][rows]
            effects = own_effects(chosen.ids[rows], statistics[Merged.EFFECT, rows], all_logits, own, problem)
            q = (x[rows[:, None], own.columns] - statistics[Merged.NUMBER_LSE, rows, None]).exp_()
            pulls = q * (factor.number_slope[rows, None] * effects - factor.excess[rows, None])
        g = torch.sub(x, statistics[Merged.LSE][:, None], out=block.target(x, keep=spec.softcap is not None)).exp_()
        g.mul_(factor.slope[:, None])
        if spec.label_smoothing:
            g.sub_(factor.label[:, None] * (spec.label_smoothing / vocab_size_of(problem)))
        if pulls is not None:
            g[rows[:, None], own.columns] += pulls
        column = chosen.ids - first
        is_own = (column >= 0) & (column < width)
        pull = torch.where(is_own, factor.label * (spec.label_smoothing - 1), 0.0)
        g.scatter_add_(-1, column.clamp(0, width - 1)[:, None], pull[:, None])
        if spec.softcap is not None:
            g.mul_(1 - (x / spec.softcap) ** 2)
        block.write(g if spec.logit_scale == 1 else g.mul_(spec.logit_scale))


class Factors(NamedTuple):
    """What the gradient of a row is made of besides its logits, each [N]."""

    label: Tensor
    """a: the coefficient of cross-entropy."""
    slope: Tensor
    """Of p, in every column."""
    number_slope: Tensor
    """Of q_k (e_k - mean effect), in number columns."""
    excess: Tensor
    """b m (worst loss - L), with reweigh: part of the slope, which number columns give back; 0 off number rows."""


def row_factors(labels: Labels, merged: Tensor, upstream: Tensor, problem: Problem) -> Factors:
    spec = problem.spec
    a, b = (upstream * part for part in coefficients(labels, problem))
    lse, number_lse, effect = merged.unbind()
    number_slope, excess = b, torch.zeros_like(b)
    if spec.kind != "wasserstein":
        number_slope = b * value_slope(effect, spec)
    if spec.reweigh:
        loss = effect if spec.kind == "wasserstein" else value_losses(effect, spec)
        mass = (number_lse - lse).exp()
        number_slope = number_slope * mass
        excess = torch.where(labels.is_number, b * mass * (spec.worst_loss - loss), 0.0)
    return Factors(a, a * (1 + 2 * spec.z_loss * lse) + excess, number_slope, excess)


def own_effects(
    ids: Tensor, mean_effect: Tensor, number_logits: Tensor | None, own: OwnNumbers, problem: Problem
) -> Tensor:
    """e_k - sum_j q_j e_j [n, k] of the rank's number tokens, for number rows with the labels ``ids`` [n]."""
    table, spec = problem.table, problem.spec
    targets = targets_of(ids, table, own.values.dtype)
    if number_logits is not None:
        q = number_logits.softmax(-1)
        effects, _ = cumulative_effects(q, table.values.to(q.dtype), targets, spec.label_sigma)
        return effects[:, own.places] - (q * effects).sum(-1, keepdim=True)
    effects = costs(own.values, targets, spec) if spec.kind == "wasserstein" else own.values - targets[:, None]
    return effects - mean_effect[:, None]


def nothing_known(like: Tensor, num_rows: int) -> Tensor:
    """Statistics [len(Statistic), N] of no columns at all."""
    statistics = like.new_zeros((len(Statistic), num_rows))
    statistics[[Statistic.PEAK, Statistic.LABEL_LOGIT, Statistic.NUMBER_PEAK]] = -torch.inf
    return statistics


def number_sums(x: Tensor, targets: Tensor, own: OwnNumbers, spec: LossSpec) -> Tensor:
    """The last four statistics [4, n] of number rows with the rank's number logits x [n, k] and label values [n]."""
    peak = x.amax(-1)
    powers = (x - anchor(peak)[:, None]).exp_()
    offset = (powers * (own.values - targets[:, None])).sum(-1)
    cost = (powers * costs(own.values, targets, spec)).sum(-1)
    return torch.stack([peak, powers.sum(-1), offset, cost])


def merged_sums(peaks: Tensor, totals: Tensor, *weighted: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(peak, logsumexp, weighted means), each [N], from peaks, totals and weighted sums [R, N] shifted by the peaks."""
    peak = peaks.amax(0)
    scales = (peaks - anchor(peak)).exp_()
    total = (totals * scales).sum(0)
    return peak, peak + total.log(), [(sums * scales).sum(0) / total for sums in weighted]


def anchor(peak: Tensor) -> Tensor:
    """The peak as something to subtract: 0 in place of -inf, since -inf - -inf is NaN."""
    return peak.masked_fill(peak == -torch.inf, 0.0)


def cumulative_losses(number_logits: Tensor, labels: Labels, problem: Problem) -> Tensor:
    """L [N] with ``label_sigma``; 0 off the number rows."""
    rows = labels.is_number.nonzero().squeeze(-1)
    q, values = number_logits[rows].softmax(-1), problem.table.values.to(number_logits.dtype)
    targets = targets_of(labels.ids[rows], problem.table, q.dtype)
    _, loss = cumulative_effects(q, values, targets, problem.spec.label_sigma)
    return loss.new_zeros(labels.ids.shape).index_copy_(0, rows, loss)


def own_numbers(table: NumberTable, first: int, width: int, dtype: torch.dtype) -> OwnNumbers:
    columns = table.ids.long() - first
    places = ((columns >= 0) & (columns < width)).nonzero().squeeze(-1)
    return OwnNumbers(places, columns[places], table.values[places].to(dtype))


def targets_of(ids: Tensor, table: NumberTable, dtype: torch.dtype) -> Tensor:
    """v_y [n] of labels [n] that are number tokens."""
    return table.values.to(dtype)[table.lookup[ids]]


def vocab_size_of(problem: Problem) -> int:
    return problem.table.lookup.shape[0]


def labels_of(problem: Problem, dtype: torch.dtype) -> Labels:
    logits = torch.empty(0, vocab_size_of(problem), dtype=dtype, device=problem.labels.device)
    return read_labels(Rows(logits, problem.labels, problem.token_weights), problem.table, problem.spec)


def coefficients(labels: Labels, problem: Problem) -> tuple[Tensor, Tensor]:
    a, b = problem.spec.ce_weight * labels.weights, problem.ntl_weight * labels.weights
    if problem.reduction != "mean":
        return a, b
    from ..reference import divide

    return divide(a, torch.as_tensor(problem.num_tokens)), divide(b, torch.as_tensor(problem.num_numbers))
