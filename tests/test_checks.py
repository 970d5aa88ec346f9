"""Options are checked once, and nothing of a caller's is kept alive."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ntl_kernels import CrossEntropyNTLLoss, NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl, spec
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl
from ntl_kernels.statistics import number_statistics

from .parallel.shards import group_of_one

LABELS = torch.tensor([4, 20, 30, 5])
LOGITS, HIDDEN, WEIGHT = torch.randn(4, 50), torch.randn(4, 8), torch.randn(50, 8)
ROADS: dict[str, Callable[..., Tensor]] = {
    "logits": lambda numbers, **options: cross_entropy_ntl(LOGITS.clone().requires_grad_(), LABELS, numbers, **options),
    "hidden": lambda numbers, **options: linear_cross_entropy_ntl(
        HIDDEN.clone().requires_grad_(), WEIGHT, LABELS, numbers, **options
    ),
    "module": lambda numbers, **options: CrossEntropyNTLLoss(numbers, **options)(
        LOGITS.clone().requires_grad_(), LABELS
    ),
    "statistics": lambda numbers, **_: number_statistics(LOGITS.clone().requires_grad_(), numbers)[0],
    "shard": lambda numbers, **options: vocab_parallel_cross_entropy_ntl(
        LOGITS.clone().requires_grad_(), LABELS, numbers, group=dist.group.WORLD, vocab_start=0, **options
    ),
    "shard of a head": lambda numbers, **options: vocab_parallel_linear_cross_entropy_ntl(
        HIDDEN.clone().requires_grad_(), WEIGHT, LABELS, numbers, group=dist.group.WORLD, vocab_start=0, **options
    ),
}


def number_tokens() -> NumberTokens:
    return NumberTokens.from_mapping({i + 3: 2.0**i for i in range(10)}, 50)


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Objects are freed with their last reference. Shards have a group of this process."""
    with group_of_one():
        gc.collect()
        gc.disable()
        yield
        gc.enable()


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"backend": "reference"}], ids=str)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.usefixtures("_no_collection")
def test_a_call_keeps_nothing_alive(road: str, options: dict[str, Any]) -> None:
    """Neither the number tokens, nor their tables, nor a lambda."""
    numbers, config = number_tokens(), NTLConfig(weight=torch.tensor(0.3), kind="huber")
    assert isinstance(config.weight, Tensor)
    kept = weakref.ref(numbers), weakref.ref(numbers.table("cpu").lookup), weakref.ref(config.weight)
    ROADS[road](numbers, config=config, **options).sum().backward()
    del numbers, config
    assert [reference() for reference in kept] == [None] * 3


def test_a_trace_keeps_nothing_alive() -> None:
    """Except what torch's own transforms leave to the garbage collector."""

    def trace(numbers: NumberTokens) -> weakref.ref[NumberTokens]:
        torch.func.grad(lambda x: cross_entropy_ntl(x, LABELS, numbers))(LOGITS)
        return weakref.ref(numbers)

    kept = trace(number_tokens())
    gc.collect()
    assert kept() is None


def test_a_schedule_settles_nothing_anew() -> None:
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
    cross_entropy_ntl(LOGITS, LABELS, numbers, config=NTLConfig(weight=1.0))
    before = spec.cached_spec.cache_info().misses
    weights = [step / 300 if step % 2 else torch.tensor(step / 300) for step in range(300)]
    losses = {cross_entropy_ntl(LOGITS, LABELS, numbers, config=NTLConfig(weight=weight)).item() for weight in weights}
    cross_entropy_ntl(LOGITS, LABELS, NumberTokens.from_mapping({i: 9.0 - i for i in range(10)}, 50))  # the same values
    assert spec.cached_spec.cache_info().misses == before
    assert len(losses) == 300


def test_whatever_the_loss_depends_on_is_settled_anew() -> None:
    """Equal to the reference after every change of a single argument."""
    numbers = [
        NumberTokens.from_mapping({4: 0.0, 5: 1.0, 6: 9.0}, 50),
        NumberTokens.from_mapping({4: 0.0, 5: 2.0, 6: 9.0}, 50),  # another smallest distance
        NumberTokens.from_mapping({4: 0.0, 5: 1.0, 6: 8.0}, 50),  # another largest one
        NumberTokens.from_groups([{4: 0.0, 5: 1.0}, {6: 9.0, 20: 3.0}], 50),
    ]
    configs = [NTLConfig(squash_factor=2.0), NTLConfig(squash_factor=3.0), NTLConfig(reweigh=True), NTLConfig()]
    configs += [NTLConfig(label_sigma=1.0), NTLConfig(label_sigma=2.0), NTLConfig(kind="mse"), NTLConfig(kind="mae")]
    configs += [NTLConfig(kind="huber", huber_delta=delta) for delta in (1.0, 2.0)]
    options: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 3.0}]
    options += [{"logit_scale": 2.0}, {"ignore_index": 4}]
    found = set()
    for each, config, given in product(numbers, configs, options):
        loss, expected = (
            cross_entropy_ntl(LOGITS, LABELS, each, config=config, backend=backend, **given)
            for backend in ("eager", "reference")
        )
        torch.testing.assert_close(loss, expected)
        found.add(round(float(loss), 5))
    assert len(found) > 0.7 * len(numbers) * len(configs) * len(options)


@pytest.mark.parametrize("road", [road for road in ROADS if road != "statistics"])
@pytest.mark.usefixtures("_no_collection")
def test_an_option_of_the_configuration_is_told_where_it_belongs(road: str) -> None:
    """Whatever its value; for another unknown name, Python has the error. Compiled code and transforms say the same."""
    numbers, call = number_tokens(), ROADS[road]
    options = {"kind": "mse", "reweigh": True, "huber_delta": 2.0} | ({} if road == "hidden" else {"weight": 0.5})
    assert set(options) < {field.name for field in fields(NTLConfig)}
    for name, value in options.items():
        told = f"no argument '{name}': pass config=NTLConfig({name}={value!r})"
        with pytest.raises(TypeError, match=f"{re.escape(told)}$"):
            call(numbers, config=NTLConfig(), **{name: value})
    for each in (call, torch.compile(call, backend="eager"), torch.compile(call, backend="eager", fullgraph=True)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'smoothing'$"):
            each(numbers, smoothing=0.1)


def test_transforms_tell_where_an_option_belongs() -> None:
    with pytest.raises(TypeError, match=r"pass config=NTLConfig\(weight=0.5\)$"):
        torch.func.grad(lambda x: cross_entropy_ntl(x, LABELS, number_tokens(), weight=0.5))(LOGITS)


def test_a_lambda_is_checked_with_every_choice_of_the_rest() -> None:
    """Although it is not part of the cache key."""
    near, far = (NumberTokens.from_mapping({4: 0.0, 5: value}, 50) for value in (1.0, 1e6))
    for weight in (1e36, 10**36, torch.tensor(1e36)):
        for _ in range(2):
            assert cross_entropy_ntl(LOGITS, LABELS, near, config=NTLConfig(weight=weight)).isfinite()
            with pytest.raises(ValueError, match="weight must be at most"):
                cross_entropy_ntl(LOGITS, LABELS, far, config=NTLConfig(weight=weight))
