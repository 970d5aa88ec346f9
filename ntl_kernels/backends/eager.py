"""The row contract in torch operations: analytic gradients over cache-sized blocks of rows.

Serves CPUs and every device without Triton. The large work runs in a block of rows at a time, in the losses' dtype,
so that a block is read from memory once and no second [N, V] tensor exists beside the gradient. A small problem is one
block, and then what its operations compute costs less than calling them: what holds for all rows (weights of 1, one
denominator) is a Python number there, and what only number rows need is not computed without any.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from ..problem import Problem
from ..reference import costs, divide, value_losses
from ..spec import LossSpec
from ..tokens import NumberTable
from . import Field, Forward, losses_of_rows
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
    """What the labels of N rows say."""

    ids: Tensor
    """int64 [N], 0 where the row does not count or the label is out of range."""
    counts: Tensor | None
    """bool [N]: not ignored, and with a weight other than 0; None if all do."""
    weights: Tensor | None
    """[N]: 0 where the row does not count, NaN where its label or weight is out of range; None if all are 1."""
    numbers: Tensor
    """int64 [n], ascending: the rows that count and whose label is a number."""
    targets: Tensor
    """[n]: what the labels of the number rows are worth."""

    def part(self, rows: Rows, numbers: Tensor, which: slice) -> Labels:
        """Of some of the rows that count: ``numbers`` are the number rows among them, counted from the first of them,
        and ``which`` says which of all number rows they are."""
        weights = None if self.weights is None else self.weights[rows]
        return Labels(self.ids[rows], None, weights, numbers, self.targets[which])


class NumberRows(NamedTuple):
    """n number rows, and what of their loss does not depend on the other tokens."""

    columns: Tensor
    """int64 [n, K]: where their number columns lie in the block laid out flat."""
    logits: Tensor
    """[n, K]: transformed logits of the number tokens."""
    q: Tensor
    """[n, K] softmax over the number tokens alone."""
    pulls: Tensor
    """[n, K]: dL/dx_k is ``q_k * pull_k``, L before reweighing."""
    loss: Tensor
    """[n]: L before reweighing."""
    absolute_error: Tensor
    """[n]: |yhat - v_y|."""


class Coefficients(NamedTuple):
    """What each row's CE and NTL weigh in the loss, times the upstream gradient (docs, Mathematics, eq. 19)."""

    a: Scalar
    """[N], or one for all rows."""
    b: Scalar
    """[N], or one for all rows."""

    def part(self, rows: Rows) -> Coefficients:
        return Coefficients(*(chosen(part, rows) for part in self))


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
    counts = sums if are_weights_ones(problem) else listed(fields.count_nonzero(-1))
    ce, is_correct, tokens, _, ntl, absolute_error, mass, numbers = sums
    token_count, number_count = counts[Field.WEIGHT], counts[Field.NUMBER_WEIGHT]
    num_tokens = tokens if problem.num_tokens is None else as_scalar(problem.num_tokens)
    num_numbers = numbers if problem.num_numbers is None else as_scalar(problem.num_numbers)
    if problem.reduction == "mean":
        ce, ntl = divide(ce, num_tokens), divide(ntl, num_numbers)
    accuracy = divide(is_correct, token_count)
    error, mass = divide(absolute_error, number_count), divide(mass, number_count)
    loss = ce + as_scalar(problem.ntl_weight) * ntl
    loss = torch.as_tensor(loss, dtype=fields.dtype, device=fields.device)
    return loss, gathered([ce, ntl, num_tokens, num_numbers, accuracy, error, mass], fields.dtype, fields.device)


def are_weights_ones(problem: Problem) -> bool:
    """Whether every weight is known to be 1 or 0: none was given, and none is NaN for a label out of range."""
    return problem.token_weights is None and problem.labels.device.type == "cpu"


def row_gradients(logits: Tensor, problem: Problem, lse: Tensor, upstream: Tensor, gradient: Tensor) -> None:
    labels = read_labels(problem, logits.shape[-1], lse.dtype)
    coefficients = coefficients_of(labels, problem, upstream)
    for block, part in blocks(logits, labels, gradient):
        x, row_lse = transform_logits(block, problem.spec), lse[block.rows]
        numbers = number_rows(x, part, problem.table, problem.spec)
        mass = None if numbers is None else number_mass(numbers, row_lse.index_select(0, part.numbers))
        p = torch.sub(x, row_lse[:, None], out=block.target(x, keep=problem.spec.softcap is not None)).exp_()
        shares = coefficients.part(block.rows)
        block.write(row_gradient(x, p, row_lse, part, numbers, mass, shares, problem))


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    if upstream.device.type != "cpu" or upstream.item() != 1:  # asking a GPU would wait for it
        gradient.mul_(upstream)


