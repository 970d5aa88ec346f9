"""The rules for gpu tests, applied to tests that need no GPU."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from .graphs import captured

CASES = """
import time
import pytest

@pytest.mark.gpu
def test_that_runs():
    pass

@pytest.mark.gpu
def test_that_skips_itself():
    pytest.skip("too little memory")

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="not today")
def test_that_is_skipped():
    pass

def test_without_the_mark():
    pytest.skip("as it likes")

@pytest.mark.gpu
def test_that_waits_for_ever():
    time.sleep(100)
"""
OUTCOMES = {"runs": "PASSED", "skips_itself": "FAILED", "is_skipped": "ERROR", "mark": "SKIPPED"}


def test_a_skipped_test_fails_and_an_endless_one_ends(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    options = ["-p", "tests.gpu", "--require-gpu", "--gpu-limit", "1", "-p", "no:xdist", "-v", "--color=no"]
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), *options, str(tmp_path)]
    root = Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode not in (0, 5), run.stdout + run.stderr
    lines = [line for line in run.stdout.splitlines() if "::test" in line]
    for name, outcome in OUTCOMES.items():
        assert any(f"{name} {outcome}" in line for line in lines), run.stdout
    assert "waits_for_ever PASSED" not in run.stdout
    assert "Timeout" in run.stderr and "test_that_waits_for_ever" in run.stderr  # the traceback


@pytest.mark.parametrize("error", [None, AssertionError])
def test_a_graph_is_released_whatever_happens(error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    graph = type("Graph", (), {"reset": lambda self: said.append("reset")})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    with pytest.raises(error) if error else nullcontext(), captured(lambda: "results") as (_, results):
        said.append(results)
        if error:
            raise error
    assert said == ["results", "reset"]
