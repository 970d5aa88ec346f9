"""How the kernels walk a row: with how many threads, vectors at a time and registers, and how much of it they keep.

By the model, not yet measured: the numbers follow from the registers and spills of what the compiler makes
(``python -m ntl_kernels.inspect``) and from a count of bytes and instructions (``--model``). On a GPU, ``python -m
benchmarks.speed tune`` times the alternatives.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..kernels.arguments import Options, Tile
from .layout import VECTOR_BYTES

LANES = {"hip": 64, "xpu": 32, "cuda": 32}
"""Threads of a warp."""
MOST_THREADS = 1024
STREAMED = ((2**11, 32), (2**13, 128), (2**16, 256), (2**17, 512), (math.inf, MOST_THREADS))
"""(row bytes up to, threads) of a row that is read once in a launch, or twice without being kept.

A multiprocessor then works on few enough rows at a time for a second read to find them in the L2 cache.
"""
STREAMED_REGISTERS = 64
"""With which 1024 threads fit a multiprocessor."""
KEPT = (
    (2**13, 32),  # 16 rows on a multiprocessor, of one warp each: nobody waits at a barrier
    (2**14, 64),  # 8 rows
    (2**15, 128),  # 4 rows
    (2**16, 256),  # 2 rows: one is on its way while the threads of the other compare notes
    (math.inf, 512),  # 1 row, of which 128 KB is kept
)
"""(row bytes up to, threads) of a row that is kept in registers on an NVIDIA GPU: as few threads as hold it, since as
many rows as possible are to be under way. Every line fills a multiprocessor's registers with 16 warps, and half of
them with rows."""
KEPT_REGISTERS = 128
MOST_KEPT = 16
"""Vectors of a thread, which take 64 of its registers."""
BLACKWELL = 10
"""The major compute capability from which on packed arithmetic wants registers in pairs."""
MOST_KEPT_OF_16_BITS = {BLACKWELL: 12}
"""The same of 16-bit rows where the compiler has room for fewer, by the major compute capability."""
MOST_KEPT_WITH_SUMS = 8
"""The same with label_sigma, whose running sums take registers, too."""
NUMBERS_PER_THREAD = 4
"""Beside a row that is kept. If that takes more threads than there are, there is no room for the row."""
NUMBERS_PER_THREAD_WITH_SUMS = 2
"""With label_sigma, beside a row that is not."""
UNROLL = 4
UNROLL_OF_MANY_OPERATIONS = 2
"""Where the registers are short: with softcap, smoothing or label_sigma, unless there are 128."""


@lru_cache(maxsize=256)
def kept_tile(
    row_bytes: int, item: int, aligned: bool, block: int, options: Options, major: int
) -> tuple[Tile, dict[str, Any]] | None:
    """The tile of a kernel that walks its rows twice and keeps of them what it can; None if that is nothing.

    Args:
        block: lanes that hold the number tokens.
        major: the GPU's compute capability.
    """
    if options.softcap and (options.smoothing or major >= BLACKWELL):
        return None  # together they leave no registers
    fits = (threads for most, threads in KEPT if row_bytes <= most and block <= NUMBERS_PER_THREAD * threads)
    threads = next(fits, None)
    if threads is None:
        return None
    vectors = math.ceil(row_bytes / (VECTOR_BYTES * threads))
    most = MOST_KEPT_OF_16_BITS.get(major, MOST_KEPT) if item == 2 else MOST_KEPT
    keep = min(vectors, MOST_KEPT_WITH_SUMS if options.kind == "cumulative" else most)
    how = options_of_launch(threads, "cuda") | {"maxnreg": KEPT_REGISTERS}
    return Tile(threads, VECTOR_BYTES // item, UNROLL, keep, keep == vectors, aligned), how


@lru_cache(maxsize=256)
def tile_for(
    row_bytes: int, item: int, aligned: bool, writes: bool, unroll: int, least_threads: int, platform: str
) -> tuple[Tile, dict[str, Any]]:
    """The tile of a kernel that keeps nothing of its rows, and how to compile and launch it."""
    threads = next(threads for most, threads in STREAMED if row_bytes <= most)
    threads = max(LANES[platform], threads, min(least_threads, MOST_THREADS))
    how = options_of_launch(threads, platform)
    if platform == "cuda" and not (writes and item == 2 and unroll == UNROLL):
        # Unasked, the assembler takes more for short rows, or spills to get down to 32 or 40; but asked, it spills on
        # sm_100 where it takes 60 unasked, in the case left out here.
        how["maxnreg"] = STREAMED_REGISTERS
    return Tile(threads, VECTOR_BYTES // item, unroll, 0, False, aligned), how


def options_of_launch(threads: int, platform: str) -> dict[str, Any]:
    """Triton's options for a kernel of so many threads."""
    options: dict[str, Any] = {"num_warps": threads // LANES[platform]}
    if platform != "xpu":
        options["enable_fp_fusion"] = True  # Triton 3.10 changes the default
    return options
