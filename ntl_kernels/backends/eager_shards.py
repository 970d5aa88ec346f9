"""The contract of shards in torch operations, over the same blocks of rows as :mod:`.eager`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..problem import Problem
from ..reference import costs, value_losses
from ..spec import LossSpec
from ..tokens import NumberTable
from . import Field
from .eager import (
    Labels,
    Normaliser,
    Scalar,
    anchor,
    blocks,
    coefficients_of,
    cross_entropy,
    cumulative_effects,
    normaliser_of,
    read_labels,
    share_of,
    transform_,
    transform_logits,
    value_slope,
)
from .layout import loss_dtype
from .shards import (
    HASH_MASK,
    NOT_GIVEN,
    Header,
    Merged,
    Statistic,
    disagreements,
    hash_of_options,
    num_statistics,
)

SCRAMBLER = 0x45D9F3B
WORD_MASK = 2**32 - 1


class OwnNumbers(NamedTuple):
    """The number tokens among a rank's columns."""

    places: Tensor
    """int64 [k]: their indices among all number tokens."""
    columns: Tensor
    """int64 [k]: their columns, from the rank's first."""
    values: Tensor
    """[k]"""


def shard_statistics(logits: Tensor, problem: Problem, first: int) -> Tensor:
    width, dtype, vocab_size = logits.shape[-1], loss_dtype(logits.dtype), vocab_size_of(problem)
    everything = nothing_known(problem.labels.numel() + 1, problem.spec, dtype, logits.device)
    labels = read_labels(problem, vocab_size, dtype)
    write_header(everything[:, -1], problem, labels, first, width)
    if width == 0:
        return everything
    statistics, own = everything[:, :-1], own_numbers(problem.table, first, width, dtype)
    for block, part in blocks(logits, labels, None):
        x = transform_logits(block, problem.spec)
        entries = nothing_known(x.shape[0], problem.spec, dtype, x.device)
        place, is_own = own_column(part.ids.squeeze(-1), first, width)
        label_logits = x.gather(-1, place[:, None]).squeeze(-1)
        entries[Statistic.LABEL_LOGIT] = torch.where(is_own, label_logits, -torch.inf)
        rows = number_rows(part)
        if rows.numel() and own.places.numel():
            sums = number_sums(x[rows[:, None], own.columns], part.targets[rows], own, problem.spec)
            entries[Statistic.NUMBER_PEAK : Statistic.LOGIT_SUM, rows] = sums
        peak = x.amax(-1, keepdim=True)
        if problem.spec.label_smoothing:
            entries[Statistic.LOGIT_SUM] = torch.sub(x, anchor(peak), out=block.buffer("powers")).sum(-1)
        normaliser = normaliser_of(x, peak, block.buffer("powers") if x is block.logits else x)
        entries[Statistic.PEAK : Statistic.TOTAL + 1] = torch.cat(normaliser, -1).t()
        statistics[:, block.rows] = entries
    return everything


