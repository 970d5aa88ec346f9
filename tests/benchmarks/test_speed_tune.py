"""Candidates of tiles: fair, compiled ahead of time, and reported as lines of the tables."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from benchmarks.environment import ROOT

pytest.importorskip("ntl_kernels.backends.triton", exc_type=ImportError)
from benchmarks.speed import candidates, tile_tables, tune, workloads
from benchmarks.speed.candidates import Candidate, distinct, streamed_now, tile_on, walking
from benchmarks.speed.run import Settings
from benchmarks.speed.tile_tables import Row, Span
from ntl_kernels.backends import tiles, triton

from .speed_cases import CPU

TUNED = [w for w in workloads.gpu_workloads(2**37) if w.name.startswith(("vocab-", "logits-"))]


def fields(**values: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(values.items())


@pytest.mark.parametrize("workload", TUNED, ids=lambda workload: workload.name)
def test_the_tile_in_use_is_also_that_of_a_candidate(workload: workloads.Workload) -> None:
    """So candidates are built as the tiles in use, and are timed only once."""
    found = [tile_on(workload, CPU, candidate) for candidate in candidates.candidates()]
    assert tile_on(workload, CPU) in found
    row_bytes = workload.vocab * workload.item_bytes
    assert tile_on(workload, CPU, streamed_now(row_bytes))[:4] == (
        *(next(t for most, t in tiles.STREAMED if row_bytes <= most), 16 // workload.item_bytes, tiles.UNROLL, 0),
    )
    ways = distinct(workload, CPU)
    assert ways[tile_on(workload, CPU)] is None and set(ways) == set(found)


def test_candidates_reach_the_launch_of_loss_and_gradient() -> None:
    logits, options = torch.zeros(1, 2, 4096), triton.Options("wasserstein", False, False, 0)

    def tile() -> Any:
        return triton.loss_tile(logits, logits, options, 16, walks=2)

    plain, _ = tile()
    with walking(Candidate(1024, 4, fields(unroll=2))):
        found, launch = tile()
        assert found[:5] == (1024, 4, plain.unroll, 1, True) and launch["maxnreg"] == 64
        assert launch["num_warps"] * 32 == 1024
    with walking(Candidate(64, 12, fields(unroll=2))):
        found, launch = tile()
        assert found[:5] == (64, 4, 2, 12, False) and launch["maxnreg"] == tiles.KEPT_REGISTERS
    with walking(Candidate(256, 0, fields(unroll=2))):
        assert tile()[0][:5] == (256, 4, 2, 0, False)
    assert tile()[0] == plain and plain.keep > 0


def test_rows_above_64_kb_have_a_candidate_with_two_programs_per_multiprocessor() -> None:
    for workload in TUNED:
        if workload.vocab * workload.item_bytes > 2**16:
            kept = [tile for tile in distinct(workload, CPU) if tile.keep]
            assert {(256, 16, 4), (256, 16, 8)} <= {(tile.threads, tile.keep, tile.unroll) for tile in kept}


def test_another_field_of_the_tile_is_one_more_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also applies to rows that are kept whole, which have no front to unroll."""
    (workload,) = (workload for workload in TUNED if workload.name == "vocab-32000-bf16")
    before = {tile for tile in distinct(workload, CPU) if tile.keep}
    monkeypatch.setitem(candidates.FIELDS, "aligned", (True, False))
    after = {tile for tile in distinct(workload, CPU) if tile.keep}
    assert after == before | {tile._replace(aligned=False) for tile in before}


