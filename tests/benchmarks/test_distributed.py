"""The example on several devices; the page on scale contains the recorded counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..versions import needs

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "distributed"
PAGE = (ROOT / "docs" / "pages" / "scale.md").read_text()
LINES = {
    "CE + NTL": "| CE + NTL, 10 or 1,110 number tokens | 1 all-gather | {forward:.0f} | nothing |",
    "CE + NTL, 1110 number tokens": "| CE + NTL, 10 or 1,110 number tokens | 1 all-gather | {forward:.0f} | nothing |",
    "CE + NTL, label_smoothing": "| CE + NTL with label smoothing | 1 all-gather | {forward:.0f} | nothing |",
    "CE, torch loss_parallel": "| CE, torch `loss_parallel` | 3 all-reduces, each waiting for the one before | "
    "{forward:.0f} | nothing |",
    "CE, gathered logits": "| CE, gathered logits in bfloat16 | 1 all-gather | 2 V / R = {forward:,.0f} | nothing |",
}


@pytest.mark.slow
@needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs")
@pytest.mark.parametrize("loss", ["fused", "logits"])
def test_the_example_equals_one_process(loss: str, tmp_path: Path) -> None:
    """The command of its README with fewer steps; it stops with an error if the gradients differ."""
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += ["-m", "benchmarks.distributed", "--steps", "3", "--loss", loss, "--out", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(out.read_text())["result"]
    assert result["loss_error"] < 1e-5 and result["largest_gradient_error"] < 1e-5
    assert result["last_loss"] < result["first_loss"]
    assert result["sent_per_step_and_process"]["collectives"]["all-reduce"] > 0


def test_the_page_contains_the_recorded_counts() -> None:
    counted = {call["call"]: call for call in json.loads((RESULTS / "bytes.json").read_text())["calls"]}
    for name, line in LINES.items():
        assert line.format(forward=counted[name]["forward_bytes_per_row"]) in PAGE, name
        assert counted[name]["backward"] == {}
    for name in ("fused", "logits"):
        result = json.loads((RESULTS / f"step-{name}.json").read_text())["result"]
        assert result["loss_error"] < 1.5e-7 and result["largest_gradient_error"] < 8.4e-7  # as on the page
