"""The kernels of the loss: one program per row."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import VARYING, Fields, Shares
from .fields import (
    ABSOLUTE_ERROR,
    CROSS_ENTROPY,
    IS_CORRECT,
    MASS,
    NTL,
    NUMBER_WEIGHT,
    PEAK,
    TOTAL,
    WEIGHT,
    store_field,
)
from .labels import coefficients, number_of, read_labels
from .normaliser import Normaliser, dot, exponent_at, log_total, share_of
from .numbers import (
    number_gradient,
    number_softmax,
    number_terms,
    read_number_logits,
    reweighed,
    value_offsets,
)
from .softcap import transform
from .walk import clear_row, column_gradient, read_kept, row_of, scale_row, walk_front, walk_kept, write_gradient


class LabelColumns(NamedTuple):
    """The columns that a row's label needs, besides the normaliser."""

    u: Any
    """The label's u."""
    numbers: Any
    """NumberLogits of a number row; for other rows, all lanes are outside."""
    offsets: Any
    """v_k - v_y [BLOCK]"""


class Columns(NamedTuple):
    """The gradient of a row before it is written: ``slope * power + pull``, except in the columns given here."""

    slope: Any
    pull: Any
    label: Any
    """The label's column, if the row is not a number row."""
    numbers: Any
    """[BLOCK]: the number columns of a number row, including the label's."""


class Pulls(NamedTuple):
    """The contribution of cross-entropy to the gradient of a row."""

    slope: Any
    """The factor of p in every column."""
    pull: Any
    """A constant in every column."""
    label: Any
    """An additional constant in the label's column."""


class NumberRow(NamedTuple):
    """The fields of a number row; all 0 for other rows."""

    ntl: Any
    absolute_error: Any
    mass: Any


@triton.jit
def read_label_columns(row, label, numbers, how, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr):
    """Read the columns that a row's label needs, while the row is still being loaded."""
    count = tl.where(label.index >= 0, numbers.size, 0)
    columns = read_number_logits(row.start, numbers, count, how, SOFTCAP, BLOCK)
    offsets = value_offsets(numbers, columns.lanes, columns.inside, tl.maximum(label.index, 0))
    u = transform(tl.load(row.start + label.id), how.inner, SOFTCAP)
    return LabelColumns(u=u, numbers=columns, offsets=offsets)


@triton.jit
def label_terms(row, label, own, numbers, how, scalars, normaliser, a, b, OPTIONS: tl.constexpr, BLOCK: tl.constexpr):
    """(Columns, NumberRow) of a row, from its label, its normaliser and its coefficients a and b.

    Unused parts of the result are removed by the compiler.
    """
    KIND: tl.constexpr = OPTIONS.kind  # Triton 3.6 cannot pass a string from a tuple as an argument
    exponent = exponent_at(normaliser.peak, how)
    a, b = a * how.scale, b * how.scale
    pulls = cross_entropy_pulls(a, normaliser, row.size, how, scalars, OPTIONS.smoothing)
    slope = pulls.slope
    ntl, absolute_error, mass = 0.0, 0.0, 0.0
    number_gradients = tl.zeros([BLOCK], tl.float32)
    if label.index >= 0:
        q, number_normaliser = number_softmax(own.numbers.u, how)
        absolute_error = tl.abs(dot(q, own.offsets))
        mass = share_of(number_normaliser, normaliser, how)
        terms = number_terms(q, own.offsets, own.numbers, numbers, scalars, KIND, BLOCK)
        ntl = reweighed(terms.loss, mass, scalars, OPTIONS.reweigh)
        excess, number_pull = number_gradient(q, terms, mass, b, scalars, OPTIONS.reweigh)
        slope = (slope + excess) / normaliser.total
        number_gradients = number_columns(
            own.numbers, number_pull, label.index, pulls, slope, exponent, OPTIONS.softcap
        )
    else:
        slope /= normaliser.total
    label_column = column_gradient(own.u, exponent, slope, pulls.pull + pulls.label, OPTIONS.softcap)
    return (
        Columns(slope=slope, pull=pulls.pull, label=label_column, numbers=number_gradients),
        NumberRow(ntl=ntl, absolute_error=absolute_error, mass=mass),
    )


