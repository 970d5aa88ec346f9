"""The kernels of the loss: one program per row."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Fields, Shares
from .fields import (
    ABSOLUTE_ERROR,
    CROSS_ENTROPY,
    IS_CORRECT,
    LSE,
    MASS,
    NTL,
    NUMBER_WEIGHT,
    WEIGHT,
    store_field,
)
from .labels import coefficients, number_of, read_labels
from .logsumexp import LN_2
from .numbers import number_gradient, number_loss, number_softmax, read_number_logits, reweighed
from .softcap import LOG2_E, transform
from .walk import clear_row, column_gradient, exponent_factor, row_of, row_statistics, scale_row, write_gradient


class Columns(NamedTuple):
    """The gradient of a row before it is written: ``slope * p + pull`` everywhere, and the columns that differ."""

    slope: Any
    pull: Any
    label: Any
    """The label's column, off the number rows."""
    numbers: Any
    """[BLOCK]: the number columns of a number row, the label's among them."""


class NumberRow(NamedTuple):
    """What a number row reports; all 0 off the number rows."""

    ntl: Any
    absolute_error: Any
    mass: Any


@triton.jit
def label_logit(row, label, how, SOFTCAP: tl.constexpr):
    """u of the label's column."""
    return transform(tl.load(row.start + label.id), how.inner, SOFTCAP)


@triton.jit
def label_terms(row, label, numbers, how, scalars, lse2, a, b, OPTIONS: tl.constexpr, BLOCK: tl.constexpr):
    """All that a row's label adds to its lse2 and its coefficients a, b: (Columns, NumberRow).

    Call it before the row is overwritten. What the caller does not use of it is compiled away.
    """
    KIND: tl.constexpr = OPTIONS.kind  # Triton 3.6 takes no string out of a tuple as an argument
    factor = exponent_factor(how)
    a, b = a * how.scale, b * how.scale
    own = -a
    pull = 0.0
    if OPTIONS.smoothing:
        own = -a * (1.0 - scalars.label_smoothing)
        pull = -a * scalars.label_smoothing / row.size
    slope = a * (1.0 + 2.0 * scalars.z_loss * (lse2 * LN_2))
    ntl, absolute_error, mass = 0.0, 0.0, 0.0
    number_columns = tl.zeros([BLOCK], tl.float32)
    if label.index >= 0:
        columns = read_number_logits(row.start, numbers, how, factor, OPTIONS.softcap, BLOCK)
        target = tl.load(numbers.value + label.index)
        offsets = tl.load(numbers.value + columns.lanes, mask=columns.inside, other=0.0) - target
        q, number_lse2 = number_softmax(columns.x2)
        absolute_error = tl.abs(tl.sum(q * offsets, 0))
        mass = tl.exp2(number_lse2 - lse2)
        terms = number_loss(q, offsets, columns, numbers, scalars, KIND, BLOCK)
        ntl = reweighed(terms.loss, mass, scalars, OPTIONS.reweigh)
        excess, number_pull = number_gradient(q, terms, mass, b, scalars, OPTIONS.reweigh)
        slope += excess
        number_pull += pull + tl.where(columns.lanes == label.index, own, 0.0)
        number_columns = column_gradient(columns.u, lse2, slope, number_pull, factor, OPTIONS.softcap)
    u = label_logit(row, label, how, OPTIONS.softcap)
    label_column = column_gradient(u, lse2, slope, pull + own, factor, OPTIONS.softcap)
    return (
        Columns(slope=slope, pull=pull, label=label_column, numbers=number_columns),
        NumberRow(ntl=ntl, absolute_error=absolute_error, mass=mass),
    )


@triton.jit
def write_row(
    row, target, label, numbers, how, lse2, columns, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):
    """Write the gradient of a row, which may be the row itself; the columns that differ are written last, once."""
    tl.debug_barrier()  # every thread has read its columns
    write_gradient(row, target, how, lse2, columns.slope, columns.pull, OPTIONS.softcap, TILE)
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
def cross_entropy(statistics, x2, vocab_size, how, scalars, SMOOTHING: tl.constexpr):
    """CE_i of a row with the label's x2."""
    lse = statistics.lse2 * LN_2
    loss = (statistics.lse2 - x2) * LN_2
    if SMOOTHING:
        mean = how.outer * statistics.sum_u / vocab_size
        loss = (1.0 - scalars.label_smoothing) * loss + scalars.label_smoothing * (lse - mean)
    # A factor of 0 also takes away what is infinite: the square of a large lse, and a CE that nobody asked for.
    loss += tl.where(scalars.z_loss == 0.0, 0.0, scalars.z_loss * lse * lse)
    return tl.where(scalars.ce_weight == 0.0, 0.0, scalars.ce_weight * loss)


