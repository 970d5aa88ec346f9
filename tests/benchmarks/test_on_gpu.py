"""The script for a machine with a GPU: its commands exist and accept its arguments, and each part runs on a CPU."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from importlib import import_module
from itertools import takewhile
from pathlib import Path

import pytest

from benchmarks.environment import ROOT
from benchmarks.quality.configuration import check, configure
from benchmarks.speed import __main__ as speed

from .gpu_machine import make_python

SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
PARTS = [part for line in re.findall(r'^parts\+?="(.*)"$', TEXT, re.MULTILINE) for part in line.split()]
KERNEL_TESTS, OTHER_TESTS = (
    found.split() for found in re.findall(r'^\w+_tests="(.*?)"', TEXT, re.MULTILINE | re.DOTALL)
)
GPU_TESTS = [*KERNEL_TESTS, *OTHER_TESTS]
COMMIT = "c0ffee" * 6 + "c0de"

# With commands that only record their arguments, on a machine where torch sees a GPU

STAND_IN = """#!/usr/bin/env bash
if [[ $1 == - ]]; then echo "$3"; exit; fi  # the summary: how the part ended
[[ $1 == -c ]] || printf '%q ' python "$@" >> {calls}; echo >> {calls}
[[ "$*" != *"${{SLOW:-no such command}}"* ]] || sleep 9
[[ "$*" != *"-m pip"* ]]
"""
TOOL = """#!/usr/bin/env bash
printf '%q ' compute-sanitizer "$@" >> {calls}; echo >> {calls}
if [[ "$*" == *benchmarks.planted* ]]; then echo "Error: Device not supported"; exit {code}; fi
"""


def called(part: str, folder: Path, code: int = 9, **settings: str) -> tuple[str, list[list[str]]]:
    """(how a part ended, the commands that it ran); ``code``: the sanitizer's exit code for the planted fault."""
    calls = folder / "calls"
    for name, text in (("python", STAND_IN), ("compute-sanitizer", TOOL)):
        (folder / name).write_text(text.format(calls=calls, code=code))
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHON": str(folder / "python")}
    environment |= {"MATHEMATICS": "/data/mathematics", "SEEDS": "1", **settings}
    command = [str(SCRIPT), part, str(folder / "results")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.count("\n") == 1, done.stderr
    lines = calls.read_text().splitlines()
    return done.stdout.strip(), [shlex.split(line) for line in lines if line.strip()]


def check_command(words: list[str]) -> None:
    """Raise unless the program accepts its arguments."""
    program, arguments = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
    if program == "benchmarks.speed":
        speed.parser().parse_args(["cpu" if word == "cuda" else word for word in arguments])
    elif program == "benchmarks.quality" and arguments[0] != "report":
        swept = dict(word.split("=", 1) for word in arguments if word != "-m" and not word.startswith("hydra."))
        for loss in swept.pop("loss").split(","):
            check(configure([f"{name}={value}" for name, value in {**swept, "loss": loss}.items()]))
    elif program == "pytest":
        files = [word for word in arguments if word.endswith(".py")]
        assert files and all((ROOT / file).is_file() for file in files)
    else:
        assert program == "benchmarks.planted" or arguments[0] == "report"


@pytest.mark.parametrize("dry", ["", "1"])
@pytest.mark.parametrize("part", PARTS)
def test_every_command_of_a_part_is_accepted(part: str, dry: str, tmp_path: Path) -> None:
    status, commands = called(part, tmp_path, code=9 if part == "sanitizer-memcheck" else 0, DRY=dry)
    assert status == "ok" and commands
    for words in commands:
        check_command(words)


def test_every_gpu_test_is_run_and_none_may_be_skipped(tmp_path: Path) -> None:
    for part, files in (("tests", KERNEL_TESTS), ("tests-rest", OTHER_TESTS)):
        (tmp_path / part).mkdir()
        _, (command,) = called(part, tmp_path / part)
        assert {"pytest", "-rfE", "gpu", "--require-gpu", "-n", *files} <= set(command)
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()]
    named = {str(path.relative_to(ROOT)) for path in marked} - {"tests/test_gpu.py", "tests/benchmarks/test_on_gpu.py"}
    assert sorted(GPU_TESTS) == sorted(named)  # the others only write of the mark


def test_the_sanitizer_checks_only_our_kernels_once_compiled(tmp_path: Path) -> None:
    _, (planted, compiling, checked) = called("sanitizer-memcheck", tmp_path)
    assert compiling[:3] == ["python", "-m", "pytest"] and "-n" in compiling
    options = ["--tool", "memcheck", "--target-processes", "application-only"]
    assert planted[:5] == checked[:5] == ["compute-sanitizer", *options]
    assert planted[-3:] == ["-m", "benchmarks.planted", "memcheck"] and "-n" not in checked
    pattern = re.compile(re.search(r"regex=(\S+?)'", TEXT)[1])  # type: ignore[index]
    sources = [*(ROOT / "ntl_kernels" / "kernels").glob("*.py"), ROOT / "benchmarks" / "planted.py"]
    kernels = [name for path in sources for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)]
    assert len(kernels) > 7 and all(map(pattern.search, kernels))
    assert not pattern.search("_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorIfEE")
    modules = [import_module(f"tests.{name}") for name in ("backends.test_triton", "parallel.test_shards")]
    tests = [name for module in modules for name in dir(module.TestOnTheGpu) if name.startswith("test_")]
    for chosen in re.findall(r'chosen\+?="(.*)"', TEXT):
        for word in chosen.removeprefix(" or ").split(" or "):
            assert any(word in name for name in tests), word


