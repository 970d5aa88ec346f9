"""Runs: dry runs of whole suites, and the records of providers that are missing, fail or are wrong."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import __main__ as command
from benchmarks.speed import host, measure, memory, neighbours, providers, results, run, tune, workloads
from benchmarks.speed.providers import GPU
from benchmarks.speed.run import Settings
from benchmarks.speed.workloads import Outcome

from .speed_cases import CPU, SMALL, case, provider

DRY = Settings(CPU, threads=1, dry=True)
OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
FAILING_PEERS = {("ntl-NTLossDotProduct-bf16", "ntloss")} if OLD_TORCH else set()
"""(workload, provider) of packages that mix dtypes in a way that only newer versions of torch accept."""


@pytest.fixture
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, the profiler and garbage collections, each of which takes at least a quarter of a second,
    and without the process that keeps all cores busy, which takes seconds to start."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(neighbours, "all_cores_busy", nullcontext)
    monkeypatch.setattr(measure, "observe", lambda step, device: {"peak_bytes": 1, "operators": 1})


def cross_entropy(t: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(t.logits, t.labels)


def records_of(found: list[providers.Provider]) -> dict[str, Any]:
    return run.run_workload(SMALL, DRY, found)[0]["providers"]


def names_in(folder: Path) -> list[str]:
    """The workloads with records in a folder, each once."""
    return list(dict.fromkeys(record["name"] for record in results.load(folder).values()))


@pytest.mark.usefixtures("_cheap")
@pytest.mark.parametrize("suite", ["full", "gpu"])
def test_dry_run_of_a_whole_suite(suite: str, tmp_path: Path) -> None:
    """Every workload and provider, tiny; peers may be missing, but nothing may fail or compute something else."""
    pytest.importorskip("transformers")
    settings = replace(DRY, suite=suite)
    folder = run.run(settings, tmp_path)
    records = results.load(folder)
    assert set(names_in(folder)) == {workload.name for workload in run.suite_of(settings)}
    assert len(records) == len(run.suite_of(settings)) * len(memory.ways(CPU, memory.BOTH))
    for record in records.values():
        for name, entry in record["providers"].items():
            if (record["name"], name) not in FAILING_PEERS:
                assert entry["status"] in ("timed", "missing"), (record["name"], name, entry)
        assert record["providers"]["ours"]["status"] == "timed"
        assert record["environment"]["versions"]["torch"]


@pytest.mark.slow
def test_one_workload_with_compiler_and_profiler() -> None:
    workload = replace(SMALL, providers=("copy", "ours", "torch_ce", "torch_ce_compiled"))
    record = run.run_workload(workload, DRY)[0]
    for entry in record["providers"].values():
        assert entry["status"] == "timed"
        assert entry["operators"] >= 1
        assert all(sample > 0 for sample in entry["samples_s"])
    assert record["providers"]["copy"]["peak_bytes"] == 0
    assert record["providers"]["torch_ce"]["peak_bytes"] >= 2 * record["gradient_bytes"]
    assert record["gradient_bytes"] == record["logits_bytes"] == 12 * 96 * 4


def test_missing_failing_and_wrong_peers_are_recorded_and_not_timed() -> None:
    def fails(t: Any) -> torch.Tensor:
        raise RuntimeError("out of order\nsecond line")

    entries = records_of(
        [
            provider(cross_entropy, name="absent", needs=("no_such_package",)),
            provider(cross_entropy, name="elsewhere", needs=(GPU,)),
            provider(fails, name="fails"),
            provider(lambda t: cross_entropy(t) * 2, name="double"),
            provider(cross_entropy, name="right"),
        ]
    )
    assert entries["absent"] == {"status": "missing", "reason": "package no_such_package is not installed"}
    assert entries["elsewhere"] == {"status": "missing", "reason": "needs a GPU"}
    assert entries["fails"] == {"status": "failed", "reason": "RuntimeError: out of order"}
    assert entries["double"]["status"] == "wrong" and "samples_s" not in entries["double"]
    assert entries["double"]["gradient_error"] == pytest.approx(1.0, rel=1e-3)
    assert entries["right"]["status"] == "timed"


def test_a_provider_that_overwrites_its_input_has_its_own() -> None:
    """As Liger does: the logits become the gradient."""

    def build(own: Any) -> Any:
        def step(index: int) -> Outcome:
            tensors = own.sets[0]
            loss = cross_entropy(tensors)
            (gradient,) = torch.autograd.grad(loss, tensors.logits)
            tensors.logits.detach().copy_(gradient)
            return Outcome(loss.detach(), (gradient,))

        return step

    greedy = replace(provider(cross_entropy, name="greedy"), build=build, overwrites=True)
    entries = records_of([greedy, provider(cross_entropy, name="next")])
    assert entries["greedy"]["status"] == entries["next"]["status"] == "timed"


def test_ours_off_computes_cross_entropy() -> None:
    """Its two number tokens are not labels, so its loss is cross-entropy."""
    problem = case(number_share=1.0)
    loss = providers.ours_off(problem)(problem.sets[0])
    assert loss.item() == pytest.approx(cross_entropy(problem.sets[0]).item(), rel=1e-5)


@pytest.mark.usefixtures("_cheap")
def test_parts_are_added_to_results_and_a_whole_family_replaces_them(tmp_path: Path) -> None:
    settings = replace(DRY, suite="quick", families=("logits",))
    folder = run.run(replace(settings, names="logits-fp32", providers="torch_ce"), tmp_path)
    assert names_in(folder) == ["logits-fp32"]
    run.run(replace(settings, names="launch", providers="torch_ce"), tmp_path)
    assert names_in(folder) == ["logits-fp32", "launch"]
    path = folder / "logits.json"
    path.write_text(path.read_text().replace("logits-fp32", "of-old"))
    run.run(settings, tmp_path)
    assert "of-old" not in names_in(folder)


@pytest.mark.usefixtures("_cheap")
@pytest.mark.skipif(len(memory.ways(CPU, memory.BOTH)) == 1, reason="needs glibc")
def test_one_way_of_memory_is_added_to_the_other(tmp_path: Path) -> None:
    settings = replace(DRY, families=("ntl",), providers="ours", names="ntl-NTLoss-fp32")
    for way in memory.WAYS:
        folder = run.run(replace(settings, memory=way), tmp_path)
    assert [record["memory"] for record in results.load(folder).values()] == ["fresh", "kept"]


class Neighbour:
    """Uses a given number of each hundred ticks, attempt by attempt."""

    def __init__(self, *ticks: int) -> None:
        # Read before and after each attempt
        totals = [(200 * attempt + end, end * taken) for attempt, taken in enumerate(ticks) for end in (0, 100)]
        self.readings = iter([neighbours.Reading(total, taken // 100, 0) for total, taken in totals])

    def read(self) -> neighbours.Reading:
        return next(self.readings)


@pytest.mark.parametrize(("taken", "attempts", "share"), [((3,), 1, 0.03), ((30, 4), 2, 0.04), ((30, 10, 20), 3, 0.1)])
def test_disturbed_workloads_are_timed_again(
    taken: tuple[int, ...], attempts: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(neighbours, "read", Neighbour(*taken).read)
    settings = replace(DRY, dry=False, seconds=1e-9)
    timed, found = run.undisturbed({"a": lambda index: steps.append(index)}, SMALL, settings)
    assert found == share and timed["a"]["status"] == "timed"
    samples = timed["a"]["repeats"] * len(timed["a"]["samples_s"])
    assert len(steps) >= attempts * samples
    assert next(neighbours.read.__self__.readings, None) is None  # type: ignore[attr-defined]


def test_a_busy_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(command.memory.os.environ):
        if name.startswith(memory.SETTINGS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(neighbours, "LOOK_S", 0.0)
    monkeypatch.setattr(neighbours, "read", Neighbour(87).read)
    arguments = ["run", "--device", "cpu", "--workloads", "launch", "--out", str(tmp_path)]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert "87%" in error and "--busy" in error and not list(tmp_path.iterdir())
    monkeypatch.setattr(run, "run", lambda settings, folder: folder)
    assert command.main([*arguments, "--busy"]) == 0
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert command.main([*arguments, "--busy"]) == 2
    assert "MALLOC_TRIM_THRESHOLD_" in capsys.readouterr().err


@pytest.mark.usefixtures("_cheap")
def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--dry", "--threads", "1", "--families", "logits", "--workloads", "launch", "--device", "cpu"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 0
    assert "ours" in capsys.readouterr().out
    assert command.main(["report", "--results", str(tmp_path)]) == 0
    assert command.main(["report", "--check", "--results", str(tmp_path)]) == 0
    (report,) = tmp_path.glob("*/report.md")
    report.write_text(report.read_text() + "faster\n")
    assert command.main(["report", "--check", "--results", str(tmp_path)]) == 1
    assert command.main(["report", "--check", "--results", str(tmp_path / "nowhere")]) == 2


@pytest.mark.usefixtures("_cheap")
def test_small_problems_pass_the_gate_on_one_thread(tmp_path: Path) -> None:
    settings = replace(DRY, names="eager-*")
    folder = host.host(settings, tmp_path)
    records = results.load(folder)
    assert names_in(folder) == [workload.name for workload in workloads.eager_workloads()]
    for record in records.values():
        assert record["threads"] == 1
        statuses = {name: found["status"] for name, found in record["providers"].items()}
        assert statuses == {"ours": "timed", "torch_ce": "timed"}


@pytest.mark.usefixtures("_cheap")
def test_tuning_tries_every_setting_and_leaves_none(tmp_path: Path) -> None:
    from ntl_kernels.backends.eager import blocks

    before = dict(blocks.BLOCK_BYTES)
    text = tune.tune(replace(DRY, families=("logits",), names="rows-4-fp32"), tmp_path)
    assert before == blocks.BLOCK_BYTES
    (path,) = tmp_path.glob("*/tune.json")
    record = next(iter(results.read(path).values()))
    assert {entry["status"] for entry in record["providers"].values()} == {"timed"}
    assert len(record["providers"]) == 2 + len(tune.BLOCK_BYTES)
    assert "rows-4-fp32" in text and str(path) in text
