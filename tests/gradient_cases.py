"""What every code path guarantees about gradients if tensors are differentiated, kept, changed or overwritten.

Run by `test_autograd.py` for eager, by `emulated/test_cases.py` for compiled kernels, and on a GPU.
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
from torch.utils.flop_counter import FlopCounterMode

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

VOCAB_SIZE, HIDDEN, IGNORED = 50, 6, 3
NUMBERS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, VOCAB_SIZE)
LABELS = torch.tensor([4, 20, 12, -100, 3, 7, 49])
"""The row IGNORED does not count."""
CONFIG = NTLConfig(kind="mse", reweigh=True)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REDUCTIONS = ("mean", "sum", "none")
ROADS = [(road, reduction) for road in ("logits", "hidden") for reduction in REDUCTIONS]
every_road = pytest.mark.parametrize(("road", "reduction"), ROADS)


def through_hooks() -> Any:
    """Hooks on saved tensors: calls under them use the operators."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def watched() -> Any:
    """A dispatch mode: calls under it use the operators, too, and torch detects changes of what they save."""
    return FlopCounterMode(display=False)


def dtype_of(road: str, reduction: str) -> torch.dtype:
    """Each dtype for two of the code paths."""
    return DTYPES[ROADS.index((road, reduction)) % 3 if road == "logits" else REDUCTIONS.index(reduction) - 1]


def make_leaves(road: str, dtype: torch.dtype, device: str) -> list[Tensor]:
    """What a loss is differentiated by: logits, or hidden states, weight and bias."""
    torch.manual_seed(0)
    shapes = {"hidden": [(7, HIDDEN), (VOCAB_SIZE, HIDDEN), (VOCAB_SIZE,)]}.get(road, [(7, VOCAB_SIZE)])
    return [torch.randn(shape).to(dtype).to(device).requires_grad_() for shape in shapes]


def loss_of(road: str, leaves: Sequence[Tensor], backend: str, reduction: str = "mean", **options: Any) -> Tensor:
    device = leaves[0].device
    options = {"labels": LABELS.to(device), "config": CONFIG, "reduction": reduction, "backend": backend, **options}
    if road == "logits":
        return cross_entropy_ntl(leaves[0], numbers=NUMBERS, **options)
    hidden, weight, bias = leaves
    return linear_cross_entropy_ntl(hidden, weight, numbers=NUMBERS, bias=bias, **options)


def is_freed(make_loss: Callable[[], Tensor]) -> bool:
    """Whether dropping a loss frees what it keeps, without the cyclic garbage collector."""
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


