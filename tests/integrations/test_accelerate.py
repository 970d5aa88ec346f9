"""accelerate: ``accelerator.backward`` divides by the accumulation steps, the processes are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from ..parallel.ranks import Ranks
from .loops import MEANS, SPLITS, Grads, Model, as_launched, assert_equal_to_one_batch, grads_of, loss_of, split

STEPS = 4


def accumulate(mean_over: str, seed: int, ranks: int, with_factor: bool, micro_batches: int = STEPS) -> Grads:
    """One optimizer step over the micro-batches of this process."""
    for state in (AcceleratorState, PartialState):
        state._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    assert accelerator.num_processes == ranks
    factor = accelerator.num_processes * accelerator.gradient_accumulation_steps if with_factor else 1
    model, optimizer = Model(), None
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for ids, labels in split(seed, ranks, micro_batches)[accelerator.process_index]:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(ids), labels, mean_over) * factor)
            optimizer.step()
    assert accelerator.sync_gradients or micro_batches < STEPS
    return grads_of(model)


def accumulate_in_two(group: Any, mean_over: str, seed: int, with_factor: bool) -> Grads:
    with as_launched():
        return accumulate(mean_over, seed, dist.get_world_size(), with_factor)


@pytest.mark.parametrize("seed", SPLITS)
@pytest.mark.parametrize("mean_over", MEANS)
def test_accumulated_micro_batches_are_one_batch(mean_over: str, seed: int) -> None:
    assert_equal_to_one_batch([accumulate(mean_over, seed, 1, True)], mean_over)


@pytest.mark.parametrize("seed", SPLITS)
@pytest.mark.parametrize("mean_over", MEANS)
def test_micro_batches_of_two_processes_are_one_batch(mean_over: str, seed: int, two_ranks: Ranks) -> None:
    assert_equal_to_one_batch(two_ranks.run(accumulate_in_two, mean_over, seed, True, ranks=2), mean_over)


def test_a_window_that_is_cut_short_needs_the_same_factor() -> None:
    assert_equal_to_one_batch([accumulate("numbers", 0, 1, True, micro_batches=3)], "numbers")


def test_without_the_factor_gradients_are_divided(two_ranks: Ranks) -> None:
    assert_equal_to_one_batch([accumulate("tokens", 0, 1, False)], "tokens", factor=STEPS)
    results = two_ranks.run(accumulate_in_two, "tokens", 0, False, ranks=2)
    assert_equal_to_one_batch(results, "tokens", factor=2 * STEPS)
