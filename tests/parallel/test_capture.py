"""CUDA graphs: nothing reads values, tested on tensors that have none; and captures on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, backends, cross_entropy_ntl, linear_cross_entropy_ntl
from ntl_kernels.parallel import collectives, vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..copies import refused_copies
from ..graphs import captured, warm_up
from .shards import group_of_one

NUMBERS = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 64)
Step: TypeAlias = Callable[[], list[Tensor]]
DTYPES = [torch.bfloat16, torch.float16]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"config": NTLConfig(label_sigma=1.0, reweigh=True)},
    {"label_smoothing": 0.1, "softcap": 30.0},
]
COUNTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "counted": lambda device: {},
    "numbers": lambda device: {"num_tokens": 100, "num_numbers": 17.5},
    "tensors": lambda device: {
        "num_tokens": torch.full((), 100, device=device),
        "num_numbers": torch.full((), 17.5, device=device),
    },
    "both": lambda device: {"num_tokens": 100, "num_numbers": torch.full((), 17.5, device=device)},
}
"""The denominators of a mean: counted by the call, or passed."""
every_case = pytest.mark.parametrize(
    ("options", "counts"), [(options, "counted") for options in OPTIONS] + [({}, counts) for counts in list(COUNTS)[1:]]
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without values use the plain code path of the Triton backend, except for kernels and collectives."""
    from ntl_kernels.backends import triton, triton_shards

    for module in (triton, triton_shards):
        monkeypatch.setattr(module, "launch", lambda *_, **__: None)
    for name, module in list(sys.modules.items()):
        if name.startswith("ntl_kernels") and hasattr(module, "is_plain"):
            monkeypatch.setattr(module, "is_plain", lambda *_: True)
    monkeypatch.setattr(backends, "TRITON_DEVICES", ("meta",))
    monkeypatch.setattr(collectives, "start_all_gather", lambda part, *_: part.expand(4, *part.shape[1:]))
    monkeypatch.setattr(collectives.functional, "all_reduce", lambda part, *_: part)


def valueless(dtype: torch.dtype, *shapes: tuple[int, ...]) -> Iterator[Tensor]:
    return (torch.empty(shape, dtype=dtype, device="meta", requires_grad=True) for shape in shapes)


def given_rows(options: dict[str, Any], counts: str) -> dict[str, Any]:
    """The arguments of a call on 128 rows; lambda is a number where both denominators are."""
    labels, weights = torch.empty(128, dtype=torch.int64, device="meta"), torch.empty(128, device="meta")
    config = options.get("config", NTLConfig())
    if counts != "numbers":
        config = replace(config, weight=torch.empty((), device="meta"))
    given = {
        "labels": labels,
        "token_weights": weights,
        "number_weights": weights,
        "numbers": NUMBERS.to("meta"),
        **COUNTS[counts]("meta"),
    }
    return {**given, **options, "config": config}


@pytest.mark.usefixtures("_as_on_a_gpu")
@every_case
@every_dtype
def test_nothing_asks_for_a_value(options: dict[str, Any], counts: str, dtype: torch.dtype) -> None:
    """Forward and backward of both losses: on such tensors, everything that waits for a device raises."""
    logits, hidden, weight, bias = leaves = list(valueless(dtype, (128, 64), (128, 16), (64, 16), (64,)))
    given = given_rows(options, counts)
    with refused_copies():
        for backend in ("auto", "reference"):
            cross_entropy_ntl(logits, backend=backend, **given).sum().backward()
        linear_cross_entropy_ntl(hidden, weight, bias=bias, chunk_size=50, skip_ignored=False, **given).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in leaves)


@pytest.mark.usefixtures("_as_on_a_gpu")
@every_case
@every_dtype
def test_nothing_of_a_shard_asks_for_a_value(options: dict[str, Any], counts: str, dtype: torch.dtype) -> None:
    """On the third of four ranks."""
    logits, hidden, weight, bias = leaves = list(valueless(dtype, (128, 20), (128, 16), (20, 16), (20,)))
    walk = {"bias_shard": bias, "chunk_size": 50, "skip_ignored": False}
    with group_of_one() as group, refused_copies():
        given = {**given_rows(options, counts), "group": group, "vocab_start": 5}
        vocab_parallel_cross_entropy_ntl(logits, **given).sum().backward()
        vocab_parallel_linear_cross_entropy_ntl(hidden, weight, **walk, **given).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in leaves)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_skipping_rows_would_ask() -> None:
    """The counterpart: finding the rows that count does wait, and these tests detect it."""
    hidden, weight = valueless(torch.float16, (128, 16), (64, 16))
    with pytest.raises((NotImplementedError, RuntimeError)):
        linear_cross_entropy_ntl(hidden, weight, skip_ignored=True, **given_rows({}, "counted"))


def check_capture(step: Step, plain: Step, labels: Tensor) -> None:
    """Compare two replays of a captured step with the same computation in a plain call."""
    warm_up(plain)
    with captured(step) as (graph, results):
        for _ in range(2):
            labels.copy_(labels.roll(1))
            graph.replay()
            for got, expected in zip(results, plain(), strict=True):
                torch.testing.assert_close(got, expected)


given_counts = pytest.mark.parametrize(
    ("reduction", "counts"), [("none", "counted"), *(("mean", counts) for counts in COUNTS)]
)


@pytest.mark.gpu
@given_counts
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_is_captured(reduction: str, counts: str, dtype: torch.dtype) -> None:
    """With the default ``skip_ignored``, which is disabled while capturing."""
    hidden, weight, labels = head_on_gpu(dtype)
    NUMBERS.to("cuda")
    options = {"reduction": reduction, "chunk_size": 100, **COUNTS[counts](labels.device)}

    def step(**walk: bool) -> list[Tensor]:
        loss = linear_cross_entropy_ntl(hidden, weight, labels, NUMBERS, **options, **walk)
        return [loss.detach(), *torch.autograd.grad(loss.sum(), [hidden, weight])]

    check_capture(step, partial(step, skip_ignored=False), labels)


@pytest.mark.gpu
@given_counts
@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_are_captured(reduction: str, counts: str, dtype: torch.dtype) -> None:
    hidden, weight, labels = head_on_gpu(dtype)
    NUMBERS.to("cuda")
    options: dict[str, Any] = {"vocab_start": 0, "reduction": reduction, **COUNTS[counts](labels.device)}

    def step(**walk: bool) -> list[Tensor]:
        given = {**options, "group": group}
        loss = vocab_parallel_linear_cross_entropy_ntl(hidden, weight, labels, NUMBERS, **given, **walk)
        other = vocab_parallel_cross_entropy_ntl(hidden @ weight.t(), labels, NUMBERS, **given)
        gradients = torch.autograd.grad(loss.sum() + other.sum(), [hidden, weight])
        return [loss.detach(), other.detach(), *gradients]

    with group_of_one("nccl") as group:
        check_capture(step, partial(step, skip_ignored=False), labels)


def head_on_gpu(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden, weight, labels) with numbers and ignored rows."""
    hidden, weight = (torch.randn(n, 32, device="cuda").to(dtype).requires_grad_() for n in (256, 64))
    labels = torch.randint(0, 64, (256,), device="cuda")
    labels[::7], labels[::5] = -100, 3
    return hidden, weight, labels
