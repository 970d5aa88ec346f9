"""A row in 16-byte vectors, wherever it starts.

A row splits into a *head* up to the next multiple of 16 bytes, a *body* of whole vectors and a *tail*; head and tail
are shorter than a vector each and form the *edges*. The logits and the gradient of a row start at the same offset
modulo 16 bytes, so that one split serves both.

The body is walked in groups of [unroll, threads, vector] columns: a thread's loads are 16 bytes each, neighbouring
threads read neighbouring vectors, and every reduction along the first and last axis stays in its thread.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .normaliser import add_columns, anchor, is_huge, merge_normalisers, online_normaliser, powers, product
from .softcap import softcap_grad, transform

VECTOR_BYTES = tl.constexpr(16)


class Row(NamedTuple):
    """One row, split."""

    start: Any
    body: Any
    """Where the body starts: ``start + head``."""
    head: Any
    """Columns before the body."""
    body_size: Any
    """Columns of the body, a multiple of the vector."""
    size: Any
    """V"""


@triton.jit
def row_of(matrix, batch_stride, length, vocab_size, row, TILE: tl.constexpr):
    """The row b * length + t of a matrix; offsets in 64 bits, since N * V passes 2**31."""
    batch, time = row // length, row % length
    start = matrix.pointer + batch.to(tl.int64) * batch_stride + time.to(tl.int64) * matrix.row_stride
    if TILE.aligned:
        head = 0
        body = tl.multiple_of(start, 16)
    else:
        to_next = (-start.to(tl.int64) & (VECTOR_BYTES - 1)).to(tl.int32)
        head = tl.minimum(to_next // (VECTOR_BYTES // TILE.vector), vocab_size)
        body = tl.multiple_of(start + head, 16)
    body_size = (vocab_size - head) // TILE.vector * TILE.vector
    return Row(start=start, body=body, head=head, body_size=body_size, size=vocab_size)


@triton.jit
def group_columns(UNROLL: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr):
    """Columns [unroll, threads, vector] of a group, from its start."""
    vectors = tl.arange(0, UNROLL)[:, None, None] * THREADS + tl.arange(0, THREADS)[None, :, None]
    return vectors * VECTOR + tl.arange(0, VECTOR)[None, None, :]


@triton.jit
def edge_columns(row, VECTOR: tl.constexpr):
    """(columns, inside) [2 * vector] of head and tail, from the start of the row."""
    lane = tl.arange(0, 2 * VECTOR)
    columns = tl.where(lane < VECTOR, lane, row.head + row.body_size + lane - VECTOR)
    return columns, columns < tl.where(lane < VECTOR, row.head, row.size)


@triton.jit
def row_normaliser(row, how, SOFTCAP: tl.constexpr, SUM: tl.constexpr, POLICY: tl.constexpr, TILE: tl.constexpr):
    """(the normaliser, sum(u - peak) if asked for): the first pass reads the row once, front to back."""
    THREADS: tl.constexpr = TILE.threads
    VECTOR: tl.constexpr = TILE.vector
    UNROLL: tl.constexpr = TILE.unroll
    GROUP: tl.constexpr = UNROLL * THREADS * VECTOR
    peak = tl.full([THREADS], float("-inf"), tl.float32)
    total = tl.zeros([THREADS], tl.float32)
    sums = tl.zeros([THREADS], tl.float32)
    origin = 0.0
    if SUM:
        origin = row_origin(row, how, SOFTCAP)
    whole = row.body_size // GROUP * GROUP
    columns = group_columns(UNROLL, THREADS, VECTOR)
    for offset in tl.range(0, whole, GROUP):
        u = transform(tl.load(row.body + (offset + columns), eviction_policy=POLICY), how.inner, SOFTCAP)
        peak, total = online_normaliser(peak, total, u, how)
        if SUM:
            sums += tl.sum(tl.sum(u - origin, 2), 0)
    columns = group_columns(1, THREADS, VECTOR)
    for offset in tl.range(whole, row.body_size, THREADS * VECTOR):
        inside = offset + columns < row.body_size
        z = tl.load(row.body + (offset + columns), mask=inside, other=0.0, eviction_policy=POLICY)
        u = transform(z, how.inner, SOFTCAP)
        peak, total = online_normaliser(peak, total, tl.where(inside, u, float("-inf")), how)
        if SUM:
            sums += tl.sum(tl.sum(tl.where(inside, u - origin, 0.0), 2), 0)
    normaliser = merge_normalisers(peak, total, how)
    distance = tl.sum(sums, 0)
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, VECTOR)
        u_edge = transform(tl.load(row.start + edges, mask=is_edge, other=0.0), how.inner, SOFTCAP)
        normaliser = add_columns(normaliser, tl.where(is_edge, u_edge, float("-inf")), how)
        distance += tl.sum(tl.where(is_edge, u_edge - origin, 0.0), 0)
    return normaliser, distance + row.size * (origin - anchor(normaliser.peak))


@triton.jit
def row_origin(row, how, SOFTCAP: tl.constexpr):
    """What to sum a row's u from, so that a common offset costs no digits: its first column, unless that is masked."""
    u = transform(tl.load(row.start, mask=row.size > 0, other=0.0), how.inner, SOFTCAP)
    return tl.where(is_huge(u, how), 0.0, u)


