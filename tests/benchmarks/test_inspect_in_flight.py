"""The simulation of rows in flight: properties that hold for any assumptions, and what it reads from machine code."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.inspect import __main__ as command
from benchmarks.inspect import in_flight
from benchmarks.inspect.cases import DTYPES, VOCAB_SIZES, Case, compile_launch, record
from benchmarks.inspect.counts import executed_code
from benchmarks.inspect.fluid import START_SPREAD, Machine, Phase, simulate
from benchmarks.inspect.in_flight import HIGH, LOW, Ends, Row, steps
from benchmarks.inspect.loads import row_comes_first, waves_of
from benchmarks.inspect.machine_code import disassembled, parsed
from benchmarks.inspect.model import KERNEL
from benchmarks.inspect.roofline import GPUS, clocks_of
from ntl_kernels.backends import tiles

from .test_inspect_model import IN_VECTORS, LOAD, code

PLENTY = 1e15
"""Bytes per clock that are never the limit."""
UNLIMITED = Machine(1, PLENTY, PLENTY, PLENTY)
MACHINE = Machine(multiprocessors=3, memory=30.0, l2=90.0, link=40.0)
PHASES = [
    Phase(wait=700),
    Phase(memory=20_000, compute=900),
    Phase(wait=300, compute=500),
    Phase(l2=8_000, compute=400, stored=10_000),
    Phase(memory=10_000),
]
ROW_BYTES = 20_000 + 10_000 + 10_000


def clocks(rows: int, phases: Sequence[Phase], machine: Machine = MACHINE, resident: int = 2) -> float:
    return simulate(rows, resident, 0, phases, machine)


def test_one_row_takes_the_sum_of_its_phases() -> None:
    alone = MACHINE._replace(multiprocessors=1)
    in_turn = 700 + max(20_000 / 30, 900) + 500 + max(8_000 / 40, 400) + (10_000 * 2) / 30
    assert clocks(1, PHASES, alone) == pytest.approx(in_turn)  # the last phase shares memory with what drains


def test_without_limits_only_waits_and_computation_are_left() -> None:
    assert clocks(5, PHASES, UNLIMITED, resident=1) == pytest.approx(5 * (700 + 900 + 500 + 400))
    assert clocks(6, [Phase(wait=1000)], UNLIMITED, resident=3) == pytest.approx(2 * 1000 + START_SPREAD)
    assert clocks(6, [Phase(compute=1000)], UNLIMITED, resident=3) == pytest.approx(6 * 1000)
    starts = simulate(500, 1, 100, [Phase(wait=1000)], UNLIMITED) - 500 * 1000
    assert starts == pytest.approx(499 * 100, rel=0.1)


@pytest.mark.parametrize("ahead", [0, 20_000])
def test_memory_moves_every_byte_once_and_is_the_limit_of_many_programs(ahead: float) -> None:
    phases = [one._replace(memory=0, l2=one.memory) if ahead and one.compute == 900 else one for one in PHASES]
    share = 900 * ROW_BYTES / MACHINE.memory / simulate(900, 16, 0, phases, MACHINE._replace(l2=PLENTY), ahead)
    assert 0.96 < share <= 1


@pytest.mark.parametrize("resident", [1, 2, 4])
def test_nothing_is_faster_with_less(resident: int) -> None:
    usual = clocks(40, PHASES, resident=resident)
    slower = [one._replace(wait=2 * one.wait) for one in PHASES]
    assert clocks(40, slower, resident=resident) > usual
    assert clocks(40, PHASES, MACHINE._replace(memory=15.0), resident=resident) > usual
    assert clocks(80, PHASES, resident=resident) > usual


@pytest.mark.parametrize("ends", [LOW, HIGH])
@pytest.mark.parametrize("count", [1, 3, 17])
def test_steps_keep_what_is_moved_and_waited(ends: Ends, count: int) -> None:
    work = Phase(l2=600, compute=90, stored=300)
    found = steps(work, count, 100, ends)
    amounts = np.array(found).sum(0)
    assert amounts[[0, 2, 3]] == pytest.approx([100 * count, 600, 90])
    assert amounts[1] + amounts[4] == pytest.approx(300)


ID, LOOKUP = "LDG.E.64 R8, desc[UR4][R2.64]", "LDG.E R9, desc[UR4][R6.64]"
ADDRESS, USE = "IMAD.WIDE R6, R8, 0x4, R14", "FADD R0, R0, R4"


def test_a_wave_ends_with_the_first_use_of_one_of_its_loads() -> None:
    second = LOAD.replace("R4", "R20")
    program = parsed(code(LOAD, second, "FADD R0, R0, R1", USE, "FADD R0, R0, R23", LOAD, USE, "EXIT"))
    assert waves_of(program.instructions) == [2, 1]
    assert waves_of([]) == []


@pytest.mark.parametrize(
    ("lines", "comes_first"),
    [
        ([ID, ADDRESS, LOOKUP, LOAD], False),
        ([ID, ADDRESS, LOAD, LOOKUP], True),
        ([ID, "R2UR UR9, R8", "UIMAD UR10, UR9, 0x4, UR8", "LDG.E R9, desc[UR4][R2.64+UR10]", LOAD], False),
        ([ID, "LDC.64 R8, c[0x0][0x280]", "LDG.E R9, desc[UR8][R8.64]", LOAD], True),  # the registers are used again
    ],
)
def test_whether_the_row_waits_for_a_lookup(lines: list[str], comes_first: bool) -> None:
    assert row_comes_first(parsed(code(*lines, "EXIT"))) is comes_first


LONG = Case(KERNEL, "sm_90", "bf16", "aligned", 10)


@IN_VECTORS
def test_a_compiled_row_moves_its_bytes_and_executes_its_code() -> None:
    launch, vocab_size, h200 = record(LONG), VOCAB_SIZES[LONG.rows], GPUS["H200"]
    text = disassembled(compile_launch(launch, LONG.target)).code
    row, counts = Row(text, launch, vocab_size, h200), executed_code(text, launch, vocab_size)
    whole = max(clocks_of(counts.instructions, counts.passes, h200).values())
    for ends in (LOW, HIGH):
        wait, memory, l2, compute, stored = np.array(row.phases(ends)).sum(0)
        assert (memory + stored, l2) == (pytest.approx(4 * vocab_size), pytest.approx(row.bytes_read_again))
        assert whole <= compute < 1.2 * whole  # each part has a limit of its own
    assert 2 * vocab_size - row.bytes_read_again == tiles.MOST_KEPT[tiles.KEPT_REGISTERS] * 16 * row.threads
    row.comes_first = False
    assert sum(one.wait for one in row.phases(HIGH)) - wait == pytest.approx(in_flight.L2_LATENCY)


@IN_VECTORS
@pytest.mark.parametrize("rows", [pytest.param("aligned", marks=pytest.mark.slow), "unaligned", "short"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_a_row_is_asked_for_before_its_label_is_looked_up(target: str, dtype: str, rows: str) -> None:
    launch = record(Case(KERNEL, target, dtype, rows, 10))
    assert row_comes_first(parsed(disassembled(compile_launch(launch, target)).code))


@IN_VECTORS
def test_command_prints_the_flights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(in_flight, "ROWS", 1024)
    monkeypatch.setattr(command, "cases_of", lambda targets, loss: [LONG._replace(rows="short")])
    monkeypatch.setattr(in_flight, "WAYS", ("in use", 512, "next row ahead"))
    before = record(LONG).keywords["TILE"]
    assert command.main(["--in-flight", "--json"]) == 0
    assert record(LONG).keywords["TILE"] == before
    in_use, longer, ahead = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["programs"] * one["threads"] for one in (in_use, longer, ahead)] == [512] * 3
    assert longer["threads"] == 512 and longer["low"] < in_use["low"]
    assert all(0.2 < one["low"] < one["high"] < 1 for one in (in_use, longer, ahead))
    assert ahead["l2_megabytes"] - in_use["l2_megabytes"] == pytest.approx(in_use["programs"] * 132 * 0.064)
