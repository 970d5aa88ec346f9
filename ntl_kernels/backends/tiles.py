"""How the kernels walk a row: the number of threads, vectors at a time and registers, and how much of a row they keep.

The numbers come from a model. They follow from the registers and spills of the compiled kernels (``python -m
benchmarks.inspect``) and from counts of bytes and instructions (``--model``). An H100 ran two of the tiles at 0.96 and
0.98 of a copy's speed; ``python -m benchmarks.speed tune``, which times the alternatives, has not run on a GPU yet.
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
CACHED_BYTES = 2**25
"""A gradient of up to this size is left in the L2 cache (40 MB on an A100, 60 MB on an H200) for what reads it next."""
STREAMED_REGISTERS = 64
"""Registers per thread with which 1024 threads fit a multiprocessor."""
KEPT = (
    (2**13, 32),  # 16 rows per multiprocessor, one warp each: no waiting at barriers
    (2**14, 64),  # 8 rows
    (2**15, 128),  # 4 rows
    (2**17, 256),  # 2 rows, of which 64 KB each is kept: one is being loaded while the threads of the other reduce
    (math.inf, 512),  # 1 row, of which 128 KB is kept
    (math.inf, MOST_THREADS),  # 1 row, of which 64 KB is kept alongside many number tokens
)
"""(row bytes up to, threads) for a row that is kept in registers on an NVIDIA GPU, with enough threads for the number
tokens.

Every line but the last fills a multiprocessor's registers with 16 warps, and half of the registers with rows. Two rows
at a time are worth more than keeping all of each, as long as what they read again leaves room in the L2 cache: on an
H200, 16 MB for V = 32,000 in float32, but 50 MB for 128,256 in bfloat16 (``benchmarks/results/rows-in-flight.md``).
"""
KEPT_REGISTERS = 128
MOST_KEPT = {KEPT_REGISTERS: 16, STREAMED_REGISTERS: 4}
"""Registers per thread -> kept vectors per thread, each of which takes 4."""
BLACKWELL = 10
"""The major compute capability from which packed arithmetic needs registers in pairs."""
MOST_KEPT_ON_BLACKWELL = {2: 11, 4: 8}
"""By bytes per column."""
MOST_KEPT_WITH_SUMS = 6
"""Kept vectors with label_sigma, whose running sums also take registers."""
NUMBERS_PER_THREAD = 4
"""Number tokens per thread alongside a kept row, or with a softcap or smoothing. A row is not kept if that needs more
threads than there are."""
NUMBERS_PER_THREAD_WITH_SUMS = 2
"""Number tokens per thread with label_sigma, for a row that is not kept."""
UNROLL = 4
UNROLL_OF_FRONTS = 8
"""For rows of which only the end is kept: the registers that will hold it are free while the front is walked."""
UNROLL_OF_MANY_OPERATIONS = 2
"""For when registers are scarce: with softcap, smoothing or label_sigma, unless there are 128."""


def is_busy(options: Options) -> bool:
    """Whether the loss needs many operations per column, and so many registers."""
    return bool(options.softcap or options.label_smoothing or options.kind == "cumulative")


def unroll_of(options: Options, registers: int = STREAMED_REGISTERS) -> int:
    """How many vectors to load at a time with this many registers per thread."""
    return UNROLL_OF_MANY_OPERATIONS if is_busy(options) and registers < KEPT_REGISTERS else UNROLL


def least_threads(options: Options, block: int) -> int:
    """How many threads the number tokens need if a thread has 64 registers."""
    if not is_busy(options):
        return 0
    return block // (NUMBERS_PER_THREAD_WITH_SUMS if options.kind == "cumulative" else NUMBERS_PER_THREAD)


@lru_cache(maxsize=256)
def kept_tile(
    row_bytes: int, item: int, aligned: bool, stays: bool, block: int, options: Options, major: int
) -> tuple[Tile, dict[str, Any]] | None:
    """The tile of a kernel that walks its rows twice and keeps as much of them as it can; None if that is nothing.

    Args:
        stays: see :class:`~ntl_kernels.kernels.arguments.Tile`.
        block: lanes that hold the number tokens.
        major: the GPU's compute capability.
    """
    if options.softcap and (options.label_smoothing or major >= BLACKWELL):
        return None  # together these leave no registers
    fits = (threads for most, threads in KEPT if row_bytes <= most and block <= NUMBERS_PER_THREAD * threads)
    threads = next(fits, None)
    if threads is None:
        return None
    is_blackwell, has_sums = major >= BLACKWELL, options.kind == "cumulative"
    registers = KEPT_REGISTERS if threads < MOST_THREADS else STREAMED_REGISTERS
    if registers < KEPT_REGISTERS and (is_blackwell or has_sums):
        return None
    most = MOST_KEPT_ON_BLACKWELL[item] if is_blackwell else MOST_KEPT[registers]
    vectors = math.ceil(row_bytes / (VECTOR_BYTES * threads))
    keep = min(vectors, most, MOST_KEPT_WITH_SUMS if has_sums else most)
    has_room = registers == KEPT_REGISTERS and not (is_blackwell or is_busy(options))
    unroll = UNROLL_OF_FRONTS if has_room else unroll_of(options, registers)
    tile = Tile(threads, VECTOR_BYTES // item, unroll, keep, keep == vectors, aligned, not is_blackwell, stays)
    return tile, launch_options(threads, "cuda") | {"maxnreg": registers}


@lru_cache(maxsize=256)
def tile_for(
    row_bytes: int, item: int, aligned: bool, writes: bool, stays: bool, unroll: int, least_threads: int, platform: str
) -> tuple[Tile, dict[str, Any]]:
    """The tile of a kernel that keeps nothing of its rows, and its compile and launch options."""
    threads = next(threads for most, threads in STREAMED if row_bytes <= most)
    threads = max(LANES[platform], threads, min(least_threads, MOST_THREADS))
    options = launch_options(threads, platform)
    if platform == "cuda" and not (writes and item == 2 and unroll == UNROLL):
        # Without this limit, the assembler uses more registers for short rows, or spills to get down to 32 or 40. With
        # it, it spills on sm_100 in the case excluded here, where it needs 60 registers.
        options["maxnreg"] = STREAMED_REGISTERS
    return Tile(threads, VECTOR_BYTES // item, unroll, 0, False, aligned, platform == "cuda", stays), options


def launch_options(threads: int, platform: str) -> dict[str, Any]:
    """Triton's options for a kernel with this many threads."""
    options: dict[str, Any] = {"num_warps": threads // LANES[platform]}
    if platform != "xpu":
        options["enable_fp_fusion"] = True  # Triton 3.10 changes the default
    return options
