"""Candidates of tiles: fair, compiled ahead of time, and reported as lines of the tables."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ntl_kernels.backends.triton", exc_type=ImportError)
from benchmarks.speed import tune, workloads
from benchmarks.speed.candidates import Candidate, candidates, distinct, few_rows, tile_on, walking
from benchmarks.speed.run import Settings
from ntl_kernels.backends import tiles, triton

from .speed_cases import CPU

TUNED = [w for w in workloads.gpu_workloads(2**37) if w.name.startswith(("vocab-", "logits-"))]


@pytest.mark.parametrize("workload", TUNED, ids=lambda workload: workload.name)
def test_candidates_are_built_as_the_tile_in_use(workload: workloads.Workload) -> None:
    """Also the latter is that of a candidate, and is timed once; a line of a table needs only another number of threads
    for the candidates that it may follow."""
    found, used = [tile_on(workload, CPU, candidate) for candidate in candidates()], tile_on(workload, CPU)
    ways = distinct(workload, CPU)
    assert few_rows(workload).rows < 1000 and not used.stays
    assert used in found and ways[used] is None and set(ways) == set(found)
    row_bytes = workload.vocab * workload.item_bytes
    threads = {name: next(t for most, t in vars(tiles)[name] if row_bytes <= most) for name in ("KEPT", "STREAMED")}
    assert tile_on(workload, CPU, Candidate(threads["KEPT"])) == used
    streamed = tiles.tile_for(row_bytes, workload.item_bytes, used.aligned, True, False, tiles.UNROLL, 0, "cuda")
    assert tile_on(workload, CPU, Candidate(threads["STREAMED"], 0)) == streamed[0]
    assert {tile.threads for tile in ways if tile.keep} == {128, 256, 512, 1024}
    if row_bytes > 2**16:
        assert {(256, 16, 4), (256, 16, 8)} <= {(tile.threads, tile.keep, tile.unroll) for tile in ways}


def test_candidates_reach_the_launch_of_loss_and_gradient() -> None:
    logits, options = torch.zeros(1, 2, 4096), triton.Options("wasserstein", False, False, 0)

    def tile() -> Any:
        return triton.loss_tile(logits, logits, options, 16)

    plain = tile()
    with walking(Candidate(1024, 4, 2)):
        found, launch = tile()
        assert found[:5] == (1024, 4, tiles.UNROLL, 1, True)  # whole, without a front to unroll
        assert launch["num_warps"] * 32 == 1024 and launch["maxnreg"] == 64
    with walking(Candidate(64, 12, 2)):
        assert tile()[0][:5] == (64, 4, 2, 12, False)
    with walking(Candidate(256, 0, 2)):
        assert tile()[0][:5] == (256, 4, 2, 0, False)
    assert tile() == plain and plain[0].keep > 0


@pytest.mark.parametrize(("deviation", "is_certain"), [(0.01, True), (0.4, False)])
def test_the_output_ends_in_tables_that_can_be_pasted(
    deviation: float, is_certain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With made-up times: 256 threads gain 20% and 10%, and 128 threads more, but on rows of 50,304 they fail."""
    device, asked = torch.device("meta"), list[str]()

    def entry(workload: workloads.Workload, name: str) -> dict[str, Any]:
        asked.append(name)
        if name.startswith("128 ") and workload.vocab == 50304:
            return {"status": "failed"}
        time = {"256": 0.8 if workload.vocab == 50257 else 0.9, "128": 0.5}.get(name[:3], 1.0)
        return {"status": "timed", "samples_s": [time * (1 - deviation), time, time * (1 + deviation)]}

    def run_workload(workload: Any, settings: Any, providers: Any, observed: bool) -> list[dict[str, Any]]:
        known = {**asdict(workload), "logits_bytes": workload.logits_bytes, "memory": None, "others_share": None}
        return [{**known, "providers": {provider.name: entry(workload, provider.name) for provider in providers}}]

    faults = {(w, device, way): "spills" for w in TUNED for way in (None, Candidate(256, 8, 8))}
    monkeypatch.setattr(tune, "compiled_ahead", lambda *arguments: faults)
    monkeypatch.setattr(tune, "run_workload", run_workload)
    output = tune.tune(Settings(device, suite="gpu", families=("logits",), names="vocab-50[23]*"), tmp_path)
    assert "256 threads keep 8, unroll 4" in asked and "256 threads keep 8, unroll 8" not in asked
    assert tune.PRESENT in asked  # even if it spills
    found: dict[str, Any] = {"math": math}
    exec(output[output.index("KEPT = (") :], found)
    kept, streamed = dict(tiles.KEPT[:-2]), dict(tiles.STREAMED)
    if is_certain:
        streamed |= {2**17: 256, math.inf: 256}
    assert found["KEPT"] == (*kept.items(), (math.inf, 256 if is_certain else 512), tiles.KEPT[-1])
    assert found["STREAMED"] == tuple(streamed.items())
