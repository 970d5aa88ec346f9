"""What is written is whole or not there: with a full disk, a kill at any moment, and several processes at once."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import files
from benchmarks.commands import InputError, writable_file
from benchmarks.environment import ROOT
from benchmarks.quality import records
from benchmarks.quality.configuration import configure
from benchmarks.quality.experiment import run
from benchmarks.quality.models import newest_checkpoint
from benchmarks.speed import results

from .test_quality_report import record

RUN = ["dataset=debug", "trainer=debug", "model.size=test", "+trainer.arguments.disable_tqdm=true"]
RUN += [f"dataset.limits.{split}={size}" for split, size in (("train", 8), ("validation", 2), ("test", 2))]
RUN += ["trainer.arguments.max_steps=6", "trainer.arguments.save_strategy=steps", "+trainer.arguments.save_steps=1"]
STOPS, NO_LIMIT = 20, resource.RLIM_INFINITY
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])  # a run starts at once


def started(target: Any, *args: Any) -> Any:
    process = PROCESSES.Process(target=target, args=args)
    process.start()
    return process


def attempt(folder: Path, largest: int) -> None:
    """Run, or go on with what is there, on a disk where no file can be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    sys.stdout = sys.stderr = io.StringIO()
    run(configure([*RUN, f"trainer.resume={(folder / 'config.json').exists()}"]), folder)


def tried(folder: Path, largest: int = NO_LIMIT, seconds: float | None = None) -> bool:
    """Whether an attempt ended by itself and well; whatever it left is whole."""
    process = started(attempt, folder, largest)
    process.join(seconds)
    process.kill()
    process.join()
    for path in folder.glob("[!.]*.json*"):
        text = path.read_text()
        assert list(map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text])), path
    return process.exitcode == 0


def learned(folder: Path) -> list[tuple[int, float]]:
    log = json.loads((folder / "metrics.json").read_text())["log"]
    return [(entry["step"], entry["loss"]) for entry in log if "loss" in entry]


@pytest.mark.parametrize("ends", ["killed", "full disk"])
def test_a_run_goes_on_from_wherever_it_was_stopped(ends: str, tmp_path: Path) -> None:
    chance, stopped = random.Random(ends), 0
    assert tried(tmp_path / "first")  # and whatever is loaded only once
    begun = time.perf_counter()
    assert tried(whole := tmp_path / "whole")
    seconds = time.perf_counter() - begun
    for number in itertools.count():
        while stopped < STOPS:
            killed, full = (NO_LIMIT, chance.uniform(0, seconds)), (int(10 ** chance.uniform(2, 5)), None)
            if tried(tmp_path / str(number), *(killed if ends == "killed" else full)):
                break
            stopped += 1
        assert tried(tmp_path / str(number)) and learned(tmp_path / str(number)) == learned(whole)
        if stopped == STOPS:
            return


def test_what_is_torn_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = [metrics["loss"] for metrics in run(configure(RUN), tmp_path)["metrics"].values()]
    (tmp_path / "checkpoint-7").mkdir()
    for path in (tmp_path / "checkpoint-6" / "trainer_state.json", tmp_path / "metrics.json"):
        path.write_text(path.read_text()[:200])
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-5"
    again = run(configure([*RUN, "trainer.resume=true"]), tmp_path)["metrics"].values()
    assert [metrics["loss"] for metrics in again] == pytest.approx(losses)
    told = capsys.readouterr().err
    assert "checkpoint-7: not a whole checkpoint" in told and "metrics.json: not the metrics of a run" in told
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config.json: expected an object of JSON; got \[\]"):
        run(configure(RUN), tmp_path)
    with files.locked(tmp_path), pytest.raises(InputError, match="another process is at work in this folder"):
        run(configure(RUN), tmp_path)


def rewrite(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    with pytest.raises(OSError, match="File too large"):
        records.write(records.read_records(path), path)


def test_records_outlive_a_full_disk(tmp_path: Path) -> None:
    path, link = tmp_path / "runs.jsonl", tmp_path / "link"
    path.write_text((json.dumps(record("a" * 10_000, "CE", 1, 1.0)) + "\n") * 40)
    path.chmod(0o640)
    written, process = path.read_bytes(), started(rewrite, path)
    process.join()
    assert process.exitcode == 0 and path.read_bytes() == written
    link.symlink_to(path)
    files.write(link, "ä")
    assert path.read_text(encoding="utf-8") == "ä" and path.stat().st_mode & 0o777 == 0o640
    for name in "ab":
        with files.replacing(tmp_path / "new") as unfinished:
            unfinished.mkdir()
            (unfinished / name).touch()
    assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new" / "b"]
    os.mkfifo(pipe := tmp_path / "pipe")
    for write in (partial(files.write, text="x"), writable_file):
        with pytest.raises(InputError, match="pipe: (a device or a pipe, which|not a file; the results)"):
            write(pipe)
    assert pipe.is_fifo()
    with suppress(FileNotFoundError), files.replacing(tmp_path / "new") as unfinished:
        (unfinished / "inner").mkdir(parents=True)
        (unfinished / "not" / "there").touch()
    assert set(tmp_path.iterdir()) == {path, link, pipe, tmp_path / "new"}


def add_ten(folder: Path, name: str) -> None:
    plain = {"family": "logits", "group": "main", "memory": None, "also": [], "providers": {}}
    plain["environment"] = dict.fromkeys(("kind", "device", "date"), "")
    for number in range(10):
        results.add(folder, "logits", [plain | {"name": f"{name}{number}"}])


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    for process in [started(add_ten, tmp_path, name) for name in "abcd"]:
        process.join()
    assert len(results.read(tmp_path / "logits.json")) == 40


def test_results_are_written_in_one_way() -> None:
    direct = {"files.py", "machine_code.py", "pretrained.py"}  # the last two into temporary folders
    pattern = r"\bwrite_(text|bytes)\(|open\([^)]*\"[wax]|nbformat\.write\("
    for path in (path for path in (ROOT / "benchmarks").rglob("*.py") if path.name not in direct):
        assert not re.search(pattern, path.read_text()), path
