"""Loops of other frameworks: with the documented factor, micro-batches have the gradient of one large batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from ..parallel.ranks import Ranks
from ..stand_ins import is_installed
from ..versions import needs
from .deepspeed_on_cpu import WITH_DEEPSPEED, without_compiler
from .loops import (
    MEANS,
    ROWS,
    SPLITS,
    Grads,
    Model,
    all_rows,
    as_launched,
    assert_equal_to_one_batch,
    grads_of,
    loss_of,
    split,
)
from .training import InOrder

STEPS = 4
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
SCHEDULES = {schedule.__name__: schedule for schedule in (ScheduleGPipe, Schedule1F1B)}


def accelerate(mean_over: str, seed: int, factor: int, ranks: int = 1, micro_batches: int = STEPS) -> Grads:
    """``accelerator.backward`` divides by the accumulation steps, and processes are averaged."""
    for state in (AcceleratorState, PartialState):
        state._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    assert accelerator.num_processes == ranks
    model, optimizer = Model(), None
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for ids, labels in split(seed, ranks, micro_batches)[accelerator.process_index]:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(ids), labels, mean_over) * factor)
            optimizer.step()
    assert accelerator.sync_gradients or micro_batches < STEPS
    return grads_of(model)


def lightning(mean_over: str, seed: int, factor: int, ranks: int = 1, micro_batches: int = STEPS) -> Grads:
    """Divides the loss by ``accumulate_grad_batches``, and averages processes."""
    from lightning import LightningModule, Trainer
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.grads = Model(), []

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return loss_of(self.model(batch[0]), batch[1], mean_over) * factor

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.grads.append(grads_of(self.model))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    spread = {"devices": 2, "strategy": "ddp", "plugins": [TorchElasticEnvironment()]} if ranks > 1 else {}
    trainer = Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=STEPS, **QUIET, **spread)
    parts = split(seed, ranks, micro_batches)[dist.get_rank() if ranks > 1 else 0]
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(InOrder(parts), batch_size=None))
    assert trainer.world_size == ranks
    (grads,) = module.grads
    return grads


def deepspeed(mean_over: str, seed: int, factor: int, ranks: int = 2, stage: int = 0, divide: bool = True) -> Grads:
    """``engine.backward`` divides by the accumulation steps unless told not to, and processes are averaged."""
    module, model = without_compiler(), Model()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": STEPS,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = module.initialize(model=model, optimizer=optimizer, config=settings)
    assert engine.gradient_accumulation_steps() == STEPS and engine.dp_world_size == ranks
    grads: Grads = {}
    for ids, labels in split(seed, ranks, STEPS)[dist.get_rank()]:
        engine.backward(loss_of(engine(ids), labels, mean_over) * factor, scale_wrt_gas=divide)
        if engine.is_gradient_accumulation_boundary():
            full = module.utils.safe_get_full_grad
            grads = {name: full(parameter).clone() for name, parameter in model.named_parameters()}
        engine.step()
    return grads


def ddp(mean_over: str, seed: int, factor: int, ranks: int = 2) -> Grads:
    model, parts = DistributedDataParallel(Model()), split(seed, ranks, STEPS)[dist.get_rank()]
    for step, (ids, labels) in enumerate(parts):
        with nullcontext() if step == STEPS - 1 else model.no_sync():
            (loss_of(model(ids), labels, mean_over) * factor).backward()
    return grads_of(model)


def fsdp2(mean_over: str, seed: int, factor: int, ranks: int = 2, divide: bool = True) -> Grads:
    model, parts = Model(), split(seed, ranks, STEPS)[dist.get_rank()]
    for module in (model[1], model[3], model):
        fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
        if not divide:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # the only one of gloo
    for step, (ids, labels) in enumerate(parts):
        model.set_requires_gradient_sync(step == STEPS - 1)
        (loss_of(model(ids), labels, mean_over) * factor).backward()
    return grads_of(model)


def pipeline(
    mean_over: str, micro_batches: int, factor: int, ranks: int = 2, schedule: str = "", scale_grads: bool = False
) -> Grads:
    """One step of two stages; the rows are split evenly, their tokens and numbers are not."""
    rank, (ids, labels) = dist.get_rank(), all_rows()
    layers = list(Model().children())
    stage = nn.Sequential(*(layers[:2] if rank == 0 else layers[2:]))
    runs = SCHEDULES[schedule](
        PipelineStage(stage, rank, ranks, torch.device("cpu")),
        n_microbatches=micro_batches,
        loss_fn=lambda logits, labels: loss_of(logits, labels, mean_over) * factor,
        scale_grads=scale_grads,
    )
    if rank == 0:
        runs.step(ids)
    else:
        runs.step(target=labels)
    grads = grads_of(stage)  # whose names start at 0
    return {f"{int(name[0]) + 2 * rank}{name[1:]}": grad for name, grad in grads.items()}


LOOPS = {loop.__name__: loop for loop in (accelerate, lightning, deepspeed, ddp, fsdp2, pipeline)}


def in_two(group: Any, loop: str, options: dict[str, Any], *args: Any) -> Grads:
    """The gradients of one of two processes."""
    with as_launched() if loop in ("accelerate", "lightning", "deepspeed") else nullcontext():
        return LOOPS[loop](*args, ranks=2, **options)


WITH_LIGHTNING = pytest.mark.skipif(not is_installed("lightning"), reason="needs Lightning: pip install -e .[dev]")
ALONE = [accelerate, pytest.param(lightning, marks=[pytest.mark.slow, WITH_LIGHTNING])]


@pytest.mark.parametrize("loop", ALONE)
def test_accumulated_micro_batches_are_one_batch(loop: Any) -> None:
    for seed in SPLITS:
        for mean_over in MEANS:
            assert_equal_to_one_batch([loop(mean_over, seed, STEPS)], mean_over)
    cut_short = loop("numbers", 0, STEPS, micro_batches=3)  # a window of fewer batches needs the same factor
    assert_equal_to_one_batch([cut_short], "numbers")
    assert_equal_to_one_batch([loop("tokens", 0, 1)], "tokens", factor=STEPS)  # without it, gradients are divided


AVERAGES = needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs")
TWO: list[Any] = [
    ("accelerate", 2 * STEPS, {}),
    pytest.param("lightning", 2 * STEPS, {}, marks=WITH_LIGHTNING),
    *(pytest.param("deepspeed", 2 * STEPS, {"stage": stage}, marks=WITH_DEEPSPEED) for stage in range(4)),
    pytest.param("deepspeed", 2, {"divide": False}, marks=WITH_DEEPSPEED),
    ("ddp", 2, {}),
    pytest.param("fsdp2", 2, {}, marks=AVERAGES),
    ("fsdp2", 1, {"divide": False}),  # as torchtitan does
    *(("pipeline", 1, {"schedule": schedule}) for schedule in SCHEDULES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "factor", "options"), TWO)
def test_micro_batches_of_two_processes_are_one_batch(
    loop: str, factor: int, options: dict[str, Any], two_ranks: Ranks
) -> None:
    for mean_over, seed in zip(("numbers", "tokens", "numbers"), SPLITS, strict=True):
        which = (2, 6, ROWS)[seed] if loop == "pipeline" else seed  # the count of micro-batches, or the seed of a split
        assert_equal_to_one_batch(two_ranks.run(in_two, loop, options, mean_over, which, factor, ranks=2), mean_over)
