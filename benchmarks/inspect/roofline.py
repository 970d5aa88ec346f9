"""Published limits of GPUs, and how much of each a row needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .counts import WARP, Counts

SCHEDULERS = 4
"""Schedulers per multiprocessor, each of which issues one instruction per clock (whitepapers of A100 and H100)."""
INTEGER_LANES = 64
"""Comparisons, integers, logic: results per clock and multiprocessor (CUDA C++ Programming Guide, "Throughput of Native
Arithmetic Instructions", compute capabilities 8.0, 9.0 and 10.0)."""
SPECIAL_LANES = 16
"""exp2 and similar functions; from the same table."""
LSU_BYTES = 128
"""Bytes between registers and L1 cache per clock and multiprocessor (whitepapers of V100 and A100; unchanged since)."""
MOST_THREADS, MOST_PROGRAMS, REGISTERS = 2048, 32, 65536
"""Maxima per multiprocessor (same guide, "Technical Specifications per Compute Capability"; equal for all three)."""
REGISTER_UNIT = 256
"""Register allocation unit per warp (CUDA Occupancy Calculator)."""
RESERVED_SHARED = 1024
"""Bytes of shared memory reserved per program (tuning guides of Ampere, Hopper and Blackwell)."""
L2_BYTES_PER_CLOCK = 31
"""Bytes per clock between the L2 cache and a multiprocessor. NVIDIA publishes no L2 bandwidth except the A100's peak
for reads (5120 bytes per clock, or 47 per multiprocessor). A micro-benchmark of the A100 reached 4.73 TB/s on 108
multiprocessors at 1.41 GHz, or 31 per multiprocessor (github.com/RRZE-HPC/gpu-benches/issues/13). It is a guess that
other GPUs reach the same and that writes cost as much as reads."""
MEMORY_LATENCIES = (600, 1200)
"""Clocks from a load to its data in memory: a low and a high guess."""


@dataclass(frozen=True)
class GPU:
    """Published figures of a GPU, in bytes and seconds; M, G and T are powers of 1000, cache sizes are in MiB."""

    name: str
    target: str
    multiprocessors: int
    clock: float
    """Hz: the boost clock that gives the published float32 peak."""
    memory_bandwidth: float
    """Bytes per second, read and written together."""
    l2_bytes: int
    float32_lanes: int
    """Multiply-adds per clock and multiprocessor (CUDA C++ Programming Guide, as above)."""
    shared_bytes: int
    """Shared memory per multiprocessor."""
    source: str

    @property
    def l2_bandwidth(self) -> float:
        """Bytes per second; see :data:`L2_BYTES_PER_CLOCK`."""
        return L2_BYTES_PER_CLOCK * self.multiprocessors * self.clock


MIB = 2**20
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU(
            *("A100", "sm_80", 108, 1.41e9, 2.039e12, 40 * MIB, 64, 164 * 1024),
            source="NVIDIA A100 80GB SXM data sheet; NVIDIA A100 Tensor Core GPU Architecture (whitepaper)",
        ),
        GPU(
            *("H100", "sm_90", 132, 1.98e9, 3.35e12, 50 * MIB, 128, 228 * 1024),
            source="NVIDIA H100 SXM data sheet (clock: 67 TFLOPS of float32); NVIDIA H100 Tensor Core GPU Architecture",
        ),
        GPU(
            *("H200", "sm_90", 132, 1.98e9, 4.8e12, 60 * MIB, 128, 228 * 1024),
            source="NVIDIA H200 SXM data sheet (clock: 67 TFLOPS of float32); L2: torch.cuda.get_device_properties",
        ),
        GPU(
            *("B200", "sm_100", 148, 1.98e9, 7.67e12, 126 * MIB, 128, 228 * 1024),
            source="NVIDIA HGX B200 data sheet (clock: 75 TFLOPS of float32); NVIDIA Blackwell Tuning Guide; "
            "multiprocessors and memory: the driver, in github.com/pytorch/ao/pull/4002",
        ),
    )
}
"""GPUs by name."""
GUESSED = "L2"
"""The only limit of :func:`shares_of` that is not based on published figures."""


def floor_seconds(row_bytes: int, gpu: GPU) -> float:
    """The time of one read and one write of a row."""
    return 2 * row_bytes / gpu.memory_bandwidth


def bytes_on_the_way(gpu: GPU) -> tuple[float, float]:
    """Little's law at both ends: how many bytes must be on their way from or to memory to keep it busy."""
    low, high = (latency / gpu.clock * gpu.memory_bandwidth for latency in MEMORY_LATENCIES)
    return low, high


def l2_bytes_of(counts: Counts) -> int:
    """Bytes that a row moves between L2 and multiprocessor, without edges, labels, number columns and fields."""
    return 16 * (counts.vector_loads + counts.vector_stores)


def shares_of(counts: Counts, row_bytes: int, gpu: GPU) -> dict[str, float]:
    """The time that each limit alone would take for a row, relative to one read and one write of it.

    ``memory`` is above 1 if the row is read more than once and always misses the L2. The model assumes that the pipes
    of all multiprocessors work at the same time and never wait for each other or for memory.
    """
    floor = floor_seconds(row_bytes, gpu)
    clocks = clocks_of(counts.instructions, counts.passes, gpu)
    return {
        "memory": l2_bytes_of(counts) / gpu.memory_bandwidth / floor,
        GUESSED: l2_bytes_of(counts) / gpu.l2_bandwidth / floor,
        **{limit: count / gpu.clock / gpu.multiprocessors / floor for limit, count in clocks.items()},
    }


def clocks_of(instructions: int, passes: Mapping[str, int], gpu: GPU) -> dict[str, float]:
    """The clocks that each limit of a multiprocessor alone would take for warp instructions and warp passes."""
    per_clock = {
        "issue": SCHEDULERS,
        "fma": gpu.float32_lanes / WARP,
        "alu": INTEGER_LANES / WARP,
        "xu": SPECIAL_LANES / WARP,
        "lsu": LSU_BYTES / (4 * WARP),
    }
    counted = {"issue": instructions, **passes}
    return {limit: counted.get(limit, 0) / rate for limit, rate in per_clock.items()}


def next_limit(shares: dict[str, float], fits: bool, *, is_published: bool = False) -> str:
    """The largest share.

    Args:
        fits: whether the parts of the rows in flight that are read again fit the L2, so that memory sees one read and
            one write of each row.
        is_published: leave out limits that are guesses.
    """
    candidates = [
        limit for limit in shares if not (fits and limit == "memory") and not (is_published and limit == GUESSED)
    ]
    return max(candidates, key=lambda limit: shares[limit])


def resident_programs(threads: int, registers: int, shared_bytes: int, gpu: GPU) -> int:
    """How many programs, each of which works on one row, are resident on a multiprocessor."""
    warps = threads // WARP
    registers_of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    return min(
        MOST_THREADS // threads,
        MOST_PROGRAMS,
        REGISTERS // (registers_of_warp * warps),
        gpu.shared_bytes // (shared_bytes + RESERVED_SHARED),
    )
