"""Wrong arguments and Ctrl-C: one line, no traceback, and the exit code that a shell expects."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.commands import InputError, in_one_line, naming
from benchmarks.distributed import __main__ as distributed
from benchmarks.speed import __main__ as speed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ntl_kernels.demo --prot 80", "unrecognized option --prot: did you mean --port?"),
        ("benchmarks.distributed --step 3 --ls 4", "unrecognized option --ls: did you mean --loss?"),
        ("benchmarks.distributed --loss fusde", "argument --loss: invalid choice 'fusde': did you mean fused?"),
        ("benchmarks.distributed.bytes --ouput x", "unrecognized option --ouput: did you mean --out?"),
        ("benchmarks.inspect --makrdown", "unrecognized option --makrdown: did you mean --markdown?"),
        ("benchmarks.inspect --gpu h1000", "argument --gpu: invalid choice 'h1000': did you mean H100?"),
        ("benchmarks.inspect --target cpu", "argument --target: invalid choice 'cpu'; expected one of sm_80, sm_90, "),
        ("benchmarks.speed rnu", "argument run|first|host|counts|report|tune: invalid choice 'rnu': did you mean run?"),
        ("benchmarks.speed run --theads 2", "unrecognized option --theads: did you mean --threads?"),
        (
            "benchmarks.speed run --dry --workloads logit-fp32",
            "no workload matches 'logit-fp32': did you mean logits-fp32?",
        ),
        ("benchmarks.speed counts --dyr", "unrecognized option --dyr: did you mean --dry?"),
        ("benchmarks.speed counts --providers liger", "no provider matches 'liger': did you mean liger_ce?"),
        ("benchmarks.speed report --chekc", "unrecognized option --chekc: did you mean --check?"),
        ("benchmarks.speed report check", "unexpected argument 'check'"),
        ("benchmarks.quality reprot", "there is no command 'reprot': did you mean report?"),
        ("benchmarks.quality report --chek", "unrecognized option --chek: did you mean --check?"),
        (
            "benchmarks.quality prepare gms8k here there",
            "argument dataset: invalid choice 'gms8k': did you mean gsm8k?",
        ),
        ("benchmarks.quality time --ruonds=3", "unrecognized option --ruonds: did you mean --rounds?"),
        ("benchmarks.quality yardsticks a=b --uot here", "unrecognized option --uot: did you mean --out?"),
        ("benchmarks.quality compare --sedes 2", "unrecognized option --sedes: did you mean --seeds?"),
        ("benchmarks.quality compare dataset=rent", "dataset=rent: did you mean rents?"),
        ("benchmarks.quality dataset=rent", "dataset=rent: did you mean rents?"),
        ("benchmarks.quality model=bases", "model=bases; expected one of llama, regression_head, t5, t5_ntl"),
        ("benchmarks.quality dataste=rents", "dataste is not an option: did you mean dataset?"),
        ("benchmarks.quality loss.weigth=1", "loss.weigth is not an option: did you mean weight?"),
        ("benchmarks.quality loss=ce loss.weight=1", "loss.weight is not an option; expected one of name"),
        ("benchmarks.quality seed=1 --multirnu", "unrecognized option --multirnu: did you mean --multirun?"),
        ("benchmarks.quality dataset=rents,debgu -m", "dataset=debgu: did you mean debug?"),
        (
            "benchmarks.quality trainer.arguments.max_step=2",
            "trainer.arguments.max_step is not an option: did you mean max_steps? (another of the TrainingArguments",
        ),
    ],
)
def test_what_was_probably_meant_is_suggested_in_one_line(
    line: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, *arguments = line.split()
    module = import_module(program if program.endswith("bytes") else f"{program}.__main__")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # set again by the program
    monkeypatch.setattr(sys, "argv", [program, *arguments])  # which Hydra reads
    try:
        code = module.main(arguments)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == ""
    assert printed.err.startswith(f"error: {said}") and printed.err.count("\n") == 1
    assert said[-1] != "?" or printed.err == f"error: {said}\n"


def test_every_command_line_suggests() -> None:
    """Its parser is made of the class that does."""
    files = [path for name in ("ntl_kernels", "benchmarks") for path in (ROOT / name).rglob("*.py")]
    made = [path.name for path in files if re.search(r"\bArgumentParser\(", path.read_text())]
    assert len(files) > 100 and made == []


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
    end = time.monotonic() + 10.0  # the kernel may still be taking the process down
    while lines := [
        line
        for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        if not line.startswith("Z")
    ]:
        assert time.monotonic() < end, lines
        time.sleep(0.1)
