"""What the gradients of every road promise to whoever differentiates, batches, keeps or overwrites.

Run by `test_autograd.py` for eager, by `backends/interpreted.py` for the interpreted kernels, and on a GPU.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

VOCAB_SIZE, HIDDEN, IGNORED = 50, 6, 3
NUMBERS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, VOCAB_SIZE)
LABELS = torch.tensor([4, 20, 12, -100, 3, 7, 49])
"""The row IGNORED does not count."""
CONFIG = NTLConfig(kind="mse", reweigh=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("mean", "sum", "none")
ROADS = [("logits", reduction) for reduction in REDUCTIONS] + [("hidden", reduction) for reduction in REDUCTIONS]
every_road = pytest.mark.parametrize(("road", "reduction"), ROADS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
NO_SECOND = "no second derivatives"


def through_hooks() -> Any:
    """Hooks on saved tensors: what is under them goes through the operators."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def make_leaves(road: str, dtype: torch.dtype, device: str) -> list[Tensor]:
    """What a loss is differentiated by: logits, or hidden states, weight and bias."""
    torch.manual_seed(0)
    shapes = {"hidden": [(7, HIDDEN), (VOCAB_SIZE, HIDDEN), (VOCAB_SIZE,)]}.get(road, [(7, VOCAB_SIZE)])
    return [torch.randn(shape).to(dtype).to(device).requires_grad_() for shape in shapes]


def loss_of(road: str, leaves: Sequence[Tensor], backend: str, reduction: str = "mean", **options: Any) -> Tensor:
    labels = LABELS.to(leaves[0].device)
    options = {"config": CONFIG, "reduction": reduction, "backend": backend, **options}
    if road == "logits":
        return cross_entropy_ntl(leaves[0], labels, NUMBERS, **options)
    hidden, weight, bias = leaves
    return linear_cross_entropy_ntl(hidden, weight, labels, NUMBERS, bias=bias, **options)


def random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same on every device and in every dtype, up to rounding."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(tensor.shape, generator=generator).to(tensor) for tensor in tensors]


