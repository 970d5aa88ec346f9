"""The results of a row, in the order of ``ntl_kernels.backends.Field`` (checked by a test)."""

import triton
import triton.language as tl

CROSS_ENTROPY = tl.constexpr(0)
IS_CORRECT = tl.constexpr(1)
WEIGHT = tl.constexpr(2)
PEAK = tl.constexpr(3)
TOTAL = tl.constexpr(4)
NTL = tl.constexpr(5)
ABSOLUTE_ERROR = tl.constexpr(6)
MASS = tl.constexpr(7)
NUMBER_WEIGHT = tl.constexpr(8)


@triton.jit
def store_field(fields, field: tl.constexpr, rows, value, inside=None):
    """Write one number of a row, or of the rows of a block that are ``inside``; ``fields`` are Fields."""
    tl.store(fields.pointer + field * fields.stride + rows, value, mask=inside)


@triton.jit
def load_field(fields, field: tl.constexpr, rows, inside):
    """Read one number of a block of rows; 0 for rows that are not ``inside``."""
    return tl.load(fields.pointer + field * fields.stride + rows, mask=inside, other=0.0)