@triton.jit
def store_fields(fields, n, label, cross_entropy, is_correct, lse, number):
    """All that row n leaves behind; ``number`` is a NumberRow."""
    store_field(fields, CROSS_ENTROPY, n, label.weight * cross_entropy)
    store_field(fields, IS_CORRECT, n, is_correct)
    store_field(fields, WEIGHT, n, label.weight)
    store_field(fields, LSE, n, lse)
    store_field(fields, NTL, n, label.weight * number.ntl)
    store_field(fields, ABSOLUTE_ERROR, n, number.absolute_error)
    store_field(fields, MASS, n, number.mass)
    store_field(fields, NUMBER_WEIGHT, n, tl.where(label.index >= 0, label.weight, 0.0))


@triton.jit(
    do_not_specialize=[
        "logits_stride", "gradient_stride", "length", "vocab_size",
        "fields", "losses", "num_tokens", "num_numbers", "ntl_weight",
    ]
)  # fmt: skip
def row_losses_kernel(
    logits,  # Matrix [B, T, V]
    gradient,  # Matrix [B, T, V], may be the logits; None: no gradient
    logits_stride,  # of B
    gradient_stride,  # of B
    length,  # T
    vocab_size,  # V
    labels,
    numbers,
    fields,  # [8, N]
    losses,  # [N]: w (CE + lambda NTL); None: not asked for
    num_tokens,  # this and the next two: see Shares
    num_numbers,
    ntl_weight,
    how,  # Transform
    scalars,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The fields of every row and, in the same pass, its gradient for an upstream gradient of 1."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, vocab_size, n, n >= 0)
    field = Fields(pointer=fields, stride=tl.num_programs(0))
    shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
    if label.counts:
        row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
        # The second read of a one-pass row comes from cache, unless the first one gave its lines up.
        POLICY: tl.constexpr = "evict_first" if gradient is None else "evict_last"
        statistics = row_statistics(row, how, OPTIONS.softcap, OPTIONS.smoothing, POLICY, TILE)
        x2 = label_logit(row, label, how, OPTIONS.softcap) * exponent_factor(how)
        ce = cross_entropy(statistics, x2, vocab_size, how, scalars, OPTIONS.smoothing)
        is_correct = (x2 >= statistics.peak).to(tl.float32)
        a, b = 0.0, 0.0
        if gradient is not None:
            a, b = coefficients(label.weight, 1.0, shares, scalars)
        columns, number = label_terms(row, label, numbers, how, scalars, statistics.lse2, a, b, OPTIONS, BLOCK)
        store_fields(field, n, label, ce, is_correct, statistics.lse2 * LN_2, number)
        if losses is not None:
            tl.store(losses + n, label.weight * (ce + number_of(shares.ntl_weight) * number.ntl))
        if gradient is not None:
            target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
            write_row(row, target, label, numbers, how, statistics.lse2, columns, OPTIONS, BLOCK, TILE)
    else:
        store_fields(field, n, label, 0.0, 0.0, 0.0, NumberRow(ntl=0.0, absolute_error=0.0, mass=0.0))
        if losses is not None:
            tl.store(losses + n, 0.0)
        if gradient is not None:
            clear_row(row_of(gradient, gradient_stride, length, vocab_size, n, TILE), TILE)


@triton.jit(
    do_not_specialize=[
        "logits_stride", "gradient_stride", "length", "vocab_size",
        "num_tokens", "num_numbers", "ntl_weight", "lse", "upstream", "upstream_stride",
    ]
)  # fmt: skip
def row_gradients_kernel(
    logits,  # Matrix [B, T, V]
    gradient,  # Matrix [B, T, V], may be the logits
    logits_stride,  # of B
    gradient_stride,  # of B
    length,  # T
    vocab_size,  # V
    labels,
    numbers,
    num_tokens,  # this and the next two: see Shares
    num_numbers,
    ntl_weight,
    lse,  # [N]
    upstream,  # [N], or 0-d with a stride of 0
    upstream_stride,
    how,  # Transform
    scalars,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The gradient of every row from its logits and their lse."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, vocab_size, n, n >= 0)
    target = row_of(gradient, gradient_stride, length, vocab_size, n, TILE)
    if label.counts:
        row = row_of(logits, logits_stride, length, vocab_size, n, TILE)
        lse2 = tl.load(lse + n) * LOG2_E
        incoming = tl.load(upstream + n * upstream_stride)
        shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
        a, b = coefficients(label.weight, incoming, shares, scalars)
        columns, _ = label_terms(row, label, numbers, how, scalars, lse2, a, b, OPTIONS, BLOCK)
        write_row(row, target, label, numbers, how, lse2, columns, OPTIONS, BLOCK, TILE)
    else:
        clear_row(target, TILE)


@triton.jit(do_not_specialize=["gradient_stride", "length", "vocab_size", "row_count", "upstream"])
def scale_kernel(
    gradient,  # Matrix [B, T, V]
    gradient_stride,  # of B
    length,  # T
    vocab_size,  # V
    row_count,
    upstream,  # 0-d
    TILE: tl.constexpr,
):
    """gradient *= upstream, without touching memory when upstream is exactly 1."""
    factor = tl.load(upstream).to(tl.float32)
    if factor != 1.0:
        for n in tl.range(tl.program_id(0), row_count, tl.num_programs(0)):
            scale_row(row_of(gradient, gradient_stride, length, vocab_size, n, TILE), factor, TILE)
