"""Small Triton kernels: correct ones, and ones with one deliberate fault each."""

import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    """Correct: the softmax of a row per program."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < columns
    start = tl.program_id(0) * columns
    z = tl.load(x + start + lanes, mask=inside, other=-float("inf"))
    powers = tl.exp(z - tl.max(z, 0))
    tl.store(y + start + lanes, powers / tl.sum(powers, 0), mask=inside)


@triton.jit
def copy_kernel(x, y, columns, READ: tl.constexpr, WRITE: tl.constexpr, BLOCK: tl.constexpr):
    """Correct if it reads and writes 0 columns too many."""
    lanes = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    z = tl.load(x + start + lanes, mask=lanes < columns + READ, other=0.0)
    tl.store(y + start + lanes, z, mask=lanes < columns + WRITE)


@triton.jit
def misaligned_kernel(x, y, BLOCK: tl.constexpr):
    """Tells the compiler that an odd address is a multiple of 16 bytes."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(tl.multiple_of(x + 1, 16) + lanes))


@triton.jit
def reverse_kernel(x, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    """Reverses x in place; loads and stores of different threads cross, and only a barrier orders them."""
    lanes = tl.arange(0, BLOCK)
    z = tl.load(x + lanes)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + BLOCK - 1 - lanes, z)


@triton.jit
def rotate_kernel(x, y, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    """Writes y and reads what other threads have written to it."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes))
    if BARRIER:
        tl.debug_barrier()
    z = tl.load(y + (lanes + 37) % BLOCK)
    tl.debug_barrier()
    tl.store(y + lanes, z)


@triton.jit
def same_place_kernel(y, BLOCK: tl.constexpr):
    """Every program writes the same places."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, lanes * 1.0)


@triton.jit
def neighbour_kernel(x, BLOCK: tl.constexpr):
    """Every program reads what the next one writes."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(x + lanes + BLOCK)
    tl.debug_barrier()
    tl.store(x + lanes, z)


@triton.jit
def early_kernel(y, BLOCK: tl.constexpr):
    """Reads an output before it is written."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(y + lanes) * 0.0)


@triton.jit
def input_kernel(x, y, BLOCK: tl.constexpr):
    """Writes to its input."""
    lanes = tl.arange(0, BLOCK)
    z = tl.load(x + lanes)
    tl.store(y + lanes, z)
    tl.store(x + lanes, z)


@triton.jit
def one_place_kernel(x, y, BLOCK: tl.constexpr):
    """Every thread writes a different value to one place."""
    lanes = tl.arange(0, BLOCK)
    tl.store(y + lanes * 0, tl.load(x + lanes))


@triton.jit
def products_kernel(x, y, BLOCK: tl.constexpr):
    """Sums products. The compiler fuses half of them into the sum, so that lanes differ in its last digit."""
    z = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y, tl.sum(z * tl.exp(z), 0))


@triton.jit
def racing_branch_kernel(x, y, BLOCK: tl.constexpr):
    """Branches on a number that another thread is about to write, and waits in one branch."""
    lanes = tl.arange(0, BLOCK)
    tl.store(x + lanes, lanes * 1.0)
    if tl.load(x + BLOCK - 1) > 0.0:
        tl.debug_barrier()
    tl.store(y + lanes, lanes * 1.0)
