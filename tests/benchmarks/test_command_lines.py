"""Wrong arguments and Ctrl-C: one line, no traceback, and the exit code that a shell expects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import errors
from benchmarks.distributed import __main__ as distributed
from benchmarks.errors import closest, in_one_line, interruptible
from benchmarks.speed import __main__ as speed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["run", "tune"])
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--device", "cuda", "expected one of cpu; torch sees no GPU; got 'cuda'"),
        ("--device", "nope", "got 'nope'"),
        ("--device", "cuda:99", "got 'cuda:99'"),
        ("--threads", "0", "expected a whole number of at least 1; got '0'"),
        ("--threads", "two", "expected a whole number of at least 1; got 'two'"),
        ("--threads", "1000000", "expected at most 1024 threads; got '1000000'"),
        ("--seconds", "-1", "expected a number of seconds above 0; got '-1'"),
        ("--seconds", "0", "got '0'"),
        ("--seconds", "nan", "got 'nan'"),
        ("--seconds", "inf", "got 'inf'"),
        ("--colour", "red", "unrecognized arguments: --colour red"),
    ],
)
def test_wrong_arguments_of_speed_are_told_in_one_line(
    command: str, option: str, value: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        speed.main([command, option, value])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and said in error and error.count("\n") == 1


def test_a_gpu_that_is_there_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(speed.device_here(name)) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]


@pytest.mark.parametrize(
    ("processes", "arguments", "said"),
    [
        ("4", ["--tp", "0"], "--tp: expected a whole number of at least 1; got '0'"),
        ("4", ["--steps", "-1"], "--steps: expected a whole number of at least 1; got '-1'"),
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
    error = capsys.readouterr().err
    assert code == 2 and said in error and error.count("\n") == 1


def started(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, start_new_session=True, **pipes)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: a terminal sends it to all processes of a command."""
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + signal.SIGINT, "interrupted\n")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's record of what a process has loaded")
def test_ctrl_c_while_torch_is_imported() -> None:
    process = started("-m", "benchmarks.speed", "run", "--quick")
    deadline = time.monotonic() + 60
    while "libtorch_cpu" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    interrupt(process)


def test_ctrl_c_while_a_workload_is_measured(tmp_path: Path) -> None:
    """Which a process of its own does: it says nothing and ends, too."""
    options = ["--quick", "--busy", "--device", "cpu", "--workloads", "logits-fp32", "--out", str(tmp_path)]
    process = started("-m", "benchmarks.speed", "run", *options)
    assert process.stdout is not None and process.stdout.readline().startswith("[1/1] logits-fp32")
    time.sleep(1.0)
    interrupt(process)
    deadline = time.monotonic() + 10
    while alive := members(process.pid):
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def members(session: int) -> list[str]:
    """The processes of a session that still run."""
    command = ["ps", "-o", "stat=,cmd=", "-s", str(session)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if not line.startswith("Z")]


def test_ctrl_c_ends_a_command_with_130(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(errors.signal, "signal", lambda number, handler: handlers.append((number, handler)))

    def stopped(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    assert in_one_line(stopped)([]) == 130
    with pytest.raises(SystemExit) as ended, interruptible():
        stopped([])
    assert ended.value.code == 130 and capsys.readouterr().err == "interrupted\ninterrupted\n"
    assert handlers == 2 * [(signal.SIGINT, signal.SIG_DFL)], "a second one ends it at once"


def test_the_name_that_was_meant() -> None:
    known = ["trainer.arguments.max_steps", "trainer.arguments.learning_rate", "dataset.limits", "a.train_batch_size"]
    wanted = {"steps": known[0], "lr": known[1], "limit": known[2], "batch_size": known[3], "colour": None}
    assert {name: closest(name, known) for name in wanted} == wanted
