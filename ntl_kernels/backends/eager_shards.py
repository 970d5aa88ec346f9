"""The contract of shards, implemented with torch operations on the same blocks of rows as :mod:`.eager`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..formulas import costs, divergence
from ..problem import Header, Problem, RowResult, Statistics
from ..value_losses import VALUE_LOSSES
from .contract import UNKNOWN, num_statistics
from .eager.blocks import Block, Blocks
from .eager.gradients import LocalNumbers, all_terms, local_column, local_numbers
from .eager.labels import Labels, picked, read_labels
from .eager.numbers import mass_gradient_of
from .eager.rows import as_fields, cross_entropy
from .eager.softmax import Normaliser, anchor, normaliser_of, share_of, transform_, transform_logits
from .layout import loss_dtype


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    width, dtype, size = logits.shape[-1], loss_dtype(logits.dtype), num_statistics(problem.spec)
    unknown = torch.tensor(UNKNOWN[:size], dtype=dtype, device=logits.device)
    statistics = unknown[:, None].repeat(1, problem.rows.labels.numel() + 1)
    if width:
        numbers = local_numbers(problem.table, first, width, dtype)

        def work(block: Block) -> None:
            found = block_statistics(block, first, numbers, problem)
            statistics[:, :-1][:, block.rows] = torch.cat(found[:size], -1).t()

        Blocks(logits, read_labels(problem, problem.vocab_size, dtype), None).for_each(work)
    return statistics


def block_statistics(block: Block, first: int, numbers: LocalNumbers, problem: Problem) -> Statistics:
    """The statistics [n, 1] of a block in which all rows count."""
    spec, labels = problem.spec, block.labels
    x = transform_logits(block, spec)
    column, is_here = local_column(labels.tokens, first, x.shape[1])
    peak = x.amax(-1, keepdim=True)
    found = Statistics(*(torch.full_like(peak, number) for number in UNKNOWN))
    if labels.has_numbers and numbers.values.numel():
        relative = labels.relative(numbers.values, numbers.places)
        number_x = relative.own(picked(x, numbers.columns), -torch.inf)
        number_peak = number_x.amax(-1, keepdim=True)
        powers = (number_x - anchor(number_peak)).exp_()
        sums = {"number_total": powers, "offset": powers * relative.offsets}
        if spec.is_soft:
            sums |= soft_statistics(number_x, number_peak, labels, numbers, problem)
        else:
            sums["cost"] = powers * costs(relative.offsets, labels.spec_of_rows(spec).cost_line)
        found = found._replace(
            number_peak=number_peak.masked_fill(labels.is_other, -torch.inf),
            **{name: part.sum(-1, keepdim=True).masked_fill_(labels.is_other, 0) for name, part in sums.items()},
        )
    label_logit = torch.where(is_here, x.gather(-1, column), -torch.inf)
    if spec.label_smoothing:
        logit_sum = torch.sub(x, anchor(peak), out=block.buffer("powers")).sum(-1, keepdim=True)
        found = found._replace(logit_sum=logit_sum)
    normaliser = normaliser_of(x, peak, block.buffer("powers") if x is block.logits else x)
    return found._replace(peak=peak, total=normaliser.total, label_logit=label_logit)


def soft_statistics(
    x: Tensor, peak: Tensor, labels: Labels, numbers: LocalNumbers, problem: Problem
) -> dict[str, Tensor]:
    """What a rank sends of soft labels before the sum over its number tokens, from their logits [n, k] and the peak."""
    exponents = labels.relative(problem.table.values).exponents(problem.spec)
    t, terms = divergence(exponents, x, anchor(peak), numbers.places)
    return {"cost": terms, "target": t}


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    dtype = loss_dtype(logits.dtype)
    labels = read_labels(problem, problem.vocab_size, dtype)
    numbers = local_numbers(problem.table, first, logits.shape[-1], dtype)
    columns = numbers.values.new_zeros((labels.tokens.shape[0], problem.table.ids.numel()))
    x = picked(logits, numbers.columns).flatten(0, 1).to(dtype)
    columns[:, numbers.places] = transform_(x, problem.spec).masked_fill(labels.is_other, 0)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> Tensor:
    spec, labels = problem.spec, read_labels(problem, problem.vocab_size, gathered.dtype)
    sent = Statistics(*gathered[:, :, :-1, None].unbind(1))
    normaliser, _ = merged_sums(sent.peak, sent.total)
    distance = None
    if spec.label_smoothing:  # the mean of x - peak over all columns, from each rank's sums to its peak
        widths = Header(*gathered[:, : len(Header._fields), -1:, None].unbind(1)).width
        distance = (sent.logit_sum + widths * (anchor(sent.peak) - normaliser.peak)).sum(0) / problem.vocab_size
    label_logit = sent.label_logit.amax(0)
    ce = cross_entropy(normaliser, label_logit, distance, spec)

    weight, number_weight = labels.weights_like(ce)
    found = RowResult(
        cross_entropy=labels.weighted(ce),
        is_correct=(label_logit >= normaliser.peak).to(ce.dtype),
        row_weight=weight,
        number_row_weight=number_weight,
        peak=normaliser.peak,
        total=normaliser.total,
        **merged_numbers(sent, number_logits, labels, normaliser, problem),
    )
    is_unmeasured = labels.is_other | (sent.number_total == 0).all(0)
    fields = as_fields(found, labels.is_other, is_unmeasured, spec)
    if labels.counts is not None:
        fields.masked_fill_(~labels.counts, 0.0)
    return fields


def merged_numbers(
    sent: Statistics, number_logits: Tensor | None, labels: Labels, whole: Normaliser, problem: Problem
) -> dict[str, Tensor]:
    """What :class:`RowResult` knows of number rows besides weights, each [N, 1]; arbitrary in other rows."""
    spec = labels.spec_of_rows(problem.spec)
    over_numbers, (error, mean_dloss_dq) = merged_sums(sent.number_peak, sent.number_total, sent.offset, sent.cost)
    if number_logits is not None:
        mean_dloss_dq = all_terms(number_logits, labels, problem).loss
    loss = mean_dloss_dq
    if spec.is_soft:
        moved = sent.target * (whole.peak - anchor(sent.number_peak))
        loss = (sent.cost + moved).sum(0) + whole.total.log()
    elif spec.kind != "wasserstein":
        loss, mean_dloss_dq = VALUE_LOSSES[spec.kind].loss(error, spec.huber_delta), error
    mass = share_of(over_numbers, whole)
    ntl = labels.weighted_numbers(mass_gradient_of(loss, mass, spec) + spec.worst_loss if spec.reweigh else loss)
    error = error.abs() if labels.group is None else error.abs() * labels.group.unit
    of_numbers = {"number_peak": over_numbers.peak, "number_total": over_numbers.total, "mean_dloss_dq": mean_dloss_dq}
    return of_numbers | {"ntl": ntl, "absolute_error": error, "mass": mass}


def merged_sums(peaks: Tensor, totals: Tensor, *weighted: Tensor) -> tuple[Normaliser, list[Tensor]]:
    """(the normaliser, weighted means), each [N, 1], from peaks, totals and weighted sums [R, N, 1] relative to the
    peaks."""
    peak = peaks.amax(0)
    scales = (peaks - anchor(peak)).exp_()
    total = (totals * scales).sum(0)
    return Normaliser(peak, total), [(sums * scales).sum(0) / total for sums in weighted]
