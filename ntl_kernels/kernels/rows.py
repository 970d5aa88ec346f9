"""What memory holds about rows besides their logits: labels, weights, and results under names."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

constexpr_function = getattr(triton, "constexpr_function", None) or tl.constexpr_function  # there until Triton 3.4


class Label(NamedTuple):
    """The label of one row, or of a block of rows."""

    token: Any  # the label, 0 where the row does not count or the label is out of range
    counts: Any  # whether the row counts: it is not ignored and its weight is not 0
    row_weight: Any  # w; 0 if the row does not count, NaN if its label or weight is out of range.
    number_weight: Any  # u, the additional weight of NTL; NaN if it is out of range
    index: Any  # the label's index among the number tokens, -1 outside number rows


@triton.jit
def read_labels(labels, numbers, vocab_size, rows, inside=True):
    """The label of a row, or those of a block of rows that are ``inside``; none causes an access out of bounds."""
    return looked_up(read_ids(labels, vocab_size, rows, inside), numbers)


@triton.jit
def read_ids(labels, vocab_size, rows, inside=True):
    """:func:`read_labels` before the look-up: the index is 0 where :func:`looked_up` has to find it."""
    label = tl.load(labels.tokens + rows, mask=inside, other=0)
    weight = tl.where(inside, 1.0, 0.0)
    if labels.row_weights is not None:
        weight = tl.load(labels.row_weights + rows, mask=inside, other=0.0)
    counts = inside & (label != labels.ignore_index) & (weight != 0.0)
    in_range = (label >= 0) & (label < vocab_size)
    label = tl.where(counts & in_range, label, 0).to(tl.int32)
    weight = tl.where(counts, tl.where(in_range & (weight >= 0.0), weight, float("nan")), 0.0)
    number_weight, may_be_number = 1.0, counts & in_range
    if labels.number_weights is not None:
        given = tl.load(labels.number_weights + rows, mask=inside, other=0.0)
        may_be_number &= given != 0.0
        number_weight = tl.where(counts, tl.where(given >= 0.0, given, float("nan")), 0.0)
    index = tl.where(may_be_number, 0, -1)
    return Label(token=label, counts=counts, row_weight=weight, number_weight=number_weight, index=index)


@triton.jit
def looked_up(label, numbers):
    """The label with its index among the number tokens."""
    index = tl.load(numbers.lookup + label.token, mask=label.index == 0, other=-1)
    return Label(
        token=label.token,
        counts=label.counts,
        row_weight=label.row_weight,
        number_weight=label.number_weight,
        index=index,
    )


@constexpr_function
def names_in(names):
    return len(names)


@constexpr_function
def position(name, names):
    return names.index(name)


@triton.jit
def store_named(values, NAMES: tl.constexpr, pointer, stride, rows, inside=True):
    """Write the values with these names, a tuple in their order, of a row or of a block of rows that are ``inside``.

    A name has N entries in memory, and the names are ``stride`` entries apart.
    """
    for i in tl.static_range(names_in(NAMES)):
        tl.store(pointer + i * stride + rows, values[i], mask=inside)


@triton.jit
def load_named(NAME: tl.constexpr, NAMES: tl.constexpr, pointer, stride, rows, inside=True, other=0.0):
    """Read one of the values that :func:`store_named` has written; ``other`` for rows that are not ``inside``."""
    return tl.load(pointer + position(NAME, NAMES) * stride + rows, mask=inside, other=other)


@triton.jit
def divide(total, denominator):
    """total / denominator, or 0 if the denominator is 0."""
    is_zero = denominator == 0.0
    return tl.where(is_zero, 0.0, total / tl.where(is_zero, 1.0, denominator))


@triton.jit
def number_of(scalar):
    """A float, or the number that a pointer points to."""
    if hasattr(scalar, "dtype"):
        if scalar.dtype.is_ptr():
            return tl.load(scalar).to(tl.float32)
        else:
            return scalar
    else:  # in the interpreter a float stays a float
        return scalar


@triton.jit
def coefficients(label, upstream, num_tokens, num_numbers, ntl_weight, scalars):
    """(a, b): the coefficients of a row's CE and NTL in the loss, times the upstream gradient."""
    a = divide(upstream * scalars.has_cross_entropy * label.row_weight, number_of(num_tokens))
    b = divide(upstream * number_of(ntl_weight) * label.row_weight * label.number_weight, number_of(num_numbers))
    return a, b
