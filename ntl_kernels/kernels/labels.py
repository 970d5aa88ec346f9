"""Label and weight of a row, and its coefficients in the loss."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Label(NamedTuple):
    """The label of one row, or of a block of rows."""

    id: Any
    """The label, 0 where the row does not count or the label is out of range."""
    counts: Any
    """Whether the row counts: it is not ignored and its weight is not 0."""
    weight: Any
    """The weight; 0 if the row does not count, NaN if its label or weight is out of range."""
    index: Any
    """The label's index among the number tokens, -1 outside number rows."""


@triton.jit
def read_labels(labels, numbers, vocab_size, rows, inside):
    """The labels of rows that are ``inside``; no label causes an access out of bounds."""
    label = tl.load(labels.ids + rows, mask=inside, other=0)
    weight = tl.where(inside, 1.0, 0.0)
    if labels.weights is not None:
        weight = tl.load(labels.weights + rows, mask=inside, other=0.0)
    counts = inside & (label != labels.ignore_index) & (weight != 0.0)
    in_range = (label >= 0) & (label < vocab_size)
    label = tl.where(counts & in_range, label, 0).to(tl.int32)
    index = tl.load(numbers.lookup + label, mask=counts & in_range, other=-1)
    weight = tl.where(counts, tl.where(in_range & (weight >= 0.0), weight, float("nan")), 0.0)
    return Label(id=label, counts=counts, weight=weight, index=index)


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
def coefficients(weight, upstream, shares, scalars):
    """(a, b): the coefficients of a row's CE and NTL in the loss, times the upstream gradient."""
    a = divide(upstream * scalars.ce_weight * weight, number_of(shares.num_tokens))
    b = divide(upstream * number_of(shares.ntl_weight) * weight, number_of(shares.num_numbers))
    return a, b
