"""The kernels of the loss: one program per row; and those over all rows, whose number of programs fixes the order of
every sum."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..problem import Parts, RowResult
from .arguments import VARYING
from .groups import own_group
from .normaliser import Normaliser, dot, exponent_at, log_total, share_of
from .numbers import (
    SOFT_LABELS,
    gather_numbers,
    number_gradient,
    number_softmax,
    number_terms,
    reweighed,
    value_offsets,
)
from .rows import coefficients, divide, load_named, looked_up, names_in, number_of, read_ids, read_labels, store_named
from .softcap import transformed
from .walk import clear_row, column_gradient, read_kept, row_of, scale_row, walk_front, walk_kept, write_gradient

RESULTS = tl.constexpr(RowResult._fields)
"""The names of the rows of ``fields`` [F, N], in their order."""
PARTS = tl.constexpr(Parts._fields)


class RowGradient(NamedTuple):
    """The gradient of a row before it is written: ``slope * power + every``, except in the columns given here."""

    slope: Any
    every: Any
    label: Any  # the label's column, if the row is not a number row
    numbers: Any  # [BLOCK]: the number columns of a number row, including the label's


class CrossEntropyGradient(NamedTuple):
    """The contribution of cross-entropy to the gradient of a row."""

    slope: Any  # the factor of p in every column
    every: Any  # a constant in every column
    label: Any  # an additional constant in the label's column


class NumberResult(NamedTuple):
    """The results of a number row; all 0 for other rows."""

    ntl: Any
    absolute_error: Any
    mass: Any
    normaliser: Any  # of the number tokens
    mean_dloss_dq: Any  # as in RowResult


@triton.jit
def read_label_columns(row, token, numbers, scalars, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr):
    """Read the columns that a row's label needs, while the row is still being loaded: (the label's u, the NumberLogits
    of a number row, their v_k - v_y [BLOCK]). For other rows, all lanes are outside."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < tl.where(numbers.index >= 0, numbers.size, 0)
    ids = tl.load(numbers.ids + lanes, mask=inside, other=0)
    columns = gather_numbers(row.start, lanes, inside, ids, scalars, SOFTCAP)
    offsets = value_offsets(numbers, columns.lanes, columns.inside, tl.maximum(numbers.index, 0))
    u = transformed(tl.load(row.start + token), scalars.inner, SOFTCAP)
    return u, columns, offsets


@triton.jit
def label_terms(
    row, u, columns, offsets, numbers, scalars, normaliser, a, b, OPTIONS: tl.constexpr, BLOCK: tl.constexpr
):
    """(RowGradient, NumberResult) of a row, from its label's columns, OwnNumbers, normaliser and coefficients a and b.

    Unused parts of the result are removed by the compiler.
    """
    KIND: tl.constexpr = OPTIONS.kind  # Triton 3.6 cannot pass a string from a tuple as an argument
    exponent = exponent_at(normaliser.peak, scalars)
    a, b = a * label_share(numbers.index >= 0, scalars, KIND) * scalars.logit_scale, b * scalars.logit_scale
    ce = cross_entropy_gradient(a, normaliser, row.size, scalars, OPTIONS.label_smoothing)
    ntl, absolute_error, mass, number_peak, number_total, mean_dloss_dq = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    number_gradients = tl.zeros([BLOCK], tl.float32)
    if numbers.index >= 0:
        q, number_normaliser = number_softmax(columns.u, scalars)
        absolute_error = tl.abs(dot(q, offsets)) * numbers.unit
        mass = share_of(number_normaliser, normaliser, scalars)
        terms = number_terms(q, offsets, columns, numbers, normaliser, scalars, KIND, BLOCK)
        ntl = reweighed(terms.loss, mass, numbers, KIND, OPTIONS.reweigh)
        number_peak, number_total, mean_dloss_dq = number_normaliser.peak, number_normaliser.total, terms.mean_dloss_dq
        slope, number_gradients = number_row(columns, q, terms, mass, b, ce, normaliser, exponent, numbers, OPTIONS)
    else:
        slope = ce.slope / normaliser.total
    label_column = column_gradient(u, exponent, slope, ce.every + ce.label, OPTIONS.softcap)
    return (
        RowGradient(slope=slope, every=ce.every, label=label_column, numbers=number_gradients),
        NumberResult(
            ntl=ntl,
            absolute_error=absolute_error,
            mass=mass,
            normaliser=Normaliser(peak=number_peak, total=number_total),
            mean_dloss_dq=mean_dloss_dq,
        ),
    )


