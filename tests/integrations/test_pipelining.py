"""torch.distributed.pipelining: ``scale_grads=False`` gives the gradient of one large batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ..parallel.ranks import Ranks
from .loops import MEANS, ROWS, Grads, Model, all_rows, assert_equal_to_one_batch, grads_of, loss_of

SCHEDULES = {schedule.__name__: schedule for schedule in (ScheduleGPipe, Schedule1F1B)}


def pipeline(group: Any, schedule: str, mean_over: str, micro_batches: int, scale_grads: bool) -> Grads:
    """One step of two stages; the rows are split evenly, their tokens and numbers are not."""
    rank, (ids, labels) = dist.get_rank(), all_rows()
    layers = list(Model().children())
    stage = nn.Sequential(*(layers[:2] if rank == 0 else layers[2:]))
    runs = SCHEDULES[schedule](
        PipelineStage(stage, rank, 2, torch.device("cpu")),
        n_microbatches=micro_batches,
        loss_fn=partial(loss_of, mean_over=mean_over),
        scale_grads=scale_grads,
    )
    if rank == 0:
        runs.step(ids)
    else:
        runs.step(target=labels)
    grads = grads_of(stage)  # whose names count from 0
    return {f"{int(name[0]) + 2 * rank}{name[1:]}": grad for name, grad in grads.items()}


@pytest.mark.parametrize("micro_batches", [2, 6, ROWS])
@pytest.mark.parametrize("mean_over", MEANS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_unscaled_gradients_are_those_of_one_batch(
    schedule: str, mean_over: str, micro_batches: int, two_ranks: Ranks
) -> None:
    results = two_ranks.run(pipeline, schedule, mean_over, micro_batches, False, ranks=2)
    assert len(results[0]) == 3 and len(results[1]) == 2
    assert_equal_to_one_batch(results, mean_over)


def test_scaled_gradients_are_divided_by_the_micro_batches(two_ranks: Ranks) -> None:
    results = two_ranks.run(pipeline, "ScheduleGPipe", "tokens", 6, True, ranks=2)
    assert_equal_to_one_batch(results, "tokens", factor=6)
