"""The step that a provider runs: one forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .workloads import Case, Tensors


class Outcome(NamedTuple):
    loss: Tensor
    gradients: tuple[Tensor, ...]
    """Gradients of the case's leaves (or the model's parameters), in their order."""


Step = Callable[[int], Any]
"""Takes the index of the tensors to use; returns an Outcome, or None for a bound."""
Loss = Callable[[Tensors], Tensor]


def by_autograd(make: Callable[[Case], Loss]) -> Callable[[Case], Step]:
    """The step of a loss function: its value and the gradients of the leaves."""

    def build(case: Case) -> Step:
        loss_of = make(case)

        def step(index: int) -> Outcome:
            tensors = case.sets[index % len(case.sets)]
            loss = loss_of(tensors)
            return Outcome(loss.detach(), torch.autograd.grad(loss, tensors.leaves))

        return step

    return build


def compiled(make: Callable[[Case], Loss]) -> Callable[[Case], Loss]:
    """The same loss under torch.compile, specialised to its shapes."""
    return lambda case: torch.compile(make(case), dynamic=False)