@triton.jit
def label_share(is_number, scalars, KIND: tl.constexpr):
    """The factor of cross-entropy in the loss of a row."""
    share = 1.0
    if KIND == SOFT_LABELS:
        share = tl.where(is_number, scalars.label_share, 1.0)
    return share


@triton.jit
def label_loss(ce, is_number, share):
    """CE as it is in the loss, in number rows times ``label_share``: 0 for a share of 0, even if CE is infinite."""
    return tl.where(is_number, tl.where(share == 0.0, 0.0, share * ce), ce)


@triton.jit
def cross_entropy_gradient(a, normaliser, vocab_size, scalars, SMOOTHING: tl.constexpr):
    """The CrossEntropyGradient of a row whose cross-entropy has the coefficient ``a``."""
    # a dCE/dx_j = a (1 + 2 z_loss lse) p_j - a eps / V - a (1 - eps) [j = y]
    label = -a
    every = 0.0
    if SMOOTHING:
        label = -a * (1.0 - scalars.label_smoothing)
        every = -a * scalars.label_smoothing / vocab_size
    slope = a * (1.0 + 2.0 * scalars.z_loss * row_lse(normaliser, scalars))
    return CrossEntropyGradient(slope=slope, every=every, label=label)


@triton.jit
def number_row(columns, q, terms, mass, b, ce, normaliser, exponent, numbers, OPTIONS: tl.constexpr):
    """(slope, [BLOCK] the number columns including the label's) of a number row's gradient."""
    KIND: tl.constexpr = OPTIONS.kind
    mass_gradient, number_pull = number_gradient(q, terms, mass, b, numbers, KIND, OPTIONS.reweigh)
    slope = (ce.slope - mass_gradient) / normaliser.total
    number_pull += ce.every + tl.where(columns.lanes == numbers.index, ce.label, 0.0)
    return slope, column_gradient(columns.u, exponent, slope, number_pull, OPTIONS.softcap)