@triton.jit
def cross_entropy_pulls(a, normaliser, vocab_size, how, scalars, SMOOTHING: tl.constexpr):
    """The Pulls of a row whose cross-entropy has the coefficient ``a``."""
    label = -a
    pull = 0.0
    if SMOOTHING:
        label = -a * (1.0 - scalars.label_smoothing)
        pull = -a * scalars.label_smoothing / vocab_size
    slope = a * (1.0 + 2.0 * scalars.z_loss * row_lse(normaliser, how))
    return Pulls(slope=slope, pull=pull, label=label)


@triton.jit
def number_columns(columns, number_pull, index, pulls, slope, exponent, SOFTCAP: tl.constexpr):
    """The gradient of a number row's number columns [BLOCK], including the label's."""
    number_pull += pulls.pull + tl.where(columns.lanes == index, pulls.label, 0.0)
    return column_gradient(columns.u, exponent, slope, number_pull, SOFTCAP)


@triton.jit
def write_row(
    row, kept, target, label, numbers, how, peak, columns,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write the gradient of a row, possibly over the row itself; the columns that differ are written last, once."""
    exponent = exponent_at(peak, how)
    write_gradient(row, kept, target, how, exponent, columns.slope, columns.pull, OPTIONS.softcap, TILE)
    tl.debug_barrier()  # every column is written
    dtype = target.start.dtype.element_ty
    if label.index >= 0:
        lanes = tl.arange(0, BLOCK)
        inside = lanes < numbers.size
        ids = tl.load(numbers.ids + lanes, mask=inside, other=0)
        tl.store(target.start + ids, columns.numbers.to(dtype), mask=inside)
    else:
        tl.store(target.start + label.id, columns.label.to(dtype))


@triton.jit
def row_lse(normaliser, how):
    """The logsumexp of a row's x."""
    return how.outer * normaliser.peak + log_total(normaliser, how)


@triton.jit
def cross_entropy(normaliser, distance, u, vocab_size, how, scalars, SMOOTHING: tl.constexpr):
    """CE_i of a row, from the label's u and sum(u - peak): differences, which stay precise if all u are large."""
    log = log_total(normaliser, how)
    loss = how.outer * (normaliser.peak - u) + log
    if SMOOTHING:
        mean = log - how.outer * (distance / vocab_size)
        loss = (1.0 - scalars.label_smoothing) * loss + scalars.label_smoothing * mean
    lse = row_lse(normaliser, how)
    # A factor of 0 must also remove infinite terms: the square of a large lse, and a CE that is not needed.
    loss += tl.where(scalars.z_loss == 0.0, 0.0, scalars.z_loss * lse * lse)
    return tl.where(scalars.ce_weight == 0.0, 0.0, scalars.ce_weight * loss)


@triton.jit
def store_fields(fields, n, label, cross_entropy, is_correct, normaliser, number, inside=None):
    """Write all fields of row n, or of a block of rows n; ``number`` is a NumberRow."""
    store_field(fields, CROSS_ENTROPY, n, label.weight * cross_entropy, inside=inside)
    store_field(fields, IS_CORRECT, n, is_correct, inside=inside)
    store_field(fields, WEIGHT, n, label.weight, inside=inside)
    store_field(fields, PEAK, n, normaliser.peak, inside=inside)
    store_field(fields, TOTAL, n, normaliser.total, inside=inside)
    store_field(fields, NTL, n, label.weight * number.ntl, inside=inside)
    store_field(fields, ABSOLUTE_ERROR, n, number.absolute_error, inside=inside)
    store_field(fields, MASS, n, number.mass, inside=inside)
    store_field(fields, NUMBER_WEIGHT, n, tl.where(label.index >= 0, label.weight, 0.0), inside=inside)


@triton.jit(do_not_specialize=[*VARYING, "fields", "losses"])
def row_losses_kernel(
    logits, gradient, logits_stride, gradient_stride, length, vocab_size,  # Matrix [B, T, V], which may be one, or None
    labels, numbers,
    fields,  # [9, N]
    losses,  # [N]: w (CE + lambda NTL); None if not needed
    num_tokens, num_numbers, ntl_weight,  # Shares
    how, scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The fields of every row and, in the same pass, its gradient for an upstream gradient of 1."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, vocab_size, n, n >= 0)
    field = Fields(pointer=fields, stride=tl.num_programs(0))
    shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
    if label.counts:
        row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
        # The second read of a one-pass row comes from cache, unless the first one evicted its lines.
        POLICY: tl.constexpr = "evict_first" if gradient is None else "evict_last"
        a, b = 0.0, 0.0
        if gradient is not None:
            a, b = coefficients(label.weight, 1.0, shares, scalars)
        front = walk_front(row, how, OPTIONS.softcap, OPTIONS.smoothing, POLICY, TILE)
        kept = read_kept(row, TILE)  # arrives while the label's columns are looked up
        own = read_label_columns(row, label, numbers, how, OPTIONS.softcap, BLOCK)
        normaliser, distance = walk_kept(row, front, kept, how, OPTIONS.softcap, OPTIONS.smoothing, TILE)
        ce = cross_entropy(normaliser, distance, own.u, vocab_size, how, scalars, OPTIONS.smoothing)
        is_correct = (own.u >= normaliser.peak).to(tl.float32)
        columns, number = label_terms(row, label, own, numbers, how, scalars, normaliser, a, b, OPTIONS, BLOCK)
        store_fields(
            field, n, label=label, cross_entropy=ce, is_correct=is_correct, normaliser=normaliser, number=number
        )
        if losses is not None:
            tl.store(losses + n, label.weight * (ce + number_of(shares.ntl_weight) * number.ntl))
        if gradient is not None:
            target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
            if TILE.threads <= 64:  # reductions in a single warp (32 or 64 threads) contain no barrier
                tl.debug_barrier()
            write_row(row, kept, target, label, numbers, how, normaliser.peak, columns, OPTIONS, BLOCK, TILE)
    else:
        nothing, number = Normaliser(peak=0.0, total=0.0), NumberRow(ntl=0.0, absolute_error=0.0, mass=0.0)
        store_fields(field, n, label=label, cross_entropy=0.0, is_correct=0.0, normaliser=nothing, number=number)
        if losses is not None:
            tl.store(losses + n, 0.0)
        if gradient is not None:
            clear_row(row_of(gradient, gradient_stride, length, vocab_size, n, TILE), TILE)


@triton.jit(do_not_specialize=[*VARYING, "normalisers"])
def row_gradients_kernel(
    logits, gradient, logits_stride, gradient_stride, length, vocab_size,  # Matrix [B, T, V], which may be one
    labels, numbers,
    num_tokens, num_numbers, ntl_weight,  # Shares
    normalisers,  # [2, N]
    upstream, upstream_stride, how, scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient of every row from its logits and their normaliser."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, vocab_size, n, n >= 0)
    target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
    if label.counts:
        row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
        total = tl.load(normalisers + tl.num_programs(0) + n)
        normaliser = Normaliser(peak=tl.load(normalisers + n), total=total)
        incoming = tl.load(upstream + n * upstream_stride)
        shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
        a, b = coefficients(label.weight, incoming, shares, scalars)
        kept = read_kept(row, TILE)
        own = read_label_columns(row, label, numbers, how, OPTIONS.softcap, BLOCK)
        columns, _ = label_terms(row, label, own, numbers, how, scalars, normaliser, a, b, OPTIONS, BLOCK)
        tl.debug_barrier()  # wait until all threads have read the columns that others write
        write_row(row, kept, target, label, numbers, how, normaliser.peak, columns, OPTIONS, BLOCK, TILE)
    else:
        clear_row(target, TILE)


@triton.jit(do_not_specialize=VARYING)
def scale_kernel(
    gradient, gradient_stride, length, vocab_size,  # Matrix [B, T, V]
    row_count,
    upstream,  # 0-d
    TILE: tl.constexpr,
):  # fmt: skip
    """gradient *= upstream, without accessing memory if upstream is exactly 1."""
    factor = tl.load(upstream).to(tl.float32)
    if factor != 1.0:
        for n in tl.range(tl.program_id(0), row_count, tl.num_programs(0)):
            scale_row(row_of(gradient, gradient_stride, length, vocab_size, n, TILE), factor, TILE)
