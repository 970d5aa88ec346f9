"""Run by two processes: one training step of each case, its gradients saved by the first.

python -m tests.integrations.two_processes FOLDER, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import Trainer

from ntl_kernels import linear_cross_entropy_ntl
from ntl_kernels.integrations.transformers import NTLTrainer, NTLTrainerMixin, NTLWeightCallback, apply_ntl_to_model

from .models import NUMBERS, VOCAB, make_model, make_targets
from .training import ROWS, TAKES_SHARDED_MODELS, InOrder, all_rows, arguments, step_of, to_rows

CASES = ["llama-tied", "gemma2", "t5"]


def trainer_step(case: str, patched: bool, folder: Path, **options: Any) -> dict[str, Any]:
    """Two processes, two accumulation steps, two rows: the gradients and the log."""
    trainers = []
    for _ in range(2):  # a stock Trainer that evaluates first does not wrap its model in DDP for training
        model = make_model(case)
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        rows, numbers = to_rows(model), None if patched else NUMBERS
        args = arguments(folder, 2, 2, **options)
        trainers.append(NTLTrainer(model, args, train_dataset=rows, eval_dataset=rows, numbers=numbers))
    training, evaluation = trainers
    return {"gradients": step_of(training), "logs": training.state.log_history, "eval": evaluation.evaluate()}


class Theirs(Trainer):
    """A ``compute_loss`` of its own, which ends in the Trainer's."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class TheirsWithNTL(NTLTrainerMixin, Theirs):
    """Its mixin calls the other's."""


def step_of_theirs(folder: Path) -> dict[str, Any]:
    model = apply_ntl_to_model(make_model(), NUMBERS)
    trainer = TheirsWithNTL(model, arguments(folder, 2, 2), train_dataset=to_rows(model))
    return {"gradients": step_of(trainer), "logs": trainer.state.log_history}


def numbers_in_one_row() -> list[dict[str, Tensor]]:
    rows = to_rows(make_model())
    for row in rows[1:]:
        row["labels"] = torch.where(NUMBERS.is_number(row["labels"]), 50, row["labels"])
    return rows


def weight_in_effect(folder: Path) -> dict[str, float]:
    """What the stock Trainer logs of a patched model."""
    model = apply_ntl_to_model(make_model(), NUMBERS)
    callbacks = [NTLWeightCallback()]
    trainer = Trainer(model, arguments(folder, 1, 4), train_dataset=numbers_in_one_row(), callbacks=callbacks)
    trainer.train()
    return trainer.state.log_history[0]


def flatten(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows without padding, one after the other in a single one, as padding-free collators make them; their ends are
    padded to a multiple of 8 as TRL can do."""
    rows = [{name: value[: row["attention_mask"].sum()] for name, value in row.items()} for row in rows]
    ids = torch.cat([row["input_ids"] for row in rows])
    labels = torch.cat([F.pad(row["labels"][1:], (1, 0), value=-100) for row in rows])
    pad = -len(ids) % 8
    return {"input_ids": F.pad(ids, (0, pad))[None], "labels": F.pad(labels, (0, pad), value=-100)[None]}


STREAM: dict[str, Any] = {"accelerator_config": {"dispatch_batches": False}}
UNEQUAL: dict[str, dict[str, Any]] = {
    "rows": {},
    "rows, patched": {},
    "rows, split batches": {"accelerator_config": {"split_batches": True}},
    "rows of a dispatched stream": {},
    "rows of a stream": STREAM,
    "rows of a stream in a worker": STREAM | {"dataloader_num_workers": 1},
    "flattened": {},
    "flattened, patched": {},
    "flattened, split batches": {"accelerator_config": {"split_batches": True}},
    "flattened stream": STREAM,
}
UNEQUAL_ROWS = (4, 7)


def evaluation_of_unequal_rows(kind: str, count: int, folder: Path) -> dict[str, float]:
    """Of some rows, where accelerate repeats others to fill up the last batch of six."""
    model = make_model(num_hidden_layers=0)  # positions know nothing of each other
    rows = to_rows(model)[:count]
    if "patched" in kind:
        apply_ntl_to_model(model, NUMBERS)
    args = arguments(folder, 6 if "split" in kind else 3, 1, remove_unused_columns=False, **UNEQUAL[kind])
    options = {"data_collator": flatten} if "flattened" in kind else {"compute_metrics": lambda _: {}}
    data = InOrder(rows) if "stream" in kind else rows
    return NTLTrainer(model, args, eval_dataset=data, numbers=NUMBERS, **options).evaluate()


class ContextParallel(NTLTrainer):
    """Two processes that share every row: the first has its beginning, the second the shorter rest.

    What accelerate does with rows on GPUs, done here by hand, for a model whose positions know nothing of each other.
    """

    def get_cp_size(self) -> int:
        return 2

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def _prepare_context_parallel_inputs(self, model: Any, inputs: dict[str, Tensor]) -> Any:
        shift_labels = make_targets(self.model, inputs["labels"])
        parts = {name: self.part(value) for name, value in {**inputs, "shift_labels": shift_labels}.items()}
        parts.pop("attention_mask")
        return contextlib.nullcontext, parts

    def part(self, value: Any) -> Any:
        if getattr(value, "ndim", 0) < 2:  # the count of the window's numbers, skip_logits
            return value
        return value.chunk(2, dim=1)[self.accelerator.process_index].contiguous()


def context_parallel_step(patched: bool, folder: Path, **options: Any) -> dict[str, Any]:
    """One step over two batches, and the evaluation of the first; both processes get the same batches."""
    trainers = []
    for _ in range(2):  # as in trainer_step
        model = make_model(num_hidden_layers=0)
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        rows = to_rows(model)
        twice = [row for start in range(0, ROWS, 4) for row in 2 * rows[start : start + 4]]
        args, numbers = arguments(folder, 4, 2, **options), None if patched else NUMBERS
        trainers.append(ContextParallel(model, args, train_dataset=twice, eval_dataset=twice[:8], numbers=numbers))
    training, evaluation = trainers
    return {"gradients": step_of(training), "logs": training.state.log_history, "eval": evaluation.evaluate()}


def half_of_the_rows() -> dict[str, Any]:
    half = ROWS // 2
    return {name: tensor[dist.get_rank() * half :][:half] for name, tensor in all_rows().items()}


def fsdp2_gradients() -> dict[str, Any]:
    """With a head of its own unit: gradients of the mean of the processes' losses."""
    from torch.distributed.fsdp import fully_shard

    model = apply_ntl_to_model(make_model(), NUMBERS)
    for module in [*model.model.layers, model.lm_head, model]:
        fully_shard(module)
    model(**half_of_the_rows()).loss.backward()
    return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}


