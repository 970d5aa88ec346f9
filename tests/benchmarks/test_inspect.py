"""What the kernels compile to, without a GPU. A share of the cases; `python -m benchmarks.inspect` has them all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.inspect.cases import (
    LOSS_KERNELS,
    LOSSES,
    READ_ONLY,
    ROW_KERNELS,
    TARGETS,
    Case,
    all_cases,
    record,
    signature_of,
)
from benchmarks.inspect.machine_code import widest
from benchmarks.inspect.report import Report, inspect, table
from benchmarks.inspect.roofline import REGISTERS
from ntl_kernels.backends.tiles import KEPT, MOST_KEPT, MOST_KEPT_WITH_SUMS, STREAMED_REGISTERS

from ..versions import needs

pytestmark = needs("triton", 3, 6, to="link code for AMD's GPUs without their linker")
KEYS = ["kernel", "target", "case", "threads", "registers", "spills", "shared_bytes", "load_bits", "store_bits"]


def is_tested(case: Case) -> bool:
    """Everything on sm_90 that walks rows by default, and elsewhere the hardest case of each kernel and dtype."""
    if case.kernel not in ROW_KERNELS:
        return False
    hardest = case.rows == "unaligned" and (case.numbers == 1110 or case.kernel == "scale")
    if case.target != "sm_90":
        return hardest and case.loss == ("reweighed" if case.kernel in LOSS_KERNELS else "default")
    if case.loss != "default":
        return case.kernel == "losses_and_gradients" or case.loss == "reweighed"
    return hardest or case.kernel in ROW_KERNELS[:3]


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return inspect(case for case in all_cases() if is_tested(case))


def test_every_target_and_kernel_is_covered(reports: list[Report]) -> None:
    assert {(r.kernel, r.target) for r in reports} == {(k, t) for k in ROW_KERNELS for t in TARGETS}
    assert {case.loss for case in all_cases()} == set(LOSSES)


def test_no_registers_are_spilled(reports: list[Report]) -> None:
    assert [r for r in reports if r.spills] == []


def test_rows_are_read_and_written_128_bits_at_a_time(reports: list[Report]) -> None:
    assert [r for r in reports if r.load_bits != 128] == []
    assert [r for r in reports if r.store_bits != 128 and r.kernel not in READ_ONLY] == []


def test_threads_fit_a_multiprocessor(reports: list[Report]) -> None:
    nvidia = [r for r in reports if r.target.startswith("sm")]
    assert [r for r in nvidia if r.threads * r.registers > REGISTERS] == []
    assert [r for r in nvidia if r.registers > STREAMED_REGISTERS and r.kernel != "losses_and_gradients"] == []
    assert [r for r in reports if r.shared_bytes > 2**15] == []


def test_json_has_one_object_per_case() -> None:
    command = [sys.executable, "-m", "benchmarks.inspect", "--json", "--kernel", "finish"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    objects = [json.loads(line) for line in printed.splitlines()]
    assert [list(o) for o in objects] == [KEYS] * len(TARGETS)
    assert [o["target"] for o in objects] == list(TARGETS)
    assert all(o["registers"] > 0 for o in objects)


def test_table_aligns_its_columns() -> None:
    report = Report("kernel", "sm_90", "bf16, aligned rows, 10 numbers", 1024, 63, 0, 128, 128, 16)
    head, line = table([report]).splitlines()
    assert head.split() == KEYS and head.index("registers") == line.index("63")


def test_every_line_of_the_table_of_kept_rows_is_compiled() -> None:
    cases = [c for c in all_cases() if c.kernel == "losses_and_gradients" and c.target == "sm_90" and is_tested(c)]
    tiles = [record(case).keywords["TILE"] for case in cases]
    assert {tile.threads for tile in tiles if tile.keep} == {threads for _, threads in KEPT}
    assert {tile.keep for tile in tiles} >= {MOST_KEPT, MOST_KEPT_WITH_SUMS, 0}
    assert {tile.whole for tile in tiles if tile.keep} == {True, False}


def test_widths_of_accesses() -> None:
    marks = {".128": 128, ".64": 64, ".U16": 16}
    assert widest([".E.U16", ".E.128.CONSTANT", ".E"], marks) == 128
    assert widest([".E.U16"], marks) == 16
    assert widest([".E", ".E.U16"], marks) == 32
    assert widest([], marks) == 0


def test_signature_names_types_and_finds_constants() -> None:
    constants: dict[tuple[int, ...], object] = {}
    assert signature_of((1.0, (None, 3), 2**40), (5,), constants) == ("fp32", ("constexpr", "i32"), "i64")
    assert constants == {(5, 1, 0): None}
