"""The script for a machine with a GPU, tried on a CPU: each part ends in ten lines that say what happened."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

import pytest

from benchmarks.environment import ROOT

from .gpu_machine import make_python

SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
PARTS = re.search(r'^parts="(.*)"$', TEXT, re.MULTILINE)[1].split()  # type: ignore[index]
GPU_TESTS = re.search(r'^gpu_tests="(.*?)"', TEXT, re.MULTILINE | re.DOTALL)[1].split()  # type: ignore[index]
COMMIT = "c0ffee" * 6 + "c0de"


def on_gpu(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "DRY": "1", "OMP_NUM_THREADS": "1", **settings}
    return subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=400)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The last ten lines by their first word; of those that repeat, the last."""
    lines = done.stdout.splitlines()
    assert len(lines) == 10, done.stdout + done.stderr
    return {word: rest.strip() for word, _, rest in (line.partition(" ") for line in lines)}


def carried(part: str) -> list[str]:
    """The packages that the script's header says to carry for a part."""
    (names,) = (names for parts, names in rows("still lacks") if any(fnmatch(part, one) for one in parts.split(", ")))
    return [] if names == "nothing" else [name.partition("==")[0] for name in names.split()]


def rows(after: str) -> list[list[str]]:
    """The header's next table of two columns."""
    lines = TEXT[TEXT.index(after) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("#   "))
    table = takewhile(lambda line: line.startswith("#   "), lines[start:])
    return [re.split("  +", line.removeprefix("#   "), maxsplit=1) for line in table]


def test_every_part_says_what_it_needs_and_stands_in_its_place() -> None:
    for part in PARTS:
        carried(part)
    assert [part for parts, _ in rows("PART [FOLDER]") for part in parts.split()] == PARTS


@pytest.mark.parametrize(
    ("part", "result"),
    [
        ("tests", "tests.log"),
        ("sanitizer-racecheck", "sanitizer-racecheck.log"),
        ("speed-ntl", "*/ntl.json"),
        ("tune", "*/tune.json"),
        ("quality-llama", "quality-llama/runs.jsonl"),
    ],
)
def test_a_part_leaves_its_results_and_says_what_happened(part: str, result: str, tmp_path: Path) -> None:
    """Where nothing is installed but what such a machine has and what is carried there, and git knows no commit."""
    python = make_python(tmp_path / "machine", carried(part))
    folder = tmp_path / "results"
    nowhere = {"GIT_DIR": str(tmp_path / "nowhere"), "COMMIT": COMMIT}
    done = on_gpu(part, str(folder), PYTHON=str(python), **nowhere)
    said = summary(done)
    assert said["part"] == f"{part}: ok", (folder / f"{part}.log").read_text()
    assert done.returncode == 0
    assert "torch" in said["versions"] and said["commit"] == COMMIT
    assert ("ntloss MISSING" in said["peers"]) == ("ntloss" not in carried(part))
    (found,) = folder.glob(result)
    assert COMMIT in found.read_text() or part.startswith(("tests", "sanitizer"))


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    done = on_gpu("sanitizer-memcheck", str(tmp_path), WHEELS=str(wheels), LIMIT="1")
    said = summary(done)
    assert said["part"] == f"sanitizer-memcheck: failed: the wheels in {wheels}"
    assert done.returncode == 1
    done = on_gpu("sanitizer-memcheck", str(tmp_path), LIMIT="1")
    assert summary(done)["part"] == "sanitizer-memcheck: cut off after 1 s"


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    for arguments in ((), ("",), ("speed",), ("tests tune",)):
        done = on_gpu(*arguments)
        assert done.returncode == 2
        assert "PART is one of: tests sanitizer-memcheck" in done.stderr and not done.stdout


def test_no_gpu_is_a_failure(tmp_path: Path) -> None:
    done = on_gpu("tests", str(tmp_path), DRY="", CUDA_VISIBLE_DEVICES="")
    assert summary(done)["part"] == "tests: failed: torch sees no GPU"
    assert done.returncode == 1


# On a machine with a GPU: what the script would run, with commands that only say how they were called

STAND_IN = """#!/usr/bin/env bash
if [[ $1 == - || $1 == -c && $2 != *is_available* ]]; then exec {python} "$@"; fi
echo "python $*" >> {calls}
"""
TOOL = """#!/usr/bin/env bash
echo "compute-sanitizer $*" >> {calls}
if [[ "$*" == *benchmarks.planted* ]]; then echo "{says}"; exit {code}; fi
"""