class RoadCases:
    """Shared tests of losses on one device and of shards."""

    device = "cpu"

    def loss(self, road: str, leaves: Sequence[Tensor], reduction: str = "mean", **options: Any) -> Tensor:
        raise NotImplementedError

    def leaves(self, road: str, reduction: str) -> list[Tensor]:
        return make_leaves(road, dtype_of(road, reduction), self.device)

    @every_road
    def test_a_second_backward_pass_is_right(self, road: str, reduction: str) -> None:
        """With another upstream gradient."""
        leaves = self.leaves(road, reduction)
        loss = self.loss(road, leaves, reduction)
        first = torch.autograd.grad(loss.sum(), leaves, retain_graph=True)
        kept = [gradient.clone() for gradient in first]
        second = torch.autograd.grad(loss.sum(), leaves, torch.tensor(3.0, device=self.device))
        rounding = 4 * torch.finfo(leaves[0].dtype).eps
        for got, again, scaled in zip(first, kept, second, strict=True):
            assert torch.equal(got, again)
            torch.testing.assert_close(scaled, 3 * got, rtol=rounding, atol=rounding * got.abs().max().item())

    @every_road
    @pytest.mark.parametrize("mode", [nullcontext, watched])
    def test_the_loss_may_be_scaled_in_place(self, road: str, reduction: str, mode: Callable[[], Any]) -> None:
        """As a Trainer that averages over accumulation steps does, and after a traced call."""
        leaves = self.leaves(road, reduction)
        with mode():
            loss = self.loss(road, leaves, reduction)
        expected = torch.autograd.grad(loss.sum(), leaves, torch.tensor(2.0, device=self.device), retain_graph=True)
        loss *= 2
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaves), expected)

    @every_road
    def test_what_changed_since_the_forward_pass_is_noticed(self, road: str, reduction: str) -> None:
        """Wherever the backward pass reads it: refilling a buffer too early never leads to a wrong gradient."""

        def called() -> tuple[Tensor, dict[str, Tensor]]:
            """A loss, and the tensors that its backward pass reads."""
            inputs = [leaf * 1 for leaf in self.leaves(road, reduction)]
            given = {"labels": LABELS.clone(), "token_weights": torch.rand(7), "number_weights": torch.rand(7)}
            given |= {"num_tokens": torch.tensor(3.0), "num_numbers": torch.tensor(2)} if reduction == "mean" else {}
            given = {name: tensor.to(self.device) for name, tensor in given.items()}
            operands = dict(zip(("hidden", "weight"), inputs, strict=False)) if road == "hidden" else {}
            operands["lambda"] = torch.tensor(0.3, device=self.device)
            config = NTLConfig(weight=operands["lambda"])
            return self.loss(road, inputs, reduction, config=config, **given), {**given, **operands}

        for changed in called()[1]:
            loss, read = called()
            if reduction != "none":
                loss.backward(retain_graph=True)  # the second one reads more
            read[changed].detach().zero_()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.sum().backward()

    @every_road
    @pytest.mark.parametrize("hooks", [nullcontext, through_hooks])
    def test_derivatives_of_gradients_raise(self, road: str, reduction: str, hooks: Callable[[], Any]) -> None:
        """By the inputs and by the upstream gradient, and with many upstream gradients at once."""
        leaves = make_leaves(road, torch.float32, self.device)
        with hooks():
            loss = self.loss(road, leaves, reduction)
        upstream = torch.ones_like(loss, requires_grad=True)
        gradients = torch.autograd.grad(loss, leaves, upstream, create_graph=True)
        total = sum(gradient.square().sum() for gradient in gradients)
        for tensor in (*leaves, upstream):
            with pytest.raises(RuntimeError, match="no second derivatives"):
                torch.autograd.grad(total, tensor, retain_graph=True)
        with pytest.raises(RuntimeError, match="is_grads_batched=True.*[Uu]se"):
            torch.autograd.grad(loss, leaves, torch.stack([torch.ones_like(loss)] * 2), is_grads_batched=True)

    @every_road
    @pytest.mark.parametrize("hooks", [nullcontext, through_hooks])
    def test_an_infinite_upstream_gradient_leaves_ignored_rows_alone(
        self, road: str, reduction: str, hooks: Callable[[], Any]
    ) -> None:
        """Their gradient is 0, as with F.cross_entropy."""
        leaves = self.leaves(road, reduction)
        options = {"skip_ignored": False} if road == "hidden" else {}
        for factor in (torch.inf, torch.nan):
            with hooks():
                loss = self.loss(road, leaves, reduction, **options)
            gradient, *_ = torch.autograd.grad(loss, leaves, torch.full_like(loss, factor))
            assert (gradient[IGNORED] == 0).all()
            assert not gradient[LABELS.to(self.device) >= 0].isfinite().any(-1).all()

    @every_road
    def test_a_loss_that_is_dropped_is_freed(self, road: str, reduction: str) -> None:
        """Immediately, with its gradients."""
        leaves = self.leaves(road, reduction)
        assert is_freed(lambda: self.loss(road, leaves, reduction))

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("upstream", [1.0, 2.0])
    def test_who_saved_overwritten_logits_raises(self, reduction: str, upstream: float) -> None:
        """The operation that computed them, and one that read them before the loss did."""
        for is_output in (True, False):
            (leaf,) = self.leaves("logits", reduction)
            logits = leaf.tanh() if is_output else leaf * 1
            other = 0.0 if is_output else logits.square().sum()
            loss = self.loss("logits", [logits], reduction, inplace=True).sum()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                (loss * upstream + other).backward()


