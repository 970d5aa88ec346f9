"""The gradient of a row in a pass of its own, from the fields of its loss: of all columns, or of one rank's."""

import triton
import triton.language as tl

from .arguments import VARYING
from .groups import own_group
from .losses import RESULTS, RowGradient, cross_entropy_gradient, label_share, number_row
from .normaliser import Normaliser, exponent_at, powers, share_of
from .numbers import SOFT_LABELS, NumberTerms, costs, cumulative_terms, divisor, target, value_offsets, value_terms
from .rows import coefficients, load_named, read_labels
from .shards import column_in_shard, number_places, read_shard_numbers, smooth_terms
from .softcap import transformed
from .walk import clear_row, column_gradient, read_kept, row_of, write_gradient


@triton.jit(do_not_specialize=[*VARYING, "fields"])
def row_gradients_kernel(
    logits, logits_batch, logits_row,  # [B, T, W]
    gradient, gradient_batch, gradient_row,  # [B, T, W], perhaps the logits
    length, row_count,
    shard, labels, numbers,
    fields,  # [F, N]
    number_logits,  # [N, K] of all ranks with label_sigma, or None
    upstream, upstream_stride,
    num_tokens, num_numbers, ntl_weight, scalars,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per row: the gradient of the columns that are here, from their logits and the row's fields."""
    KIND: tl.constexpr = OPTIONS.kind
    n = tl.program_id(0)
    label = read_labels(labels, numbers, shard.vocab_size, n)
    target = row_of(gradient, gradient_batch, gradient_row, length, shard.width, n, TILE)
    if label.counts:
        row = row_of(logits, logits_batch, logits_row, length, shard.width, n, TILE)
        incoming = tl.load(upstream + n * upstream_stride)
        a, b = coefficients(label, incoming, num_tokens, num_numbers, ntl_weight, scalars)
        own = own_group(numbers, label, scalars, KIND)
        row_gradient, exponent = gradient_columns(
            row, label, n, shard, own, numbers.size, fields, row_count, number_logits, scalars, a, b, OPTIONS, BLOCK
        )
        kept = read_kept(row, TILE)
        tl.debug_barrier()  # wait until all threads have read the columns that others write
        write_gradient(
            row, kept, target, scalars, exponent, row_gradient.slope, row_gradient.every, OPTIONS.softcap, TILE
        )
        tl.debug_barrier()  # every column is written
        dtype = target.start.dtype.element_ty
        if own.index >= 0:
            _, columns, are_here = number_places(own, shard, BLOCK)
            tl.store(target.start + columns, row_gradient.numbers.to(dtype), mask=are_here)
        else:
            column, is_here = column_in_shard(label.token, shard)
            tl.store(target.start + column, row_gradient.label.to(dtype), mask=is_here)
    else:
        clear_row(target, TILE)


@triton.jit
def gradient_columns(
    row, label, n, shard, numbers, count, fields, row_count, number_logits, scalars, a, b,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """(RowGradient, the row's exponent), before the row is overwritten; ``numbers`` are OwnNumbers, of ``count``."""
    KIND: tl.constexpr = OPTIONS.kind
    normaliser = Normaliser(
        peak=load_named("peak", RESULTS, fields, row_count, n), total=load_named("total", RESULTS, fields, row_count, n)
    )
    exponent = exponent_at(normaliser.peak, scalars)
    a, b = a * label_share(numbers.index >= 0, scalars, KIND) * scalars.logit_scale, b * scalars.logit_scale
    ce = cross_entropy_gradient(a, normaliser, shard.vocab_size, scalars, OPTIONS.label_smoothing)
    number_gradients = tl.zeros([BLOCK], tl.float32)
    if numbers.index >= 0:
        columns = read_shard_numbers(row.start, numbers, shard, scalars, OPTIONS.softcap, BLOCK)
        over_numbers = Normaliser(
            peak=load_named("number_peak", RESULTS, fields, row_count, n),
            total=load_named("number_total", RESULTS, fields, row_count, n),
        )
        at_numbers = exponent_at(over_numbers.peak, scalars)
        q = powers(columns.u, at_numbers.factor, at_numbers.shift) / divisor(over_numbers)
        mean_dloss_dq = load_named("mean_dloss_dq", RESULTS, fields, row_count, n)
        terms = terms_from_fields(q, columns, numbers, number_logits, n, count, mean_dloss_dq, scalars, KIND, BLOCK)
        mass = share_of(over_numbers, normaliser, scalars)
        slope, number_gradients = number_row(columns, q, terms, mass, b, ce, normaliser, exponent, numbers, OPTIONS)
    else:
        slope = ce.slope / normaliser.total
    column, is_here = column_in_shard(label.token, shard)
    u = transformed(tl.load(row.start + column, mask=is_here, other=0.0), scalars.inner, OPTIONS.softcap)
    label_column = column_gradient(u, exponent, slope, ce.every + ce.label, OPTIONS.softcap)
    return RowGradient(slope=slope, every=ce.every, label=label_column, numbers=number_gradients), exponent


@triton.jit
def terms_from_fields(
    q, columns, numbers, number_logits, n, count, mean_dloss_dq, scalars,
    KIND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The terms of the number columns that are here, from the ``mean_dloss_dq`` among the row's fields."""
    offsets = value_offsets(numbers, columns.lanes, columns.inside, numbers.index)
    if KIND == "cumulative":
        if number_logits is None:
            terms = cumulative_terms(q, offsets, columns.lanes, columns.inside, numbers, scalars, BLOCK)
        else:
            terms = smooth_terms(number_logits, n, count, numbers, scalars, BLOCK)
    elif KIND == SOFT_LABELS:
        inside = columns.lanes < numbers.size  # t is that of all numbers of the group
        t, _ = target(value_offsets(numbers, columns.lanes, inside, numbers.index), inside, scalars)
        terms = NumberTerms(dloss_dq=t, mean_dloss_dq=0.0, slope=1.0, loss=0.0)
    elif KIND == "wasserstein":
        dloss_dq = costs(tl.abs(offsets), numbers)
        terms = NumberTerms(dloss_dq=dloss_dq, mean_dloss_dq=mean_dloss_dq, slope=1.0, loss=mean_dloss_dq)
    else:
        terms = value_terms(offsets, mean_dloss_dq, scalars, KIND)
    return terms