@pytest.mark.parametrize(("tool", "code"), [("memcheck", 0), ("memcheck", 1), ("racecheck", 255)])
def test_a_sanitizer_that_does_not_work_is_reported(tool: str, code: int, tmp_path: Path) -> None:
    status, commands = called(f"sanitizer-{tool}", tmp_path, code=code)
    assert len(commands) == 1 and status.startswith("not run: compute-sanitizer does not work on this machine")
    assert status.endswith("Error: Device not supported")


def test_failures_are_reported(tmp_path: Path) -> None:
    for name in ("a", "b", "wheels"):
        (tmp_path / name).mkdir()
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    assert called("tune", tmp_path / "a", WHEELS=str(tmp_path / "wheels"))[0].startswith("failed: the wheels in ")
    nowhere = subprocess.run([str(SCRIPT), "tests tune"], capture_output=True, text=True)
    assert nowhere.returncode == 2 and "PART is one of: tests first tune" in nowhere.stderr


@pytest.mark.parametrize("part", ["first", "tune"])
def test_ours_is_compiled_before_the_clock_starts(part: str, tmp_path: Path) -> None:
    """What takes longer than the preparation may is cut off, and does not end the part."""
    settings = {"PREPARE": "1", "LIMIT": "1", "SLOW": "--compile-only"}
    status, (compiling, timing) = called(part, tmp_path, **settings)
    assert status == "ok" and compiling == [*timing, "--compile-only"]
    (tmp_path / "calls").unlink()
    assert called("tests-rest", tmp_path, LIMIT="1", SLOW="test_shards.py")[0] == "cut off after 1 s"


def test_a_command_on_the_device_machine_ends_in_time() -> None:
    """After 600 seconds; the summary imports torch, and a program that does not end is killed five seconds later."""
    prepare, limit = (int(re.search(rf"{name}:-(\d+)", TEXT)[1]) for name in ("PREPARE", "LIMIT"))  # type: ignore[index]
    assert prepare + limit + 2 * 5 < 580


# With the programs themselves, in a Python with the packages of such a machine and those provided as wheels


def carried(part: str) -> list[str]:
    """The packages that the script's header lists as wheels for a part."""
    (names,) = (names for parts, names in table("still lacks") if any(fnmatch(part, one) for one in parts.split(", ")))
    return [] if names == "nothing" else [name.partition("==")[0] for name in names.split()]


def table(after: str) -> list[list[str]]:
    """The header's next table of two columns."""
    lines = TEXT[TEXT.index(after) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("#   "))
    rows = takewhile(lambda line: line.startswith("#   "), lines[start:])
    return [re.split("  +", line.removeprefix("#   "), maxsplit=1) for line in rows]


def test_the_header_lists_every_part_in_order_with_its_packages() -> None:
    for part in PARTS:
        carried(part)
    assert [part for parts, _ in table("PART [FOLDER]") for part in parts.split()] == PARTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "result"),
    [
        ("tests", "tests.log"),
        ("tests-rest", "tests-rest.log"),
        ("sanitizer-racecheck", "sanitizer-racecheck.log"),
        ("first", "*/first.json"),
        ("tune", "*/tune.json"),
        ("speed-ntl", "*/ntl.json"),
        ("quality-llama", "quality-llama/runs.jsonl"),
    ],
)
def test_a_part_writes_its_results_and_a_summary(part: str, result: str, tmp_path: Path) -> None:
    """In a copy, whose git has another commit; the tests also without plugins of pytest."""
    without = ("pytest-benchmark", "pytest-xdist") if part.startswith("tests") else ()
    python, folder = make_python(tmp_path / "machine", carried(part), without), tmp_path / "results"
    environment = {**os.environ, "PYTHON": str(python), "DRY": "1", "OMP_NUM_THREADS": "1", "COMMIT": COMMIT}
    command = [str(SCRIPT), part, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    summary = dict(re.split(" +", line, maxsplit=1) for line in done.stdout.splitlines()[-10:-3])
    assert summary["part"] == f"{part}: ok", (folder / f"{part}.log").read_text()
    assert done.returncode == 0 and "torch" in summary["versions"] and summary["commit"] == COMMIT
    assert ("ntloss MISSING" in summary["peers"]) == ("ntloss" not in carried(part))
    (found,) = folder.glob(result)
    assert COMMIT in found.read_text() or part.startswith(("tests", "sanitizer"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="hides GPUs with CUDA_VISIBLE_DEVICES")
def test_no_gpu_is_a_failure(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([str(SCRIPT), "tests", str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "tests: failed: torch sees no GPU" in done.stdout