@pytest.mark.slow
def test_what_workers_compile_is_not_compiled_again(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.benchmarks.compiled_ahead"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    ways, reasons, ahead, anew = json.loads(done.stdout.splitlines()[-1])
    assert ways == 8 and ahead >= 6  # two are impossible; there are kernels over all rows, too
    assert reasons.pop("64") == "spills 7 registers"
    assert list(reasons) == ["96"] and reasons["96"]
    assert anew == 0


def crashes_with_256_threads(item: Any) -> str | None:
    if item[2].threads == 256:
        os.abort()
    return None


@pytest.mark.slow
def test_a_crash_of_the_compiler_costs_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    (workload,) = (workload for workload in TUNED if workload.name == "vocab-50257-bf16")
    two = {candidate.threads: candidate for candidate in (Candidate(256, 8, ()), Candidate(512, 8, ()))}
    monkeypatch.setattr(candidates, "distinct", lambda workload, device: two)
    faults = candidates.compiled_ahead([workload], CPU, crashes_with_256_threads)
    assert faults == {candidates.kernel_of(256, workload): "the process that compiled it crashed"}


def test_the_tile_in_use_is_timed_even_if_it_has_a_fault() -> None:
    (workload,) = (workload for workload in TUNED if workload.name == "vocab-50257-bf16")
    ways = distinct(workload, CPU)
    slow = Candidate(256, 8, fields(unroll=4))
    faults = {candidates.kernel_of(tile, workload): "spills" for tile, way in ways.items() if way in (None, slow)}
    assert tune.left_out(workload, CPU, faults) == {slow: "spills"}
    timed = tune.tiles_to_time(workload, CPU, faults)
    assert tune.PRESENT in timed and str(slow) not in timed and len(timed) == len(ways) - 1


WIDE, NARROW, OTHER = Candidate(256, 16), Candidate(128, 16), Candidate(256, 8)


def row(row_bytes: int, present: float, spread: float = 0.01, **times: float) -> Row:
    """With medians of the present tile, and of WIDE, NARROW and OTHER, which needs another constant."""
    medians = {None: present, WIDE: times.get("wide"), NARROW: times.get("narrow"), OTHER: times.get("other")}
    spans = {way: Span(m * (1 - spread / 2), m, m * (1 + spread / 2)) for way, m in medians.items() if m}
    return Row(row_bytes, spans, frozenset({WIDE, NARROW}))


def line_of(rows: list[Row]) -> str:
    table = tile_tables.table("KEPT", [(2**16, 64), (math.inf, 512)], rows, [WIDE, NARROW, OTHER], lambda row: None)
    first, second, third, last = table.splitlines()
    assert (first, second, last) == ("KEPT = (", "    (2**16, 64),  # not measured", ")")
    return third.strip()


def test_lines_take_the_candidate_that_is_fastest_on_all_rows() -> None:
    rows = [row(100_000, 1.0, wide=0.8, narrow=0.5), row(200_000, 2.0, wide=1.8)]
    assert line_of(rows) == "(math.inf, 256),  # 256 threads keep 16: gain 15.1%, spread 1.0%"
    assert line_of(rows[:1]) == "(math.inf, 128),  # 128 threads keep 16: gain 50.0%, spread 1.0%"


def test_a_gain_within_the_spread_keeps_the_line() -> None:
    found = line_of([row(100_000, 1.0, spread=0.04, wide=0.97, other=0.96)])
    assert found == "(math.inf, 512),  # as it is; the best was 256 threads keep 16: gain 3.0%, spread 4.0%"


def test_a_line_does_not_follow_a_candidate_that_it_cannot_express() -> None:
    found = line_of([row(100_000, 1.0, wide=1.1, other=0.8)])
    assert found.startswith("(math.inf, 512),  # as it is; the best was 256 threads keep 16: gain -10.0%, ")
    assert found.endswith("; with other constants 256 threads keep 8: gain 20.0%, spread 1.0%")


def test_which_candidates_a_line_can_express() -> None:
    """Those whose tile follows once the line is in the table."""
    for workload in TUNED:
        found = [way for way in candidates.candidates() if candidates.needs_only_threads(way, workload, CPU)]
        assert {way.threads for way in found if way.keep} == {128, 256, 512}
        assert {way.threads for way in found if not way.keep} == set(candidates.THREADS)
        for way in (way for way in found if way.keep):
            with patch.object(tiles, "KEPT", ((math.inf, way.threads),)):
                tiles.kept_tile.cache_clear()
                assert tile_on(workload, CPU) == tile_on(workload, CPU, way)
    tiles.kept_tile.cache_clear()


def test_the_output_ends_in_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up times on a device that passes for a GPU: 256 threads are the fastest."""
    device = torch.device("meta")
    timed: list[str] = []

    def run_workload(workload: Any, settings: Any, providers: Any, observed: bool) -> list[dict[str, Any]]:
        timed[:] = [provider.name for provider in providers]
        entries = {name: {"status": "timed", "samples_s": [0.8 + 0.2 * (not name.startswith("256"))]} for name in timed}
        return [
            {**asdict(workload), "logits_bytes": workload.logits_bytes, "memory": None, "others_share": None}
            | {"providers": entries}
        ]

    fault = {candidates.kernel_of(tile_on(w, device, Candidate(256, 8, fields(unroll=8))), w): "spills" for w in TUNED}
    monkeypatch.setattr(tune, "compiled_ahead", lambda *arguments: fault)
    monkeypatch.setattr(tune, "run_workload", run_workload)
    settings = Settings(device, suite="gpu", families=("logits",), names="vocab-50257-*")
    output = tune.tune(settings, tmp_path)
    assert "256 threads keep 8, unroll 8" not in timed and "256 threads keep 8, unroll 4" in timed
    assert timed[:2] == [tune.BOUND, tune.PRESENT] and len(timed) == 32
    assert re.search(r"\(math.inf, 256\),  # 256 threads keep 16, unroll \d: gain 20.0%, spread 0.0%\n\)", output)
    assert f"    (2**17, 256),  # 256 threads streamed, unroll {tiles.UNROLL}: gain 20.0%, spread 0.0%" in output
    assert output.endswith(")")


def test_the_tables_can_be_pasted() -> None:
    times = dict.fromkeys((None, *candidates.candidates()), Span(0.99, 1.0, 1.01))
    rows = [Row(row_bytes, times, frozenset(candidates.candidates())) for row_bytes in (64_000, 100_514)]
    kept, streamed = tile_tables.tables_of(rows)
    namespace: dict[str, Any] = {"math": math}
    exec(f"{kept}\n{streamed}", namespace)
    assert (namespace["KEPT"], namespace["STREAMED"]) == (tiles.KEPT, tiles.STREAMED)
