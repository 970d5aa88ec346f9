"""The kernels over all rows. They run as a single program, so that the order of every sum is fixed."""

import triton
import triton.language as tl

from .arguments import VARYING, Fields
from .fields import ABSOLUTE_ERROR, CROSS_ENTROPY, IS_CORRECT, MASS, NTL, NUMBER_WEIGHT, WEIGHT, load_field
from .labels import divide, number_of, read_labels


@triton.jit(do_not_specialize=[*VARYING, "totals"])
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
    """The number of rows in which a field is not 0."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, row_count, BLOCK):
        total += (load_field(fields, field, start + lanes, start + lanes < row_count) != 0.0).to(tl.int32)
    return tl.sum(total, 0).to(tl.float32)


@triton.jit
def given_or(given, total):
    """The given denominator, or the computed total."""
    if given is None:
        return total
    else:
        return number_of(given)


@triton.jit(do_not_specialize=[*VARYING, "fields", "loss", "parts"])
def finish_kernel(
    fields,  # [9, N]
    row_count,
    num_tokens,  # this and the next two: see Shares
    num_numbers,
    ntl_weight,
    loss,  # 0-d
    parts,  # [7]
    MEAN: tl.constexpr,
    OVER_TOKENS: tl.constexpr,  # whether a mean divides NTL by the tokens, too
    BLOCK: tl.constexpr,
):
    """Reduce the fields, in the order of NTLOutput."""
    field = Fields(pointer=fields, stride=row_count)
    tokens = given_or(num_tokens, field_sum(field, WEIGHT, row_count, BLOCK))
    numbers = given_or(num_numbers, field_sum(field, NUMBER_WEIGHT, row_count, BLOCK))
    token_count = field_count(field, WEIGHT, row_count, BLOCK)
    number_count = field_count(field, MASS, row_count, BLOCK)
    ce = field_sum(field, CROSS_ENTROPY, row_count, BLOCK)
    ntl = field_sum(field, NTL, row_count, BLOCK)
    if MEAN:
        ce, ntl = divide(ce, tokens), divide(ntl, tokens if OVER_TOKENS else numbers)
    tl.store(loss, ce + number_of(ntl_weight) * ntl)
    tl.store(parts, ce)
    tl.store(parts + 1, ntl)
    tl.store(parts + 2, tokens)
    tl.store(parts + 3, numbers)
    tl.store(parts + 4, divide(field_sum(field, IS_CORRECT, row_count, BLOCK), token_count))
    tl.store(parts + 5, divide(field_sum(field, ABSOLUTE_ERROR, row_count, BLOCK), number_count))
    tl.store(parts + 6, divide(field_sum(field, MASS, row_count, BLOCK), number_count))
