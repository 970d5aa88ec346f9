"""Errors of wrong arguments on one rank before anything is sent: in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ntl_kernels import NumberTokens
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..gradient_cases import through_hooks
from ..wrong_numbers import every_mixed_operand, every_wrong_argument
from .shards import group_of_one

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
HIDDEN, WEIGHT, LABELS = torch.randn(4, 8), torch.randn(50, 8), torch.tensor([4, 20, 30, 5])


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    with group_of_one() as group:
        yield group


@every_wrong_argument
def test_wrong_arguments_are_named(
    options: dict[str, Any], error: type[Exception], message: str, alone: dist.ProcessGroup
) -> None:
    given = {"labels": LABELS, "numbers": DIGITS, "group": alone, "vocab_start": 0, **options}
    named, _, _ = message.partition("; got")  # a trace has already rounded numbers
    for hooks, said in ((nullcontext, message), (through_hooks, named)):
        with hooks(), pytest.raises(error, match=said):
            vocab_parallel_cross_entropy_ntl(HIDDEN @ WEIGHT.t(), **given)
        with hooks(), pytest.raises(error, match=said):
            vocab_parallel_linear_cross_entropy_ntl(HIDDEN, WEIGHT, **given)


@every_mixed_operand
def test_autocast_leaves_float64_as_it_is(wide: list[str], message: str, alone: dist.ProcessGroup) -> None:
    head = {"hidden": HIDDEN, "weight": WEIGHT, "bias": torch.randn(50)}
    head = {name: tensor.double() if name in wide else tensor for name, tensor in head.items()}
    hidden, weight, bias = head.values()
    where: dict[str, Any] = {"bias_shard": bias, "group": alone, "vocab_start": 0}
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match=message):
        vocab_parallel_linear_cross_entropy_ntl(hidden, weight, LABELS, DIGITS, **where)


def test_wrong_heads_are_named(alone: dist.ProcessGroup) -> None:
    head: dict[str, Any] = {"weight_shard": WEIGHT, "hidden": HIDDEN, "labels": LABELS, "numbers": DIGITS}
    for options, error, message in (
        ({"bias_shard": [0.0] * 50}, TypeError, "bias must be a float32.*got list"),
        ({"weight_shard": WEIGHT.tolist()}, TypeError, "weight must be a float32.*got list"),
        ({"hidden": HIDDEN[:, :0], "weight_shard": WEIGHT[:, :0]}, ValueError, "H of at least 1"),
        ({"group": None}, TypeError, "group must be"),
        ({"vocab_start": "0"}, TypeError, "vocab_start"),
    ):
        with pytest.raises(error, match=message):
            vocab_parallel_linear_cross_entropy_ntl(**{**head, "group": alone, "vocab_start": 0, **options})
