"""The row contract in torch operations: analytic gradients over cache-sized blocks of rows.

Serves CPUs and every device without Triton. The large work runs in a block of rows at a time, in the losses' dtype,
so that a block is read from memory once and no second [N, V] tensor exists beside the gradient. A small problem is one
block, and then what its operations compute costs less than calling them: what holds for all rows (weights of 1, one
denominator) is a Python number there, and what only number rows need is not computed without any. In a block with a
number row every row is computed as one, and what that says of the others is masked: number columns are few, and picking
rows out of them costs more than it saves.

What rows hold stands in columns [n, 1] inside a block, since that is what multiplies a block [n, V].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from ..problem import Problem, in_dtype, is_kept
from ..reference import costs, divide, value_losses
from ..spec import LossSpec
from ..tokens import NumberTable
from . import Field, Forward, NumberField, losses_of_rows
from .layout import loss_dtype

BLOCK_BYTES = {"cpu": 6 * 2**20}
"""Bytes of a block of rows in the losses' dtype: near the cores, and yet so large that calling the operations costs
little beside them (measured on two cores with 1 MiB of L2 each and 32 MiB of L3)."""
DEVICE_BLOCK_BYTES = 2**26
"""The same on other devices, where fewer, larger operations are faster."""


Rows: TypeAlias = Union[slice, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""Which rows: a slice, or int64 indices."""
Scalar: TypeAlias = Union[float, Tensor]  # noqa: UP007
"""One number for all rows: a Python number, or a 0-d tensor where asking for it would wait for a device."""


class Labels(NamedTuple):
    """What the labels of n rows say."""

    ids: Tensor
    """int64 [n, 1], 0 where the row does not count or the label is out of range."""
    counts: Tensor | None
    """bool [n]: not ignored, and with a weight other than 0; None if all do."""
    weights: Tensor | None
    """[n, 1]: 0 where the row does not count, NaN where its label or weight is out of range; None if all are 1."""
    is_other: Tensor
    """bool [n, 1]: not a number row, which counts and whose label is a number."""
    num_others: Scalar
    """How many rows those are."""
    targets: Tensor
    """[n]: what the labels of the number rows are worth; any number elsewhere."""

    @property
    def has_numbers(self) -> bool:
        """Whether there may be number rows, which only a CPU is asked for: another device would be waited for."""
        return isinstance(self.num_others, Tensor) or self.num_others < self.is_other.shape[0]

    def part(self, rows: Rows) -> Labels:
        """Of some of the rows that count."""
        weights = None if self.weights is None else chosen(self.weights, rows)
        is_other = chosen(self.is_other, rows)
        return Labels(chosen(self.ids, rows), None, weights, is_other, count_true(is_other), chosen(self.targets, rows))


class NumberTerms(NamedTuple):
    """The Number Token Loss of n rows, and what its gradient is made of (docs, Mathematics, eq. 28 to 32)."""

    loss: Tensor
    """[n, 1]: NTL_i; anything off the number rows."""
    pulls: Tensor
    """[n, K]: the part of dNTL_i/dx_k that only number columns have; 0 off the number rows."""
    drain: Tensor | None
    """[n, 1]: ``-p_j * drain`` is the part that every column has; 0 off the number rows. None without reweighing."""


class Coefficients(NamedTuple):
    """What each row's CE and NTL weigh in the loss, times the upstream gradient (docs, Mathematics, eq. 19)."""

    a: Scalar
    """[n, 1], or one for all rows."""
    b: Scalar
    """[n, 1], or one for all rows."""

    def part(self, rows: Rows) -> Coefficients:
        return Coefficients(*(chosen(part, rows) if isinstance(part, Tensor) and part.ndim else part for part in self))


