"""The row contract in torch operations: analytic gradients over cache-sized blocks of rows.

Serves CPUs and every device without Triton. The large work runs in a block of rows at a time, in the losses' dtype,
so that a block is read from memory once and no second [N, V] tensor exists beside the gradient.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..reference import costs, divide, value_losses
from ..spec import LossSpec
from ..tokens import NumberTable
from . import Denominator, Field, Rows
from .layout import loss_dtype

BLOCK_BYTES = {"cpu": 6 * 2**20}
"""Bytes of a block of rows in the losses' dtype: near the cores, and yet so large that calling the operations costs
little beside them (measured on two cores with 1 MiB of L2 each and 32 MiB of L3)."""
DEVICE_BLOCK_BYTES = 2**26
"""The same on other devices, where fewer, larger operations are faster."""


FIELD_DENOMINATORS = [
    Denominator.NUM_TOKENS,
    Denominator.NUM_NUMBERS,
    Denominator.NUMBER_COUNT,
    Denominator.NUMBER_COUNT,
    Denominator.TOKEN_COUNT,
]
"""What divides each field's total, LSE apart."""


class Labels(NamedTuple):
    """What the labels of N rows say, each [N]."""

    ids: Tensor
    """int64, 0 where the row does not count or the label is out of range."""
    counts: Tensor
    """bool: not ignored, and with a weight other than 0."""
    weights: Tensor
    """0 where the row does not count, NaN where its label or weight is out of range."""
    is_number: Tensor
    """bool: counts, and the label is a number token."""


class NumberRows(NamedTuple):
    """n number rows, and what of their loss does not depend on the other tokens."""

    rows: Tensor
    """int64 [n], ascending: which rows."""
    q: Tensor
    """[n, K] softmax over the number tokens alone."""
    pulls: Tensor
    """[n, K]: dL/dx_k is ``q_k * pull_k``, L before reweighing."""
    loss: Tensor
    """[n]: L before reweighing."""
    lse: Tensor
    """[n]: logsumexp over the number tokens alone."""
    absolute_error: Tensor
    """[n]: |yhat - v_y|."""


def denominators(
    rows: Rows,
    table: NumberTable,
    spec: LossSpec,
    num_tokens: Tensor | float | None,
    num_numbers: Tensor | float | None,
) -> Tensor:
    labels = read_labels(rows, table, spec)
    result = labels.weights.new_empty(len(Denominator))
    weights = labels.weights
    result[Denominator.NUM_TOKENS] = weights.sum() if num_tokens is None else num_tokens
    result[Denominator.NUM_NUMBERS] = (weights * labels.is_number).sum() if num_numbers is None else num_numbers
    result[Denominator.TOKEN_COUNT] = labels.counts.sum()
    result[Denominator.NUMBER_COUNT] = labels.is_number.sum()
    return result


def row_losses(
    rows: Rows,
    table: NumberTable,
    spec: LossSpec,
    reduction: str,
    denominators: Tensor,
    fields: Tensor,
    gradient: Tensor | None,
) -> None:
    labels = read_labels(rows, table, spec)
    a, b = coefficients(labels, spec, reduction, denominators)
    fields.zero_()
    numbers = NumberSweep(rows.logits, labels, table, spec)
    for block in blocks(rows.logits, labels.counts, gradient):
        chosen = Labels(*(part[block.rows] for part in labels))
        local, terms = numbers.of(block)
        x = transform_logits(block, spec)
        highest = x.amax(-1)
        label_logits = x.gather(-1, chosen.ids[:, None]).squeeze(-1)
        mean = x.mean(-1) if spec.label_smoothing else None
        if block.gradient is None:
            lse = x.logsumexp(-1)
        else:
            # The largest probability is exp(highest - lse), so lse needs no pass of its own. The softmax may
            # overwrite x, but not under a softcap, whose derivative needs x.
            p = torch.softmax(x, -1, out=block.target(x, keep=spec.softcap is not None))
            lse = highest - p.amax(-1).log()

        entries = fields.new_zeros((len(Field), lse.shape[0]))
        entries[Field.CROSS_ENTROPY] = chosen.weights * cross_entropy(lse, label_logits, mean, spec)
        entries[Field.IS_CORRECT] = label_logits >= highest
        entries[Field.LSE] = lse
        mass = None if terms is None else number_mass(terms, lse[local])
        if terms is not None and mass is not None:
            entries[Field.NTL, local] = chosen.weights[local] * reweighed(terms.loss, mass, spec)
            entries[Field.ABSOLUTE_ERROR, local] = terms.absolute_error
            entries[Field.MASS, local] = mass
        fields[:, block.rows] = entries
        if block.gradient is not None:
            ab = a[block.rows], b[block.rows]
            block.write(row_gradient(x, p, lse, local, terms, mass, chosen, *ab, table, spec))


