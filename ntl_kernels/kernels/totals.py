"""The kernels over all rows: one program, so that every sum has one order."""

import triton
import triton.language as tl

from .fields import (
    ABSOLUTE_ERROR,
    CROSS_ENTROPY,
    IS_CORRECT,
    MASS,
    NTL,
    NUMBER_WEIGHT,
    WEIGHT,
    load_field,
)
from .labels import divide, number_of, read_labels


@triton.jit(do_not_specialize=["vocab_size", "row_count"])
def count_kernel(
    labels,
    numbers,
    vocab_size,
    row_count,
    totals,  # [2]
    BLOCK: tl.constexpr,
):
    """The sums of the weights over the rows that count and over the number rows among them."""
    lanes = tl.arange(0, BLOCK)
    weights, number_weights = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, row_count, BLOCK):
        label = read_labels(labels, numbers, vocab_size, start + lanes, start + lanes < row_count)
        weights += label.weight
        number_weights += tl.where(label.index >= 0, label.weight, 0.0)
    tl.store(totals, tl.sum(weights, 0))
    tl.store(totals + 1, tl.sum(number_weights, 0))


@triton.jit
def field_sum(fields, field: tl.constexpr, row_count, BLOCK: tl.constexpr):
    """The sum of one field over all rows."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, row_count, BLOCK):
        total += load_field(fields, field, start + lanes, start + lanes < row_count)
    return tl.sum(total, 0)


@triton.jit
def field_count(fields, field: tl.constexpr, row_count, BLOCK: tl.constexpr):
    """How many rows have a field other than 0."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, row_count, BLOCK):
        total += (load_field(fields, field, start + lanes, start + lanes < row_count) != 0.0).to(tl.int32)
    return tl.sum(total, 0).to(tl.float32)


@triton.jit
def given_or(given, total):
    """The denominator that was given, else the total found."""
    if given is None:
        return total
    else:
        return number_of(given)


@triton.jit(do_not_specialize=["row_count"])
def finish_kernel(
    fields,  # Fields
    row_count,
    shares,
    loss,  # 0-d
    parts,  # [7]
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Reduce the fields, in the order of NTLOutput."""
    num_tokens = given_or(shares.num_tokens, field_sum(fields, WEIGHT, row_count, BLOCK))
    num_numbers = given_or(shares.num_numbers, field_sum(fields, NUMBER_WEIGHT, row_count, BLOCK))
    token_count = field_count(fields, WEIGHT, row_count, BLOCK)
    number_count = field_count(fields, NUMBER_WEIGHT, row_count, BLOCK)
    ce = field_sum(fields, CROSS_ENTROPY, row_count, BLOCK)
    ntl = field_sum(fields, NTL, row_count, BLOCK)
    if MEAN:
        ce, ntl = divide(ce, num_tokens), divide(ntl, num_numbers)
    tl.store(loss, ce + number_of(shares.ntl_weight) * ntl)
    tl.store(parts, ce)
    tl.store(parts + 1, ntl)
    tl.store(parts + 2, num_tokens)
    tl.store(parts + 3, num_numbers)
    tl.store(parts + 4, divide(field_sum(fields, IS_CORRECT, row_count, BLOCK), token_count))
    tl.store(parts + 5, divide(field_sum(fields, ABSOLUTE_ERROR, row_count, BLOCK), number_count))
    tl.store(parts + 6, divide(field_sum(fields, MASS, row_count, BLOCK), number_count))
