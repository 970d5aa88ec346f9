"""Guarantees about gradients of a sharded vocabulary: as on one device, for a group of one rank and of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ntl_kernels import NTLConfig, NumberTokens, linear_cross_entropy_ntl
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from .. import gradient_cases
from ..gradient_cases import LABELS, RoadCases
from .shards import group_of_one, together


class TestGradients(RoadCases):
    group: ProcessGroup

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _alone(cls) -> Iterator[None]:
        with group_of_one() as cls.group:
            yield

    def loss(self, road: str, leaves: Sequence[Tensor], reduction: str = "mean", **options: Any) -> Tensor:
        given: dict[str, Any] = {"numbers": gradient_cases.NUMBERS, "config": gradient_cases.CONFIG}
        given |= {"labels": LABELS, "reduction": reduction, "group": self.group, "vocab_start": 0, **options}
        if road == "logits":
            return vocab_parallel_cross_entropy_ntl(*leaves, **given)
        hidden, weight, bias = leaves
        return vocab_parallel_linear_cross_entropy_ntl(hidden, weight, bias_shard=bias, **given)

    @pytest.mark.parametrize("road", ["logits", "hidden"])
    def test_the_reference_refuses_second_derivatives_as_well(self, road: str) -> None:
        """Its gradients are correct, but their derivatives would be one rank's share."""
        leaves = gradient_cases.make_leaves(road, torch.float32, "cpu")
        loss = self.loss(road, [leaf * 1 for leaf in leaves], backend="reference")
        upstream = torch.ones_like(loss, requires_grad=True)
        total = sum(g.square().sum() for g in torch.autograd.grad(loss, leaves, upstream, create_graph=True))
        for inputs in (leaves, [upstream]):
            with pytest.raises(RuntimeError, match="no second derivatives"):
                torch.autograd.grad(total, inputs, retain_graph=True)

    def test_transforms_are_refused(self) -> None:
        (logits,) = gradient_cases.make_leaves("logits", torch.float32, "cpu")
        for call in (torch.func.grad, lambda function: lambda x: torch.func.jvp(function, (x,), (x,))):
            with pytest.raises(RuntimeError, match="sharded vocabulary do not support .*(torch.func|forward-mode)"):
                call(lambda x: self.loss("logits", [x]))(logits.detach())


HALF: dict[str, tuple[int, dict[str, Any]]] = {
    "kept": (1, {}),
    "made anew": (99, {"config": NTLConfig(kind="mse", reweigh=True)}),
    "made anew with label_sigma": (99, {"config": NTLConfig(label_sigma=50.0, weight=30.0, reweigh=True)}),
    "sum made anew": (999, {"reduction": "sum"}),
}
"""The distance of neighbouring numbers, and options."""


@pytest.mark.parametrize("case", HALF)
def test_float16_heads_equal_one_device(case: str) -> None:
    """With kept gradients or recomputed logits, at a loss scale."""
    step, options = HALF[case]
    numbers = NumberTokens.from_mapping({3 * i: float(step * i) for i in range(10)}, 32)
    labels = torch.tensor([0, 5, -100, 27, 31, 12])
    hidden, weight, bias = (torch.randn(shape).half().requires_grad_() for shape in ((6, 4), (32, 4), (32,)))
    loss = linear_cross_entropy_ntl(hidden, weight, labels, numbers, bias=bias, **options)
    expected = torch.autograd.grad(loss, (hidden, weight, bias), torch.tensor(0.5))

    def call(first: int, last: int) -> tuple[Tensor, ...]:
        parts = hidden, weight[first:last], bias[first:last]
        leaves = [part.detach().clone().requires_grad_() for part in parts]
        where: dict[str, Any] = {"group": group, "vocab_start": first, "chunk_size": 4, **options}
        loss = vocab_parallel_linear_cross_entropy_ntl(*leaves[:2], labels, numbers, bias_shard=leaves[2], **where)
        return torch.autograd.grad(loss, leaves, torch.tensor(0.5))

    with group_of_one() as group:
        of_hidden, *of_head = zip(
            *together([lambda: call(0, 10), lambda: call(10, 21), lambda: call(21, 32)]), strict=True
        )
    for got, want in zip((of_hidden[0], *map(torch.cat, of_head)), expected, strict=True):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3 * want.abs().max().item())
