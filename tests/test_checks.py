"""What checking a call costs the next ones: options are settled once, and nothing of a caller's is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ntl_kernels import (
    CrossEntropyNTLLoss,
    NTLConfig,
    NumberTokens,
    checks,
    cross_entropy_ntl,
    linear_cross_entropy_ntl,
)
from ntl_kernels.statistics import number_statistics

LABELS = torch.tensor([4, 20, 30, 5])


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """What dies does so by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def of_logits(numbers: NumberTokens, **options: Any) -> None:
    logits = torch.randn(4, 50, requires_grad=True)
    output = cross_entropy_ntl(logits, LABELS, numbers, **options)
    assert isinstance(output, torch.Tensor)
    output.sum().backward()


def of_hidden(numbers: NumberTokens, **options: Any) -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    output = linear_cross_entropy_ntl(hidden, weight, LABELS, numbers, **options)
    assert isinstance(output, torch.Tensor)
    output.sum().backward()


def of_module(numbers: NumberTokens, **options: Any) -> None:
    CrossEntropyNTLLoss(numbers, **options)(torch.randn(4, 50), LABELS)


def of_statistics(numbers: NumberTokens, **options: Any) -> None:
    number_statistics(torch.randn(4, 50), numbers)


def of_traces(numbers: NumberTokens, **options: Any) -> None:
    torch.func.grad(lambda x: cross_entropy_ntl(x, LABELS, numbers, **options).sum())(torch.randn(4, 50))


ROADS = [of_logits, of_hidden, of_module, of_statistics]


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"backend": "reference"}], ids=str)
@pytest.mark.parametrize("call", ROADS)
@pytest.mark.usefixtures("_no_collection")
def test_a_call_keeps_nothing_alive(call: Callable[..., None], options: dict[str, Any]) -> None:
    """Neither the number tokens, nor their tables, nor a lambda."""
    numbers = NumberTokens.from_mapping({i + 3: 2.0**i for i in range(10)}, 50)
    config = NTLConfig(weight=torch.tensor(0.3), kind="huber")
    assert isinstance(config.weight, torch.Tensor)
    kept = weakref.ref(numbers), weakref.ref(numbers.table("cpu").lookup), weakref.ref(config.weight)
    call(numbers, config=config, **options)
    del numbers, config
    assert [reference() for reference in kept] == [None] * 3


def test_a_trace_keeps_nothing_alive() -> None:
    """But for what torch's own transforms leave to the garbage collector."""
    numbers = NumberTokens.from_mapping({i + 3: 2.0**i for i in range(10)}, 50)
    kept = weakref.ref(numbers)
    of_traces(numbers)
    del numbers
    gc.collect()
    assert kept() is None


def settled_anew() -> int:
    return checks.cached_spec.cache_info().misses


def test_a_schedule_settles_nothing_anew() -> None:
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
    logits = torch.randn(4, 50)
    cross_entropy_ntl(logits, LABELS, numbers, config=NTLConfig(weight=1.0))
    before = settled_anew()
    parts = []
    for step in range(300):
        output = cross_entropy_ntl(
            logits, LABELS, numbers, config=NTLConfig(weight=step / 300 if step % 2 else torch.tensor(step / 300))
        )
        assert isinstance(output, torch.Tensor)
        parts.append(output)
    assert settled_anew() == before
    assert len({part.item() for part in parts}) == 300
    cross_entropy_ntl(logits, LABELS, NumberTokens.from_mapping({0: 9.0, 1: 8.0, 2: 0.0}, 50))  # the same distances
    assert settled_anew() == before


def test_whatever_the_loss_depends_on_is_settled_anew() -> None:
    """Equal to the reference after every change of one thing alone."""
    logits = torch.randn(4, 50)
    numbers = [
        NumberTokens.from_mapping({4: 0.0, 5: 1.0, 6: 9.0}, 50),
        NumberTokens.from_mapping({4: 0.0, 5: 2.0, 6: 9.0}, 50),  # another smallest distance
        NumberTokens.from_mapping({4: 0.0, 5: 1.0, 6: 8.0}, 50),  # another largest one
    ]
    configs = [NTLConfig(squash_factor=2.0), NTLConfig(squash_factor=3.0), NTLConfig(reweigh=True), NTLConfig()]
    configs += [NTLConfig(label_sigma=1.0), NTLConfig(label_sigma=2.0), NTLConfig(kind="mse"), NTLConfig(kind="mae")]
    configs += [NTLConfig(kind="huber", huber_delta=delta) for delta in (1.0, 2.0)]
    options: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 3.0}]
    options += [{"logit_scale": 2.0}, {"ignore_index": 4}]
    found = set()
    for each in numbers:
        for config in configs:
            for given in options:
                loss, expected = (
                    cross_entropy_ntl(logits, LABELS, each, config=config, backend=backend, **given)
                    for backend in ("eager", "reference")
                )
                torch.testing.assert_close(loss, expected)
                found.add(round(float(loss), 5))
    assert len(found) > 0.7 * len(numbers) * len(configs) * len(options)


def test_a_lambda_is_checked_with_every_choice_of_the_rest() -> None:
    """Though it is no part of what is kept."""
    logits = torch.randn(4, 50)
    near, far = (NumberTokens.from_mapping({4: 0.0, 5: value}, 50) for value in (1.0, 1e6))
    for weight in (1e36, 10**36, torch.tensor(1e36)):
        config = NTLConfig(weight=weight)
        for _ in range(2):
            assert cross_entropy_ntl(logits, LABELS, near, config=config).isfinite()
            with pytest.raises(ValueError, match="weight must be at most"):
                cross_entropy_ntl(logits, LABELS, far, config=config)