def calls_of(part: str, folder: Path, says: str = "", code: int = 0) -> tuple[dict[str, str], list[str]]:
    """(the summary, the commands) of a part where torch sees a GPU; ``says`` and ``code`` are the tool's answer to the
    planted fault."""
    calls, tools = folder / "calls", folder / "tools"
    tools.mkdir()
    for name, text in (("python", STAND_IN), ("compute-sanitizer", TOOL)):
        (tools / name).write_text(text.format(python=sys.executable, calls=calls, says=says, code=code))
        (tools / name).chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = on_gpu(part, str(folder / "results"), DRY="", PATH=path, PYTHON=str(tools / "python"))
    lines = calls.read_text().splitlines()
    return summary(done), [line for line in lines if "is_available" not in line]


def test_every_gpu_test_is_run_and_none_may_be_skipped(tmp_path: Path) -> None:
    said, (command,) = calls_of("tests", tmp_path)
    assert said["part"] == "tests: ok"
    for option in ("-m pytest", "-rfE", "-m gpu", "--require-gpu", *GPU_TESTS):
        assert option in command


@pytest.mark.parametrize(("tool", "code"), [("memcheck", 9), ("racecheck", 0)])
def test_the_sanitizer_gets_warm_kernels(tool: str, code: int, tmp_path: Path) -> None:
    said, (planted, warm, checked) = calls_of(f"sanitizer-{tool}", tmp_path, code=code)
    assert said["part"] == f"sanitizer-{tool}: ok"
    assert warm.startswith("python -m pytest") and "-n 12" in warm
    for command in (planted, checked):
        options = f"compute-sanitizer --tool {tool} --target-processes application-only --report-api-errors no "
        assert command.startswith(options) and "--error-exitcode 9" in command
    assert planted.endswith(f"-m benchmarks.planted {tool}") and "-n 12" not in checked and "--require-gpu" in checked


@pytest.mark.parametrize(("tool", "code"), [("memcheck", 0), ("memcheck", 1), ("racecheck", 255)])
def test_a_sanitizer_that_does_not_work_is_said_in_a_line(tool: str, code: int, tmp_path: Path) -> None:
    said, commands = calls_of(f"sanitizer-{tool}", tmp_path, says="Error: Device not supported", code=code)
    assert len(commands) == 1
    assert said["part"].startswith(f"sanitizer-{tool}: not run: compute-sanitizer does not work on this machine")
    assert said["part"].endswith("Error: Device not supported")


def test_the_sanitizer_sees_all_of_our_kernels_and_none_of_torchs() -> None:
    pattern = re.compile(re.search(r"regex=(\S+?)'", TEXT)[1])  # type: ignore[index]
    kernels = [
        name
        for path in [*(ROOT / "ntl_kernels" / "kernels").glob("*.py"), ROOT / "benchmarks" / "planted.py"]
        for name in re.findall(r"^def (\w+_kernel)\(", path.read_text(), re.MULTILINE)
    ]
    assert len(kernels) > 10 and all(pattern.search(name) for name in kernels)
    assert not pattern.search("_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorIfEE")


def test_every_file_with_gpu_tests_is_run_and_imports_there(tmp_path: Path) -> None:
    """There nothing is installed that the tests of `tests` do not need, ntloss least of all."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if has_mark(path, "gpu")]
    assert sorted(GPU_TESTS) == sorted(str(path.relative_to(ROOT)) for path in marked)
    command = [str(make_python(tmp_path, carried("tests"))), "-m", "pytest", "-q", "--collect-only", "-m", "gpu"]
    run = subprocess.run([*command, *GPU_TESTS], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout
    found = [line for line in run.stdout.splitlines() if "::" in line]
    assert {line.partition("::")[0] for line in found} == set(GPU_TESTS)
    for chosen in re.findall(r'chosen\+?="(.*)"', TEXT):  # for the sanitizer
        for word in chosen.removeprefix(" or ").split(" or "):
            assert any("TestOnTheGpu" in line and word in line for line in found), word


def has_mark(path: Path, name: str) -> bool:
    """Whether code, not only a string, says ``mark.NAME``."""
    attributes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    return any(
        node.attr == name and isinstance(node.value, ast.Attribute) and node.value.attr == "mark" for node in attributes
    )
