"""DDP and FSDP2: the loss times the number of processes gives the gradient of one large batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..parallel.ranks import Ranks
from ..versions import needs
from .loops import MEANS, SPLITS, Grads, Model, assert_equal_to_one_batch, grads_of, loss_of, split

STEPS = 3


def ddp(group: Any, mean_over: str, seed: int, factor: int) -> Grads:
    model, parts = DistributedDataParallel(Model()), split(seed, 2, STEPS)[dist.get_rank()]
    for step, (ids, labels) in enumerate(parts):
        with nullcontext() if step == STEPS - 1 else model.no_sync():
            (loss_of(model(ids), labels, mean_over) * factor).backward()
    return grads_of(model)


def fsdp2(group: Any, mean_over: str, seed: int, factor: int, divide: bool = True) -> Grads:
    model, parts = Model(), split(seed, 2, STEPS)[dist.get_rank()]
    for module in (model[1], model[3], model):
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        if not divide:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    for step, (ids, labels) in enumerate(parts):
        model.set_requires_gradient_sync(step == STEPS - 1)
        (loss_of(model(ids), labels, mean_over) * factor).backward()
    return grads_of(model)


AVERAGES = needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs")
LOOPS = pytest.mark.parametrize("loop", [ddp, pytest.param(fsdp2, marks=AVERAGES)])


@pytest.mark.parametrize("seed", SPLITS)
@pytest.mark.parametrize("mean_over", MEANS)
@LOOPS
def test_the_loss_times_the_processes_is_that_of_one_batch(
    loop: Any, mean_over: str, seed: int, two_ranks: Ranks
) -> None:
    assert_equal_to_one_batch(two_ranks.run(loop, mean_over, seed, 2, ranks=2), mean_over)


@LOOPS
def test_gradients_are_averaged_over_processes(loop: Any, two_ranks: Ranks) -> None:
    assert_equal_to_one_batch(two_ranks.run(loop, "tokens", 0, 1, ranks=2), "tokens", factor=2)


@pytest.mark.parametrize("mean_over", MEANS)
def test_fsdp2_told_not_to_divide_needs_no_factor(mean_over: str, two_ranks: Ranks) -> None:
    """As torchtitan tells it."""
    assert_equal_to_one_batch(two_ranks.run(fsdp2, mean_over, 0, 1, False, ranks=2), mean_over)
