"""The script for a machine with a GPU, tried on a CPU: each part ends in ten lines that say what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.environment import ROOT

SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"


def on_gpu(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "DRY": "1", "OMP_NUM_THREADS": "1", **settings}
    return subprocess.run([str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, timeout=400)


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The last ten lines by their first word; of those that repeat, the last."""
    lines = done.stdout.splitlines()
    assert len(lines) == 10, done.stdout + done.stderr
    return {word: rest.strip() for word, _, rest in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize(
    ("part", "result"),
    [("sanitizer", "sanitizer.log"), ("speed-ntl", "*/ntl.json"), ("quality-llama", "quality-llama/runs.jsonl")],
)
def test_a_part_leaves_its_results_and_says_what_happened(part: str, result: str, tmp_path: Path) -> None:
    done = on_gpu(part, str(tmp_path))
    said = summary(done)
    assert said["part"] == f"{part}: ok", (tmp_path / f"{part}.log").read_text()
    assert done.returncode == 0
    assert "torch" in said["versions"] and "liger-kernel" in said["peers"]
    assert list(tmp_path.glob(result))


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    done = on_gpu("sanitizer", str(tmp_path), WHEELS=str(wheels), LIMIT="1")
    said = summary(done)
    assert said["part"] == f"sanitizer: failed: the wheels in {wheels}"
    assert done.returncode == 1
    done = on_gpu("sanitizer", str(tmp_path), LIMIT="1")
    assert summary(done)["part"] == "sanitizer: cut off after 1 s"


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    for arguments in ((), ("",), ("speed",), ("tests sanitizer",)):
        done = on_gpu(*arguments)
        assert done.returncode == 2
        assert "PART is one of: tests sanitizer" in done.stderr and not done.stdout
