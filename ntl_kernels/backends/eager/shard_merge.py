"""Merges the statistics of all ranks to the losses of the rows, and to what the gradient of any column needs."""

from __future__ import annotations

import torch
from torch import Tensor

from ...problem import Field, Problem
from ...reference import value_loss
from ..shards import Header, Merge, Merged, Statistic
from .labels import read_labels
from .losses import cross_entropy
from .normaliser import Normaliser, anchor, share_of
from .numbers import cumulative_terms, drain_of, reweighed
from .shard_headers import are_consistent, is_unchecked
from .shards import number_rows


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Merge]:
    spec, statistics = problem.spec, gathered[..., :-1].unbind(1)
    normaliser, _ = merged_sums(statistics[Statistic.PEAK], statistics[Statistic.TOTAL])
    label_logit = statistics[Statistic.LABEL_LOGIT].amax(0)
    distance = merged_distance(gathered, normaliser.peak, problem.vocab_size) if spec.label_smoothing else None
    labels = read_labels(problem, problem.vocab_size, gathered.dtype)
    weights = torch.ones_like(label_logit) if labels.weights is None else labels.weights.squeeze(-1)
    is_whole = None
    if is_unchecked(gathered):
        is_whole = are_consistent(gathered[:, : len(Header), -1], problem.vocab_size)
        weights = torch.where(is_whole, weights, torch.nan)
    fields, merged = (gathered.new_zeros((len(kind), len(label_logit))) for kind in (Field, Merged))
    ce = weights * cross_entropy(normaliser, label_logit, distance, spec)
    is_correct = (label_logit >= normaliser.peak).to(ce.dtype)
    torch.stack([ce, is_correct, weights, *normaliser], out=fields[: Field.NTL])
    if labels.counts is not None:
        fields.masked_fill_(~labels.counts, 0.0)
    torch.stack(normaliser, out=merged[: Merged.NUMBER_PEAK])
    if is_whole is not None:
        merged[Merged.PEAK].masked_fill_(~is_whole, torch.nan)  # also makes every gradient NaN

    rows = number_rows(labels)
    fields[Field.NUMBER_WEIGHT].index_copy_(0, rows, weights[rows])
    rows = rows[(gathered[:, Statistic.NUMBER_TOTAL, rows] != 0).any(0)]  # of the others, all number tokens are -inf
    number_normaliser, loss, effect, error = merged_numbers(
        gathered[:, Statistic.NUMBER_PEAK : Statistic.LOGIT_SUM, rows],
        None if number_logits is None else number_logits[rows],
        labels.targets[rows],
        problem,
    )
    mass = share_of(number_normaliser, Normaliser(*(part[rows] for part in normaliser)))
    ntl = reweighed(drain_of(loss, mass, spec), spec) if spec.reweigh else loss
    found = torch.stack([weights[rows] * ntl, error.abs(), mass])
    fields[Field.NTL : Field.NUMBER_WEIGHT].index_copy_(1, rows, found)
    merged[Merged.NUMBER_PEAK :].index_copy_(1, rows, torch.stack([*number_normaliser, effect]))
    return fields, Merge(merged, number_logits)


def merged_numbers(
    sums: Tensor, number_logits: Tensor | None, targets: Tensor, problem: Problem
) -> tuple[Normaliser, Tensor, Tensor, Tensor]:
    """(the number tokens' normaliser, L, effect, yhat - v_y), each [n], from NUMBER_PEAK to COST [R, 4, n]."""
    normaliser, (error, effect) = merged_sums(*sums.unbind(1))
    if problem.spec.kind != "wasserstein":
        return normaliser, value_loss(error, problem.spec), error, error
    if number_logits is not None:
        terms = cumulative_terms(number_logits.softmax(-1), targets, problem.table, problem.spec)
        effect = terms.loss.squeeze(-1)
    return normaliser, effect, effect, error


def merged_sums(peaks: Tensor, totals: Tensor, *weighted: Tensor) -> tuple[Normaliser, list[Tensor]]:
    """(the normaliser, weighted means), each [N], from peaks, totals and weighted sums [R, N] shifted by the peaks."""
    peak = peaks.amax(0)
    scales = (peaks - anchor(peak)).exp_()
    total = (totals * scales).sum(0)
    return Normaliser(peak, total), [(sums * scales).sum(0) / total for sums in weighted]


def merged_distance(gathered: Tensor, peak: Tensor, vocab_size: int) -> Tensor:
    """The mean of x - peak [N] over all columns, from each rank's sums to its own peak."""
    widths = gathered[:, Header.WIDTH, -1:]
    own_peaks = anchor(gathered[:, Statistic.PEAK, :-1])
    return (gathered[:, Statistic.LOGIT_SUM, :-1] + widths * (own_peaks - peak)).sum(0) / vocab_size
