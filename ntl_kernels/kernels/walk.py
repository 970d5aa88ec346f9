"""Walks over a row in 16-byte vectors, at any alignment: twice per row, reading it once as far as registers suffice.

A row is split into a *head* up to the next multiple of 16 bytes, a *body* of whole vectors, and a *tail*. Head and tail
are each shorter than a vector and form the *edges*. The logits and the gradient of a row start at the same offset
modulo 16 bytes, so they have the same split.

The body is walked in groups of [unroll, threads, vector] columns: each load of a thread has 16 bytes, neighbouring
threads read neighbouring vectors, and reductions along the first and last axis stay within a thread.

The first walk computes the normaliser, the second writes the gradient. In between, the edges and the end of the body
stay in registers (see :class:`Kept`); only the *front*, which is empty unless the row is long, is read again.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .normaliser import (
    add_columns,
    anchor,
    merge_normalisers,
    moved_distance,
    online_distance,
    online_normaliser,
    powers,
    product,
)
from .rows import constexpr_function
from .softcap import HARDWARE, IS_COMPILED, softcap_grad, transformed

VECTOR_BYTES = tl.constexpr(16)


class Row(NamedTuple):
    """One row, split into head, body and tail."""

    start: Any
    body: Any  # where the body starts: ``start + head``
    head: Any  # columns before the body
    body_size: Any  # columns of the body, a multiple of the vector
    size: Any  # V


class Front(NamedTuple):
    """What each thread knows about the front after the first walk, each [threads]."""

    peak: Any
    total: Any
    distance: Any  # sum(u - peak), if needed
    count: Any  # the number of columns, if the distance is needed


class Kept(NamedTuple):
    """The part of a row that a program keeps between the walks, as it was read."""

    edges: Any  # [2 * vector]: head and tail; 0 between them.
    body: Any  # the last ``keep`` vectors of every thread: a tuple of [1 or more, threads, vector]; -inf after the row.


@triton.jit
def row_of(pointer, batch_stride, row_stride, length, vocab_size, row, TILE: tl.constexpr):
    """The row b * length + t of [B, T, V]; offsets have 64 bits, because N * V can exceed 2**31."""
    batch, time = row // length, row % length
    start = pointer + batch.to(tl.int64) * batch_stride + time.to(tl.int64) * row_stride
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
def group_columns(UNROLL: tl.constexpr, TILE: tl.constexpr):
    """Columns [unroll, threads, vector] of a group, from its start.

    The contiguity hints hold within a vector. For the thread axis they only say that it is distributed over the lanes
    of a warp: otherwise Triton 3.6 distributes the first axis, and every reduction needs shuffles.
    """
    VECTOR: tl.constexpr = TILE.vector
    vectors = tl.arange(0, UNROLL)[:, None, None] * TILE.threads + tl.arange(0, TILE.threads)[None, :, None]
    columns = vectors * VECTOR + tl.arange(0, VECTOR)[None, None, :]
    return tl.max_contiguous(columns, [1, 2, VECTOR])


@triton.jit
def transformed_vectors(z, scalars, SOFTCAP: tl.constexpr, TILE: tl.constexpr):
    """:func:`transformed` of whole vectors."""
    if TILE.widens and IS_COMPILED and z.dtype == tl.bfloat16:
        # To float32 with one operation per value; the compiler needs three for two values.
        widen: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        z = tl.inline_asm_elementwise(widen, "=r,=r,r", [z], tl.float32, is_pure=True, pack=2)
    return transformed(z, scalars.inner, SOFTCAP)


@triton.jit
def vectors_inside(size, FIRST: tl.constexpr, COUNT: tl.constexpr, TILE: tl.constexpr):
    """[count, threads]: which vectors of each thread, from FIRST on, are within the first ``size`` columns.

    The others are read as -inf, which needs no mask if only powers are computed from it.
    """
    vectors = FIRST + tl.arange(0, COUNT)[:, None]
    return tl.arange(0, TILE.threads)[None, :] * TILE.vector < size - vectors * (TILE.threads * TILE.vector)


@triton.jit
def edge_columns(row, VECTOR: tl.constexpr):
    """(columns, inside) [2 * vector] of head and tail, from the start of the row."""
    lane = tl.arange(0, 2 * VECTOR)
    columns = tl.where(lane < VECTOR, lane, row.head + row.body_size + lane - VECTOR)
    return columns, columns < tl.where(lane < VECTOR, row.head, row.size)


@triton.jit
def front_size(row, TILE: tl.constexpr):
    """Columns of the body that are not kept, a multiple of the vector."""
    if TILE.whole:
        size = 0
    elif TILE.keep == 0:
        size = row.body_size
    else:
        size = tl.maximum(row.body_size - TILE.keep * TILE.threads * TILE.vector, 0)
    return size


@triton.jit
def walk_front(row, scalars, SOFTCAP: tl.constexpr, SUM: tl.constexpr, POLICY: tl.constexpr, TILE: tl.constexpr):
    """The first walk over the front, from start to end."""
    STEP: tl.constexpr = TILE.threads * TILE.vector
    GROUP: tl.constexpr = TILE.unroll * STEP
    THREADS: tl.constexpr = TILE.threads  # Triton 3.6 takes no number from a tuple in a shape or a hint
    nothing = tl.zeros([THREADS], tl.float32)
    peak = tl.full([THREADS], float("-inf"), tl.float32)
    total, distance, count = nothing, nothing, nothing
    size = front_size(row, TILE)
    whole = size // GROUP * GROUP
    columns = group_columns(TILE.unroll, TILE)
    for offset in tl.range(0, whole, GROUP):
        z = tl.load(row.body + (offset + columns), eviction_policy=POLICY)
        u = transformed_vectors(z, scalars, SOFTCAP, TILE)
        distance, count, peak, total = add_vectors(
            distance, count, peak, total, u, None, scalars, SUM, SOFTCAP == HARDWARE
        )
    columns = group_columns(1, TILE)
    for offset in tl.range(whole, size, STEP):
        z = tl.load(
            row.body + (offset + columns), mask=offset + columns < size, other=float("-inf"), eviction_policy=POLICY
        )
        u = transformed_vectors(z, scalars, SOFTCAP, TILE)
        inside = None
        if SOFTCAP or SUM:
            inside = vectors_inside(size - offset, 0, 1, TILE)
        distance, count, peak, total = add_vectors(
            distance, count, peak, total, u, inside, scalars, SUM, SOFTCAP == HARDWARE
        )
    return Front(peak=peak, total=total, distance=distance, count=count)


@constexpr_function
def kept_parts(KEEP):
    """The number of parts of the kept vectors: pairs, and a single vector at the end of an odd number.

    A thread converts one part at a time to float32; with larger parts, 16-bit rows run out of registers.
    """
    return (KEEP + 1) // 2


@triton.jit
def kept_columns(PART: tl.constexpr, TILE: tl.constexpr):
    """A part's columns, relative to the end of the front, as a sum of two terms: per thread and per vector.

    Adding them to a pointer one after the other lets the compiler use one address for all parts.
    """
    COUNT: tl.constexpr = 2 if TILE.keep >= 2 * PART + 2 else 1
    vectors = 2 * PART + tl.arange(0, COUNT)[:, None, None]
    return group_columns(1, TILE), vectors * (TILE.threads * TILE.vector)


@triton.jit
def read_kept(row, TILE: tl.constexpr):
    """Read the edges and the end of the body, which are not read again."""
    edges = 0.0
    if not TILE.aligned:
        columns, is_edge = edge_columns(row, TILE.vector)
        edges = tl.load(row.start + columns, mask=is_edge, other=0.0)
    body = ()
    start = tl.multiple_of(row.body + front_size(row, TILE), 16)
    size = row.body_size - front_size(row, TILE)
    for part in tl.static_range(kept_parts(TILE.keep)):
        columns, vectors = kept_columns(part, TILE)
        z = tl.load(
            start + columns + vectors, mask=columns < size - vectors, other=float("-inf"), eviction_policy="evict_first"
        )
        body = body + (z,)  # type: ignore[assignment]  # noqa: RUF005 (Triton has no starred expressions)
    if TILE.keep:
        tl.debug_barrier()  # otherwise the assembler waits for the first vectors before it loads the last
    return Kept(edges=edges, body=body)


@triton.jit
def walk_kept(row, front, kept, scalars, SOFTCAP: tl.constexpr, SUM: tl.constexpr, TILE: tl.constexpr):
    """The first walk over the kept part: (the normaliser, sum(u - peak) if needed) of the whole row."""
    peak, total, distance, count = front.peak, front.total, front.distance, front.count
    size = row.body_size - front_size(row, TILE)
    for part in tl.static_range(kept_parts(TILE.keep)):
        u = transformed_vectors(kept.body[part], scalars, SOFTCAP, TILE)
        inside = None
        if SOFTCAP or SUM:
            inside = vectors_inside(size, 2 * part, u.shape[0], TILE)
        # With a softcap, the special-function unit only has time for one part in four.
        distance, count, peak, total = add_vectors(
            distance, count, peak, total, u, inside, scalars, SUM, SOFTCAP == HARDWARE and part % 4 != 0
        )
    normaliser = merge_normalisers(peak, total, scalars)
    whole_distance = 0.0
    if SUM:
        whole_distance = tl.sum(moved_distance(distance, count, peak, normaliser.peak), 0)
    if not TILE.aligned:
        _, is_edge = edge_columns(row, TILE.vector)
        u = transformed(kept.edges, scalars.inner, SOFTCAP)
        body_peak = normaliser.peak
        normaliser = add_columns(normaliser, tl.where(is_edge, u, float("-inf")), scalars)
        if SUM:
            whole_distance = moved_distance(whole_distance, row.body_size, body_peak, normaliser.peak)
            whole_distance += tl.sum(tl.where(is_edge, u - anchor(normaliser.peak), 0.0), 0)
    return normaliser, whole_distance


@triton.jit
def add_vectors(distance, count, peak, total, u, inside, scalars, SUM: tl.constexpr, POLYNOMIAL: tl.constexpr):
    """Add u [U, R, C] to what each of R threads knows: (distance, count, peak, total), as in :class:`Front`."""
    new_peak, total = online_normaliser(peak, total, u, inside, scalars, POLYNOMIAL)
    if SUM:
        distance, count = online_distance(distance, count, peak, new_peak, u, inside)
    return distance, count, new_peak, total


@triton.jit
def column_gradient(u, exponent, slope, pull, SOFTCAP: tl.constexpr):
    """(slope * power + pull) of columns u, times the derivative of the softcap.

    The slope includes the division by the row's total, and both slope and pull include the logit scale.
    """
    g = slope * powers(u, exponent.factor, exponent.shift) + pull
    if SOFTCAP:
        g *= softcap_grad(u)
    return g


@triton.jit
def opaque(z, zero):
    """z XOR an int16 0 that the compiler cannot predict.

    Otherwise the compiler sees that the second walk converts the same 16-bit values as the first one, and keeps the
    converted values, which takes twice the registers.
    """
    if IS_COMPILED and z.dtype.primitive_bitwidth == 16:
        zeros = tl.zeros(z.shape, tl.int16) + zero
        z = tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [z, zeros], z.dtype, is_pure=True, pack=2)
    return z


@triton.jit
def write_kept(
    row, kept, target, scalars, exponent, slope, pull, SOFTCAP: tl.constexpr, POLICY: tl.constexpr, TILE: tl.constexpr
):
    """The second walk over the end of the body."""
    dtype = target.start.dtype.element_ty
    start = tl.multiple_of(target.body + front_size(row, TILE), 16)
    zero = row.size >> 31
    # The masks are also recomputed: keeping them would take registers.
    VECTOR: tl.constexpr = TILE.vector
    size = tl.multiple_of(row.body_size - front_size(row, TILE) + zero, VECTOR)
    zero = zero.to(tl.int16)
    for part in tl.static_range(kept_parts(TILE.keep)):
        u = transformed_vectors(opaque(kept.body[part], zero), scalars, SOFTCAP, TILE)
        g = column_gradient(u, exponent, slope, pull, SOFTCAP)
        columns, vectors = kept_columns(part, TILE)
        tl.store(start + columns + vectors, g.to(dtype), mask=columns < size - vectors, eviction_policy=POLICY)


@triton.jit
def write_front(
    row, target, scalars, exponent, slope, pull, SOFTCAP: tl.constexpr, POLICY: tl.constexpr, TILE: tl.constexpr
):
    """The second walk over the front, from end to start: it begins with what was read last and is still in cache."""
    STEP: tl.constexpr = TILE.threads * TILE.vector
    GROUP: tl.constexpr = TILE.unroll * STEP
    dtype = target.start.dtype.element_ty
    size = front_size(row, TILE)
    groups = size // GROUP
    rest = (size - groups * GROUP + STEP - 1) // STEP
    columns = group_columns(1, TILE)
    for i in tl.range(0, rest):
        offset = groups * GROUP + (rest - 1 - i) * STEP
        inside = offset + columns < size
        z = tl.load(row.body + (offset + columns), mask=inside, other=0.0, eviction_policy="evict_first")
        g = column_gradient(transformed_vectors(z, scalars, SOFTCAP, TILE), exponent, slope, pull, SOFTCAP)
        tl.store(target.body + (offset + columns), g.to(dtype), mask=inside, eviction_policy=POLICY)
    columns = group_columns(TILE.unroll, TILE)
    for i in tl.range(0, groups):
        offset = (groups - 1 - i) * GROUP
        z = tl.load(row.body + (offset + columns), eviction_policy="evict_first")
        g = column_gradient(transformed_vectors(z, scalars, SOFTCAP, TILE), exponent, slope, pull, SOFTCAP)
        tl.store(target.body + (offset + columns), g.to(dtype), eviction_policy=POLICY)


@triton.jit
def write_gradient(row, kept, target, scalars, exponent, slope, pull, SOFTCAP: tl.constexpr, TILE: tl.constexpr):
    """The second walk: ``target = slope * power + pull`` in every column, times the derivative of the softcap.

    The target may be the row itself. The caller must have read everything else that it needs from the row, followed by
    a barrier, either of a reduction or explicit.
    """
    if not TILE.aligned:
        columns, is_edge = edge_columns(row, TILE.vector)
        g = column_gradient(transformed(kept.edges, scalars.inner, SOFTCAP), exponent, slope, pull, SOFTCAP)
        tl.store(target.start + columns, g.to(target.start.dtype.element_ty), mask=is_edge)
    POLICY: tl.constexpr = "" if TILE.stays else "evict_first"
    write_kept(row, kept, target, scalars, exponent, slope, pull, SOFTCAP, POLICY, TILE)
    write_front(row, target, scalars, exponent, slope, pull, SOFTCAP, POLICY, TILE)


@triton.jit
def scaled(g, factor):
    """g * factor, or 0 if g is 0, so that a factor that is not finite does not affect rows that do not count."""
    return tl.where(g == 0.0, 0.0, product(g, factor))


@triton.jit
def scale_row(row, factor, TILE: tl.constexpr):
    """row *= factor."""
    GROUP: tl.constexpr = TILE.unroll * TILE.threads * TILE.vector
    dtype = row.start.dtype.element_ty
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, TILE.vector)
        g_edge = tl.load(row.start + edges, mask=is_edge, other=0.0).to(tl.float32)
        tl.debug_barrier()  # wait until all threads have read the edges, which one of them writes
        tl.store(row.start + edges, scaled(g_edge, factor).to(dtype), mask=is_edge)
    columns = group_columns(TILE.unroll, TILE)
    for offset in tl.range(0, row.body_size, GROUP):
        inside = offset + columns < row.body_size
        g = tl.load(row.body + (offset + columns), mask=inside, other=0.0).to(tl.float32)
        tl.store(row.body + (offset + columns), scaled(g, factor).to(dtype), mask=inside)


@triton.jit
def clear_row(row, TILE: tl.constexpr):
    """row = 0."""
    GROUP: tl.constexpr = TILE.unroll * TILE.threads * TILE.vector
    dtype = row.start.dtype.element_ty
    columns = group_columns(TILE.unroll, TILE)
    for offset in tl.range(0, row.body_size, GROUP):
        zeros = tl.zeros(columns.shape, dtype)
        tl.store(row.body + (offset + columns), zeros, mask=offset + columns < row.body_size)
    if not TILE.aligned:
        edges, is_edge = edge_columns(row, TILE.vector)
        tl.store(row.start + edges, tl.zeros(edges.shape, dtype), mask=is_edge)