def number_columns(logits: Tensor, problem: Problem, first: int) -> Tensor:
    dtype, length = loss_dtype(logits.dtype), logits.shape[1]
    labels = read_labels(problem, vocab_size_of(problem), dtype)
    own = own_numbers(problem.table, first, logits.shape[-1], dtype)
    columns = own.values.new_zeros((labels.ids.shape[0], problem.table.ids.numel()))
    rows = number_rows(labels)[:, None]
    if rows.numel() and own.places.numel():
        x = logits[rows // length, rows % length, own.columns].to(dtype)
        columns[rows, own.places] = transform_(x, problem.spec)
    return columns


def merge_shards(gathered: Tensor, number_logits: Tensor | None, problem: Problem) -> tuple[Tensor, Tensor]:
    spec, statistics = problem.spec, gathered[..., :-1].unbind(1)
    normaliser, _ = merged_sums(statistics[Statistic.PEAK], statistics[Statistic.TOTAL])
    label_logit = statistics[Statistic.LABEL_LOGIT].amax(0)
    distance = merged_distance(gathered, normaliser.peak, vocab_size_of(problem)) if spec.label_smoothing else None
    labels = read_labels(problem, vocab_size_of(problem), gathered.dtype)
    weights = torch.ones_like(label_logit) if labels.weights is None else labels.weights.squeeze(-1)
    is_whole = None
    if is_unchecked(gathered):
        is_whole = is_consistent(gathered[:, : len(Header), -1], vocab_size_of(problem))
        weights = torch.where(is_whole, weights, torch.nan)
    fields, merged = (gathered.new_zeros((len(kind), len(label_logit))) for kind in (Field, Merged))
    ce = weights * cross_entropy(normaliser, label_logit, distance, spec)
    is_correct = (label_logit >= normaliser.peak).to(ce.dtype)
    torch.stack([ce, is_correct, weights, *normaliser], out=fields[: Field.NTL])
    if labels.counts is not None:
        fields.masked_fill_(~labels.counts, 0.0)

    rows = number_rows(labels)
    sums = (sums[:, rows] for sums in statistics[Statistic.NUMBER_PEAK : Statistic.LOGIT_SUM])
    number_normaliser, (error, effect) = merged_sums(*sums)
    if spec.kind != "wasserstein":
        effect, loss = error, value_losses(error, spec)
    elif number_logits is None:
        loss = effect
    else:
        effect = loss = cumulative_terms(number_logits[rows], labels.targets[rows], problem)[2]
    mass = share_of(number_normaliser, Normaliser(*(part[rows] for part in normaliser)))
    ntl = weights[rows] * reweighed(loss, mass, spec)
    fields[Field.NTL :].index_copy_(1, rows, torch.stack([ntl, error.abs(), mass, weights[rows]]))
    torch.stack(normaliser, out=merged[: Merged.NUMBER_PEAK])
    if is_whole is not None:
        merged[Merged.PEAK].masked_fill_(~is_whole, torch.nan)  # and with it every gradient
    merged[Merged.NUMBER_PEAK :].index_copy_(1, rows, torch.stack([*number_normaliser, effect]))
    return fields, merged


def shard_gradients(
    logits: Tensor,
    problem: Problem,
    first: int,
    merged: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    width, spec = logits.shape[-1], problem.spec
    if width == 0:
        return
    labels = read_labels(problem, vocab_size_of(problem), merged.dtype)
    coefficients = coefficients_of(labels, problem, upstream.unsqueeze(-1) if upstream.ndim else upstream)
    own = own_numbers(problem.table, first, width, merged.dtype)
    for block, part in blocks(logits, labels, gradient):
        x, (peak, total, *of_numbers) = transform_logits(block, spec), merged[:, block.rows].unbind()
        normaliser = Normaliser(peak, total)
        a, b = (spread(share, peak) for share in coefficients.part(block.rows))
        rows, pulls = number_rows(part), None
        slope = a * (1 + 2 * spec.z_loss * normaliser.lse) if spec.z_loss else a.clone()
        if rows.numel():
            # What number rows add to the slope of all columns, and the pulls of their number columns.
            number_peak, number_total, effect = (entries[rows] for entries in of_numbers)
            mass = share_of(Normaliser(number_peak, number_total), Normaliser(peak[rows], total[rows]))
            terms = NumberTerms(effect, mass, part.targets[rows])
            row_b = b[rows]
            all_logits = None if number_logits is None else number_logits[block.rows][rows]
            number_slope, excess = number_factors(terms, problem.spec)
            slope.index_add_(0, rows, row_b * excess)
            q = (x[rows[:, None], own.columns] - number_peak[:, None]).exp_().div_(number_total[:, None])
            effects = own_effects(terms, all_logits, own, problem)
            pulls = q * (number_slope[:, None] * effects - excess[:, None]) * row_b[:, None]
        g = torch.sub(x, peak[:, None], out=block.target(x, keep=spec.softcap is not None)).exp_()
        g.mul_((slope / total)[:, None])
        if spec.label_smoothing:
            g.sub_(a[:, None] * (spec.label_smoothing / vocab_size_of(problem)))
        if pulls is not None:
            g[rows[:, None], own.columns] += pulls
        place, is_own = own_column(part.ids.squeeze(-1), first, width)
        g.scatter_add_(-1, place[:, None], (a * (spec.label_smoothing - 1) * is_own.to(g.dtype))[:, None])
        if spec.softcap is not None:
            g.mul_(1 - (x / spec.softcap) ** 2)
        block.write(g if spec.logit_scale == 1 else g.mul_(spec.logit_scale))


class NumberTerms(NamedTuple):
    """What all ranks together know of n number rows, each [n]."""

    effect: Tensor
    """As :class:`Merged` has it."""
    mass: Tensor
    targets: Tensor
    """What the labels are worth."""


def number_factors(terms: NumberTerms, spec: LossSpec) -> tuple[Tensor, Tensor]:
    """([n], [n]): what NTL gives to q_k (e_k - mean effect) in number columns, and to p in all, per unit of b."""
    slope = torch.ones_like(terms.mass) if spec.kind == "wasserstein" else value_slope(terms.effect, spec)
    if not spec.reweigh:
        return slope, torch.zeros_like(slope)
    loss = terms.effect if spec.kind == "wasserstein" else value_losses(terms.effect, spec)
    return slope * terms.mass, terms.mass * (spec.worst_loss - loss)


def own_effects(terms: NumberTerms, number_logits: Tensor | None, own: OwnNumbers, problem: Problem) -> Tensor:
    """e_k - sum_j q_j e_j [n, k] of the rank's number tokens; ``number_logits`` [n, K] with ``label_sigma`` only."""
    if number_logits is not None:
        q, effects, _ = cumulative_terms(number_logits, terms.targets, problem)
        return effects[:, own.places] - (q * effects).sum(-1, keepdim=True)
    if problem.spec.kind == "wasserstein":
        return costs(own.values, terms.targets, problem.spec) - terms.effect[:, None]
    return own.values - terms.targets[:, None] - terms.effect[:, None]


def cumulative_terms(number_logits: Tensor, targets: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """(q [n, K], effects [n, K], L [n]) of number rows with ``label_sigma``."""
    values = problem.table.values.to(number_logits.dtype)
    q = number_logits.softmax(-1)
    effects, loss = cumulative_effects(q, values, values - targets[:, None], problem.spec.label_sigma)
    return q, effects, loss.squeeze(-1)


def number_rows(labels: Labels) -> Tensor:
    """int64 [n], ascending: which rows are number rows."""
    return (~labels.is_other).view(-1).nonzero().view(-1)


def spread(share: Scalar, like: Tensor) -> Tensor:
    """A coefficient as one number a row, like a tensor [n]."""
    return share.reshape(-1).expand_as(like) if isinstance(share, Tensor) else torch.full_like(like, share)


def reweighed(loss: Tensor, mass: Tensor, spec: LossSpec) -> Tensor:
    """NTL_i [n] (docs, Mathematics, eq. 15) from L and the probability on number tokens."""
    return torch.lerp(torch.full_like(loss, spec.worst_loss), loss, mass) if spec.reweigh else loss


def nothing_known(num_rows: int, spec: LossSpec, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Statistics [S, num_rows] of no columns at all."""
    statistics = torch.zeros((num_statistics(spec), num_rows), dtype=dtype, device=device)
    statistics[[Statistic.PEAK, Statistic.LABEL_LOGIT, Statistic.NUMBER_PEAK]] = -torch.inf
    return statistics


def number_sums(x: Tensor, targets: Tensor, own: OwnNumbers, spec: LossSpec) -> Tensor:
    """NUMBER_PEAK to COST [4, n] of number rows with the rank's number logits x [n, k] and label values [n]."""
    peak = x.amax(-1)
    powers = (x - anchor(peak)[:, None]).exp_()
    offset = (powers * (own.values - targets[:, None])).sum(-1)
    cost = (powers * costs(own.values, targets, spec)).sum(-1)
    return torch.stack([peak, powers.sum(-1), offset, cost])


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


def header_of(problem: Problem, first: int, width: int, dtype: torch.dtype) -> Tensor:
    """[7]: what other ranks must know of this one."""
    labels = read_labels(problem.of_rows(dtype), vocab_size_of(problem), dtype)
    header = torch.empty(len(Header), dtype=dtype, device=problem.labels.device)
    write_header(header, problem, labels, first, width)
    return header


def write_header(header: Tensor, problem: Problem, labels: Labels, first: int, width: int) -> None:
    """Fill the first of S numbers with what other ranks must know of this one."""
    header[Header.FIRST], header[Header.WIDTH] = first, width
    header[Header.OPTIONS_HASH] = (hash_of_table(problem.table) + hash_of_options(problem)) & HASH_MASK
    header[Header.ROWS_HASH] = hash_of_rows(labels) & HASH_MASK
    header[Header.NUM_TOKENS] = NOT_GIVEN if problem.num_tokens is None else problem.num_tokens
    header[Header.NUM_NUMBERS] = NOT_GIVEN if problem.num_numbers is None else problem.num_numbers
    header[Header.NTL_WEIGHT] = problem.ntl_weight


def hash_of_table(table: NumberTable) -> Tensor:
    """int64 0-d, of the number tokens' ids and values."""
    return hash_of_pairs(table.ids.long(), bits_of(table.values))


def hash_of_rows(labels: Labels) -> Tensor:
    """int64 0-d, of the labels and weights of the rows that count, and of which these are."""
    ids = labels.ids.squeeze(-1)
    weights = torch.ones_like(labels.targets) if labels.weights is None else labels.weights.squeeze(-1)
    if labels.counts is not None:
        weights = torch.where(labels.counts, weights, 0.0)
    return hash_of_pairs(ids, bits_of(weights))


def hash_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """int64 0-d, of two columns [n] of 32-bit numbers in their order, as the kernels have it."""
    places = torch.arange(first.shape[0], device=first.device)
    return scrambled(scrambled(scrambled(places) ^ first) ^ second).sum()


def scrambled(x: Tensor) -> Tensor:
    """32-bit numbers, in int64, each of whose bits hangs on all bits of ``x``."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * SCRAMBLER) & WORD_MASK
    return x ^ (x >> 16)


def bits_of(values: Tensor) -> Tensor:
    """int64: the bits of values as float32."""
    return values.float().view(torch.int32).long() & WORD_MASK


def is_unchecked(gathered: Tensor) -> bool:
    """Whether nobody has looked at the headers: on a CPU somebody has."""
    return gathered.device.type != "cpu"


def is_consistent(headers: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether headers [R, 7] are of one problem and of all columns of its vocabulary, each once."""
    return is_covered(headers[:, : Header.OPTIONS_HASH], vocab_size) & ~disagreements(headers).any()


def is_covered(bounds: Tensor, vocab_size: int) -> Tensor:
    """bool 0-d: whether the columns of all ranks, of bounds [R, 2], are the whole vocabulary, each once."""
    first, width = bounds.unbind(-1)
    ranks = torch.arange(first.shape[0], device=first.device)
    is_before = (first < first[:, None]) | ((first == first[:, None]) & (ranks < ranks[:, None]))
    expected = (is_before * width).sum(-1)
    return ((width == 0) | (first == expected)).all() & (width.sum() == vocab_size)


def own_numbers(table: NumberTable, first: int, width: int, dtype: torch.dtype) -> OwnNumbers:
    columns = table.ids.long() - first
    places = ((columns >= 0) & (columns < width)).nonzero().squeeze(-1)
    return OwnNumbers(places, columns[places], table.values[places].to(dtype))


def own_column(ids: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
    """([n], bool [n]): the columns of token ids among the rank's, and whether they are there; column 0 if not."""
    place = ids - first
    is_own = (place >= 0) & (place < width)
    return torch.where(is_own, place, 0), is_own


def vocab_size_of(problem: Problem) -> int:
    return problem.table.lookup.shape[0]
