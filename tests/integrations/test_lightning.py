"""Lightning: the loss is divided by ``accumulate_grad_batches``, and averaged over processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from ..parallel.ranks import Ranks
from .loops import MEANS, SPLITS, Grads, Model, as_launched, assert_equal_to_one_batch, grads_of, loss_of, split

lightning = pytest.importorskip("lightning", reason='needs Lightning: pip install "ntl_kernels[dev]"')

STEPS = 4
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class MicroBatches(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.parts)


class Module(lightning.LightningModule):
    """The module of the docs."""

    def __init__(self, mean_over: str, with_factor: bool) -> None:
        super().__init__()
        self.model, self.mean_over, self.with_factor = Model(), mean_over, with_factor
        self.grads: list[Grads] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        ids, labels = batch
        factor = self.trainer.accumulate_grad_batches * self.trainer.world_size if self.with_factor else 1
        return loss_of(self.model(ids), labels, self.mean_over) * factor

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.grads.append(grads_of(self.model))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(mean_over: str, seed: int, ranks: int, with_factor: bool, micro_batches: int = STEPS, **options: Any) -> Grads:
    module = Module(mean_over, with_factor)
    parts = split(seed, ranks, micro_batches)[dist.get_rank() if ranks > 1 else 0]
    options = {"accelerator": "cpu", "max_epochs": 1, "accumulate_grad_batches": STEPS, **QUIET, **options}
    trainer = lightning.Trainer(**options)
    loader = torch.utils.data.DataLoader(MicroBatches(parts), batch_size=None)
    trainer.fit(module, loader)
    assert trainer.world_size == ranks
    (grads,) = module.grads
    return grads


def fit_in_two(group: Any, mean_over: str, seed: int, with_factor: bool) -> Grads:
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    with as_launched():
        environment = TorchElasticEnvironment()
        return fit(mean_over, seed, 2, with_factor, devices=2, strategy="ddp", plugins=[environment])


@pytest.mark.parametrize("seed", SPLITS)
@pytest.mark.parametrize("mean_over", MEANS)
def test_accumulated_micro_batches_are_one_batch(mean_over: str, seed: int) -> None:
    assert_equal_to_one_batch([fit(mean_over, seed, 1, True)], mean_over)


@pytest.mark.parametrize("mean_over", MEANS)
def test_micro_batches_of_two_processes_are_one_batch(mean_over: str, two_ranks: Ranks) -> None:
    assert_equal_to_one_batch(two_ranks.run(fit_in_two, mean_over, 0, True, ranks=2), mean_over)


def test_a_window_that_is_cut_short_needs_the_same_factor() -> None:
    assert_equal_to_one_batch([fit("numbers", 0, 1, True, micro_batches=3)], "numbers")


def test_without_the_factor_gradients_are_divided(two_ranks: Ranks) -> None:
    assert_equal_to_one_batch([fit("tokens", 0, 1, False)], "tokens", factor=STEPS)
    results = two_ranks.run(fit_in_two, "tokens", 0, False, ranks=2)
    assert_equal_to_one_batch(results, "tokens", factor=2 * STEPS)
