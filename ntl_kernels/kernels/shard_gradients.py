"""The gradient of one rank's columns."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import VARYING, Shares
from .labels import coefficients, read_labels
from .losses import cross_entropy_pulls, number_columns
from .normaliser import Normaliser, exponent_at, powers, share_of
from .numbers import NumberTerms, costs, divisor, number_gradient, value_offsets, value_terms
from .shards import own_column, read_all_numbers, read_own_numbers, smooth_terms
from .softcap import transform
from .walk import clear_row, column_gradient, read_kept, row_of, write_gradient


@triton.jit(do_not_specialize=VARYING)
def shard_gradients_kernel(
    logits, gradient, logits_stride, gradient_stride, length, row_count,  # Matrix [B, T, W], which may be one
    shard, labels, numbers,
    num_tokens, num_numbers, ntl_weight,  # Shares
    merged,  # [5, N]
    number_logits,  # [N, K] with label_sigma, or None
    upstream, upstream_stride, how, scalars, OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row: the gradient of this rank's columns, from their logits and the merged statistics."""
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n, n >= 0)
    target = row_of(gradient, gradient_stride, length, shard.width, n, TILE)
    if label.counts:
        row = row_of(logits, logits_stride, length, shard.width, n, TILE)
        incoming = tl.load(upstream + n * upstream_stride)
        shares = Shares(num_tokens=num_tokens, num_numbers=num_numbers, ntl_weight=ntl_weight)
        a, b = coefficients(label.weight, incoming, shares, scalars)
        own = shard_columns(
            row, label, n, shard, numbers, merged, row_count, number_logits, how, scalars, a, b, OPTIONS, BLOCK
        )
        kept = read_kept(row, TILE)
        tl.debug_barrier()  # wait until all threads have read the columns that others write
        write_gradient(row, kept, target, how, own.exponent, own.slope, own.pull, OPTIONS.softcap, TILE)
        tl.debug_barrier()  # every column is written
        dtype = target.start.dtype.element_ty
        if label.index >= 0:
            tl.store(target.start + own.number_columns, own.numbers.to(dtype), mask=own.has_number)
        else:
            tl.store(target.start + own.label_column, own.label.to(dtype), mask=own.has_label)
    else:
        clear_row(target, TILE)


class ShardColumns(NamedTuple):
    """The gradient of a row before it is written: ``slope * power + pull``, except in the columns given here."""

    exponent: Any
    slope: Any
    pull: Any
    label: Any
    """The label's column, if the row is not a number row."""
    label_column: Any
    has_label: Any
    """Whether the label is among the rank's columns."""
    numbers: Any
    """[BLOCK]: the number columns of a number row, including the label's."""
    number_columns: Any
    has_number: Any
    """[BLOCK]: which lanes are among the rank's columns."""


@triton.jit
def shard_columns(
    row, label, n, shard, numbers, merged, row_count, number_logits, how, scalars, a, b,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the columns that differ from the others; call it before the row is overwritten."""
    KIND: tl.constexpr = OPTIONS.kind
    normaliser = Normaliser(peak=tl.load(merged + n), total=tl.load(merged + row_count + n))
    exponent = exponent_at(normaliser.peak, how)
    a, b = a * how.scale, b * how.scale
    pulls = cross_entropy_pulls(a, normaliser, shard.vocab_size, how, scalars, OPTIONS.smoothing)
    slope = pulls.slope
    columns = read_own_numbers(row.start, numbers, shard, how, OPTIONS.softcap, BLOCK)
    number_gradients = tl.zeros([BLOCK], tl.float32)
    if label.index >= 0:
        effect = tl.load(merged + 4 * row_count + n)
        terms = own_terms(columns, numbers, number_logits, n, label.index, effect, how, scalars, KIND, BLOCK)
        over_numbers = merged_number_normaliser(merged, row_count, n)
        at_numbers = exponent_at(over_numbers.peak, how)
        q = powers(columns.u, at_numbers.factor, at_numbers.shift) / divisor(over_numbers)
        mass = share_of(over_numbers, normaliser, how)
        excess, number_pull = number_gradient(q, terms, mass, b, scalars, OPTIONS.reweigh)
        slope = (slope + excess) / normaliser.total
        number_gradients = number_columns(columns, number_pull, label.index, pulls, slope, exponent, OPTIONS.softcap)
    else:
        slope /= normaliser.total
    column, is_own = own_column(label.id, shard)
    u = transform(tl.load(row.start + column, mask=is_own, other=0.0), how.inner, OPTIONS.softcap)
    return ShardColumns(
        exponent=exponent,
        slope=slope,
        pull=pulls.pull,
        label=column_gradient(u, exponent, slope, pulls.pull + pulls.label, OPTIONS.softcap),
        label_column=column,
        has_label=is_own,
        numbers=number_gradients,
        number_columns=columns.ids,
        has_number=columns.inside,
    )


@triton.jit
def own_terms(columns, numbers, number_logits, n, index, effect, how, scalars, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """The terms of the rank's own columns of a number row, from the merged statistics."""
    if KIND == "cumulative":
        u = read_all_numbers(number_logits, n, numbers, BLOCK)
        terms = smooth_terms(u, numbers, index, how, scalars, BLOCK)
    else:
        offsets = value_offsets(numbers, columns.lanes, columns.inside, index)
        if KIND == "wasserstein":
            terms = NumberTerms(effects=costs(tl.abs(offsets), scalars), mean_effect=effect, slope=1.0, loss=effect)
        else:
            terms = value_terms(offsets, effect, scalars, KIND)
    return terms


@triton.jit
def merged_number_normaliser(merged, row_count, n):
    """The normaliser over the number tokens of all ranks."""
    return Normaliser(peak=tl.load(merged + 2 * row_count + n), total=tl.load(merged + 3 * row_count + n))