@triton.jit
def column_gradient(u, exponent, slope, pull, SOFTCAP: tl.constexpr):
    """(slope * power + pull), through the softcap, of columns u.

    The row's total, which makes a probability of a power, is part of the slope, and the logit scale of both.
    """
    g = slope * powers(u, exponent.factor, exponent.shift) + pull
    if SOFTCAP:
        g *= softcap_grad(u)
    return g


@triton.jit
def write_gradient(row, target, how, exponent, slope, pull, SOFTCAP: tl.constexpr, TILE: tl.constexpr):
    """The second pass: ``target = slope * power + pull`` in every column, through the softcap.

    Walked back to front, so that it first meets the part of the row that was read last and is still in cache. What the
    caller needs of the row it reads before: the target may be the row itself.
    """
    THREADS: tl.constexpr = TILE.threads
    VECTOR: tl.constexpr = TILE.vector
    UNROLL: tl.constexpr = TILE.unroll
    STEP: tl.constexpr = THREADS * VECTOR
    GROUP: tl.constexpr = UNROLL * STEP
    dtype = target.start.dtype.element_ty
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, VECTOR)
        u_edge = transform(tl.load(row.start + edges, mask=is_edge, other=0.0), how.inner, SOFTCAP)
    tl.debug_barrier()  # every thread has read the columns that another one writes
    if not TILE.aligned:
        g_edge = column_gradient(u_edge, exponent, slope, pull, SOFTCAP)
        tl.store(target.start + edges, g_edge.to(dtype), mask=is_edge)
    groups = row.body_size // GROUP
    steps = (row.body_size - groups * GROUP + STEP - 1) // STEP
    columns = group_columns(1, THREADS, VECTOR)
    for i in tl.range(0, steps):
        offset = groups * GROUP + (steps - 1 - i) * STEP
        inside = offset + columns < row.body_size
        z = tl.load(row.body + (offset + columns), mask=inside, other=0.0, eviction_policy="evict_first")
        g = column_gradient(transform(z, how.inner, SOFTCAP), exponent, slope, pull, SOFTCAP)
        tl.store(target.body + (offset + columns), g.to(dtype), mask=inside, eviction_policy="evict_first")
    columns = group_columns(UNROLL, THREADS, VECTOR)
    for i in tl.range(0, groups):
        offset = (groups - 1 - i) * GROUP
        z = tl.load(row.body + (offset + columns), eviction_policy="evict_first")
        g = column_gradient(transform(z, how.inner, SOFTCAP), exponent, slope, pull, SOFTCAP)
        tl.store(target.body + (offset + columns), g.to(dtype), eviction_policy="evict_first")


@triton.jit
def scaled(g, factor):
    """g * factor, and 0 where g is 0: rows that do not count have no part in a factor that is not finite."""
    return tl.where(g == 0.0, 0.0, product(g, factor))


@triton.jit
def scale_row(row, factor, TILE: tl.constexpr):
    """row *= factor."""
    THREADS: tl.constexpr = TILE.threads
    VECTOR: tl.constexpr = TILE.vector
    UNROLL: tl.constexpr = TILE.unroll
    dtype = row.start.dtype.element_ty
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, VECTOR)
        g_edge = tl.load(row.start + edges, mask=is_edge, other=0.0).to(tl.float32)
        tl.debug_barrier()  # every thread has read the edges, which one of them writes
        tl.store(row.start + edges, scaled(g_edge, factor).to(dtype), mask=is_edge)
    columns = group_columns(UNROLL, THREADS, VECTOR)
    for offset in tl.range(0, row.body_size, UNROLL * THREADS * VECTOR):
        inside = offset + columns < row.body_size
        g = tl.load(row.body + (offset + columns), mask=inside, other=0.0).to(tl.float32)
        tl.store(row.body + (offset + columns), scaled(g, factor).to(dtype), mask=inside)


@triton.jit
def clear_row(row, TILE: tl.constexpr):
    """row = 0."""
    THREADS: tl.constexpr = TILE.threads
    VECTOR: tl.constexpr = TILE.vector
    UNROLL: tl.constexpr = TILE.unroll
    dtype = row.start.dtype.element_ty
    columns = group_columns(UNROLL, THREADS, VECTOR)
    for offset in tl.range(0, row.body_size, UNROLL * THREADS * VECTOR):
        zeros = tl.zeros([UNROLL, THREADS, VECTOR], dtype)
        tl.store(row.body + (offset + columns), zeros, mask=offset + columns < row.body_size)
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, VECTOR)
        tl.store(row.start + edges, tl.zeros([2 * VECTOR], dtype), mask=is_edge)
