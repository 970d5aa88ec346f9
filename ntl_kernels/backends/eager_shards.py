"""The contract of shards, implemented with torch operations on the same blocks of rows as :mod:`.eager`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..formulas import costs
from ..problem import Header, Merged, Problem, RowResult, Statistics
from ..tokens import NumberTable
from ..value_losses import VALUE_LOSSES
from .contract import UNKNOWN, Merge, num_statistics
from .eager.blocks import Block, Blocks
from .eager.labels import Factor, Labels, read_labels
from .eager.losses import as_fields, cross_entropy, cross_entropy_pulls, row_gradient
from .eager.numbers import NumberLoss, NumberTerms, cumulative_terms, drain_of, number_pulls, own, value_terms
from .eager.softmax import Normaliser, anchor, normaliser_of, share_of, transform_, transform_logits
from .layout import loss_dtype


class LocalNumbers(NamedTuple):
    """The number tokens among a rank's columns."""

    places: Tensor  # int64 [k]: their indices among all number tokens
    columns: Tensor  # int64 [k]: their columns, from the rank's first
    values: Tensor  # [k]


def local_numbers(table: NumberTable, first: int, width: int, dtype: torch.dtype) -> LocalNumbers:
    columns = table.ids.long() - first
    places = ((columns >= 0) & (columns < width)).nonzero().squeeze(-1)
    return LocalNumbers(places, columns[places], table.values[places].to(dtype))


