"""What the kernels compile to, without a GPU: a share of the cases of `python -m benchmarks.inspect`."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.inspect.__main__ import main
from benchmarks.inspect.cases import (
    LOSS_KERNELS,
    LOSSES,
    READ_ONLY,
    ROW_KERNELS,
    TARGETS,
    Case,
    all_cases,
    compile_launch,
    record,
    signature_of,
)
from benchmarks.inspect.machine_code import NVIDIA_BITS, disassembled, widest, width_of
from benchmarks.inspect.report import Report, inspect, inspect_case, table
from benchmarks.inspect.roofline import REGISTERS
from ntl_kernels.backends.tiles import KEPT, MOST_KEPT, MOST_KEPT_WITH_SUMS, STREAMED_REGISTERS

from ..versions import has, needs

pytestmark = needs("triton", 3, 6, to="link code for AMD's GPUs without their linker")
KEYS = ["kernel", "target", "case", "threads", "registers", "spills", "shared_bytes", "load_bits", "store_bits"]


def is_hardest(case: Case) -> bool:
    loss = "reweighed" if case.kernel in LOSS_KERNELS else "default"
    return case.rows == "unaligned" and case.loss == loss and (case.numbers == 1110 or case.kernel == "scale")


def is_tested(case: Case) -> bool:
    """Everything on sm_90 that walks rows by default, and elsewhere the hardest case of each kernel and dtype."""
    if case.kernel not in ROW_KERNELS or case.target != "sm_90":
        return case.kernel in ROW_KERNELS and is_hardest(case)
    if case.loss != "default":
        return case.kernel == "losses_and_gradients" or case.loss == "reweighed"
    return is_hardest(case) or case.kernel in ("losses_and_gradients", "losses", "gradients")


def is_quick(case: Case) -> bool:
    """The hardest case of each kernel in bfloat16, on one GPU."""
    return is_tested(case) and is_hardest(case) and (case.target, case.dtype) == ("sm_90", "bf16")


MOST_SPILLS = 0 if has("triton", 3, 9) else 2
"""Before Triton 3.9, a register is stored and loaded again in a few cases."""
QUICK, ALL = pytest.param(is_quick, id="quick"), pytest.param(is_tested, id="all", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[QUICK, ALL])
def reports(request: pytest.FixtureRequest) -> list[Report]:
    cases = [case for case in all_cases() if request.param(case)]
    targets = TARGETS if request.param is is_tested else ("sm_90",)
    assert {(c.kernel, c.target) for c in cases} == {(k, t) for k in ROW_KERNELS for t in targets}
    return inspect(cases) if request.param is is_tested else list(map(inspect_case, cases))


def test_no_registers_are_spilled(reports: list[Report]) -> None:
    assert [r for r in reports if r.spills > MOST_SPILLS] == []


@pytest.mark.parametrize("target", [pytest.param(t, marks=pytest.mark.slow) if t != "sm_90" else t for t in TARGETS])
def test_kernels_over_all_rows_spill_nothing(target: str) -> None:
    cases = [case for case in all_cases() if case.kernel in ("count", "sum", "finish") and case.target == target]
    found = list(map(inspect_case, cases))
    assert [r.spills for r in found] == [0, 0, 0]
    assert [r for r in found if r.threads * r.registers > REGISTERS and r.target.startswith("sm")] == []


def test_rows_are_read_and_written_128_bits_at_a_time(reports: list[Report]) -> None:
    assert [r for r in reports if r.load_bits != 128] == []
    assert [r for r in reports if r.store_bits != 128 and r.kernel not in READ_ONLY] == []


def test_threads_fit_a_multiprocessor(reports: list[Report]) -> None:
    nvidia = [r for r in reports if r.target.startswith("sm")]
    assert [r for r in nvidia if r.threads * r.registers > REGISTERS] == []
    assert [r for r in nvidia if r.registers > STREAMED_REGISTERS and r.kernel != "losses_and_gradients"] == []
    assert [r for r in reports if r.shared_bytes > 2**15] == []


def test_json_has_one_object_per_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--kernel", "finish", "--target", "sm_90"]) == 0
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(found) == KEYS and found["target"] == "sm_90" and found["registers"] > 0


def test_table_aligns_its_columns() -> None:
    report = Report("kernel", "sm_90", "bf16, aligned rows, 10 numbers", 1024, 63, 0, 128, 128, 16)
    head, line = table([report]).splitlines()
    assert head.split() == KEYS and head.index("registers") == line.index("63")


def test_every_line_of_the_table_of_kept_rows_is_compiled() -> None:
    assert {case.loss for case in all_cases()} == set(LOSSES)
    assert not any(set(" ,") & set(name) for name in LOSSES)  # they are values of an option
    cases = [c for c in all_cases() if c.kernel == "losses_and_gradients" and c.target == "sm_90" and is_tested(c)]
    tiles = [record(case).keywords["TILE"] for case in cases]
    assert {tile.threads for tile in tiles if tile.keep} == {threads for _, threads in KEPT}
    assert {tile.keep for tile in tiles} >= {*MOST_KEPT.values(), MOST_KEPT_WITH_SUMS, 0}
    assert {tile.whole for tile in tiles if tile.keep} == {True, False}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_is_loaded_before_its_label_is_looked_up(dtype: str) -> None:
    wanted = ("losses", "sm_90", dtype, "aligned", "default", 1110)
    (case,) = [c for c in all_cases() if (c.kernel, c.target, c.dtype, c.rows, c.loss, c.numbers) == wanted]
    loads = re.findall(r"\bLDG([.\w]*)", disassembled(compile_launch(record(case), case.target)).code)
    label, weight, row = (width_of(suffix, NVIDIA_BITS) for suffix in loads[:3])
    assert (label, weight, row) == (64, 32, 128)


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
