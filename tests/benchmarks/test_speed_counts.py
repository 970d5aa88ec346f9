"""What is counted by execution: of ours, and of a small kernel that stands in for another package's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ..emulator import needs

if reason := needs.missing():
    pytest.skip(reason, allow_module_level=True)

import triton
import triton.language as tl

from benchmarks.speed import counts, measure, providers, results, workloads
from benchmarks.speed.__main__ import main
from benchmarks.speed.providers import CE, Provider, by_autograd
from benchmarks.speed.workloads import Case, Loss

from ..emulator.emulator import Fault
from .speed_cases import CPU

V, ROWS = 128, 8
TINY = workloads.Workload("counts-tiny", "counts", "counts", ROWS, V, number_share=0.5, threads=1)


@triton.jit
def planted_kernel(logits, labels, losses, gradient, factor, V: tl.constexpr, BEYOND: tl.constexpr):
    """The row's cross-entropy, and ``factor`` times its gradient for a mean; a row per program of a second axis."""
    row, columns = tl.program_id(1), tl.arange(0, V)
    z = tl.load(logits + row * V + columns)
    label = tl.load(labels + row + BEYOND)
    powers = tl.exp(z - tl.max(z, 0))
    total = tl.sum(powers, 0)
    tl.store(losses + row, tl.log(total) - tl.log(tl.sum(tl.where(columns == label, powers, 0.0), 0)))
    p = powers / total - tl.where(columns == label, 1.0, 0.0)
    tl.store(gradient + row * V + columns, factor * p / tl.num_programs(1))


class Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, factor: float, beyond: int) -> Tensor:
        losses, gradient = logits.new_empty(len(logits)), torch.empty_like(logits)
        planted_kernel[1, len(logits)](logits, labels, losses, gradient, factor, V, beyond, num_warps=1)
        ctx.save_for_backward(gradient)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0], None, None, None


def planted(factor: float = 1.0, beyond: int = 0, added: float = 0.0) -> Provider:
    """A provider whose gradient has a factor, whose loss has too much, or which reads beyond the labels."""

    def make(case: Case) -> Loss:
        return lambda t: Planted.apply(t.logits, t.labels, factor, beyond) + added

    return Provider("planted", "Planted", "counts", CE, by_autograd(make))


def entry_of(provider: Provider) -> dict[str, Any]:
    """On the tiny workload."""
    return counts.entry_of(provider, workloads.make_case(TINY, CPU, sets=2))


def test_the_counts_of_a_known_kernel() -> None:
    """A warp reads and writes a row of 128 in accesses of 16 bytes, and one label and one loss."""
    entry = entry_of(planted())
    (kernel,) = entry["kernels"]
    known = {"kernel": "planted_kernel", "launches": 1, "programs": ROWS, "threads": 32, "barriers": 0, "spills": 0}
    known |= {"loads": {"16": ROWS * V // 4, "8": ROWS}, "stores": {"16": ROWS * V // 4, "4": ROWS}}
    assert kernel == kernel | known
    assert kernel["special"] >= ROWS * (V + V)  # exponentials and divisions
    assert 8 < kernel["registers"] < 64
    assert entry["host_waits"] == 0 and entry["operators"] == 3  # the mean, +, and the upstream gradient of 1
    assert entry["loss_error"] < 1e-6 and entry["gradient_error"] < 1e-6


@pytest.mark.parametrize(
    ("provider", "error", "said"),
    [
        (planted(factor=1.0001), counts.WrongResult, "Planted, counts-tiny: the error of the gradient is"),
        (planted(factor=float("nan")), counts.WrongResult, "the error of the gradient is nan times"),
        (planted(added=0.01), counts.WrongResult, "the error of the loss is"),
        (planted(beyond=1), Fault, "out of bounds"),
    ],
)
def test_a_wrong_kernel_is_not_counted(provider: Provider, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        entry_of(provider)


def test_our_kernels_are_checked_as_in_the_tests() -> None:
    with counts.emulated_gpu() as gpu:
        ours = gpu.roles_of(type("Asked", (), {"kernel": "row_losses_kernel", "arguments": {"logits": None}}))
        other = gpu.roles_of(type("Asked", (), {"kernel": "another_kernel", "arguments": {"logits": None}}))
    assert "logits" not in ours.updates and "gradient" in ours.outputs and other.updates == {"logits"}


def test_the_command_counts_ours_and_leaves_out_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    missing = replace(planted(), name="nowhere", needs=("package_that_is_nowhere",))
    ours = [provider for provider in providers.COUNTED if provider.name.startswith("ours")]
    monkeypatch.setattr(providers, "PROVIDERS", (*ours, missing))
    assert main(["counts", "--dry", "--workloads", "counts-50257-bf16", "--out", str(tmp_path)]) == 0
    assert f"{'nowhere':26} missing: package package_that_is_nowhere is not installed\n" in capsys.readouterr().out
    (device,) = tmp_path.iterdir()
    found = results.load(device, [results.COUNTS])["counts-50257-bf16"]["providers"]
    assert found["nowhere"] == {"status": "missing", "reason": "package package_that_is_nowhere is not installed"}
    launches = {name: [kernel["kernel"] for kernel in found[name]["kernels"]] for name in ("ours", "ours_given")}
    assert launches["ours_given"] == ["row_losses_kernel", "finish_kernel", "scale_kernel"]
    assert launches["ours"] == ["count_kernel", *launches["ours_given"]]
    for name in launches:  # the only operator makes the upstream gradient
        assert (found[name]["host_waits"], found[name]["operators"]) == (0, 1)


def test_torch_operators_that_compute_are_counted() -> None:
    """The outermost ones, without views and memory that is only allocated."""
    x = torch.ones(4, 4)

    def step(index: int) -> None:
        torch.empty(3)
        x.view(16)[2:].t()
        x.sum()  # which fills a tensor first
        torch.logsumexp(x.t().contiguous(), 0).add_(1)

    events = measure.trace_of(step, CPU)
    names = {event["name"].removeprefix("aten::") for event in events if event.get("cat") == "cpu_op"}
    computing = set(filter(lambda name: counts.computes(f"aten::{name}"), names))
    assert {"sum", "copy_", "amax", "exp_", "log_", "add_"} <= computing
    assert not computing & {"view", "slice", "t", "as_strided", "empty", "empty_strided", "logsumexp"}
    inner = {"cat": "cpu_op", "name": "aten::fill_", "ts": 2, "dur": 3}
    assert counts.count_computing([{"cat": "cpu_op", "name": "aten::sum", "ts": 0, "dur": 10}, inner]) == 1
