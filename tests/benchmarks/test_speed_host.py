"""Host times: kernels are compiled but not run, every launch is counted, and no change outlives the measurement."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks.environment import ROOT
from benchmarks.speed import measure, results, workloads
from benchmarks.speed.host import WAITS, calls

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a dry run, in a separate process because Triton caches what it compiles."""
    folder = tmp_path_factory.mktemp("host")
    command = [sys.executable, "-m", "benchmarks.speed", "host", "--dry", "--workloads", "host-*", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (device,) = results.devices(folder)
    return results.load(device)


def test_ours_is_timed(records: dict[str, Any]) -> None:
    assert list(records) == [workload.name for workload in workloads.host_workloads()]
    for record in records.values():
        for name, entry in record["providers"].items():
            is_optional = name.startswith(("liger", "torch_ce_ntloss", "torch_linear_ntloss"))
            assert entry["status"] == "timed" or (is_optional and entry["status"] == "missing"), (name, entry)


def test_launches_are_those_of_the_kernels(records: dict[str, Any]) -> None:
    """Forward and backward: at most four launches, and no wait for the device."""
    for name in ("ours", "ours_given", "ours_rows"):
        entry = records["host-logits"]["providers"][name]
        assert 2 <= entry["launches"] <= 4, name
        assert entry["host_waits"] == 0, name
    assert records["host-logits"]["providers"]["torch_ce"]["launches"] == 0


def test_waits_are_counted() -> None:
    """Every operator of the list appears in the trace under its name."""
    values = torch.tensor([1.0, 0.0])

    def step(index: int) -> None:
        values.sum().item()
        torch.equal(values, values)
        values.nonzero()

    counted = calls(step, [])
    assert counted["launches"] == 0
    assert counted["host_waits"] == len(WAITS)
    names = {event["name"] for event in measure.trace_of(step, torch.device("cpu")) if event.get("cat") == "cpu_op"}
    assert set(WAITS) <= names


@pytest.mark.slow
def test_everything_is_restored() -> None:
    program = """
import json, os, torch, triton
from benchmarks.speed.idle import DEVICE, idle_device
from ntl_kernels import NumberTokens, backends, cross_entropy_ntl
before = dict(vars(backends))
numbers = NumberTokens.from_mapping({1: 1.0, 2: 2.0}, 8)
logits, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([1, 2, 3, 8])
with idle_device():
    cross_entropy_ntl(logits, labels, numbers).backward()  # 8 is not a label: labels must not be read
with idle_device() as launched:
    once = len(launched)
    cross_entropy_ntl(logits, labels, numbers).backward()
    device = triton.runtime.driver.active.get_current_device()
changed = [name for name, value in vars(backends).items() if before.get(name, value) is not value]
try:
    cross_entropy_ntl(logits, labels, numbers)
    error = None
except IndexError:
    error = "IndexError"
os.environ["TRITON_INTERPRET"] = "1"
try:
    with idle_device():
        refused = False
except RuntimeError:
    refused = True
print(json.dumps([launched, len(launched) == 2 * once, device == DEVICE, changed, error, refused]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kernels, is_twice, is_idle, changed, error, refused = json.loads(done.stdout)
    assert any("losses" in name for name in kernels) and is_twice and is_idle
    assert (changed, error, refused) == ([], "IndexError", True)
