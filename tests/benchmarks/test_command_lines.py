"""Wrong arguments and Ctrl-C: one line, no traceback, and the exit code that a shell expects."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.commands import InputError, in_one_line, naming
from benchmarks.distributed import __main__ as distributed

COMPARED, TIMED = "compare dataset=debug trainer=debug", "time --rounds 1 --steps 1 dataset=debug model.size=test"
DRAWN = "boxes --pictures 4 --steps 4"
NOT_USED = {
    f"{COMPARED} ++seed=5": "compare runs seeds 1, 2, ...; set how many with --seeds, where with --out; got ++seed",
    f"{COMPARED} hydra.run.dir=x": "compare runs seeds 1, 2, ",
    f"{COMPARED} beams=0": "beams must be a number of beams",
    f"{COMPARED} trainer.max_questions=abc": "trainer.max_questions must be null or a number of questions; got 'abc'",
    f"{COMPARED} ~trainer.arguments.max_steps": "trainer.arguments.max_steps must be at least 1",
    f"{COMPARED} trainer.arguments.max_steps=-1 +trainer.arguments.num_train_epochs=1": "compare needs trainer.",
    f"{COMPARED} trainer.train=false": "trainer=eval needs what it evaluates",
    f"{COMPARED} model=xval": "model.head=value needs loss=ce",
    f"{TIMED} trainer.arguments.max_steps=1": "time takes dataset, model, device, seed, ",
    f"{TIMED} loss=ntl_mse": "time takes ",
    f"{TIMED} beams=abc": "time takes ",
    f"{TIMED} samples=-3": "time takes ",
    f"{TIMED} seed=-1": "seed must be a whole number",
    f"{TIMED} model=xval": "model.head=value needs loss=ce",
    f"{DRAWN} seed=2": "boxes takes loss=L and its options, except balance and group_by; got seed=2",
    f"{DRAWN} loss={{balance:true}}": "boxes takes ",
    f"{DRAWN} loss.balance=true": "boxes takes ",
    f"{DRAWN} loss.group_by=null": "boxes takes ",
    f"{DRAWN} loss.weight=1": "loss.weight is not an option",
    "yardsticks dataset=debug data_seed=abc": "data_seed must be a whole number",
}
"""Command of quality -> why it is refused: it sets an option itself, or the value has no effect or no meaning."""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ntl_kernels.demo --prot 80", "unrecognized option --prot: did you mean --port?"),
        ("benchmarks.distributed --loss fusde", "argument --loss: invalid choice 'fusde': did you mean fused?"),
        ("benchmarks.inspect --target cpu", "argument --target: invalid choice 'cpu'; expected one of sm_80, sm_90, "),
        ("benchmarks.speed run --threads 0", "argument --threads: expected a whole number of at least 1; got '0'"),
        (f"benchmarks.quality boxes --pictures {10**30}", "argument --pictures: expected a whole number of at least 1"),
        ("benchmarks.speed run --seconds nan", "argument --seconds: expected a number of seconds above 0; got 'nan'"),
        ("benchmarks.speed run --dry --providers nope --out new", "no provider matches 'nope'; expected one of copy, "),
        ("benchmarks.speed run --suite gpu --device cpu --out new", "--suite gpu needs a GPU, or --dry; got --device "),
        ("benchmarks.speed first --device cpu --out new", "first needs a GPU, or --dry; got --device cpu"),
        ("benchmarks.speed host --dry --out /proc/nowhere", "cannot write results to /proc/nowhere"),
        ("benchmarks.distributed", "start it with torchrun --nproc-per-node 4 -m benchmarks.distributed"),
        ("benchmarks.inspect --model --kernel finish", "--model supports only losses_and_gradients"),
        ("benchmarks.inspect --gpu H200", "--gpu, --loss and --markdown need --model"),
        ("benchmarks.quality compare dataset=table", "dataset=table needs dataset.file=FILE.csv"),
        ("benchmarks.quality compare seed=5", "compare runs seeds 1, 2, ...; set how many with --seeds"),
        ("benchmarks.quality reprot", "there is no command 'reprot': did you mean report?"),
        ("benchmarks.quality dataset=rent", "dataset=rent: did you mean rents?"),
        ("benchmarks.quality loss.weigth=1", "loss.weigth is not an option: did you mean weight?"),
        *((f"benchmarks.quality {line} --out new", said) for line, said in NOT_USED.items()),
    ],
)
def test_what_cannot_work_is_told_in_one_line_before_the_work(
    line: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, *arguments = line.split()
    module = import_module(f"{program}.__main__")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # set again by the program
    monkeypatch.setattr(sys, "argv", [program, *arguments])  # which Hydra reads
    try:
        code = module.main(arguments)
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == "" and not (tmp_path / "new").exists()
    assert printed.err.startswith(f"error: {said}") and printed.err.count("\n") == 1
    assert said[-1] != "?" or printed.err == f"error: {said}\n"


@pytest.mark.parametrize(("processes", "heads"), [("4", "3"), ("6", "2")])
def test_processes_that_cannot_share_the_example_are_refused(
    processes: str, heads: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "start", lambda: pytest.fail("started"))
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(SystemExit):
        distributed.main(["--tp", heads])
    assert "must divide the " in capsys.readouterr().err


def test_errors_of_input_and_ctrl_c_end_a_command_in_one_line(capsys: Any) -> None:
    def stopped(arguments: list[str]) -> int:
        if not arguments:
            raise KeyboardInterrupt
        if arguments == ["/dev/full"]:
            Path("/dev/full").write_text("full")
        with naming("--size"):
            return int(arguments[0])

    command = in_one_line(stopped)
    assert (command([]), command(["7"]), command(["x"]), command(["/dev/full"])) == (130, 7, 2, 2)
    wrong, full = "--size: invalid literal for int() with base 10: 'x'", "a file: No space left on device"
    assert capsys.readouterr().err == f"interrupted\nerror: {wrong}\nerror: {full}\n"
    with pytest.raises(InputError, match="^kept$"), naming("another"):
        raise InputError("kept")