def fsdp2_trainer_gradients(folder: Path) -> dict[str, Any]:
    """The gradients of the whole batch by NTLTrainer, for a model that is sharded already."""
    from torch.distributed.fsdp import fully_shard

    model = apply_ntl_to_model(make_model(), NUMBERS)
    for module in [*model.model.layers, model.lm_head, model]:
        fully_shard(module)
    trainer = NTLTrainer(model, arguments(folder, 4, 1), train_dataset=to_rows(model))
    trainer.is_distributed_loading_by_transformers = True  # so that nobody wraps it in DDP
    return {name: gradient.full_tensor() for name, gradient in step_of(trainer).items()}


class TokenLosses(torch.nn.Linear):
    """A head that gives the loss of every token."""

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy_ntl(hidden, self.weight, labels, NUMBERS, bias=self.bias, reduction="none")


def fsdp2_token_losses() -> dict[str, Any]:
    """Gradients of a head that is resharded between its forward and its backward pass, and what they must be."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    hidden, labels, factor = torch.randn(6, 16), torch.randint(0, VOCAB, (6,)), torch.rand(6)
    head, hidden = TokenLosses(16, VOCAB), hidden.requires_grad_()
    (head(hidden, labels) * factor).sum().backward()
    expected = {"hidden": hidden.grad, **{name: parameter.grad for name, parameter in head.named_parameters()}}
    hidden.grad = None
    head.zero_grad()
    losses = fully_shard(head, reshard_after_forward=True)(hidden, labels)
    is_sharded = isinstance(head.weight, DTensor)
    (losses * factor).sum().backward()
    actual = {name: parameter.grad.full_tensor() for name, parameter in head.named_parameters()}
    return {"actual": {"hidden": hidden.grad, **actual}, "expected": expected, "is sharded": is_sharded}


def fsdp1_gradients() -> dict[str, Any]:
    """The same by FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = apply_ntl_to_model(make_model(), NUMBERS)
    options = {"use_orig_params": True, "device_id": torch.device("cpu")}
    model.lm_head = FSDP(model.lm_head, **options)
    sharded = FSDP(model, **options)
    sharded(**half_of_the_rows()).loss.backward()
    with FSDP.summon_full_params(sharded, with_grads=True):
        named = [(name.replace("_fsdp_wrapped_module.", ""), p.grad.clone()) for name, p in sharded.named_parameters()]
    return dict(named)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for case in CASES:
        for patched in (True, False):
            results[f"{case}-{patched}"] = trainer_step(case, patched, folder)
    results["theirs"], results["weight in effect"] = step_of_theirs(folder), weight_in_effect(folder)
    results["per process"] = trainer_step("llama", True, folder, average_tokens_across_devices=False)
    for patched in (True, False):
        results[f"context-{patched}"] = context_parallel_step(patched, folder)
    for kind in UNEQUAL:
        for count in UNEQUAL_ROWS:
            results[f"{kind}, {count} rows"] = evaluation_of_unequal_rows(kind, count, folder)
    results["context-per process"] = context_parallel_step(True, folder, average_tokens_across_devices=False)
    if TAKES_SHARDED_MODELS:
        results["fsdp2 trainer"] = fsdp2_trainer_gradients(folder)
    results["token losses"] = fsdp2_token_losses()
    results["fsdp1"], results["fsdp2"] = fsdp1_gradients(), fsdp2_gradients()
    if dist.get_rank() == 0:
        torch.save(results, folder / "results.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # torch sometimes aborts a process whose interpreter ends, since a thread of gloo still runs
