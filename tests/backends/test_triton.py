"""The Triton backend: a few cases under the interpreter, all on a GPU, and tests that need a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import DeviceType

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from ..gradient_cases import GradientCases
from ..graphs import captured, warm_up
from ..problems import Problem, check, moved, random_problem, solve
from ..versions import has
from .triton_cases import DIGITS, DTYPES, CallCases, TritonCases

ROOT = Path(__file__).parents[2]
FEWEST = 20
"""The least number of tests in the interpreter's run, so that it cannot pass by collecting none."""


def test_cases_under_the_interpreter() -> None:
    """In a separate process, since Triton reads TRITON_INTERPRET when it is imported."""
    command = [sys.executable, "-m", "pytest", "tests/backends/interpreted.py", "-q", "-x", "--color=no"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    print(run.stdout)  # pytest shows it if this test fails
    print(run.stderr, file=sys.stderr)
    assert run.returncode == 0, f"the interpreter's run failed:\n{run.stdout[-4000:]}\n{run.stderr[-2000:]}"
    counted = re.search(r"(\d+) passed", run.stdout)
    assert counted and int(counted.group(1)) >= FEWEST, run.stdout[-500:]
    assert ("skipped" in run.stdout) != has("triton", 3, 9), run.stdout[-500:]


@pytest.mark.gpu
class TestOnTheGpu(CallCases, TritonCases):
    device = "cuda"
    every = 10  # nearly every problem compiles its own kernels


@pytest.mark.gpu
class TestGradientsOnTheGpu(GradientCases):
    backend = "triton"
    device = "cuda"


def big_problem(dtype: torch.dtype, vocab_size: int = 50257, rows: int = 512) -> tuple[Tensor, Tensor, NumberTokens]:
    """(logits, labels, numbers) on the GPU, a fifth of the labels numbers and some ignored."""
    numbers = NumberTokens.from_mapping({15 + i: float(i) for i in range(10)}, vocab_size)
    labels = torch.randint(0, vocab_size, (rows,), device="cuda")
    labels[::5] = 15 + labels[::5] % 10
    labels[::17] = -100
    return torch.randn(rows, vocab_size, device="cuda", dtype=dtype, requires_grad=True), labels, numbers


def loss_and_gradient(
    logits: Tensor, labels: Tensor, numbers: NumberTokens, **options: object
) -> tuple[Tensor, Tensor]:
    loss = cross_entropy_ntl(logits, labels, numbers, **options)  # type: ignore[arg-type]
    assert isinstance(loss, Tensor)
    (gradient,) = torch.autograd.grad(loss, logits, torch.ones_like(loss))
    return loss.detach(), gradient


@pytest.mark.gpu
@pytest.mark.parametrize("first_seed", range(0, 40, 10))
def test_random_problems_at_real_sizes(first_seed: int) -> None:
    sizes, shapes = (32000, 50257, 50304, 128256, 262144), ((33,), (4, 9), (1, 2, 5))
    for seed in range(first_seed, first_seed + 10):
        problem = moved(random_problem(seed, DTYPES, vocab_sizes=sizes, shapes=shapes), "cuda")
        check(solve(problem, "triton", inplace=seed % 3 == 0), problem)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_two_runs_are_equal_bit_for_bit(reduction: str, dtype: torch.dtype) -> None:
    problem = big_problem(dtype)
    for config in (NTLConfig(), NTLConfig(reweigh=True), NTLConfig(label_sigma=1.0, reweigh=True)):
        loss, gradient = loss_and_gradient(*problem, reduction=reduction, config=config)
        for _ in range(5):
            again, gradient_again = loss_and_gradient(*problem, reduction=reduction, config=config)
            assert torch.equal(loss, again) and torch.equal(gradient, gradient_again)


@pytest.fixture
def _synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_waits_for_the_device(reduction: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    logits, labels, numbers = big_problem(dtype)
    numbers.to(logits.device)
    weights, num_tokens = torch.rand(len(labels), device="cuda"), torch.tensor(300, device="cuda")
    options = {"token_weights": weights, "number_weights": 2 * weights, "reduction": reduction, "return_parts": False}
    if reduction == "mean":
        options |= {"num_tokens": num_tokens, "num_numbers": 17}
    request.getfixturevalue("_synchronising_is_an_error")
    loss_and_gradient(logits, labels, numbers, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_capture_in_a_cuda_graph(reduction: str, dtype: torch.dtype) -> None:
    logits, labels, numbers = big_problem(dtype)
    step = partial(loss_and_gradient, logits, labels, numbers, reduction=reduction)
    warm_up(step)
    with captured(step) as (graph, (loss, gradient)):
        for _ in range(2):
            with torch.no_grad():
                logits.normal_()
            labels.copy_(labels.roll(1))
            graph.replay()
            expected, expected_gradient = step()
            assert torch.equal(loss, expected) and torch.equal(gradient, expected_gradient)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_at_most_four_launches(dtype: torch.dtype) -> None:
    logits, labels, numbers = big_problem(dtype)
    for reduction in ("mean", "sum"):
        loss_and_gradient(logits, labels, numbers, reduction=reduction)  # compile first
        one = torch.ones((), device="cuda")
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            loss = cross_entropy_ntl(logits, labels, numbers, reduction=reduction)
            torch.autograd.grad(loss, logits, one)
            torch.cuda.synchronize()
        kernels = [event.name for event in profile.events() if event.device_type == DeviceType.CUDA]
        assert 0 < len(kernels) <= 4, kernels


@pytest.mark.gpu
def test_memory_is_the_gradient_and_little_more() -> None:
    logits, labels, numbers = big_problem(torch.bfloat16, rows=2048)
    loss_and_gradient(logits, labels, numbers)
    size = logits.numel() * logits.element_size()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = loss_and_gradient(logits, labels, numbers)
    assert size <= torch.cuda.max_memory_allocated() - before < 1.02 * size
    del result


@pytest.mark.gpu
def test_more_rows_than_one_program_sums() -> None:
    logits, labels, numbers = big_problem(torch.float32, vocab_size=64, rows=100_000)
    problem = Problem(logits.detach(), labels, numbers, {"reduction": "mean"}, torch.tensor(1.5))
    check(solve(problem, "triton"), problem)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [128256, 50257])
def test_rows_beyond_two_to_the_31_elements(vocab_size: int) -> None:
    rows = 2**31 // vocab_size + 40
    if torch.cuda.get_device_properties(0).total_memory < 3 * 2 * rows * vocab_size:
        pytest.skip("needs the logits and their gradient in memory")
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, vocab_size)
    logits = torch.empty(rows, vocab_size, device="cuda", dtype=torch.bfloat16).normal_().requires_grad_()
    labels = torch.full((rows,), -100, device="cuda")
    # Both start at multiples of 8 rows, so every row keeps its offset modulo 16 bytes when it is alone: only
    # then does it go through the same additions.
    first, last = 24, (rows - 16) // 8 * 8
    assert last * vocab_size > 2**31
    ends = torch.cat([torch.arange(first), torch.arange(last, last + 16)]).cuda()
    labels[ends] = torch.arange(40, device="cuda") % 13
    for reduction in ("sum", "none"):
        loss, gradient = loss_and_gradient(logits, labels, numbers, reduction=reduction)
        few = logits.detach()[ends].requires_grad_()
        expected, expected_gradient = loss_and_gradient(few, labels[ends], numbers, reduction=reduction)
        torch.testing.assert_close(loss[ends] if reduction == "none" else loss, expected)
        assert torch.equal(gradient[ends], expected_gradient)
        assert gradient[first:last].count_nonzero() == 0 and gradient[last + 16 :].count_nonzero() == 0
        del gradient


@pytest.mark.gpu
def test_labels_out_of_range_give_nan_without_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NTL_KERNELS_VALIDATE", raising=False)
    logits = torch.randn(4, 50, device="cuda", requires_grad=True)
    for label in (50, -1, 2**40):
        labels = torch.tensor([3, label, 20, -100], device="cuda")
        loss, gradient = loss_and_gradient(logits, labels, DIGITS, reduction="none")
        assert loss.isnan().tolist() == [False, True, False, False]
        assert gradient.isnan().all(-1).tolist() == [False, True, False, False]
        assert loss_and_gradient(logits, labels, DIGITS)[0].isnan()
    monkeypatch.setenv("NTL_KERNELS_VALIDATE", "1")
    with pytest.raises(IndexError, match="50"):
        cross_entropy_ntl(logits, torch.tensor([3, 50, 20, -100], device="cuda"), DIGITS)