class GradientCases(RoadCases):
    """Adds tests on one device, for the backend of the subclass: logits that the forward pass overwrites."""

    backend: str

    def loss(self, road: str, leaves: Sequence[Tensor], reduction: str = "mean", **options: Any) -> Tensor:
        return loss_of(road, leaves, self.backend, reduction, **options)

    @every_road
    def test_nothing_of_the_callers_is_written(self, road: str, reduction: str) -> None:
        """Not even with inplace=True, if no gradient is required."""
        leaves = self.leaves(road, reduction)
        given = {"labels": LABELS.clone(), "token_weights": torch.rand(7), "number_weights": torch.rand(7)}
        given = {name: tensor.to(self.device) for name, tensor in given.items()}
        kept = [(tensor, tensor.detach().clone()) for tensor in (*leaves, *given.values())]
        self.loss(road, leaves, reduction, **given).sum().backward()
        if road == "logits":
            self.loss(road, [leaves[0].detach()], reduction, inplace=True, **given)
            with torch.no_grad():
                self.loss(road, leaves, reduction, inplace=True, **given)
        assert all(torch.equal(tensor, copy) for tensor, copy in kept)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_the_gradient_is_written_into_the_logits(self, reduction: str) -> None:
        """A second backward pass, whose logits are gone, raises."""
        (leaf,) = self.leaves("logits", reduction)
        logits = leaf * 1
        received: list[int] = []
        logits.register_hook(lambda gradient: received.append(gradient.data_ptr()))
        loss = self.loss("logits", [logits], reduction, inplace=True).sum()
        loss.backward(retain_graph=True)
        assert received == [logits.data_ptr()]
        with pytest.raises(RuntimeError, match="inplace=True"):
            loss.backward()

    @pytest.mark.parametrize("make_view", [lambda leaf: leaf, lambda leaf: leaf[:7], lambda leaf: leaf.view(7, -1)])
    def test_a_leaf_is_not_overwritten(self, make_view: Callable[[Tensor], Tensor]) -> None:
        """A parameter would be overwritten by its own gradient; tensors computed from it may be overwritten."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        kept = leaf.detach().clone()
        with pytest.raises(RuntimeError, match="inplace=True would overwrite a leaf"):
            self.loss("logits", [make_view(leaf)], inplace=True)
        self.loss("logits", [make_view(leaf) * 1], inplace=True).backward()
        assert torch.equal(leaf.detach(), kept)

    @pytest.mark.parametrize(("reduction", "dtype"), [("mean", torch.float32), ("sum", torch.bfloat16)])
    @pytest.mark.parametrize("rows", [slice(None), slice(1, 5)])
    def test_who_uses_overwritten_logits_later_raises(
        self, reduction: str, dtype: torch.dtype, rows: slice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Through the tensor itself or another view of it; if checking would wait for a device, the gradient is NaN."""
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
        """Other rows may still be used. Views that torch does not allow to be changed cannot be marked, and work."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        (expected,) = torch.autograd.grad(self.summed(leaf, slice(0, 6), "sum", inplace=False) + leaf[6].sum(), leaf)
        logits = leaf * 1
        total = sum(self.summed(logits, slice(first, first + 2), reduction) for first in (0, 2, 4))
        (gradient,) = torch.autograd.grad(total + logits[6].sum(), leaf)
        torch.testing.assert_close(gradient, expected)
        part, _ = (leaf * 1).split(6)
        (gradient,) = torch.autograd.grad(self.summed(part, slice(0, 6), reduction) + leaf[6].sum(), leaf)
        torch.testing.assert_close(gradient, expected)

    def test_logits_that_were_copied_may_be_used(self) -> None:
        """No two strides express their rows, so the caller's memory is not overwritten."""
        (leaf,) = make_leaves("logits", torch.float32, self.device)
        logits = (leaf * 1).t().contiguous().t()
        before = logits.detach().clone()
        loss = self.loss("logits", [logits], inplace=True)
        (gradient,) = torch.autograd.grad(loss + logits.sum(), leaf)
        (expected,) = torch.autograd.grad(self.loss("logits", [leaf]) + leaf.sum(), leaf)
        assert torch.equal(logits, before)
        torch.testing.assert_close(gradient, expected)

    def summed(self, logits: Tensor, rows: slice, reduction: str, inplace: bool = True) -> Tensor:
        """The sum of the losses of some rows, computed with each reduction."""
        counts: dict[str, Any] = {"num_tokens": 1, "num_numbers": 1} if reduction == "mean" else {}
        given = {"labels": LABELS.to(logits.device)[rows], "inplace": inplace, **counts}
        return self.loss("logits", [logits[rows]], reduction, **given).sum()