def local_column(ids: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """(the columns of token ids among the rank's, whether they are there), in the ids' shape; column 0 if not."""
    column = ids - first
    is_here = (column >= 0) & (column < width)
    return torch.where(is_here, column, 0), is_here


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    width, dtype, size = logits.shape[-1], loss_dtype(logits.dtype), num_statistics(problem.spec)
    unknown = torch.tensor(UNKNOWN[:size], dtype=dtype, device=logits.device)
    statistics = unknown[:, None].repeat(1, problem.labels.numel() + 1)
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
    column, is_here = local_column(labels.ids, first, x.shape[1])
    peak = x.amax(-1, keepdim=True)
    found = Statistics(*(torch.full_like(peak, number) for number in UNKNOWN))
    if labels.has_numbers and numbers.places.numel():
        number_x = own(x.index_select(-1, numbers.columns), labels.others(problem.table, numbers.places), -torch.inf)
        number_peak = number_x.amax(-1, keepdim=True)
        powers = (number_x - anchor(number_peak)).exp_()
        offsets = numbers.values - labels.targets[:, None]
        cost = costs(numbers.values, labels.targets, labels.spec_of_rows(spec))
        sums = (part.sum(-1, keepdim=True) for part in (powers, powers * offsets, powers * cost))
        total, offset, cost = (part.masked_fill_(labels.is_other, 0) for part in sums)
        number_peak.masked_fill_(labels.is_other, -torch.inf)
        found = found._replace(number_peak=number_peak, number_total=total, offset=offset, cost=cost)
    label_logit = torch.where(is_here, x.gather(-1, column), -torch.inf)
    if spec.label_smoothing:
        logit_sum = torch.sub(x, anchor(peak), out=block.buffer("powers")).sum(-1, keepdim=True)
        found = found._replace(logit_sum=logit_sum)
    normaliser = normaliser_of(x, peak, block.buffer("powers") if x is block.logits else x)
    return found._replace(peak=peak, total=normaliser.total, label_logit=label_logit)


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    dtype = loss_dtype(logits.dtype)
    labels = read_labels(problem, problem.vocab_size, dtype)
    numbers = local_numbers(problem.table, first, logits.shape[-1], dtype)
    columns = numbers.values.new_zeros((labels.ids.shape[0], problem.table.ids.numel()))
    x = logits.index_select(-1, numbers.columns).flatten(0, 1).to(dtype)
    columns[:, numbers.places] = transform_(x, problem.spec).masked_fill(labels.is_other, 0)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
    spec, labels = problem.spec, read_labels(problem, problem.vocab_size, gathered.dtype)
    sent = Statistics(*gathered[:, :, :-1, None].unbind(1))
    normaliser, _ = merged_sums(sent.peak, sent.total)
    distance = None
    if spec.label_smoothing:  # the mean of x - peak over all columns, from each rank's sums to its peak
        widths = Header(*gathered[:, : len(Header._fields), -1:, None].unbind(1)).width
        distance = (sent.logit_sum + widths * (anchor(sent.peak) - normaliser.peak)).sum(0) / problem.vocab_size
    label_logit = sent.label_logit.amax(0)
    ce = cross_entropy(normaliser, label_logit, distance, spec)

    is_measured = ~labels.is_other & (sent.number_total != 0).any(0)  # of the others, all number tokens are -inf
    rows = is_measured.view(-1).nonzero().view(-1)
    parts = merged_numbers(gathered, number_logits, labels.part(rows), normaliser, rows, problem)
    ntl, error, mass, *of_numbers = (torch.zeros_like(ce).index_copy_(0, rows, part) for part in parts)
    weight = torch.ones_like(ce) if labels.weights is None else labels.weights
    found = RowResult(
        cross_entropy=labels.weighted(ce),
        is_correct=(label_logit >= normaliser.peak).to(ce.dtype),
        weight=weight,
        peak=normaliser.peak,
        total=normaliser.total,
        ntl=labels.weighted_numbers(ntl),
        absolute_error=error,
        mass=mass,
        number_weight=labels.weighted_numbers(torch.ones_like(ce)).masked_fill(labels.is_other, 0),
    )
    fields = as_fields(found)
    if labels.counts is not None:
        fields.masked_fill_(~labels.counts, 0.0)
    return fields, Merge(torch.stack(Merged(*normaliser, *of_numbers)).squeeze(-1), number_logits)


def merged_numbers(
    gathered: Tensor,
    number_logits: Tensor | None,
    labels: Labels,
    normaliser: Normaliser,
    rows: Tensor,
    problem: Problem,
) -> tuple[Tensor, ...]:
    """(NTL_i, |yhat - v_y|, the mass, and the number tokens' peak, total and effect), each [n, 1], of number rows."""
    spec, sent = labels.spec_of_rows(problem.spec), Statistics(*gathered[:, :, rows, None].unbind(1))
    over_numbers, (error, effect) = merged_sums(sent.number_peak, sent.number_total, sent.offset, sent.cost)
    if number_logits is not None:
        effect = all_terms(number_logits[rows], labels, problem).loss
    loss = effect
    if spec.kind != "wasserstein":
        loss, effect = VALUE_LOSSES[spec.kind].loss(error, spec.huber_delta), error
    mass = share_of(over_numbers, Normaliser(*(part[rows] for part in normaliser)))
    ntl = drain_of(loss, mass, spec) + spec.worst_loss if spec.reweigh else loss
    error = error.abs() if labels.group is None else error.abs() * labels.group.unit
    return ntl, error, mass, *over_numbers, effect


def all_terms(number_logits: Tensor, labels: Labels, problem: Problem) -> NumberTerms:
    """The terms with ``label_sigma`` of all number tokens, from their transformed logits [n, K]."""
    others = labels.others(problem.table)
    q, values = own(number_logits, others, -torch.inf).softmax(-1), problem.table.values.to(number_logits.dtype)
    return cumulative_terms(q, labels.targets, values, problem.spec, others)


def merged_sums(peaks: Tensor, totals: Tensor, *weighted: Tensor) -> tuple[Normaliser, list[Tensor]]:
    """(the normaliser, weighted means), each [N, 1], from peaks, totals and weighted sums [R, N, 1] relative to the
    peaks."""
    peak = peaks.amax(0)
    scales = (peaks - anchor(peak)).exp_()
    total = (totals * scales).sum(0)
    return Normaliser(peak, total), [(sums * scales).sum(0) / total for sums in weighted]


def shard_gradients(
    logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
) -> None:
    width, dtype, spec = logits.shape[-1], merge.merged.dtype, problem.spec
    if width == 0:
        return
    labels = read_labels(problem, problem.vocab_size, dtype).with_coefficients(problem, upstream)
    numbers_here = local_numbers(problem.table, first, width, dtype)

    def work(block: Block) -> None:
        x, numbers = transform_logits(block, spec), None
        known = Merged(*merge.merged[:, block.rows].unsqueeze(-1).unbind())
        column, is_here = local_column(block.labels.ids, first, width)
        a, b = (spread(factor, known.peak) for factor in (block.labels.a, block.labels.b))
        part = block.labels._replace(ids=column, a=a, b=b)
        if part.has_numbers:
            number_x = x.index_select(-1, numbers_here.columns)
            number_logits = None if merge.number_logits is None else merge.number_logits[block.rows]
            numbers = local_loss(number_x, known, number_logits, part, numbers_here, problem)
        pulls = cross_entropy_pulls(a, Normaliser(known.peak, known.total), problem.vocab_size, spec)
        pulls = pulls._replace(label=pulls.label * is_here)
        powers = torch.sub(x, known.peak, out=block.target(x, keep=spec.softcap is not None)).exp_()
        block.write(row_gradient(x, powers, known.total, pulls, part, numbers, numbers_here.columns, spec))

    Blocks(logits, labels, gradient).for_each(work)


def spread(factor: Factor, like: Tensor) -> Tensor:
    """A factor with one number per row, shaped like a tensor [n, 1]."""
    return factor.expand_as(like) if isinstance(factor, Tensor) else torch.full_like(like, factor)


def local_loss(
    x: Tensor, known: Merged, number_logits: Tensor | None, labels: Labels, numbers: LocalNumbers, problem: Problem
) -> NumberLoss:
    """The terms of the gradient by the rank's number logits x [n, k]; ``number_logits`` [n, K] with ``label_sigma``."""
    spec, targets = labels.spec_of_rows(problem.spec), labels.targets
    x = own(x, labels.others(problem.table, numbers.places), -torch.inf)
    if number_logits is not None:
        terms = all_terms(number_logits, labels, problem)
        terms = terms._replace(effects=terms.effects[:, numbers.places])
    elif spec.kind == "wasserstein":
        terms = NumberTerms(costs(numbers.values, targets, spec), known.effect, known.effect)
    else:
        terms = value_terms(numbers.values, targets, known.effect, spec)
    whole, over_numbers = Normaliser(known.peak, known.total), Normaliser(known.number_peak, known.number_total)
    pulls = number_pulls(whole.probabilities(x), over_numbers.probabilities(x), terms, spec)
    is_unmeasured = known.number_total == 0
    pulls.masked_fill_(is_unmeasured, 0)
    if not spec.reweigh:
        return NumberLoss(None, pulls, None)
    drain = drain_of(terms.mean_effect, share_of(over_numbers, whole), spec, terms.remainder)
    return NumberLoss(None, pulls, drain.masked_fill_(is_unmeasured, 0))
