"""A GPU's first times: the workloads, one step kernel by kernel, and Nsight Compute or why it says nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import first, measure, results

NCU = """#!/usr/bin/env bash
printf '%s\\n' "$@" > {arguments}
printf '==PROF== Connected to process 7\\n{output}\\n'
exit {code}
"""
CSV = r'"ID","dram__bytes_read.sum"\n"","byte"\n"0","524,288,000"\n"1","823,410,688"'


def test_a_dry_run_writes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "observe", lambda step, device: {})
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["--device", "cpu", "--workloads", "*-32000-bf16", "--out", str(tmp_path)]
    assert command.main(["first", "--dry", *arguments]) == 0
    (path,) = tmp_path.glob("*/first.json")
    (record,) = results.read(path).values()
    assert tuple(record["providers"]) == first.PROVIDERS
    output = capsys.readouterr().out
    said = "| first-32000-bf16: N = 24, V = ", "- Liger (missing: ", "ncu: not installed", "no kernel ran on a GPU"
    assert all(text in output for text in said)
    assert (path.parent / "first-32000-bf16-trace.json").exists()


@pytest.mark.parametrize(
    ("code", "output", "said"),
    [
        (0, CSV, "| read from memory | 524,288,000 byte | 823,410,688 byte |"),
        (1, "==ERROR== ERR_NVGPUCTRPERM - no permission", "ncu: refused: ==ERROR== ERR_NVGPUCTRPERM - no permission"),
    ],
)
def test_nsight_compute(code: int, output: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ncu"
    program.write_text(NCU.format(arguments=tmp_path / "arguments", output=output, code=code))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert said in first.counters(tmp_path)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[-5:] == [sys.executable, "-c", first.ONE_STEP, *first.PROFILED]
    assert f"regex:^{first.ROW_KERNEL}$" in arguments