def is_freed(make_loss: Callable[[], Tensor]) -> bool:
    """Whether a loss that is dropped takes what it keeps with it, without the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        loss = make_loss()
        node = loss.grad_fn
        while "CrossEntropyNTL" not in node.name():
            ((node, _),) = node.next_functions
        kept = weakref.ref(node)
        del loss, node
        return kept() is None
    finally:
        gc.enable()


class GradientCases:
    """Tests for the backend and device of the subclass."""

    backend: str
    device: str

    def loss(self, road: str, leaves: Sequence[Tensor], reduction: str = "mean", **options: Any) -> Tensor:
        return loss_of(road, leaves, self.backend, reduction, **options)

    @every_road
    @pytest.mark.parametrize("hooks", [nullcontext, through_hooks])
    def test_a_derivative_by_the_inputs_raises(self, road: str, reduction: str, hooks: Callable[[], Any]) -> None:
        """And a derivative by the upstream gradient."""
        leaves = make_leaves(road, torch.float32, self.device)
        with hooks():
            loss = self.loss(road, leaves, reduction)
        upstream = torch.ones_like(loss, requires_grad=True)
        gradients = torch.autograd.grad(loss, leaves, upstream, create_graph=True)
        total = sum(gradient.square().sum() for gradient in gradients)
        for tensor in (*leaves, upstream):
            with pytest.raises(RuntimeError, match=NO_SECOND):
                torch.autograd.grad(total, tensor, retain_graph=True)
        with pytest.raises(RuntimeError, match=NO_SECOND):
            total.backward()

    @every_road
    @pytest.mark.parametrize("hooks", [nullcontext, through_hooks])
    def test_batched_upstream_gradients_raise(self, road: str, reduction: str, hooks: Callable[[], Any]) -> None:
        leaves = make_leaves(road, torch.float32, self.device)
        with hooks():
            loss = self.loss(road, leaves, reduction)
        with pytest.raises(RuntimeError, match="is_grads_batched=True.*backend='reference'"):
            torch.autograd.grad(loss, leaves, torch.stack([torch.ones_like(loss)] * 2), is_grads_batched=True)

    @every_road
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("hooks", [nullcontext, through_hooks])
    def test_an_infinite_upstream_gradient_leaves_ignored_rows_alone(
        self, road: str, reduction: str, dtype: torch.dtype, hooks: Callable[[], Any]
    ) -> None:
        """Their gradient is 0, as that of F.cross_entropy."""
        leaves = make_leaves(road, dtype, self.device)
        options = {"skip_ignored": False} if road == "hidden" else {}
        for factor in (torch.inf, torch.nan):
            with hooks():
                loss = self.loss(road, leaves, reduction, **options)
            gradient, *_ = torch.autograd.grad(loss, leaves, torch.full_like(loss, factor))
            assert (gradient[IGNORED] == 0).all()
            assert not gradient[LABELS.to(self.device) >= 0].isfinite().any(-1).all()

    # In place

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @every_dtype
    @pytest.mark.parametrize("upstream", [1.0, 2.0])
    def test_who_saved_overwritten_logits_raises(self, reduction: str, dtype: torch.dtype, upstream: float) -> None:
        """The operation that made them, and one that read them before the loss did."""
        for is_output in (True, False):
            (leaf,) = make_leaves("logits", dtype, self.device)
            logits = leaf.tanh() if is_output else leaf * 1
            other = 0.0 if is_output else logits.square().sum()
            loss = self.loss("logits", [logits], reduction, inplace=True).sum()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                (loss * upstream + other).backward()

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("rows", [slice(None), slice(1, 5)])
    def test_who_uses_overwritten_logits_later_raises(
        self, reduction: str, dtype: torch.dtype, rows: slice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Through the tensor itself or another view of it; where looking would wait, the gradient is NaN."""
        readers: list[Callable[[Tensor], Tensor]] = [
            lambda logits: logits.float().logsumexp(-1).sum(),
            lambda logits: self.loss("logits", [logits], reduction, inplace=True),
            lambda logits: logits[2:4].float().sum(),
        ]
        for reader in readers:
            for may_look in (self.device == "cpu", False):
                (leaf,) = make_leaves("logits", dtype, self.device)
                logits = leaf * 1
                self.summed(logits, rows, reduction)
                total = reader(logits)
                monkeypatch.setattr("ntl_kernels.autograd.can_look", lambda _, may_look=may_look: may_look)
                if may_look:
                    with pytest.raises(RuntimeError, match="inplace=True were used after the call"):
                        total.backward()
                else:
                    total.backward()
                    assert leaf.grad is not None and leaf.grad[rows].isnan().any()

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_slices_of_logits_may_be_overwritten_one_by_one(self, reduction: str) -> None:
        """And rows that were not may be used."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        (expected,) = torch.autograd.grad(self.summed(leaf, slice(0, 6), "sum", inplace=False) + leaf[6].sum(), leaf)
        logits = leaf * 1
        total = sum(self.summed(logits, slice(first, first + 2), reduction) for first in (0, 2, 4))
        (gradient,) = torch.autograd.grad(total + logits[6].sum(), leaf)
        torch.testing.assert_close(gradient, expected)

    def test_logits_that_were_copied_may_be_used(self) -> None:
        """No two strides express their rows, so nothing of the caller's is overwritten."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        logits = (leaf * 1).t().contiguous().t()
        before = logits.detach().clone()
        loss = self.loss("logits", [logits], inplace=True)
        (gradient,) = torch.autograd.grad(loss + logits.sum(), leaf)
        (expected,) = torch.autograd.grad(self.loss("logits", [leaf]) + leaf.sum(), leaf)
        assert torch.equal(logits, before)
        torch.testing.assert_close(gradient, expected)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_views_that_torch_lets_nobody_change_may_be_overwritten(self, reduction: str) -> None:
        """They cannot be marked."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        (expected,) = torch.autograd.grad(self.summed(leaf, slice(0, 4), "sum", inplace=False), leaf)
        part, _ = (leaf * 1).split(4)
        (gradient,) = torch.autograd.grad(self.summed(part, slice(0, 4), reduction), leaf)
        torch.testing.assert_close(gradient, expected)

    def summed(self, logits: Tensor, rows: slice, reduction: str, inplace: bool = True) -> Tensor:
        """The sum of the losses of some rows, by each reduction's road."""
        shares: dict[str, Any] = {"num_tokens": 1, "num_numbers": 1} if reduction == "mean" else {}
        labels = LABELS.to(logits.device)[rows]
        options = {"config": CONFIG, "inplace": inplace, "backend": self.backend, **shares}
        return cross_entropy_ntl(logits[rows], labels, NUMBERS, reduction=reduction, **options).sum()

    # Memory

    @every_road
    @every_dtype
    def test_a_loss_that_is_dropped_is_freed(self, road: str, reduction: str, dtype: torch.dtype) -> None:
        """With its gradients, at once."""
        leaves = make_leaves(road, dtype, self.device)
        assert is_freed(lambda: self.loss(road, leaves, reduction))