def forward(logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
    dtype = loss_dtype(logits.dtype)
    labels = read_labels(problem, logits.shape[-1], dtype)
    if problem.lacks_denominators:
        problem = problem.counted(*totals(labels))
    fields = solve(logits, labels, problem, gradient)
    loss, parts = finish(fields, problem)
    if problem.reduction == "none":
        loss = losses_of_rows(fields, problem)
    return Forward(loss, parts, fields)


def count(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
    tokens, numbers = totals(read_labels(problem, vocab_size, dtype))
    return gathered([tokens, numbers], dtype, problem.labels.device)


def row_losses(logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
    fields.copy_(solve(logits, read_labels(problem, logits.shape[-1], fields.dtype), problem, gradient))


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    sums = listed(fields.sum(-1))
    ce, is_correct, tokens, _, _, ntl, absolute_error, mass, numbers = sums
    num_tokens = tokens if problem.num_tokens is None else as_scalar(problem.num_tokens)
    num_numbers = numbers if problem.num_numbers is None else as_scalar(problem.num_numbers)
    if problem.reduction == "mean":
        ce, ntl = divide(ce, num_tokens), divide(ntl, num_numbers)
    loss = ce + as_scalar(problem.ntl_weight) * ntl
    if not isinstance(loss, Tensor):
        loss = fields.new_full((), loss)
    if not problem.wants_parts:
        return loss, fields.new_empty(0)
    counts = sums if are_weights_ones(problem) else listed(fields.count_nonzero(-1))
    token_count, number_count = counts[Field.WEIGHT], counts[Field.NUMBER_WEIGHT]
    accuracy = divide(is_correct, token_count)
    error, mass = divide(absolute_error, number_count), divide(mass, number_count)
    return loss, gathered([ce, ntl, num_tokens, num_numbers, accuracy, error, mass], fields.dtype, fields.device)


def are_weights_ones(problem: Problem) -> bool:
    """Whether every weight is known to be 1 or 0: none was given, and none is NaN for a label out of range."""
    return problem.token_weights is None and problem.labels.device.type == "cpu"


def row_gradients(logits: Tensor, problem: Problem, normalisers: Tensor, upstream: Tensor, gradient: Tensor) -> None:
    spec, labels = problem.spec, read_labels(problem, logits.shape[-1], normalisers.dtype)
    coefficients = coefficients_of(labels, problem, upstream.unsqueeze(-1) if upstream.ndim else upstream)
    for block, part in blocks(logits, labels, gradient):
        x, normaliser = transform_logits(block, spec), normaliser_of_rows(normalisers, block.rows)
        q = number_distribution(x, part, problem, False)
        powers = torch.sub(x, normaliser.peak, out=block.target(x, keep=spec.softcap is not None)).exp_()
        numbers = None
        if part.has_numbers:
            number_p = powers.index_select(-1, problem.table.ids) / normaliser.total
            numbers = number_terms(number_p, q, part, problem)
        shares = coefficients.part(block.rows)
        block.write(row_gradient(x, powers, normaliser, normaliser.total, part, numbers, shares, problem))


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    if upstream.device.type == "cpu":  # asking a GPU would wait for it
        factor = upstream.item()
        if math.isfinite(factor):
            if factor != 1:
                gradient.mul_(upstream)
            return
    is_zero = torch.linalg.vector_norm(gradient, torch.inf, -1, keepdim=True) == 0
    gradient.mul_(torch.where(is_zero, 0.0, upstream))


def number_statistics(logits: Tensor, table: NumberTable) -> Tensor:
    shape = len(NumberField), logits.shape[0] * logits.shape[1]
    statistics = logits.new_empty(shape, dtype=loss_dtype(logits.dtype))
    for block in spans(logits, None, None):
        x = as_loss_dtype(block)
        number_logits = x.index_select(-1, table.ids)
        number_normaliser = normaliser_of(number_logits, number_logits.amax(-1, keepdim=True), number_logits)
        q = number_logits.div_(number_normaliser.total)
        expected_value = (q * table.values.to(q.dtype)).sum(-1, keepdim=True)
        normaliser = normaliser_of(x, x.amax(-1, keepdim=True), block.buffer("powers"))
        mass = share_of(number_normaliser, normaliser)
        found = torch.stack([*normaliser, *number_normaliser, expected_value, mass])
        statistics[:, block.rows] = found.squeeze(-1)
    return statistics


def number_statistics_gradients(
    logits: Tensor, table: NumberTable, statistics: Tensor, upstreams: Tensor, gradient: Tensor
) -> None:
    ids, values = table.ids.long(), table.values.to(statistics.dtype)
    for block in spans(logits, None, gradient):
        peak, total, number_peak, number_total, expected_value, mass = statistics[:, block.rows].unsqueeze(-1).unbind()
        upstream_value, upstream_mass = upstreams[:, block.rows].unsqueeze(-1).unbind()
        mass_pull = upstream_mass * mass
        x = as_loss_dtype(block)
        q = (x.index_select(-1, ids) - number_peak).exp() / number_total
        number_pull = upstream_value * (values - expected_value)
        g = torch.sub(x, peak, out=block.target(x, keep=False)).exp_().mul_(-mass_pull / total)
        block.write(g.index_add_(-1, ids, q * (mass_pull + number_pull)))


class Normaliser(NamedTuple):
    """Of n rows [n, V]: sum(exp(x)) is ``total * exp(peak)``, which may be beyond the dtype, and its logarithm beyond
    the digits that a difference to it needs."""

    peak: Tensor
    """[n, 1]: the largest x."""
    total: Tensor
    """[n, 1]: sum(exp(x - peak)), from 1 to V."""

    @property
    def lse(self) -> Tensor:
        """[n, 1]: the logsumexp of x. Not for differences: those are taken to the peak."""
        return self.peak + self.total.log()


def normaliser_of_rows(normalisers: Tensor, rows: Rows) -> Normaliser:
    """Of some of the rows of normalisers [2, N]."""
    return Normaliser(*(chosen(part, rows).unsqueeze(-1) for part in normalisers.unbind()))


def anchor(peak: Tensor) -> Tensor:
    """The peak as something to subtract: 0 in place of -inf, since -inf - -inf is NaN."""
    return peak.masked_fill(peak == -torch.inf, 0.0)


def normaliser_of(x: Tensor, peak: Tensor, buffer: Tensor) -> Normaliser:
    """Of x [n, V] with its peak [n, 1]; its powers, p up to the total, go into the buffer [n, V], which may be x."""
    return Normaliser(peak, torch.sub(x, anchor(peak), out=buffer).exp_().sum(-1, keepdim=True))


def softmax_and_normaliser(x: Tensor, peak: Tensor, out: Tensor) -> tuple[Tensor, Normaliser]:
    """(p [n, V], in ``out``, the normaliser) of x [n, V] with its peak [n, 1].

    The largest probability is 1 / total, so the total needs no pass of its own over x.
    """
    p = torch.softmax(x, -1, out=out)
    return p, Normaliser(peak, p.amax(-1, keepdim=True).reciprocal_())


def share_of(part: Normaliser, whole: Normaliser) -> Tensor:
    """The probability of a part of the columns in the whole, [n, 1]."""
    return (part.peak - whole.peak).exp_().mul_(part.total).div_(whole.total)


class Workspace:
    """Blocks of memory in the losses' dtype that every block of a walk uses again: fresh ones would page-fault."""

    def __init__(self, logits: Tensor, rows: int) -> None:
        self.logits = logits
        self.shape = rows, logits.shape[-1]
        self.buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, rows: int) -> Tensor:
        """The first rows of the buffer with this name."""
        if name not in self.buffers:
            self.buffers[name] = self.logits.new_empty(self.shape, dtype=loss_dtype(self.logits.dtype))
        return self.buffers[name][:rows]


class Block(NamedTuple):
    """The rows that count of a span of rows of the logits, and where their gradient goes."""

    span: slice
    """Of all N rows."""
    rows: Rows
    """Which of all N rows."""
    logits: Tensor
    """[n, V]"""
    gradient: Tensor | None
    """Of all rows of the span."""
    chosen: Tensor | None
    """int64 [n]: which rows of the span count; None if all do."""
    workspace: Workspace

    def buffer(self, name: str) -> Tensor:
        return self.workspace.buffer(name, self.logits.shape[0])

    def target(self, x: Tensor, keep: bool) -> Tensor:
        """Where to compute the gradient of x: its own place if that has the dtype, else x unless it must be kept."""
        assert self.gradient is not None
        if self.gradient.dtype == x.dtype and self.chosen is None:
            return self.gradient
        return self.buffer("gradient") if keep or x is self.logits else x

    def write(self, g: Tensor) -> None:
        """Put the gradient of the block's rows in its place, and 0 into the rows left out."""
        assert self.gradient is not None
        if self.chosen is not None:
            self.gradient.zero_()
            self.gradient.index_copy_(0, self.chosen, g.to(self.gradient.dtype))
        elif g is not self.gradient:
            self.gradient.copy_(g)


def spans(logits: Tensor, counts: Tensor | None, gradient: Tensor | None) -> Iterator[Block]:
    """Walk the rows that count ([N] bool, None: all) of logits [B, T, V] in blocks that fit the cache."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step = min(max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize)), max(1, length))
    workspace = Workspace(logits, step)
    for b in range(batch):
        sequence, targets = logits[b], None if gradient is None else gradient[b]
        for t in range(0, length, step):
            end = min(t + step, length)
            span = slice(b * length + t, b * length + end)
            is_whole = end - t == length
            rows = sequence if is_whole else sequence[t:end]
            target = targets if targets is None or is_whole else targets[t:end]
            counted = None if counts is None else counts[span].nonzero().squeeze(-1)
            if counted is None or counted.numel() == end - t:
                yield Block(span, span, rows, target, None, workspace)
            else:
                yield Block(span, counted + span.start, chosen(rows, counted), target, counted, workspace)


def blocks(logits: Tensor, labels: Labels, gradient: Tensor | None) -> Iterator[tuple[Block, Labels]]:
    """:func:`spans` with the labels of each block's rows."""
    for block in spans(logits, labels.counts, gradient):
        is_only = block.logits.shape[0] == labels.ids.shape[0]
        yield block, labels if is_only else labels.part(block.rows)


def read_labels(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Labels:
    """Look the labels up, without an access out of bounds whatever they are."""
    labels, weights, table = problem.labels.view(-1).long(), problem.token_weights, problem.table
    counts = None
    if weights is not None:
        weights = weights.view(-1)
        counts = is_kept(labels, problem.spec.ignore_index) & (weights != 0)
    elif not are_all_above(labels, problem.spec.ignore_index):
        counts = is_kept(labels, problem.spec.ignore_index)
    is_bad = None
    if labels.device.type != "cpu":  # on a CPU they have been checked
        is_bad = (labels < 0) | (labels >= vocab_size)
        labels = labels.masked_fill(is_bad, 0)
        weights = labels.new_ones(labels.shape, dtype=dtype) if weights is None else weights
        is_bad |= ~(weights >= 0)
        weights = weights.masked_fill(is_bad, torch.nan)
    if counts is not None and bool(counts.all()):
        counts = None
    ids = labels if counts is None else torch.where(counts, labels, 0)
    index = table.lookup.index_select(0, ids)
    is_other = index.signbit()  # half the price of < 0, which makes a tensor of the 0
    for out in (None if counts is None else ~counts, is_bad):
        is_other = is_other if out is None else is_other | out
    targets = table.values.to(dtype).index_select(0, index.clamp_min_(0))
    if weights is not None:
        weights = (weights if counts is None else torch.where(counts, weights, 0.0)).unsqueeze(-1)
    return Labels(ids.unsqueeze(-1), counts, weights, is_other.unsqueeze(-1), count_true(is_other), targets)


def chosen(tensor: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor [n, ...]."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def count_true(mask: Tensor) -> Scalar:
    """How many entries of a mask are true."""
    return as_scalar(mask.count_nonzero())


def are_all_above(labels: Tensor, ignore_index: int) -> bool:
    """Whether no label is the ignore index, seen in one look where it lies outside the vocabulary."""
    return labels.numel() == 0 or (ignore_index < 0 and labels.device.type == "cpu" and labels.min().item() >= 0)


def totals(labels: Labels) -> tuple[Scalar, Scalar]:
    """The sums of w over the rows that count and over the number rows."""
    if labels.weights is not None:
        return labels.weights.sum(), labels.weights.masked_fill(labels.is_other, 0).sum()
    rows = labels.ids.shape[0]
    return rows if labels.counts is None else count_true(labels.counts), rows - labels.num_others


def coefficients_of(labels: Labels, problem: Problem, upstream: Tensor | float = 1.0) -> Coefficients:
    """(a, b) of the rows; with an upstream gradient [n, 1] or weights, one per row."""
    a, b = upstream * problem.spec.ce_weight, upstream * as_scalar(problem.ntl_weight)
    if problem.reduction == "mean":
        assert problem.num_tokens is not None and problem.num_numbers is not None
        a, b = divide(a, as_scalar(problem.num_tokens)), divide(b, as_scalar(problem.num_numbers))
    return Coefficients(a, b) if labels.weights is None else Coefficients(a * labels.weights, b * labels.weights)


def as_scalar(given: Scalar) -> Scalar:
    """A Python number where asking for it waits for nothing."""
    return given.item() if isinstance(given, Tensor) and given.device.type == "cpu" else given


def listed(vector: Tensor) -> list[Scalar]:
    """The entries of a vector, each as by :func:`as_scalar`."""
    return vector.tolist() if vector.device.type == "cpu" else list(vector.unbind())


def gathered(scalars: list[Scalar], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Scalars as one tensor."""
    if device.type == "cpu" and not any(isinstance(scalar, Tensor) for scalar in scalars):
        return torch.tensor(scalars, dtype=dtype)
    return torch.stack([in_dtype(scalar, dtype, device) for scalar in scalars])


def solve(logits: Tensor, labels: Labels, problem: Problem, gradient: Tensor | None) -> Tensor:
    """The fields [len(Field), N] of all rows, and their gradient."""
    coefficients = Coefficients(0.0, 0.0) if gradient is None else coefficients_of(labels, problem)
    count = labels.ids.shape[0]
    fields = None
    for block, part in blocks(logits, labels, gradient):
        entries = solve_block(
            block, part, coefficients.part(block.rows) if part is not labels else coefficients, problem
        )
        if part is labels:
            return entries
        if fields is None:
            fields = entries.new_zeros((len(Field), count))
        fields[:, block.rows] = entries
    return logits.new_zeros((len(Field), count), dtype=loss_dtype(logits.dtype)) if fields is None else fields


def solve_block(block: Block, labels: Labels, coefficients: Coefficients, problem: Problem) -> Tensor:
    """The fields [len(Field), n] of a block, all of whose rows count, and their gradient."""
    spec, ids = problem.spec, problem.table.ids
    x = transform_logits(block, spec)
    label_logits, peak = x.gather(-1, labels.ids), x.amax(-1, keepdim=True)
    distance = mean_distance(x, peak, block.buffer("powers")) if spec.label_smoothing else None
    q = number_distribution(x, labels, problem, problem.wants_parts)
    number_p = None
    if block.gradient is None:
        powers = block.buffer("powers") if x is block.logits else x
        normaliser = normaliser_of(x, peak, powers)
        number_p = powers.index_select(-1, ids).div_(normaliser.total) if labels.has_numbers else None
    else:
        # The softmax may overwrite x, but not under a softcap, whose derivative needs x.
        p, normaliser = softmax_and_normaliser(x, peak, block.target(x, keep=spec.softcap is not None))
        number_p = p.index_select(-1, ids) if labels.has_numbers else None
    numbers = None if number_p is None else number_terms(number_p, q, labels, problem)
    if block.gradient is not None:
        block.write(row_gradient(x, p, normaliser, None, labels, numbers, coefficients, problem))
    ce = weighted(cross_entropy(normaliser, label_logits, distance, spec), labels)
    is_correct = weights = ntl = error = mass = number_weights = torch.zeros_like(ce)
    if numbers is not None:
        ntl = weighted(numbers.loss, labels).masked_fill(labels.is_other, 0)
    if problem.wants_parts:
        is_correct = (label_logits >= normaliser.peak).to(ce.dtype)
        weights = torch.ones_like(ce) if labels.weights is None else labels.weights
        if number_p is not None and q is not None:
            error = expected_error(q, labels.targets, problem.table).abs_().masked_fill_(labels.is_other, 0)
            mass = number_p.sum(-1, keepdim=True).masked_fill_(labels.is_other, 0)
            number_weights = weights.masked_fill(labels.is_other, 0)
    return torch.stack([ce, is_correct, weights, *normaliser, ntl, error, mass, number_weights]).squeeze(-1)


def weighted(terms: Tensor, labels: Labels) -> Tensor:
    """w times the terms of rows [n, 1]."""
    return terms if labels.weights is None else terms * labels.weights


def transform_logits(block: Block, spec: LossSpec) -> Tensor:
    """x [n, V] in the losses' dtype; the block's logits themselves where nothing changes."""
    if spec.softcap is None and spec.logit_scale == 1:
        return as_loss_dtype(block)
    return transform_(block.buffer("x").copy_(block.logits), spec)


def transform_(x: Tensor, spec: LossSpec) -> Tensor:
    """Transform logits in their memory."""
    if spec.softcap is None:
        return x.mul_(spec.logit_scale)
    return x.mul_(spec.logit_scale / spec.softcap).tanh_().mul_(spec.softcap)


def as_loss_dtype(block: Block) -> Tensor:
    """The block's logits [n, V] in the losses' dtype."""
    logits = block.logits
    return logits if logits.dtype == loss_dtype(logits.dtype) else block.buffer("x").copy_(logits)


def number_distribution(x: Tensor, labels: Labels, problem: Problem, is_shown: bool) -> Tensor | None:
    """q [n, K] of transformed logits x [n, V]: the softmax over the number tokens alone, or None if no row needs it.

    Call it before x is overwritten.
    """
    spec = problem.spec
    if not labels.has_numbers or (spec.reweigh and is_linear(spec) and not is_shown):
        return None
    return x.index_select(-1, problem.table.ids).softmax(-1)


def is_linear(spec: LossSpec) -> bool:
    """Whether L is linear in q, and so, reweighed, in p."""
    return spec.kind == "wasserstein" and spec.label_sigma == 0


def number_terms(p: Tensor, q: Tensor | None, labels: Labels, problem: Problem) -> NumberTerms:
    """From the probabilities [n, K] of number tokens among all tokens (p) and among themselves (q).

    Reweighed, NTL_i is ``worst_loss + sum_k p_k e_k`` with the effects ``e`` of :func:`reweighed_effects`, and those
    are also its derivatives by p.
    """
    spec, table = problem.spec, problem.table
    if spec.reweigh:
        pulls = (p * reweighed_effects(q, labels.targets, table, spec)).masked_fill_(labels.is_other, 0)
        drain = pulls.sum(-1, keepdim=True)
        return NumberTerms(drain + spec.worst_loss, pulls, drain)
    assert q is not None
    effects, mean_effect, loss = number_effects(q, labels.targets, table, spec)
    return NumberTerms(loss, (q * (effects - mean_effect)).masked_fill_(labels.is_other, 0), None)


def reweighed_effects(q: Tensor | None, targets: Tensor, table: NumberTable, spec: LossSpec) -> Tensor:
    """[n, K]: what probability on each number token adds to the loss of having none there."""
    if q is None:
        return costs(table.values.to(targets.dtype), targets, spec).sub_(spec.worst_loss)
    effects, mean_effect, loss = number_effects(q, targets, table, spec)
    return effects + (loss - mean_effect - spec.worst_loss)


def number_effects(q: Tensor, targets: Tensor, table: NumberTable, spec: LossSpec) -> tuple[Tensor, Tensor, Tensor]:
    """(dL/dq [n, K] up to one number a row, its mean under q [n, 1], L [n, 1]) of number rows."""
    values = table.values.to(q.dtype)
    if is_linear(spec):
        effects = costs(values, targets, spec)
        loss = (q * effects).sum(-1, keepdim=True)
        return effects, loss, loss
    if spec.kind == "wasserstein":
        effects, loss = cumulative_effects(q, values, values - targets[:, None], spec.label_sigma)
        return effects, (q * effects).sum(-1, keepdim=True), loss
    error = expected_error(q, targets, table)
    slope = value_slope(error, spec)
    return (values - targets[:, None]) * slope, error * slope, value_losses(error, spec)


def expected_error(q: Tensor, targets: Tensor, table: NumberTable) -> Tensor:
    """yhat - v_y [n, 1], from differences, which lose nothing where all values are large."""
    offsets = table.values.to(q.dtype) - targets[:, None]
    return (q * offsets).sum(-1, keepdim=True)  # no matmul: autocast would round it


def mean_distance(x: Tensor, peak: Tensor, buffer: Tensor) -> Tensor:
    """The mean of x - peak [n, 1] over the columns of x [n, V]."""
    return torch.sub(x, peak, out=buffer).mean(-1, keepdim=True)


def cross_entropy(normaliser: Normaliser, label_logits: Tensor, distance: Tensor | None, spec: LossSpec) -> Tensor:
    """CE_i [n, 1]; ``distance`` is the rows' mean x - peak, needed with label smoothing.

    All of it but the z-loss is made of differences, which lose nothing where all logits of a row are large.
    """
    if spec.ce_weight == 0:  # also where CE is infinite
        return torch.zeros_like(label_logits)
    log_total = normaliser.total.log()
    loss = normaliser.peak - label_logits + log_total
    if distance is not None:
        # No lerp: where one of the two is infinite, it may be inf - inf.
        loss = torch.add((1 - spec.label_smoothing) * loss, log_total - distance, alpha=spec.label_smoothing)
    if spec.z_loss:  # 0 times the square of a large lse would be NaN
        loss = loss + spec.z_loss * normaliser.lse**2
    return loss if spec.ce_weight == 1 else loss * spec.ce_weight


def value_slope(error: Tensor, spec: LossSpec) -> Tensor:
    """f'(error) of the expected-value losses, elementwise."""
    if spec.kind == "mse":
        return 2 * error
    return error.sign() if spec.kind == "mae" else error.clamp(-spec.huber_delta, spec.huber_delta)


def cumulative_effects(q: Tensor, values: Tensor, offsets: Tensor, label_sigma: float) -> tuple[Tensor, Tensor]:
    """(s [n, K], L [n, 1]) of the distance between cumulative distributions to a Gaussian around the label's value."""
    t = torch.softmax(-((offsets / label_sigma) ** 2) / 2, -1)
    gaps = torch.nn.functional.pad(values.diff(), (0, 1))  # nothing lies beyond the last value
    difference = q.cumsum(-1) - t.cumsum(-1)
    effects = (difference.sign() * gaps).flip(-1).cumsum(-1).flip(-1)
    return effects, (difference.abs() * gaps).sum(-1, keepdim=True)


def row_gradient(
    x: Tensor,
    p: Tensor,
    normaliser: Normaliser,
    total: Tensor | None,
    labels: Labels,
    numbers: NumberTerms | None,
    coefficients: Coefficients,
    problem: Problem,
) -> Tensor:
    """The gradient [n, V] of a block (docs, Mathematics, eq. 28 to 32), in the memory of its probabilities p [n, V].

    p may still lack its division by ``total`` [n, 1].
    """
    spec, (a, b) = problem.spec, coefficients
    factor = a * (1 + 2 * spec.z_loss * normaliser.lse) if spec.z_loss else a
    if numbers is not None and numbers.drain is not None:
        factor = (numbers.drain * -b).add_(factor)
    g = p.mul_(factor if total is None else factor / total)
    if spec.label_smoothing:
        g.sub_(a * (spec.label_smoothing / p.shape[-1]))
    if numbers is not None:
        add_to_columns_(g, problem.table.ids, numbers.pulls, b)
    add_to_labels_(g, labels.ids, a * (spec.label_smoothing - 1))
    if spec.softcap is not None:
        g.mul_(1 - (x / spec.softcap) ** 2)
    return g if spec.logit_scale == 1 else g.mul_(spec.logit_scale)


def add_to_columns_(g: Tensor, ids: Tensor, entries: Tensor, factor: Scalar) -> None:
    """Add factor times entries [n, K] to the columns ids [K] of g [n, V]."""
    ids = ids.long()  # of int32 indices index_add_ is several times slower
    if isinstance(factor, Tensor):
        g.index_add_(-1, ids, entries * factor)
    else:
        g.index_add_(-1, ids, entries, alpha=factor)


def add_to_labels_(g: Tensor, ids: Tensor, entry: Scalar) -> None:
    """Add one number a row to the columns ids [n, 1] of g [n, V]."""
    if isinstance(entry, Tensor):
        g.scatter_add_(-1, ids, entry.expand(ids.shape))
    else:
        g.scatter_(-1, ids, entry, reduce="add")
