"""A rank's statistics of a row, in the order of ``ntl_kernels.backends.shards.Statistic`` (checked by a test).

Statistics contain logits as u, and totals in the units of normalisers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

PEAK = tl.constexpr(0)
TOTAL = tl.constexpr(1)
LABEL_LOGIT = tl.constexpr(2)
NUMBER_PEAK = tl.constexpr(3)
NUMBER_TOTAL = tl.constexpr(4)
OFFSET = tl.constexpr(5)
COST = tl.constexpr(6)
LOGIT_SUM = tl.constexpr(7)


class Gathered(NamedTuple):
    """[R, S, N + 1] in memory: the statistics of all ranks. The last column contains their headers."""

    pointer: Any
    stride: Any
    """The distance between statistics: N + 1."""
    rank_stride: Any
    rank_count: Any
    """R"""


@triton.jit
def store_statistic(statistics, stride, statistic: tl.constexpr, row, value):
    """Write one number of a row."""
    tl.store(statistics + statistic * stride + row, value)


@triton.jit
def load_statistic(statistics, stride, statistic: tl.constexpr, rows, inside, other):
    """Read one number of a block of rows; ``other`` for rows that are not ``inside``."""
    return tl.load(statistics + statistic * stride + rows, mask=inside, other=other)
