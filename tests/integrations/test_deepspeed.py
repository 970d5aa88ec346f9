"""DeepSpeed: ``engine.backward`` divides by the accumulation steps, the processes are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from ..parallel.ranks import Ranks
from .deepspeed_on_cpu import without_compiler
from .loops import MEANS, SPLITS, Grads, Model, as_launched, assert_equal_to_one_batch, loss_of, split

pytest.importorskip("deepspeed", reason='needs DeepSpeed: pip install "ntl_kernels[dev]"')

STEPS = 4


@as_launched()
def accumulate(group: Any, mean_over: str, seed: int, stage: int, factor: int, divide: bool = True) -> Grads:
    """One optimizer step over the micro-batches of this process."""
    deepspeed = without_compiler()
    model, ranks = Model(), dist.get_world_size()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": STEPS,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), config=settings
    )
    assert engine.gradient_accumulation_steps() == STEPS and engine.dp_world_size == ranks
    grads: Grads = {}
    for ids, labels in split(seed, ranks, STEPS)[dist.get_rank()]:
        engine.backward(loss_of(engine(ids), labels, mean_over) * factor, scale_wrt_gas=divide)
        if engine.is_gradient_accumulation_boundary():
            full = deepspeed.utils.safe_get_full_grad
            grads = {name: full(parameter).clone() for name, parameter in model.named_parameters()}
        engine.step()
    return grads


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("mean_over", MEANS)
@pytest.mark.parametrize("seed", SPLITS)
def test_micro_batches_of_two_processes_are_one_batch(mean_over: str, seed: int, stage: int, two_ranks: Ranks) -> None:
    results = two_ranks.run(accumulate, mean_over, seed, stage, 2 * STEPS, ranks=2)
    assert_equal_to_one_batch(results, mean_over)


@pytest.mark.parametrize("mean_over", MEANS)
def test_told_not_to_divide_the_processes_remain(mean_over: str, two_ranks: Ranks) -> None:
    results = two_ranks.run(accumulate, mean_over, 0, 0, 2, False, ranks=2)
    assert_equal_to_one_batch(results, mean_over)


def test_without_the_factor_gradients_are_divided(two_ranks: Ranks) -> None:
    results = two_ranks.run(accumulate, "tokens", 0, 0, 1, ranks=2)
    assert_equal_to_one_batch(results, "tokens", factor=2 * STEPS)
