"""Small problems, and a provider made up on the spot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from benchmarks.speed import workloads
from benchmarks.speed.providers import Provider, by_autograd
from benchmarks.speed.workloads import Case, Loss, Workload

CPU = torch.device("cpu")
SMALL = Workload("small", "logits", "main", rows=12, vocab=96)


def case(**changes: Any) -> Case:
    return workloads.make_case(replace(SMALL, **changes), CPU)


def provider(loss: Loss, objective: str = "ce", name: str = "made_up", **options: Any) -> Provider:
    return Provider(name, name, "logits", objective, by_autograd(lambda _: loss), **options)