def finish(fields: Tensor, denominators: Tensor, spec: LossSpec, reduction: str) -> tuple[Tensor, Tensor]:
    totals = fields[: Field.LSE].sum(-1)
    ce, ntl, absolute_error, mass, is_correct = divide(totals, denominators[FIELD_DENOMINATORS]).unbind()
    if reduction != "mean":
        ce, ntl = totals[Field.CROSS_ENTROPY], totals[Field.NTL]
    num_tokens, num_numbers, *_ = denominators.unbind()
    parts = torch.stack([ce, ntl, num_tokens, num_numbers, is_correct, absolute_error, mass])
    return ce + spec.ntl_weight * ntl, parts


def row_gradients(
    rows: Rows,
    table: NumberTable,
    spec: LossSpec,
    reduction: str,
    denominators: Tensor,
    lse: Tensor,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    labels = read_labels(rows, table, spec)
    a, b = (upstream * part for part in coefficients(labels, spec, reduction, denominators))
    numbers = NumberSweep(rows.logits, labels, table, spec)
    for block in blocks(rows.logits, labels.counts, gradient):
        chosen = Labels(*(part[block.rows] for part in labels))
        local, terms = numbers.of(block)
        x, row_lse = transform_logits(block, spec), lse[block.rows]
        p = torch.sub(x, row_lse[:, None], out=block.target(x, keep=spec.softcap is not None)).exp_()
        mass = None if terms is None else number_mass(terms, row_lse[local])
        ab = a[block.rows], b[block.rows]
        block.write(row_gradient(x, p, row_lse, local, terms, mass, chosen, *ab, table, spec))


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    if upstream.device.type != "cpu" or upstream.item() != 1:  # asking a GPU would wait for it
        gradient.mul_(upstream)


def number_statistics(logits: Tensor, table: NumberTable) -> Tensor:
    """[3, N]: lse, number_lse and expected value of every row of logits [B, T, V]."""
    statistics = logits.new_empty((3, logits.shape[0] * logits.shape[1]), dtype=loss_dtype(logits.dtype))
    for block in blocks(logits, None, None):
        x = as_loss_dtype(block)
        number_logits = x.index_select(-1, table.ids)
        q = number_logits.softmax(-1)
        expected_value = (q * table.values.to(q.dtype)).sum(-1)
        statistics[:, block.rows] = torch.stack([x.logsumexp(-1), number_logits.logsumexp(-1), expected_value])
    return statistics


def number_statistics_gradients(
    logits: Tensor,
    table: NumberTable,
    statistics: Tensor,
    upstream_value: Tensor,
    upstream_mass: Tensor,
    gradient: Tensor,
) -> None:
    """Fill ``gradient`` [B, T, V] with that of ``sum(upstream_value * yhat + upstream_mass * m)``, upstreams [N]."""
    ids, values = table.ids.long(), table.values.to(statistics.dtype)
    for block in blocks(logits, None, gradient):
        lse, number_lse, expected_value = statistics[:, block.rows].unbind()
        mass_pull = upstream_mass[block.rows] * (number_lse - lse).exp()
        x = as_loss_dtype(block)
        q = (x.index_select(-1, ids) - number_lse[:, None]).exp()
        number_pull = upstream_value[block.rows][:, None] * (values - expected_value[:, None])
        g = torch.sub(x, lse[:, None], out=block.target(x, keep=False)).exp_().mul_(-mass_pull[:, None])
        block.write(g.index_add_(-1, ids, q * (mass_pull[:, None] + number_pull)))


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


class Block:
    """The rows that count of a span of rows of the logits, and where their gradient goes."""

    def __init__(
        self,
        span: range,
        logits: Tensor,
        gradient: Tensor | None,
        chosen: Tensor | None,
        workspace: Workspace,
    ) -> None:
        self.span = span
        self.rows = slice(span.start, span.stop) if chosen is None else chosen + span.start
        self.logits = logits
        self.gradient = gradient
        self.chosen = chosen
        self.workspace = workspace

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
            self.gradient[self.chosen] = g.to(self.gradient.dtype)
        elif g is not self.gradient:
            self.gradient.copy_(g)


def blocks(logits: Tensor, counts: Tensor | None, gradient: Tensor | None) -> Iterator[Block]:
    """Walk the rows that count ([N] bool, None: all) of logits [B, T, V] in blocks that fit the cache."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step = min(max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize)), max(1, length))
    workspace = Workspace(logits, step)
    for b in range(batch):
        for t in range(0, length, step):
            end = min(t + step, length)
            span = range(b * length + t, b * length + end)
            target = None if gradient is None else gradient[b, t:end]
            chosen = None if counts is None else counts[span.start : span.stop].nonzero().squeeze(-1)
            if chosen is None or chosen.numel() == len(span):
                yield Block(span, logits[b, t:end], target, None, workspace)
            else:
                yield Block(span, logits[b, t:end][chosen], target, chosen, workspace)


def read_labels(rows: Rows, table: NumberTable, spec: LossSpec) -> Labels:
    """Look the labels up, without an access out of bounds whatever they are."""
    labels, dtype = rows.labels.reshape(-1).long(), loss_dtype(rows.logits.dtype)
    counts, is_valid = labels != spec.ignore_index, (labels >= 0) & (labels < rows.logits.shape[-1])
    weights = is_valid.to(dtype)
    if rows.token_weights is not None:
        weights = rows.token_weights.reshape(-1)
        counts, is_valid = counts & (weights != 0), is_valid & (weights >= 0)
    ids = torch.where(counts & is_valid, labels, 0)
    weights = torch.where(is_valid, weights, torch.nan).masked_fill_(~counts, 0.0)
    is_number = counts & is_valid & (table.lookup[ids] >= 0)
    return Labels(ids, counts, weights, is_number)


def coefficients(labels: Labels, spec: LossSpec, reduction: str, denominators: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b), each [N]: what each row's CE and NTL weigh in the loss."""
    a, b = spec.ce_weight * labels.weights, spec.ntl_weight * labels.weights
    if reduction != "mean":
        return a, b
    inverse = divide(torch.ones_like(denominators), denominators)
    return a * inverse[Denominator.NUM_TOKENS], b * inverse[Denominator.NUM_NUMBERS]


def transform_logits(block: Block, spec: LossSpec) -> Tensor:
    """x [n, V] in the losses' dtype; the block's logits themselves where nothing changes."""
    if spec.softcap is None and spec.logit_scale == 1:
        return as_loss_dtype(block)
    return transform_(block.buffer("x").copy_(block.logits), spec)


def transform_(x: Tensor, spec: LossSpec) -> Tensor:
    """Transform logits in their memory."""
    if spec.softcap is not None:
        return x.mul_(spec.logit_scale / spec.softcap).tanh_().mul_(spec.softcap)
    return x if spec.logit_scale == 1 else x.mul_(spec.logit_scale)


def as_loss_dtype(block: Block) -> Tensor:
    """The block's logits [n, V] in the losses' dtype."""
    logits = block.logits
    return logits if logits.dtype == loss_dtype(logits.dtype) else block.buffer("x").copy_(logits)


class NumberSweep:
    """The number rows of the blocks of a walk, prepared a stretch of many blocks at a time.

    Their operations are small: one block at a time, calling them would cost more than what they do.
    """

    def __init__(self, logits: Tensor, labels: Labels, table: NumberTable, spec: LossSpec) -> None:
        self.logits, self.labels, self.table, self.spec = logits, labels, table, spec
        width = table.ids.numel() * loss_dtype(logits.dtype).itemsize
        self.stretch = max(1, BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES) // (4 * width))
        self.end = 0
        self.numbers: NumberRows | None = None
        self.order: list[int] = []

    def of(self, block: Block) -> tuple[Tensor, NumberRows | None]:
        """(which of the block's rows [n] are number rows, their terms); None for a block without any."""
        if block.span.stop > self.end:
            self.prepare(block.span.start, max(block.span.stop, block.span.start + self.stretch))
        first, last = (bisect_left(self.order, row) for row in (block.span.start, block.span.stop))
        if first == last or self.numbers is None:
            return self.labels.ids[:0], None
        numbers = NumberRows(*(part[first:last] for part in self.numbers))
        if isinstance(block.rows, slice):
            return numbers.rows - block.span.start, numbers
        return torch.searchsorted(block.rows, numbers.rows), numbers

    def prepare(self, start: int, end: int) -> None:
        """Read and work on the number rows from ``start`` to ``end``, before any of them is overwritten."""
        rows = self.labels.is_number[start:end].nonzero().squeeze(-1) + start
        self.end, self.order, self.numbers = end, rows.tolist(), None
        if self.order:
            length, table = self.logits.shape[1], self.table
            index = rows[:, None]
            gathered = self.logits[index // length, index % length, table.ids].to(loss_dtype(self.logits.dtype))
            targets = table.values.to(gathered.dtype)[table.lookup[self.labels.ids[rows]]]
            self.numbers = number_rows(rows, transform_(gathered, self.spec), targets, table, self.spec)


def number_rows(rows: Tensor, logits: Tensor, targets: Tensor, table: NumberTable, spec: LossSpec) -> NumberRows:
    """The number rows with transformed number logits [n, K] and label values [n]."""
    values, lse = table.values.to(logits.dtype), logits.logsumexp(-1)
    q = (logits - lse[:, None]).exp_()
    error = (q * values).sum(-1) - targets  # no matmul: autocast would round it
    slope: Tensor | None = None
    if spec.kind != "wasserstein":
        effects, loss, slope = values, value_losses(error, spec), value_slope(error, spec)
    elif spec.label_sigma > 0:
        effects, loss = cumulative_effects(q, values, targets, spec.label_sigma)
    else:
        effects = costs(values, targets, spec)
        loss = (q * effects).sum(-1)
    pulls = effects - (q * effects).sum(-1, keepdim=True)
    return NumberRows(rows, q, pulls if slope is None else slope[:, None] * pulls, loss, lse, error.abs())


def number_mass(numbers: NumberRows, lse: Tensor) -> Tensor:
    """m [n]: the probability on number tokens in rows with this lse over all tokens."""
    return (numbers.lse - lse).exp_()


def cross_entropy(lse: Tensor, label_logits: Tensor, mean: Tensor | None, spec: LossSpec) -> Tensor:
    """CE_i [n]; ``mean`` is the rows' mean logit, needed with label smoothing."""
    if spec.ce_weight == 0:  # also where CE is infinite
        return torch.zeros_like(lse)
    loss = lse - label_logits
    if mean is not None:
        loss = torch.lerp(loss, lse - mean, spec.label_smoothing)
    return spec.ce_weight * (loss + spec.z_loss * lse**2)


def value_slope(error: Tensor, spec: LossSpec) -> Tensor:
    """f'(error) of the expected-value losses, elementwise."""
    if spec.kind == "mse":
        return 2 * error
    return error.sign() if spec.kind == "mae" else error.clamp(-spec.huber_delta, spec.huber_delta)


def cumulative_effects(q: Tensor, values: Tensor, targets: Tensor, label_sigma: float) -> tuple[Tensor, Tensor]:
    """(s [n, K], L [n]) of the distance between cumulative distributions to a Gaussian around the targets."""
    t = torch.softmax(-((values - targets[:, None]) ** 2) / (2 * label_sigma**2), -1)
    gaps = torch.nn.functional.pad(values.diff(), (0, 1))  # nothing lies beyond the last value
    difference = q.cumsum(-1) - t.cumsum(-1)
    effects = (difference.sign() * gaps).flip(-1).cumsum(-1).flip(-1)
    return effects, (difference.abs() * gaps).sum(-1)


def reweighed(loss: Tensor, mass: Tensor, spec: LossSpec) -> Tensor:
    """NTL_i [n]: L, or between L and the worst loss by the mass off the number tokens."""
    if not spec.reweigh:
        return loss
    return torch.lerp(torch.full_like(loss, spec.worst_loss), loss, mass)


def row_gradient(
    x: Tensor,
    p: Tensor,
    lse: Tensor,
    local: Tensor,
    numbers: NumberRows | None,
    mass: Tensor | None,
    labels: Labels,
    a: Tensor,
    b: Tensor,
    table: NumberTable,
    spec: LossSpec,
) -> Tensor:
    """The gradient [n, V] of a block (design section 2), computed in the memory of its probabilities p [n, V]."""
    factor = a * (1 + 2 * spec.z_loss * lse) if spec.z_loss else a.clone()
    pulls = None
    if numbers is not None and mass is not None:
        pulls = b[local, None] * numbers.pulls
        if spec.reweigh:
            excess = b[local] * mass * (spec.worst_loss - numbers.loss)
            factor.index_add_(0, local, excess)
            pulls.mul_(mass[:, None]).sub_(excess[:, None])
        pulls.mul_(numbers.q)
    g = p.mul_(factor[:, None])
    if spec.label_smoothing:
        g.sub_(a[:, None] * (spec.label_smoothing / p.shape[-1]))
    if pulls is not None:
        g.index_put_((local[:, None], table.ids), pulls, accumulate=True)
    g.scatter_add_(-1, labels.ids[:, None], a[:, None] * (spec.label_smoothing - 1))
    if spec.softcap is not None:
        g.mul_(1 - (x / spec.softcap) ** 2)
    return g if spec.logit_scale == 1 else g.mul_(spec.logit_scale)