def number_statistics(logits: Tensor, table: NumberTable) -> Tensor:
    statistics = logits.new_empty((3, logits.shape[0] * logits.shape[1]), dtype=loss_dtype(logits.dtype))
    for block in spans(logits, None, None):
        x = as_loss_dtype(block)
        number_logits = x.index_select(-1, table.ids)
        q = number_logits.softmax(-1)
        expected_value = (q * table.values.to(q.dtype)).sum(-1)
        statistics[:, block.rows] = torch.stack([x.logsumexp(-1), number_logits.logsumexp(-1), expected_value])
    return statistics


def number_statistics_gradients(
    logits: Tensor, table: NumberTable, statistics: Tensor, upstreams: Tensor, gradient: Tensor
) -> None:
    ids, values = table.ids.long(), table.values.to(statistics.dtype)
    for block in spans(logits, None, gradient):
        lse, number_lse, expected_value = statistics[:, block.rows].unbind()
        upstream_value, upstream_mass = upstreams[:, block.rows].unbind()
        mass_pull = upstream_mass * (number_lse - lse).exp()
        x = as_loss_dtype(block)
        q = (x.index_select(-1, ids) - number_lse[:, None]).exp()
        number_pull = upstream_value[:, None] * (values - expected_value[:, None])
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
            self.gradient[self.chosen] = g.to(self.gradient.dtype)
        elif g is not self.gradient:
            self.gradient.copy_(g)


