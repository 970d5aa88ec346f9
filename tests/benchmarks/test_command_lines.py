"""Wrong arguments and Ctrl-C: one line, no traceback, and the exit code that a shell expects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.commands import InputError, in_one_line, naming
from benchmarks.distributed import __main__ as distributed
from benchmarks.speed import __main__ as speed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--device", "cuda", "expected one of cpu; torch sees no GPU; got 'cuda'"),
        ("--threads", "0", "expected a whole number of at least 1; got '0'"),
        ("--threads", "two", "expected a whole number of at least 1; got 'two'"),
        ("--seconds", "0", "expected a number of seconds above 0; got '0'"),
        ("--seconds", "nan", "got 'nan'"),
        ("--seconds", "soon", "invalid seconds value: 'soon'"),
    ],
)
def test_wrong_arguments_of_speed_are_named(
    option: str, value: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        speed.main(["run", option, value])
    assert ended.value.code == 2 and f"argument {option}: " in (error := capsys.readouterr().err) and said in error


def test_a_gpu_that_is_there_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(speed.device_here(name)) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]


@pytest.mark.parametrize(
    ("processes", "arguments", "said"),
    [
        ("4", ["--tp", "0"], "--tp: expected a whole number of at least 1; got '0'"),
        ("4", ["--tp", "3"], "--tp 3 must divide the 4 processes and the 4 heads"),
        ("8", ["--tp", "8"], "--tp 8 must divide the 8 processes and the 4 heads"),
        ("6", ["--tp", "2"], "must divide the 64 rows"),
        ("4", ["--out", "/proc/nowhere/out.json"], "/proc/nowhere: cannot write there"),
        ("", [], "start it with torchrun --nproc-per-node 4 -m benchmarks.distributed"),
    ],
)
def test_wrong_arguments_of_the_distributed_example(
    processes: str, arguments: list[str], said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "start", lambda: pytest.fail("started"))
    monkeypatch.setenv("WORLD_SIZE", processes) if processes else monkeypatch.delenv("WORLD_SIZE", raising=False)
    try:
        code = distributed.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and said in capsys.readouterr().err


def test_errors_of_input_and_ctrl_c_end_a_command_in_one_line(capsys: Any) -> None:
    def stopped(arguments: list[str]) -> int:
        if not arguments:
            raise KeyboardInterrupt
        with naming("--size"):
            return int(arguments[0])

    command = in_one_line(stopped)
    assert (command([]), command(["7"]), command(["x"])) == (130, 7, 2)
    assert capsys.readouterr().err == "interrupted\nerror: --size: invalid literal for int() with base 10: 'x'\n"
    with pytest.raises(InputError, match="^kept$"), naming("another"):
        raise InputError("kept")


@pytest.mark.slow
def test_ctrl_c_while_a_workload_is_measured(tmp_path: Path) -> None:
    """In a separate process, which ends quietly with the command."""
    options = ["--quick", "--busy", "--device", "cpu", "--workloads", "logits-fp32", "--out", str(tmp_path)]
    options += ["--seconds", "60"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "benchmarks.speed", "run", *options]
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job ignores it
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, preexec_fn=heeds, **pipes)
    assert process.stdout is not None and process.stdout.readline().startswith("[1/1] logits-fp32")
    time.sleep(3.0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said.endswith("interrupted\n")
    command = ["ps", "-o", "stat=,cmd=", "-s", str(process.pid)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in lines if not line.startswith("Z")] == []
