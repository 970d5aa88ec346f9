"""What the processes of `ranks.py` run to test what gradients over shards promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from .. import gradient_cases
from .cases import shares

NUMBERS = NumberTokens.from_mapping({3 * i: float(i) for i in range(10)}, 32)
LABELS = torch.tensor([0, 5, -100, 27, 31, 12])
IGNORED = 2


def own_leaves(group: ProcessGroup, road: str) -> list[Tensor]:
    """This rank's logits, or the hidden states and this rank's weight."""
    first, width = shares(32, group)
    torch.manual_seed(0)
    logits, hidden, weight = torch.randn(6, 32), torch.randn(6, 4), torch.randn(32, 4)
    own = [logits[:, first : first + width]] if road == "logits" else [hidden, weight[first : first + width]]
    return [tensor.clone().requires_grad_() for tensor in own]


def loss_of(group: ProcessGroup, road: str, leaves: list[Tensor], **options: Any) -> Tensor:
    function = vocab_parallel_cross_entropy_ntl if road == "logits" else vocab_parallel_linear_cross_entropy_ntl
    first, _ = shares(32, group)
    return function(*leaves, LABELS, NUMBERS, group=group, vocab_start=first, **options)


def refusals(group: ProcessGroup, road: str, options: dict[str, Any]) -> dict[str, str]:
    """The errors of what would need a further collective, or would be one rank's share of a derivative."""
    leaves = own_leaves(group, road)
    loss = loss_of(group, road, [leaf * 1 for leaf in leaves], **options)
    upstream = torch.ones_like(loss, requires_grad=True)
    gradients = torch.autograd.grad(loss, leaves, upstream, create_graph=True)
    total = sum(gradient.square().sum() for gradient in gradients)
    batch = torch.ones(3, *loss.shape)
    calls: dict[str, Callable[[], Any]] = {
        "by the inputs": lambda: torch.autograd.grad(total, leaves, retain_graph=True),
        "by the upstream gradient": lambda: torch.autograd.grad(total, upstream, retain_graph=True),
        "batched": lambda: torch.autograd.grad(loss, leaves, batch, is_grads_batched=True),
    }
    return {name: error_of(call) for name, call in calls.items()}


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def overwritten(group: ProcessGroup, reduction: str) -> list[str]:
    """The errors of who has saved logits that the backward pass overwrites."""
    found = []
    for is_output in (True, False):
        (leaf,) = own_leaves(group, "logits")
        logits = leaf.tanh() if is_output else leaf * 1
        other = 0.0 if is_output else logits.square().sum()
        loss = loss_of(group, "logits", [logits], reduction=reduction, inplace=True).sum() + other
        found.append(error_of(loss.backward))
    return found


def ignored_rows(group: ProcessGroup, road: str, reduction: str) -> list[float]:
    """The largest gradient of an ignored row under upstream gradients that are not finite."""
    found = []
    for factor in (torch.inf, torch.nan):
        leaves = own_leaves(group, road)
        options = {"skip_ignored": False} if road == "hidden" else {}
        loss = loss_of(group, road, leaves, reduction=reduction, **options)
        gradient, *_ = torch.autograd.grad(loss, leaves, torch.full_like(loss, factor))
        assert not gradient[0].isfinite().all()
        found.append(gradient[IGNORED].abs().max().item())
    return found


def is_freed(group: ProcessGroup, road: str, reduction: str) -> bool:
    """Whether a loss that is dropped is freed at once."""
    leaves = own_leaves(group, road)
    return gradient_cases.is_freed(lambda: loss_of(group, road, leaves, reduction=reduction))


HALF: dict[str, tuple[int, dict[str, Any]]] = {
    "kept": (1, {}),
    "made anew": (99, {"config": NTLConfig(kind="mse", reweigh=True)}),
    "made anew with label_sigma": (99, {"config": NTLConfig(label_sigma=50.0, weight=30.0, reweigh=True)}),
    "sum made anew": (999, {"reduction": "sum"}),
}
"""The distance of neighbouring numbers, and options."""


def half_problem(step: int) -> tuple[Tensor, Tensor, NumberTokens]:
    """(hidden, weight, numbers)"""
    torch.manual_seed(0)
    numbers = NumberTokens.from_mapping({3 * i: float(step * i) for i in range(10)}, 32)
    return torch.randn(6, 4).half(), torch.randn(32, 4).half(), numbers


def half_gradients(group: ProcessGroup, case: str) -> list[Tensor]:
    """Of hidden states and of this rank's weight, at a loss scale."""
    step, options = HALF[case]
    hidden, weight, numbers = half_problem(step)
    first, width = shares(32, group)
    leaves = [hidden.requires_grad_(), weight[first : first + width].clone().requires_grad_()]
    where = {"group": group, "vocab_start": first, "chunk_size": 4}
    loss = vocab_parallel_linear_cross_entropy_ntl(*leaves, LABELS, numbers, **where, **options)
    return list(torch.autograd.grad(loss, leaves, torch.tensor(0.5)))
