"""How the kernels walk a row: the number of threads, vectors at a time and registers, and how much of a row they keep.

The numbers come from a model and are not yet measured. They follow from the registers and spills of the compiled
kernels (``python -m benchmarks.inspect``) and from counts of bytes and instructions (``--model``). On a GPU,
``python -m benchmarks.speed tune`` times the alternatives.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..kernels.arguments import Options, Tile
from .layout import VECTOR_BYTES

LANES = {"hip": 64, "xpu": 32, "cuda": 32}
"""Threads per warp."""
MOST_THREADS = 1024
STREAMED = ((2**11, 32), (2**13, 128), (2**16, 256), (2**17, 512), (math.inf, MOST_THREADS))
"""(row bytes up to, threads) for a row that is read once in a launch, or twice without being kept.

A multiprocessor then works on so few rows at a time that a second read finds them in the L2 cache.
"""
STREAMED_REGISTERS = 64
"""Registers per thread with which 1024 threads fit a multiprocessor."""
KEPT = (
    (2**13, 32),  # 16 rows per multiprocessor, one warp each: no waiting at barriers
    (2**14, 64),  # 8 rows
    (2**15, 128),  # 4 rows
    (2**16, 256),  # 2 rows: one is being loaded while the threads of the other reduce
    (math.inf, 512),  # 1 row, of which 128 KB is kept
)
"""(row bytes up to, threads) for a row that is kept in registers on an NVIDIA GPU: as few threads as can hold it, so
that as many rows as possible are in flight. Every line fills a multiprocessor's registers with 16 warps, and half of
the registers with rows."""
KEPT_REGISTERS = 128
MOST_KEPT = 16
"""Kept vectors per thread, which take 64 of its registers."""
BLACKWELL = 10
"""The major compute capability from which packed arithmetic needs registers in pairs."""
MOST_KEPT_OF_16_BITS = {BLACKWELL: 12}
"""Kept vectors of 16-bit rows where the compiler has room for fewer, by major compute capability."""
MOST_KEPT_WITH_SUMS = 8
"""Kept vectors with label_sigma, whose running sums also take registers."""
NUMBERS_PER_THREAD = 4
"""Number tokens per thread alongside a kept row. If that needs more threads than there are, the row is not kept."""
NUMBERS_PER_THREAD_WITH_SUMS = 2
"""Number tokens per thread with label_sigma, for a row that is not kept."""
UNROLL = 4
UNROLL_OF_MANY_OPERATIONS = 2
"""For when registers are scarce: with softcap, smoothing or label_sigma, unless there are 128."""


@lru_cache(maxsize=256)
def kept_tile(
    row_bytes: int, item: int, aligned: bool, block: int, options: Options, major: int
) -> tuple[Tile, dict[str, Any]] | None:
    """The tile of a kernel that walks its rows twice and keeps as much of them as it can; None if that is nothing.

    Args:
        block: lanes that hold the number tokens.
        major: the GPU's compute capability.
    """
    if options.softcap and (options.label_smoothing or major >= BLACKWELL):
        return None  # together these leave no registers
    fits = (threads for most, threads in KEPT if row_bytes <= most and block <= NUMBERS_PER_THREAD * threads)
    threads = next(fits, None)
    if threads is None:
        return None
    vectors = math.ceil(row_bytes / (VECTOR_BYTES * threads))
    most = MOST_KEPT_OF_16_BITS.get(major, MOST_KEPT) if item == 2 else MOST_KEPT
    keep = min(vectors, MOST_KEPT_WITH_SUMS if options.kind == "cumulative" else most)
    tile = Tile(threads, VECTOR_BYTES // item, UNROLL, keep, keep == vectors, aligned)
    return tile, launch_options(threads, "cuda") | {"maxnreg": KEPT_REGISTERS}


@lru_cache(maxsize=256)
def tile_for(
    row_bytes: int, item: int, aligned: bool, writes: bool, unroll: int, least_threads: int, platform: str
) -> tuple[Tile, dict[str, Any]]:
    """The tile of a kernel that keeps nothing of its rows, and its compile and launch options."""
    threads = next(threads for most, threads in STREAMED if row_bytes <= most)
    threads = max(LANES[platform], threads, min(least_threads, MOST_THREADS))
    options = launch_options(threads, platform)
    if platform == "cuda" and not (writes and item == 2 and unroll == UNROLL):
        # Without this limit, the assembler uses more registers for short rows, or spills to get down to 32 or 40. With
        # it, it spills on sm_100 in the case excluded here, where it needs 60 registers.
        options["maxnreg"] = STREAMED_REGISTERS
    return Tile(threads, VECTOR_BYTES // item, unroll, 0, False, aligned), options


def launch_options(threads: int, platform: str) -> dict[str, Any]:
    """Triton's options for a kernel with this many threads."""
    options: dict[str, Any] = {"num_warps": threads // LANES[platform]}
    if platform != "xpu":
        options["enable_fp_fusion"] = True  # Triton 3.10 changes the default
    return options
