"""The model of a row, derived from machine code, counts what the emulator executes of the same kernel's PTX."""

from __future__ import annotations

import re

import pytest

from benchmarks.inspect.cases import DTYPES, KEPT_VOCAB_SIZES, VOCAB_SIZES, Case, record
from benchmarks.inspect.counts import executed

from ..emulator.emulator import Emulator
from ..versions import needs
from .problems import problem_of, solve

KEPT_BYTES = 2**17
"""What a multiprocessor keeps. A row up to this size shares it with another one."""
in_vectors = needs("triton", 3, 5, to="read all that is kept of aligned rows 16 bytes at a time")
ROWS = [
    rows if rows in ("unaligned", "64k") else pytest.param(rows, marks=in_vectors)
    for rows in (*VOCAB_SIZES, *KEPT_VOCAB_SIZES)
]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("rows", ROWS)
def test_vectors_of_a_row(rows: str, dtype: str, gpu: Emulator) -> None:
    """Loads and stores of 16 bytes by one thread."""
    vocab_size = (VOCAB_SIZES | KEPT_VOCAB_SIZES)[rows]
    problem = problem_of(DTYPES[dtype], vocab_size, shape=(1, 1), num_tokens=1.0, num_numbers=1.0)
    problem.labels[:] = problem.numbers.ids[3]
    gpu.launched.clear()
    solve(problem)
    (kernel,) = [launched.kernel for launched in gpu.launched if launched.kernel.name == "row_losses_kernel"]
    kernel.lanes[:] = 0
    solve(problem)
    counts = executed(record(Case("losses_and_gradients", "sm_90", dtype, rows, 10)), "sm_90", vocab_size)
    for name, expected in (("ld", counts.vector_loads), ("st", counts.vector_stores)):
        vectors = [re.search(rf"\b{name}\.global\b.*\.v4\.b32\b", line) is not None for line in kernel.lines]
        assert kernel.lanes[vectors].sum() == expected, name
    row_bytes = vocab_size * DTYPES[dtype].itemsize
    kept = min(row_bytes, KEPT_BYTES // 2 if row_bytes <= KEPT_BYTES else KEPT_BYTES)
    assert 16 * counts.vector_stores == row_bytes // 16 * 16
    assert 16 * counts.vector_loads == 16 * counts.vector_stores + (row_bytes - kept) // 16 * 16
