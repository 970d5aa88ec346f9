"""What a CUDA graph may contain: proven on tensors without values, which nothing can ask; and on a GPU, captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, linear_cross_entropy_ntl, reference
from ntl_kernels.autograd import CrossEntropyNTL, LinearCrossEntropyNTL
from ntl_kernels.backends.layout import loss_dtype
from ntl_kernels.linear import Chunking
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl
from ntl_kernels.problem import Problem
from ntl_kernels.spec import LossSpec

from ..copies import refused_copies
from ..graphs import captured, warm_up

NUMBERS = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 64)
META = torch.device("meta")
Step: TypeAlias = Callable[[], list[Tensor]]
DTYPES = [torch.bfloat16, torch.float16]
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("mean", {}),
    ("sum", {}),
    ("none", {}),
    ("mean", {"config": NTLConfig(label_sigma=1.0, reweigh=True)}),
    ("mean", {"label_smoothing": 0.1, "softcap": 30.0}),
]
SHARES: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "counted": lambda device: {},
    "numbers": lambda device: {"num_tokens": 100, "num_numbers": 17.5},
    "tensors": lambda device: {
        "num_tokens": torch.full((), 100, device=device),
        "num_numbers": torch.full((), 17.5, device=device),
    },
    "both": lambda device: {"num_tokens": 100, "num_numbers": torch.full((), 17.5, device=device)},
}
"""What divides a mean: counted by the call itself, or given."""
CASES = [(r, o, "counted", dtype) for r, o in OPTIONS for dtype in DTYPES]
CASES += [("mean", {}, shares, dtype) for shares in SHARES if shares != "counted" for dtype in DTYPES]
every_case = pytest.mark.parametrize(("reduction", "options", "shares", "dtype"), CASES)


@pytest.fixture
def _kernels_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Triton backend as it runs on a GPU, but for the kernels themselves."""
    from ntl_kernels.backends import triton, triton_shards

    for module in (triton, triton_shards):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)


def problem_of(reduction: str, options: dict[str, Any], shares: str = "counted") -> Problem:
    """128 rows without values; lambda is a number where both denominators are."""
    options = dict(options)
    spec = LossSpec.resolve(options.pop("config", NTLConfig()), NUMBERS, **options)
    labels, weights = torch.empty(128, dtype=torch.int64, device=META), torch.empty(128, device=META)
    given = SHARES[shares](META)
    ntl_weight = 0.3 if shares == "numbers" else torch.empty((), device=META)
    divisors = given.get("num_tokens"), given.get("num_numbers")
    return Problem(labels, weights, *divisors, ntl_weight, NUMBERS.table(META), spec, reduction, "triton")


def head_without_values(dtype: torch.dtype, vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden, weight, bias)"""
    shapes = (128, 16), (vocab_size, 16), (vocab_size,)
    hidden, weight, bias = (torch.empty(shape, dtype=dtype, device=META, requires_grad=True) for shape in shapes)
    return hidden, weight, bias


def assert_all_have_gradients(*leaves: Tensor) -> None:
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in leaves)


@pytest.mark.usefixtures("_kernels_do_nothing")
@every_case
def test_nothing_asks_for_a_value(reduction: str, options: dict[str, Any], shares: str, dtype: torch.dtype) -> None:
    """Forward and backward of both losses: on such tensors, whatever waits for a device raises."""
    problem = problem_of(reduction, options, shares)
    logits = torch.empty(1, 128, 64, dtype=dtype, device=META, requires_grad=True)
    head = head_without_values(dtype, 64)
    with refused_copies():
        CrossEntropyNTL.apply(logits, problem, False)[0].sum().backward()
        LinearCrossEntropyNTL.apply(*head, problem, Chunking(50, False))[0].sum().backward()
    assert_all_have_gradients(logits, *head)


@pytest.mark.usefixtures("_kernels_do_nothing")
@every_case
def test_nothing_of_a_shard_asks_for_a_value(
    reduction: str, options: dict[str, Any], shares: str, dtype: torch.dtype
) -> None:
    from ntl_kernels.backends import triton_shards

    problem = problem_of(reduction, options, shares)
    logits = torch.empty(1, 128, 20, dtype=dtype, device=META)
    upstream = torch.empty(128 if reduction == "none" else (), dtype=loss_dtype(logits.dtype), device=META)
    with refused_copies():
        gathered = triton_shards.shard_statistics(logits, problem, 5).expand(4, -1, -1)
        columns = triton_shards.number_columns(logits, problem, 5) if problem.spec.label_sigma else None
        fields, merge = triton_shards.merge_shards(gathered, columns, problem)
        counted = problem.counted(*fields[:2, 0].unbind())
        triton_shards.shard_gradients(logits, counted, 5, merge, upstream, torch.empty_like(logits))


@pytest.mark.usefixtures("_kernels_do_nothing")
@every_case
def test_nothing_of_a_split_head_asks_for_a_value(
    reduction: str, options: dict[str, Any], shares: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plain call goes through it, with four ranks whose collectives are not run."""
    from ntl_kernels.parallel import hidden as module
    from ntl_kernels.parallel import logits, steps

    for place in (module, steps):
        monkeypatch.setattr(place, "is_plain", lambda *_: True)
    monkeypatch.setattr(logits, "gather_ranks", lambda tensor, _: tensor.expand(4, *tensor.shape))
    for place in (module, logits):
        monkeypatch.setattr(place, "sum_ranks", lambda tensor, _: tensor)
    problem, head = problem_of(reduction, options, shares), head_without_values(dtype, 20)
    split, chunking = logits.Split(5, None), Chunking(50, False)  # type: ignore[arg-type]
    with refused_copies():
        module.VocabParallelLinearCrossEntropyNTL.apply(*head, problem, split, chunking, True)[0].sum().backward()
    assert_all_have_gradients(*head)


