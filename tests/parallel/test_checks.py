"""What one rank is told of wrong arguments before anything is sent, and what a call leaves behind: in one process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..wrong_numbers import every_mixed_operand, every_unfit_weight, every_wrong_number, unfit, weights_with

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
HIDDEN, WEIGHT, LABELS = torch.randn(4, 8), torch.randn(50, 8), torch.tensor([4, 20, 30, 5])


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def roads(group: dist.ProcessGroup, labels: torch.Tensor = LABELS) -> list[partial[Any]]:
    where = {"group": group, "vocab_start": 0}
    return [
        partial(vocab_parallel_cross_entropy_ntl, HIDDEN @ WEIGHT.t(), labels, DIGITS, **where),
        partial(vocab_parallel_linear_cross_entropy_ntl, HIDDEN, WEIGHT, labels, DIGITS, **where),
    ]


@every_wrong_number
def test_numbers_beyond_float32_are_named(
    options: dict[str, Any], error: type[Exception], message: str, alone: dist.ProcessGroup
) -> None:
    for loss in roads(alone):
        with pytest.raises(error, match=message):
            loss(**options)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@every_unfit_weight
def test_weights_that_do_not_fit_are_named(weight: float, backend: str, alone: dist.ProcessGroup) -> None:
    for loss in roads(alone):
        with pytest.raises(ValueError, match=unfit(weight)):
            loss(**weights_with(weight, backend=backend))


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_ignore_index_is_no_other_label(reduction: str, backend: str, alone: dist.ProcessGroup) -> None:
    labels = torch.tensor([0, 4, 20, 4])
    for ignore_index in (4, 2**31, 2**32, 2**32 + 4, 2**53 + 1, 2**63 - 1, -(2**63)):
        given = {"ignore_index": ignore_index, "reduction": reduction, "backend": backend}
        expected = cross_entropy_ntl(HIDDEN @ WEIGHT.t(), labels, DIGITS, **given)
        for dtype in (torch.int32, torch.int64):
            for loss in roads(alone, labels.to(dtype)):
                torch.testing.assert_close(loss(**given), expected)


@every_mixed_operand
def test_autocast_leaves_float64_as_it_is(wide: list[str], message: str, alone: dist.ProcessGroup) -> None:
    head = {"hidden": HIDDEN, "weight": WEIGHT, "bias": torch.randn(50)}
    head = {name: tensor.double() if name in wide else tensor for name, tensor in head.items()}
    hidden, weight, bias = head.values()
    where: dict[str, Any] = {"bias_shard": bias, "group": alone, "vocab_start": 0}
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match=message):
        vocab_parallel_linear_cross_entropy_ntl(hidden, weight, LABELS, DIGITS, **where)


def test_a_call_keeps_nothing_alive(alone: dist.ProcessGroup) -> None:
    gc.collect()
    gc.disable()
    try:
        for loss in roads(alone):
            numbers, config = NumberTokens.from_mapping({4: 0.0, 5: 7.0}, 50), NTLConfig(weight=torch.tensor(0.3))
            assert isinstance(config.weight, torch.Tensor)
            kept = weakref.ref(numbers), weakref.ref(config.weight)
            loss.func(*loss.args[:-1], numbers, config=config, **loss.keywords)
            del numbers, config
            assert [reference() for reference in kept] == [None] * 2
    finally:
        gc.enable()


def test_wrong_heads_are_named(alone: dist.ProcessGroup) -> None:
    head: dict[str, Any] = {"weight_shard": WEIGHT, "hidden": HIDDEN, "labels": LABELS, "numbers": DIGITS}
    for options, error, message in (
        ({"bias_shard": [0.0] * 50}, TypeError, "bias must be a float32.*got list"),
        ({"weight_shard": WEIGHT.tolist()}, TypeError, "weight must be a float32.*got list"),
        ({"hidden": HIDDEN[:, :0], "weight_shard": WEIGHT[:, :0]}, ValueError, "H of at least 1"),
    ):
        with pytest.raises(error, match=message):
            vocab_parallel_linear_cross_entropy_ntl(**{**head, **options}, group=alone, vocab_start=0)
