"""The model of a row: counts from machine code written here, and from the compiled kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import triton

from benchmarks.inspect import __main__ as command
from benchmarks.inspect.cases import DTYPES, VOCAB_SIZES, Case, Launch, compile_launch, record
from benchmarks.inspect.control_flow import Unrecognised, kernel_of
from benchmarks.inspect.counts import PIPE_OF, PIPES, Counts, counts_of, executed_code
from benchmarks.inspect.machine_code import disassembled, parsed
from benchmarks.inspect.model import KERNEL, Estimate, estimates_of
from benchmarks.inspect.roofline import GPUS, floor_seconds, next_limit, resident_programs, shares_of
from benchmarks.inspect.tables import LOGITS, TABLES
from benchmarks.table import Table

from ..versions import needs

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def code(*lines: str) -> str:
    """Lines of assembly as nvdisasm prints them; a line that starts with a dot is a label."""
    return "\n".join(
        line if line.startswith(".") else f"        /*{16 * i:04x}*/                   {line} ;"
        for i, line in enumerate(lines)
    )


def loop(label: str, *body: str) -> list[str]:
    """A loop that is skipped if it has no trips."""
    return [f"@!P1 BRA `(.L_{label}_end)", f".L_{label}:", *body, f"@P0 BRA `(.L_{label})", f".L_{label}_end:"]


LOAD, STORE = "LDG.E.EL.128 R4, desc[UR6][R12.64]", "STG.E.EF.128 desc[UR6][R12.64], R4"
EXP, ADD = "MUFU.EX2 R0, R0", "FADD R0, R0, R1"
WALK_1 = [*loop("groups", LOAD, LOAD, EXP, ADD, ADD), *loop("masked", "@!P2 " + LOAD, EXP)]
WALK_2 = [*loop("back", "@!P2 " + LOAD, EXP, "@!P2 " + STORE)]
IGNORED = ["EXIT", ".L_ignored:", *loop("clear", "STG.E.128 desc[UR6][R12.64], RZ"), "EXIT"]
TWO_WALKS = ["@!P3 BRA `(.L_ignored)", *WALK_1, "BAR.SYNC.DEFER_BLOCKING 0x0", *WALK_2, *IGNORED]


def counted(lines: list[str], vectors: int, threads: int = 32) -> Counts:
    return counts_of(kernel_of(parsed(code(*lines))), vectors, threads)


def test_trips_follow_from_the_size_of_the_row() -> None:
    counts = counted(TWO_WALKS, vectors=5 * 32 + 7)  # 2 trips over 2 vectors, 2 masked ones, 6 masked ones back
    assert (counts.vector_loads, counts.vector_stores) == (2 * 167, 167)
    rest = 1 + 2 + 1 + 1 + 1  # branches before the ignored row, the three loops, the barrier, EXIT
    assert counts.instructions == 2 * 6 + 2 * 3 + 6 * 4 + rest
    lsu = 4 * (2 * 2 + 2 + 6 * 2)
    assert counts.passes == {"fma": 2 * 2, "lsu": lsu, "other": 2 + 2 + 6 + rest, "xu": 2 + 2 + 6}
    one, four = counted(TWO_WALKS, 6 * 32), counted(TWO_WALKS, 6 * 128, threads=128)
    assert four.instructions == 4 * one.instructions and four.vector_loads == 4 * one.vector_loads


def test_a_row_in_registers_is_read_once() -> None:
    masked_load, masked_store = "@!P2 " + LOAD, "@!P3 " + STORE
    kept = [masked_load, masked_load, EXP, "BAR.SYNC.DEFER_BLOCKING 0x0", masked_store, masked_store]
    short = counted(["@!P3 BRA `(.L_ignored)", *kept, *IGNORED], vectors=2 * 32 - 5)
    assert (short.vector_loads, short.vector_stores) == (59, 59)
    streamed = [masked_load, masked_load, *loop("rest", masked_load), *WALK_2, masked_store, masked_store, "EXIT"]
    long = counted(streamed, vectors=7 * 32)
    assert (long.vector_loads, long.vector_stores) == (7 * 32 + 5 * 32, 7 * 32)


@pytest.mark.parametrize("steps", range(9))
def test_a_masked_loop_that_the_assembler_unrolled(steps: int) -> None:
    masked = "@!P2 " + LOAD
    peeled = ["@!P1 BRA `(.L_peeled)", masked, masked, EXP, ".L_peeled:", "@!P1 BRA `(.L_one)", masked, EXP, ".L_one:"]
    walk = [*loop("four", masked, masked, masked, masked, EXP), *peeled]
    counts = counted([*walk, *WALK_2, "EXIT"], vectors=32 * steps)
    assert counts.vector_loads == 2 * 32 * steps
    assert counts.passes["xu"] == steps // 4 + steps % 4 // 2 + steps % 2 + steps


def test_a_jump_masks_like_a_predicate() -> None:
    walk = loop("masked", "@P2 BRA `(.L_passed)", LOAD, ".L_passed:", EXP)
    counts = counted([*walk, *WALK_2, "EXIT"], vectors=70)
    assert (counts.vector_loads, counts.passes["xu"]) == (140, 3 + 3)


@pytest.mark.parametrize(
    ("lines", "words"),
    {
        "nothing is written": (["@!P3 BRA `(.L_ignored)", *WALK_1, *IGNORED], "no 16-byte store of a value"),
        "some of a row is left": ([*loop("groups", LOAD, LOAD), *WALK_2, "EXIT"], "moves 32 vectors of the row"),
        "half masked": ([*loop("groups", LOAD, "@!P2 " + LOAD), *WALK_2, "EXIT"], "only some of the 16-byte accesses"),
        "fewer stores": ([*WALK_1, *loop("back", LOAD, LOAD, STORE), "EXIT"], "more or fewer vectors than it loads"),
        "loads after stores": ([*WALK_1, *WALK_2, *loop("again", LOAD), "EXIT"], "that do not belong to a store"),
        "a loop in a loop": ([*loop("outer", *loop("inner", LOAD)), *WALK_2, "EXIT"], "a nested loop"),
        "a call": ([*WALK_1, "CALL.REL.NOINC `(.L_back)", *WALK_2, "EXIT"], "does not follow: CALL.REL.NOINC"),
    }.values(),
)  # fmt: skip
def test_code_that_is_not_recognised_raises(lines: list[str], words: str) -> None:
    with pytest.raises(Unrecognised, match=words):
        counted(lines, vectors=3 * 32)


def test_an_opcode_has_one_pipe_and_an_unknown_one_is_named() -> None:
    assert len(PIPE_OF) == sum(len(opcodes.split()) for opcodes in PIPES.values())
    with pytest.raises(ValueError, match=r"no pipe is known for FROB\.X"):
        counted([*WALK_1, "FROB.X R1, R2", *WALK_2, "EXIT"], vectors=32)


class Compiled(NamedTuple):
    case: Case
    launch: Launch
    code: str


UNALIGNED = Case(KERNEL, "sm_90", "bf16", "unaligned", 10)
CASES = [Case(KERNEL, "sm_80", "fp32", "aligned", 10), UNALIGNED, Case(KERNEL, "sm_100", "bf16", "short", 10)]


IN_VECTORS = needs("triton", 3, 5, to="read all that is kept of aligned rows 16 bytes at a time")


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=() if case is UNALIGNED else IN_VECTORS) for case in CASES],
    ids=[f"{case.target}-{case.dtype}-{case.rows}" for case in CASES],
)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    launch = record(request.param)
    return Compiled(request.param, launch, disassembled(compile_launch(launch, request.param.target)).code)


def test_a_row_is_written_once_and_read_again_where_it_is_not_kept(compiled: Compiled) -> None:
    tile = compiled.launch.keywords["TILE"]
    for vocab_size in (tile.vector, 1000 * tile.vector, VOCAB_SIZES[compiled.case.rows]):
        for head in (0,) if tile.aligned else range(tile.vector):
            counts = executed_code(compiled.code, compiled.launch, vocab_size, head)
            body = (vocab_size - head) // tile.vector
            again = max(body - tile.keep * tile.threads, 0)
            assert (counts.vector_loads, counts.vector_stores) == (body + again, body)


def test_every_logit_needs_two_exponentials(compiled: Compiled) -> None:
    """One per walk; the rest are rescalings of sums, and what is done once per row."""
    vocab_size = VOCAB_SIZES[compiled.case.rows]
    counts = executed_code(compiled.code, compiled.launch, vocab_size)
    assert 2 * vocab_size <= 32 * counts.passes["xu"] <= 3 * vocab_size


def test_shares_are_times_over_that_of_one_read_and_one_write() -> None:
    gpu = GPUS["H200"]
    row_bytes = 128256 * 2
    counts = Counts(32064, 16032, instructions=4 * 1000, passes={"fma": 4000, "alu": 2000, "xu": 500, "lsu": 1000})
    shares = shares_of(counts, row_bytes, gpu)
    thousand_clocks = 1000 / gpu.clock / gpu.multiprocessors / floor_seconds(row_bytes, gpu)
    assert floor_seconds(row_bytes, gpu) == pytest.approx(2 * row_bytes / 4.8e12)
    assert [shares[limit] for limit in ("issue", "fma", "alu", "xu", "lsu")] == [pytest.approx(thousand_clocks)] * 5
    assert shares["memory"] == pytest.approx(1.5)


def test_memory_is_the_next_limit_where_rows_do_not_fit_the_l2() -> None:
    shares = {"memory": 1.5, "L2": 0.9, "issue": 0.6, "xu": 0.7}
    assert next_limit(shares, fits=True) == "L2"
    assert next_limit(shares, fits=True, is_published=True) == "xu"
    assert next_limit(shares, fits=False, is_published=True) == "memory"


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "programs"),
    [(1024, 64, 0, 1), (512, 65, 0, 1), (32, 16, 0, 32), (256, 32, 64 * 1024, 3)],
)
def test_what_is_resident(threads: int, registers: int, shared_bytes: int, programs: int) -> None:
    assert resident_programs(threads, registers, shared_bytes, GPUS["H200"]) == programs


@pytest.fixture(scope="module")
def estimate() -> Estimate:
    (_, h200) = estimates_of(UNALIGNED)
    assert h200.gpu == "H200"
    return h200


def test_an_estimate_holds_together(estimate: Estimate) -> None:
    row_bytes = VOCAB_SIZES["unaligned"] * DTYPES["bf16"].itemsize
    assert estimate.l2_bytes == 16 * (estimate.vector_loads + estimate.vector_stores)
    assert estimate.memory_bytes == 2 * row_bytes
    again = 16 * (estimate.vector_loads - estimate.vector_stores)
    assert estimate.bytes_in_flight == estimate.rows_in_flight * again
    assert estimate.rows_in_flight % GPUS["H200"].multiprocessors == 0
    assert estimate.next_limit in estimate.shares
    low, high = (size * estimate.rows_in_flight for size in estimate.bytes_on_the_way)
    assert (low, high) == pytest.approx((4.8e12 * 600 / 1.98e9, 2 * low))  # bytes per second times seconds


def test_the_page_shows_the_model(estimate: Estimate) -> None:
    """If not: ``python -m benchmarks.inspect --model --gpu H200 --markdown > docs/model.md``."""
    page = PAGE.read_text()
    if f"of Triton {triton.__version__};" not in page:
        pytest.skip(f"the page was made with another Triton than {triton.__version__}")
    for columns in TABLES.values():
        line = Table.of(LOGITS | columns, [estimate]).markdown().splitlines()[-1]
        assert line in page.splitlines()
        assert page.count("\n| H200 |") == len(TABLES) * len(DTYPES) * len(VOCAB_SIZES)


def test_command_prints_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "cases_of", lambda targets, loss: CASES[1:2] if list(targets) == ["sm_90"] else [])
    assert command.main(["--model", "--json", "--gpu", "H100"]) == 0
    (printed,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (printed["gpu"], printed["vocab_size"]) == ("H100", 50257)
    assert command.main(["--model", "--gpu", "H200"]) == 0
    assert "nothing here was measured" in capsys.readouterr().out.splitlines()[0]