@pytest.mark.parametrize("shares", SHARES)
def test_torchs_own_operations_get_no_copies_either(shares: str) -> None:
    """What the reference does on a device with numbers that were given."""
    problem = problem_of("mean", {}, shares)
    logits = torch.empty(128, 64, device=META, requires_grad=True)
    with refused_copies():
        reference.forward(logits, problem).loss.backward()


@pytest.mark.usefixtures("_kernels_do_nothing")
def test_skipping_rows_would_ask() -> None:
    """The counterpart: finding the rows that count does wait, and these tests see it."""
    hidden, weight = (torch.empty(n, 16, device=META, requires_grad=True) for n in (128, 64))
    with pytest.raises((NotImplementedError, RuntimeError)):
        LinearCrossEntropyNTL.apply(hidden, weight, None, problem_of("mean", {}), Chunking(50, True))


def check_capture(step: Step, plain: Step, labels: Tensor) -> None:
    """Hold two replays of a captured step to the same computation in a plain call."""
    warm_up(plain)
    with captured(step) as (graph, results):
        for _ in range(2):
            labels.copy_(labels.roll(1))
            graph.replay()
            for got, expected in zip(results, plain(), strict=True):
                torch.testing.assert_close(got, expected)


@pytest.fixture
def single_group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


given_shares = pytest.mark.parametrize(
    ("reduction", "shares"), [("none", "counted"), *(("mean", shares) for shares in SHARES)]
)


@pytest.mark.gpu
@given_shares
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_is_captured(reduction: str, shares: str, dtype: torch.dtype) -> None:
    """With ``skip_ignored`` as it is by default, which turns itself off while capturing."""
    hidden, weight, labels = head_on_gpu(dtype)
    NUMBERS.to("cuda")
    options = {"reduction": reduction, "chunk_size": 100, **SHARES[shares](labels.device)}

    def step(**walk: bool) -> list[Tensor]:
        loss = linear_cross_entropy_ntl(hidden, weight, labels, NUMBERS, **options, **walk)
        return [loss.detach(), *torch.autograd.grad(loss.sum(), [hidden, weight])]

    check_capture(step, partial(step, skip_ignored=False), labels)


@pytest.mark.gpu
@given_shares
@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_are_captured(reduction: str, shares: str, dtype: torch.dtype, single_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = head_on_gpu(dtype)
    NUMBERS.to("cuda")
    options = {"group": single_group, "vocab_start": 0, "reduction": reduction, **SHARES[shares](labels.device)}

    def step(**walk: bool) -> list[Tensor]:
        loss = vocab_parallel_linear_cross_entropy_ntl(hidden, weight, labels, NUMBERS, **options, **walk)
        logits = hidden @ weight.t()
        other = vocab_parallel_cross_entropy_ntl(logits, labels, NUMBERS, **options)
        gradients = torch.autograd.grad(loss.sum() + other.sum(), [hidden, weight])
        return [loss.detach(), other.detach(), *gradients]

    check_capture(step, partial(step, skip_ignored=False), labels)


def head_on_gpu(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden, weight, labels) with numbers and ignored rows."""
    hidden, weight = (torch.randn(n, 32, device="cuda").to(dtype).requires_grad_() for n in (256, 64))
    labels = torch.randint(0, 64, (256,), device="cuda")
    labels[::7], labels[::5] = -100, 3
    return hidden, weight, labels