@triton.jit
def write_row(
    row, kept, target, token, numbers, scalars, peak, gradient,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write the gradient of a row, possibly over the row itself; the columns that differ are written last, once."""
    exponent = exponent_at(peak, scalars)
    write_gradient(row, kept, target, scalars, exponent, gradient.slope, gradient.every, OPTIONS.softcap, TILE)
    tl.debug_barrier()  # every column is written
    dtype = target.start.dtype.element_ty
    if numbers.index >= 0:
        lanes = tl.arange(0, BLOCK)
        inside = lanes < numbers.size
        ids = tl.load(numbers.ids + lanes, mask=inside, other=0)
        tl.store(target.start + ids, gradient.numbers.to(dtype), mask=inside)
    else:
        tl.store(target.start + token, gradient.label.to(dtype))


@triton.jit
def row_lse(normaliser, scalars):
    """The logsumexp of a row's x."""
    return scalars.outer * normaliser.peak + log_total(normaliser, scalars)


@triton.jit
def cross_entropy(normaliser, distance, u, vocab_size, scalars, SMOOTHING: tl.constexpr):
    """CE_i of a row, from the label's u and sum(u - peak): differences, which stay precise if all u are large."""
    # (1 - eps) (lse - x_y) + eps (lse - mean(x)) + z_loss lse²
    log = log_total(normaliser, scalars)
    loss = scalars.outer * (normaliser.peak - u) + log
    if SMOOTHING:
        mean = log - scalars.outer * (distance / vocab_size)
        loss = (1.0 - scalars.label_smoothing) * loss + scalars.label_smoothing * mean
    lse = row_lse(normaliser, scalars)
    # A factor of 0 must also remove infinite terms: the square of a large lse, and a CE that is not needed.
    loss += tl.where(scalars.z_loss == 0.0, 0.0, scalars.z_loss * lse * lse)
    return tl.where(scalars.has_cross_entropy == 0.0, 0.0, loss)


@triton.jit
def row_result(label, ce, is_correct, normaliser, number):
    """The RowResult of a row, or of a block of rows; ``number`` is a NumberResult."""
    return RowResult(
        cross_entropy=label.row_weight * ce,
        is_correct=is_correct,
        row_weight=label.row_weight,
        number_row_weight=tl.where(label.index >= 0, label.row_weight * label.number_weight, 0.0),
        peak=normaliser.peak,
        total=normaliser.total,
        ntl=label.row_weight * label.number_weight * number.ntl,
        absolute_error=number.absolute_error,
        mass=number.mass,
        number_peak=number.normaliser.peak,
        number_total=number.normaliser.total,
        mean_dloss_dq=number.mean_dloss_dq,
    )


@triton.jit(do_not_specialize=[*VARYING, "fields", "losses"])
def row_losses_kernel(
    logits, logits_batch, logits_row,  # [B, T, V]
    gradient, gradient_batch, gradient_row,  # [B, T, V], perhaps the logits; None if not needed
    length, vocab_size,
    labels, numbers,
    fields,  # [F, N]
    losses,  # [N]: w (CE + lambda u NTL); None if not needed
    num_tokens, num_numbers, ntl_weight, scalars,
    OPTIONS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The fields of every row and, in the same pass, its gradient for an upstream gradient of 1."""
    n, row_count = tl.program_id(0), tl.num_programs(0)
    label = read_ids(labels, vocab_size, n)
    if label.counts:
        KIND: tl.constexpr = OPTIONS.kind
        row = row_of(logits, logits_batch, logits_row, length, vocab_size, n, TILE)
        # The second read of a one-pass row comes from cache, unless the first one evicted its lines.
        POLICY: tl.constexpr = "evict_first" if gradient is None else "evict_last"
        a, b = 0.0, 0.0
        if gradient is not None:
            a, b = coefficients(label, 1.0, num_tokens, num_numbers, ntl_weight, scalars)
        front = walk_front(row, scalars, OPTIONS.softcap, OPTIONS.label_smoothing, POLICY, TILE)
        kept = read_kept(row, TILE)  # arrives while the label's columns are looked up
        label = looked_up(label, numbers)
        own = own_group(numbers, label, scalars, KIND)
        u, columns, offsets = read_label_columns(row, label.token, own, scalars, OPTIONS.softcap, BLOCK)
        normaliser, distance = walk_kept(row, front, kept, scalars, OPTIONS.softcap, OPTIONS.label_smoothing, TILE)
        ce = cross_entropy(normaliser, distance, u, vocab_size, scalars, OPTIONS.label_smoothing)
        is_correct = (u >= normaliser.peak).to(tl.float32)
        row_gradient, number = label_terms(row, u, columns, offsets, own, scalars, normaliser, a, b, OPTIONS, BLOCK)
        store_named(row_result(label, ce, is_correct, normaliser, number), RESULTS, fields, row_count, n)
        if losses is not None:
            of_label = label_loss(ce, label.index >= 0, scalars.label_share)
            ntl = number_of(ntl_weight) * label.number_weight * number.ntl
            tl.store(losses + n, label.row_weight * (of_label + ntl))
        if gradient is not None:
            target = row_of(gradient, gradient_batch, gradient_row, length, vocab_size, n, TILE)
            if TILE.threads <= 64:  # reductions in a single warp (32 or 64 threads) contain no barrier
                tl.debug_barrier()
            write_row(row, kept, target, label.token, own, scalars, normaliser.peak, row_gradient, OPTIONS, BLOCK, TILE)
    else:
        for i in tl.static_range(names_in(RESULTS)):
            tl.store(fields + i * row_count + n, 0.0)
        if losses is not None:
            tl.store(losses + n, 0.0)
        if gradient is not None:
            clear_row(row_of(gradient, gradient_batch, gradient_row, length, vocab_size, n, TILE), TILE)


@triton.jit(do_not_specialize=VARYING)
def scale_kernel(
    gradient, gradient_batch, gradient_row, length, vocab_size,  # [B, T, V]
    row_count,
    upstream,  # 0-d
    TILE: tl.constexpr,
):  # fmt: skip
    """gradient *= upstream, without accessing memory if upstream is exactly 1."""
    factor = tl.load(upstream).to(tl.float32)
    if factor != 1.0:
        for n in tl.range(tl.program_id(0), row_count, tl.num_programs(0)):
            scale_row(row_of(gradient, gradient_batch, gradient_row, length, vocab_size, n, TILE), factor, TILE)


@triton.jit(do_not_specialize=[*VARYING, "totals"])
def count_kernel(
    labels, numbers, vocab_size, row_count,
    totals,  # [2, P] for P programs
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The sums of the weights over the rows that count and over the number rows among them, of every P-th block of rows
    from the program's own on."""
    lanes = tl.arange(0, BLOCK)
    program, program_count = tl.program_id(0), tl.num_programs(0)
    weights, number_weights = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in tl.range(program * BLOCK, row_count, program_count * BLOCK):
        label = read_labels(labels, numbers, vocab_size, start + lanes, start + lanes < row_count)
        weights += label.row_weight
        number_weights += tl.where(label.index >= 0, label.row_weight * label.number_weight, 0.0)
    tl.store(totals + program, tl.sum(weights, 0))
    tl.store(totals + program_count + program, tl.sum(number_weights, 0))


class Sums(NamedTuple):
    """Sums over rows: of results, under their names in RowResult, and of the rows that a mean over rows divides by."""

    row_weight: Any
    mass: Any
    cross_entropy: Any
    is_correct: Any
    ntl: Any
    absolute_error: Any
    number_row_weight: Any
    of_labels: Any  # cross-entropy as it is in the loss, in number rows times ``label_share``; 0 if that is 1
    token_count: Any  # rows whose weight is not 0
    number_count: Any  # rows whose mass is not 0


SUMS = tl.constexpr(Sums._fields)


@triton.jit
def added(sums, fields, row_count, rows, share, ARE_SUMS: tl.constexpr, SHARED: tl.constexpr):
    """The Sums [BLOCK] with one more row, or what :func:`sum_kernel` has stored for one more program, in every lane.

    Fields are loaded and added in turn; the assembler moves loads ahead as far as there are registers. If all loads
    came first, it would spill.
    """
    NAMES: tl.constexpr = SUMS if ARE_SUMS else RESULTS
    inside = rows < row_count
    weight = load_named("row_weight", NAMES, fields, row_count, rows, inside)
    mass = load_named("mass", NAMES, fields, row_count, rows, inside)
    if ARE_SUMS:
        tokens = load_named("token_count", NAMES, fields, row_count, rows, inside)
        numbers = load_named("number_count", NAMES, fields, row_count, rows, inside)
    else:
        tokens, numbers = weight != 0.0, mass != 0.0
    ce = load_named("cross_entropy", NAMES, fields, row_count, rows, inside)
    number_weight = load_named("number_row_weight", NAMES, fields, row_count, rows, inside)
    of_labels = sums.of_labels
    if SHARED and ARE_SUMS:
        of_labels += load_named("of_labels", NAMES, fields, row_count, rows, inside)
    elif SHARED:
        of_labels += label_loss(ce, number_weight != 0.0, share)
    return Sums(
        row_weight=sums.row_weight + weight,
        mass=sums.mass + mass,
        cross_entropy=sums.cross_entropy + ce,
        is_correct=sums.is_correct + load_named("is_correct", NAMES, fields, row_count, rows, inside),
        ntl=sums.ntl + load_named("ntl", NAMES, fields, row_count, rows, inside),
        absolute_error=sums.absolute_error + load_named("absolute_error", NAMES, fields, row_count, rows, inside),
        number_row_weight=sums.number_row_weight + number_weight,
        of_labels=of_labels,
        token_count=sums.token_count + tokens.to(tl.int32),
        number_count=sums.number_count + numbers.to(tl.int32),
    )


@triton.jit
def over_lanes(sums):
    """The Sums of all lanes together, in float32."""
    totals = ()
    for i in tl.static_range(names_in(SUMS)):
        totals += (tl.sum(sums[i], 0).to(tl.float32),)
    return Sums(*totals)


@triton.jit
def sums_over_rows(fields, row_count, share, ARE_SUMS: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr):
    """The Sums of every P-th block of rows, from this program's on. The loads of several fields are in flight at once,
    which a walk for each field would serialise."""
    lanes = tl.arange(0, BLOCK)
    total, count = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.int32)
    sums = Sums(total, total, total, total, total, total, total, total, count, count)
    for start in tl.range(tl.program_id(0) * BLOCK, row_count, tl.num_programs(0) * BLOCK):
        sums = added(sums, fields, row_count, start + lanes, share, ARE_SUMS, SHARED)
    return over_lanes(sums)


@triton.jit(do_not_specialize=[*VARYING, "fields", "sums"])
def sum_kernel(
    fields,  # [F, N]
    row_count,
    share,  # label_share
    sums,  # [S, P] for P programs
    SHARED: tl.constexpr,  # whether the share is not 1
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The Sums of each program's share of the rows."""
    found = sums_over_rows(fields, row_count, share, False, SHARED, BLOCK)
    store_named(found, SUMS, sums, tl.num_programs(0), tl.program_id(0))


@triton.jit
def given_or(given, total):
    """The given denominator, or the computed total."""
    if given is None:
        return total
    else:
        return number_of(given)


@triton.jit(do_not_specialize=[*VARYING, "fields", "loss", "parts"])
def finish_kernel(
    fields,  # [F, N], or the sums [S, N] of as many programs
    row_count,
    num_tokens, num_numbers,  # None means the sum of the weights
    ntl_weight, share,
    loss,  # 0-d
    parts,  # [P]
    MEAN: tl.constexpr,
    OVER_TOKENS: tl.constexpr,  # whether a mean divides both CE and NTL by the tokens
    ARE_SUMS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Reduce the fields to the loss and its Parts, in a single program."""
    sums = sums_over_rows(fields, row_count, share, ARE_SUMS, SHARED, BLOCK)
    tokens, numbers = given_or(num_tokens, sums.row_weight), given_or(num_numbers, sums.number_row_weight)
    ce, ntl = sums.cross_entropy, sums.ntl
    of_labels = sums.of_labels if SHARED else ce
    if MEAN:
        ce, of_labels = divide(ce, tokens), divide(of_labels, tokens)
        ntl = divide(ntl, tokens if OVER_TOKENS else numbers)
    tl.store(loss, of_labels + number_of(ntl_weight) * ntl)
    reduced = Parts(
        cross_entropy=ce,
        ntl=ntl,
        num_tokens=tokens,
        num_numbers=numbers,
        token_accuracy=divide(sums.is_correct, sums.token_count),
        number_mae=divide(sums.absolute_error, sums.number_count),
        number_mass=divide(sums.mass, sums.number_count),
    )
    store_named(reduced, PARTS, parts, 1, 0)