def spans(logits: Tensor, counts: Tensor | None, gradient: Tensor | None) -> Iterator[Block]:
    """Walk the rows that count ([N] bool, None: all) of logits [B, T, V] in blocks that fit the cache."""
    batch, length, vocab_size = logits.shape
    size = BLOCK_BYTES.get(logits.device.type, DEVICE_BLOCK_BYTES)
    step = min(max(1, size // (vocab_size * loss_dtype(logits.dtype).itemsize)), max(1, length))
    workspace = Workspace(logits, step)
    for b in range(batch):
        for t in range(0, length, step):
            end = min(t + step, length)
            span = slice(b * length + t, b * length + end)
            target = None if gradient is None else gradient[b, t:end]
            chosen = None if counts is None else counts[span].nonzero().squeeze(-1)
            if chosen is None or chosen.numel() == end - t:
                yield Block(span, span, logits[b, t:end], target, None, workspace)
            else:
                yield Block(span, chosen + span.start, logits[b, t:end][chosen], target, chosen, workspace)


def blocks(logits: Tensor, labels: Labels, gradient: Tensor | None) -> Iterator[tuple[Block, Labels]]:
    """:func:`spans` with the labels of each block's rows."""
    ends = labels.numbers.tolist()
    for block in spans(logits, labels.counts, gradient):
        if block.logits.shape[0] == labels.ids.shape[0]:  # the only one
            yield block, labels
            continue
        which = slice(bisect_left(ends, block.span.start), bisect_left(ends, block.span.stop))
        numbers, rows = labels.numbers[which], block.rows
        local = torch.searchsorted(rows, numbers) if isinstance(rows, Tensor) else numbers - rows.start
        yield block, labels.part(rows, local, which)


def read_labels(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Labels:
    """Look the labels up, without an access out of bounds whatever they are."""
    labels, weights, table = problem.labels.view(-1).long(), problem.token_weights, problem.table
    counts = None
    if weights is not None:
        weights = weights.view(-1)
        counts = (labels != problem.spec.ignore_index) & (weights != 0)
    elif not are_all_above(labels, problem.spec.ignore_index):
        counts = labels != problem.spec.ignore_index
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
    is_number = index >= 0
    for out in (None if counts is None else ~counts, is_bad):
        is_number = is_number if out is None else is_number & ~out
    numbers = is_number.nonzero().view(-1)
    targets = table.values.to(dtype).index_select(0, index.index_select(0, numbers))
    if weights is not None and counts is not None:
        weights = torch.where(counts, weights, 0.0)
    return Labels(ids, counts, weights, numbers, targets)


def are_all_above(labels: Tensor, ignore_index: int) -> bool:
    """Whether no label is the ignore index, seen in one look where it lies outside the vocabulary."""
    return labels.numel() == 0 or (ignore_index < 0 and labels.device.type == "cpu" and labels.amin().item() >= 0)


def totals(labels: Labels) -> tuple[Scalar, Scalar]:
    """The sums of w over the rows that count and over the number rows."""
    if labels.weights is not None:
        return labels.weights.sum(), labels.weights[labels.numbers].sum()
    tokens = labels.ids.shape[0] if labels.counts is None else labels.counts.sum()
    return tokens, labels.numbers.shape[0]


def coefficients_of(labels: Labels, problem: Problem, upstream: Tensor | float = 1.0) -> Coefficients:
    """(a, b) of the rows; with an upstream gradient [N] or weights, one per row."""
    a, b = upstream * problem.spec.ce_weight, upstream * as_scalar(problem.ntl_weight)
    if problem.reduction == "mean":
        assert problem.num_tokens is not None and problem.num_numbers is not None
        a, b = divide(a, as_scalar(problem.num_tokens)), divide(b, as_scalar(problem.num_numbers))
    return Coefficients(a, b) if labels.weights is None else Coefficients(a * labels.weights, b * labels.weights)


def chosen(part: Scalar, rows: Rows) -> Scalar:
    """A coefficient of some rows."""
    return part[rows] if isinstance(part, Tensor) and part.ndim else part


def spread(part: Scalar, like: Tensor) -> Tensor:
    """A coefficient as one number a row, like a tensor [n]."""
    return part.expand_as(like) if isinstance(part, Tensor) else torch.full_like(like, part)


def column(part: Scalar) -> Scalar:
    """Coefficients of rows, to be multiplied with [n, V]."""
    return part[:, None] if isinstance(part, Tensor) and part.ndim else part


def as_scalar(given: Scalar) -> Scalar:
    """A Python number where asking for it waits for nothing."""
    return given.item() if isinstance(given, Tensor) and given.device.type == "cpu" else given


def listed(vector: Tensor) -> list[Scalar]:
    """The entries of a vector, each as by :func:`as_scalar`."""
    return vector.tolist() if vector.device.type == "cpu" else list(vector.unbind())


def gathered(scalars: list[Scalar], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Scalars as one tensor."""
    if any(isinstance(scalar, Tensor) for scalar in scalars):
        return torch.stack([torch.as_tensor(scalar, dtype=dtype, device=device) for scalar in scalars])
    return torch.tensor(scalars, dtype=dtype, device=device)


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
    spec = problem.spec
    x = transform_logits(block, spec)
    numbers = number_rows(x, labels, problem.table, spec)
    highest = x.amax(-1)
    label_logits = x.gather(-1, labels.ids[:, None]).squeeze(-1)
    mean = x.mean(-1) if spec.label_smoothing else None
    if block.gradient is None:
        lse = x.logsumexp(-1)
    else:
        # The largest probability is exp(highest - lse), so lse needs no pass of its own. The softmax may overwrite x,
        # but not under a softcap, whose derivative needs x.
        p = torch.softmax(x, -1, out=block.target(x, keep=spec.softcap is not None))
        lse = highest - p.amax(-1).log_()
    mass = None if numbers is None else number_mass(numbers, lse.index_select(0, labels.numbers))
    if block.gradient is not None:
        block.write(row_gradient(x, p, lse, labels, numbers, mass, coefficients, problem))
    ce = cross_entropy(lse, label_logits, mean, spec)
    weights = torch.ones_like(lse) if labels.weights is None else labels.weights
    fields = lse.new_zeros((len(Field), lse.shape[0]))
    always = [weighted(ce, labels.weights), (label_logits >= highest).to(lse.dtype), weights, lse]
    torch.stack(always, out=fields[: Field.NTL])
    if numbers is not None and mass is not None:
        own = weights.index_select(0, labels.numbers)
        ntl = weighted(reweighed(numbers.loss, mass, spec), None if labels.weights is None else own)
        terms = torch.stack([ntl, numbers.absolute_error, mass, own])
        fields[Field.NTL :].index_copy_(1, labels.numbers, terms)
    return fields


def weighted(terms: Tensor, weights: Tensor | None) -> Tensor:
    """w times the terms of rows [n]; None stands for 1."""
    return terms if weights is None else terms * weights


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


def number_rows(x: Tensor, labels: Labels, table: NumberTable, spec: LossSpec) -> NumberRows | None:
    """The number rows of transformed logits x [n, V], None without any. Call it before x is overwritten."""
    if labels.numbers.shape[0] == 0:
        return None
    values, columns = table.values.to(x.dtype), number_columns(labels.numbers, table, x)
    logits = read_columns(x, columns)
    q = torch.softmax(logits, -1)
    offsets = values - labels.targets[:, None]
    error = (q * offsets).sum(-1)  # no matmul: autocast would round it
    if spec.kind == "wasserstein" and spec.label_sigma == 0:
        effects = costs(values, labels.targets, spec)
        loss = mean_effect = (q * effects).sum(-1)
    elif spec.kind == "wasserstein":
        effects, loss = cumulative_effects(q, values, offsets, spec.label_sigma)
        mean_effect = (q * effects).sum(-1)
    else:
        slope = value_slope(error, spec)
        effects, loss, mean_effect = offsets * slope[:, None], value_losses(error, spec), error * slope
    return NumberRows(columns, logits, q, effects - mean_effect[:, None], loss, error.abs_())


def number_columns(rows: Tensor, table: NumberTable, x: Tensor) -> Tensor:
    """int64 [n, K]: where the number columns of some rows lie in x [N, V] laid out flat."""
    return (rows * x.shape[1])[:, None] + table.ids


def read_columns(x: Tensor, columns: Tensor) -> Tensor:
    """The entries of x [N, V] at flat places [n, K]."""
    if x.is_contiguous():
        return x.view(-1).index_select(0, columns.view(-1)).view(columns.shape)
    return x[columns // x.shape[1], columns % x.shape[1]]


def add_to_columns_(x: Tensor, columns: Tensor, entries: Tensor) -> None:
    """x [N, V] += entries at flat places [n, K], no two of them the same."""
    if x.is_contiguous():
        x.view(-1).index_add_(0, columns.view(-1), entries.view(-1))
    else:
        x.index_put_((columns // x.shape[1], columns % x.shape[1]), entries, accumulate=True)


def number_mass(numbers: NumberRows, lse: Tensor) -> Tensor:
    """m [n]: the probability on number tokens in rows with this lse over all tokens."""
    return (numbers.logits - lse[:, None]).exp_().sum(-1)


def cross_entropy(lse: Tensor, label_logits: Tensor, mean: Tensor | None, spec: LossSpec) -> Tensor:
    """CE_i [n]; ``mean`` is the rows' mean logit, needed with label smoothing."""
    if spec.ce_weight == 0:  # also where CE is infinite
        return torch.zeros_like(lse)
    loss = lse - label_logits
    if mean is not None:
        loss = torch.lerp(loss, lse - mean, spec.label_smoothing)
    if spec.z_loss:  # 0 times the square of a large lse would be NaN
        loss = loss + spec.z_loss * lse**2
    return loss if spec.ce_weight == 1 else loss * spec.ce_weight


def value_slope(error: Tensor, spec: LossSpec) -> Tensor:
    """f'(error) of the expected-value losses, elementwise."""
    if spec.kind == "mse":
        return 2 * error
    return error.sign() if spec.kind == "mae" else error.clamp(-spec.huber_delta, spec.huber_delta)


def cumulative_effects(q: Tensor, values: Tensor, offsets: Tensor, label_sigma: float) -> tuple[Tensor, Tensor]:
    """(s [n, K], L [n]) of the distance between cumulative distributions to a Gaussian around the label's value."""
    t = torch.softmax(-((offsets / label_sigma) ** 2) / 2, -1)
    gaps = torch.nn.functional.pad(values.diff(), (0, 1))  # nothing lies beyond the last value
    difference = q.cumsum(-1) - t.cumsum(-1)
    effects = (difference.sign() * gaps).flip(-1).cumsum(-1).flip(-1)
    return effects, (difference.abs() * gaps).sum(-1)


def reweighed(loss: Tensor, mass: Tensor, spec: LossSpec) -> Tensor:
    """NTL_i [n]: L, or between L and the worst loss by the mass off the number tokens."""
    return torch.lerp(torch.full_like(loss, spec.worst_loss), loss, mass) if spec.reweigh else loss


def row_gradient(
    x: Tensor,
    p: Tensor,
    lse: Tensor,
    labels: Labels,
    numbers: NumberRows | None,
    mass: Tensor | None,
    coefficients: Coefficients,
    problem: Problem,
) -> Tensor:
    """The gradient [n, V] of a block (docs, Mathematics, eq. 28 to 32), in the memory of its probabilities p [n, V]."""
    spec, (a, b) = problem.spec, coefficients
    factor, pulls = a * (1 + 2 * spec.z_loss * lse) if spec.z_loss else a, None
    if numbers is not None and mass is not None:
        own_b = chosen(b, labels.numbers)
        pulls = numbers.pulls
        if spec.reweigh:
            excess = (spec.worst_loss - numbers.loss) * mass
            pulls = pulls * mass[:, None] - excess[:, None]
            factor = spread(factor, lse).index_add(0, labels.numbers, own_b * excess)
        pulls = pulls * numbers.q * column(own_b)
    g = p.mul_(column(factor))
    if spec.label_smoothing:
        g.sub_(column(a) * (spec.label_smoothing / p.shape[-1]))
    if numbers is not None and pulls is not None:
        add_to_columns_(g, numbers.columns, pulls)
    own = a * (spec.label_smoothing - 1)
    if isinstance(own, Tensor):
        g.scatter_add_(-1, labels.ids[:, None], own.expand(lse.shape)[:, None])
    else:
        g.scatter_(-1, labels.ids[:, None], own, reduce="add")
    if spec.softcap is not None:
        g.mul_(1 - (x / spec.softcap) ** 2)
    return g if spec.logit_scale == 1 else g.mul_(spec.logit_scale)
