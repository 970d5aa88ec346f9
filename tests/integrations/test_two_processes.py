"""`NTLTrainer` on two processes: the gradients and metrics of the whole batch."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor
from transformers import Seq2SeqTrainingArguments, Trainer

from ntl_kernels import linear_cross_entropy_ntl
from ntl_kernels.integrations.transformers import NTLSeq2SeqTrainer, NTLTrainer, NTLTrainerMixin, apply_ntl_to_model

from ..parallel.ranks import Ranks
from ..versions import needs
from .deepspeed_on_cpu import WITH_DEEPSPEED, without_compiler
from .loops import as_launched
from .models import NUMBERS, VOCAB, OfOthers, assert_same_gradients, gradients, make_model, make_targets, stock_output
from .test_transformers_trainer import EXACT, assert_metrics
from .training import (
    LOG_ERROR,
    ROWS,
    InOrder,
    all_rows,
    arguments,
    exact_loss,
    large_batch,
    log_of,
    settings,
    step_of,
    to_rows,
)

pytestmark = pytest.mark.slow
HALF = ROWS // 2
AVERAGES = needs("torch", 2, 9, to="average what FSDP2 reduces on CPUs")


def launched(group: Any, function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a process that accelerate treats as new."""
    for state in (AcceleratorState, PartialState):
        state._reset_state()
    GradientState._reset_state()
    may_have_workers = mock.patch.dict(multiprocessing.current_process()._config, daemon=False)  # type: ignore[attr-defined]
    with as_launched(), mock.patch.dict(os.environ, ACCELERATE_USE_CPU="true"), may_have_workers:
        return function(*args)


@pytest.fixture
def run(two_ranks: Ranks) -> Callable[..., Any]:
    """Calls a function in two processes; the result of the first."""
    return lambda *args: two_ranks.run(launched, *args, ranks=2)[0]


def trained_and_evaluated(make: Callable[[], NTLTrainer]) -> dict[str, Any]:
    """With two Trainers: a stock one that evaluates first does not wrap its model in DDP for training."""
    training, evaluation = make(), make()
    return {"gradients": step_of(training), "log": log_of(training), "eval": evaluation.evaluate()}


class Theirs(Trainer):
    """Its own ``compute_loss``, which calls the Trainer's, which multiplies by the number of processes."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class TheirsWithNTL(NTLTrainerMixin, Theirs):
    """Its mixin calls the other's."""


def trainer_step(
    case: str, patched: bool, folder: Path, options: dict[str, Any], cls: Any = NTLTrainer, weighted: bool = False
) -> Any:
    """Two accumulation steps of two rows in each process."""

    def make() -> NTLTrainer:
        model = make_model(case)
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        rows, numbers = to_rows(model, weighted=weighted), None if patched else NUMBERS
        args = arguments(folder, 2, 2, **options)
        return cls(model, args, train_dataset=rows, eval_dataset=rows, numbers=numbers)

    return trained_and_evaluated(make)


@pytest.mark.parametrize(
    ("case", "patched", "cls", "weighted"),
    [
        *((case, patched, NTLTrainer, False) for case in ("llama-tied", "gemma2", "t5") for patched in (True, False)),
        ("llama", True, TheirsWithNTL, True),
        ("llama", False, NTLTrainer, True),
    ],
)
def test_two_processes_with_two_steps_equal_one_batch(
    case: str, patched: bool, cls: Any, weighted: bool, run: Any, tmp_path: Path
) -> None:
    result = run(trainer_step, case, patched, tmp_path, {}, cls, weighted)
    parts, expected = large_batch(make_model(case), weighted)
    assert_same_gradients(result["gradients"], expected, EXACT)
    assert result["log"]["loss"] == pytest.approx(parts.loss.item(), rel=EXACT, abs=LOG_ERROR)
    assert_metrics(result["log"], parts)
    assert_metrics(result["eval"], parts, "eval_")


def test_averaging_processes_instead_of_tokens(run: Any, tmp_path: Path) -> None:
    """Each process averages over its own 4 rows."""
    log = run(trainer_step, "llama", True, tmp_path, {"average_tokens_across_devices": False})["log"]
    assert log["ce"] == pytest.approx(large_batch(make_model())[0].cross_entropy.item(), rel=1e-5)


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


def evaluation_of_unequal_rows(kind: str, count: int, folder: Path) -> dict[str, float]:
    """The evaluation of some rows, where accelerate repeats others to fill the last batch of six."""
    model = make_model(num_hidden_layers=0)  # positions are independent
    rows = to_rows(model)[:count]
    if "patched" in kind:
        apply_ntl_to_model(model, NUMBERS)
    args = arguments(folder, 6 if "split" in kind else 3, 1, remove_unused_columns=False, **UNEQUAL[kind])
    options = {"data_collator": flatten} if "flattened" in kind else {"compute_metrics": lambda _: {}}
    data = InOrder(rows) if "stream" in kind else rows
    return NTLTrainer(model, args, eval_dataset=data, numbers=NUMBERS, **options).evaluate()


@pytest.mark.parametrize(
    ("kind", "count"), [(kind, count) for kind in UNEQUAL for count in (4, 7) if "worker" not in kind or count == 7]
)
def test_evaluation_counts_no_row_twice(kind: str, count: int, run: Any, tmp_path: Path) -> None:
    """In batches of three for each of two processes: in the last, only some rows of one process count."""
    metrics, model = run(evaluation_of_unequal_rows, kind, count, tmp_path), make_model(num_hidden_layers=0)
    parts = stock_output(model, torch.utils.data.default_collate(to_rows(model)[:count]))
    assert_metrics(metrics, parts, "eval_")
    assert metrics["eval_loss"] == pytest.approx(exact_loss(model, to_rows(model)[:count]), rel=1e-6)
    assert metrics["eval_number_share"] == pytest.approx((parts.num_numbers / parts.num_tokens).item())


def generated_rows(data: Any, options: dict[str, Any], folder: Path) -> list[Any]:
    """Of how many of 7 rows the metrics and predictions are, and the answers to each if two are requested."""
    model = make_model("t5")
    rows = data(to_rows(model)[:7])
    args = Seq2SeqTrainingArguments(**settings(folder, 6 if options else 3, 1, predict_with_generate=True, **options))
    trainer = NTLSeq2SeqTrainer(model, args, numbers=NUMBERS, compute_metrics=lambda all: {"rows": len(all.label_ids)})
    two, one = trainer.predict(rows, num_beams=2, num_return_sequences=2), trainer.predict(rows)
    return [trainer.evaluate(rows)["eval_rows"], len(one.predictions), len(two.predictions) / two.metrics["test_rows"]]


@pytest.mark.parametrize(("data", "options"), [(list, {}), (list, UNEQUAL["rows, split batches"]), (InOrder, {})])
def test_generated_answers_to_no_row_twice(data: Any, options: Any, run: Any, tmp_path: Path) -> None:
    assert run(generated_rows, data, options, tmp_path) == [7, 7, 2]


class ContextParallel(NTLTrainer):
    """Two processes that share every row: the first has its beginning, the second the shorter rest.

    As accelerate splits rows on GPUs, but by hand, for a model whose positions are independent.
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


def context_parallel_step(patched: bool, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One step over two batches, and the evaluation of the first; both processes get the same batches."""

    def make() -> NTLTrainer:
        model = make_model(num_hidden_layers=0)
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        rows = to_rows(model)
        twice = [row for start in range(0, ROWS, 4) for row in 2 * rows[start : start + 4]]
        args, numbers = arguments(folder, 4, 2, **options), None if patched else NUMBERS
        return ContextParallel(model, args, train_dataset=twice, eval_dataset=twice[:8], numbers=numbers)

    return trained_and_evaluated(make)


@pytest.mark.parametrize(("patched", "averages"), [(True, True), (False, True), (True, False)])
def test_processes_that_share_rows(patched: bool, averages: bool, run: Any, tmp_path: Path) -> None:
    """Context parallelism: tokens and numbers count once, and unequal shards are weighted by their counts."""
    result = run(context_parallel_step, patched, tmp_path, {"average_tokens_across_devices": averages})
    model = make_model(num_hidden_layers=0)
    parts, expected = large_batch(model)
    assert_same_gradients(result["gradients"], {name: grad for name, grad in expected.items() if grad is not None})
    half = stock_output(model, torch.utils.data.default_collate(to_rows(model)[:HALF]))
    assert result["log"]["loss"] == pytest.approx(parts.loss.item(), rel=1e-5, abs=LOG_ERROR)
    assert result["eval"]["eval_loss"] == pytest.approx(half.loss.item(), rel=1e-5)
    assert_metrics(result["log"], parts)
    assert_metrics(result["eval"], half, "eval_")


def half_of_the_rows() -> dict[str, Any]:
    return {name: tensor[dist.get_rank() * HALF :][:HALF] for name, tensor in all_rows().items()}


def fsdp2(model: Any) -> dict[str, Any]:
    """Gradients of the mean of the processes' losses, with the head as a separate unit."""
    from torch.distributed.fsdp import fully_shard

    for module in [*model.model.layers, model.lm_head, model]:
        fully_shard(module)
    model(**half_of_the_rows()).loss.backward()
    return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}


def fsdp1(model: Any) -> dict[str, Any]:
    """The same by FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    options = {"use_orig_params": True, "device_id": torch.device("cpu")}
    model.lm_head = FSDP(model.lm_head, **options)
    sharded = FSDP(model, **options)
    sharded(**half_of_the_rows()).loss.backward()
    with FSDP.summon_full_params(sharded, with_grads=True):
        named = [(name.replace("_fsdp_wrapped_module.", ""), p.grad.clone()) for name, p in sharded.named_parameters()]
    return dict(named)


def zero3(model: Any) -> dict[str, Any]:
    """The same by DeepSpeed, the second of two steps."""
    module = without_compiler()
    settings = {"train_micro_batch_size_per_gpu": HALF, "zero_allow_untested_optimizer": True}
    settings["zero_optimization"] = {"stage": 3, "stage3_param_persistence_threshold": 0}  # small ones are split, too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = module.initialize(model=model, optimizer=optimizer, config=settings)
    for _ in range(2):
        assert model.lm_head.weight.numel() == 0
        engine.backward(engine(**half_of_the_rows()).loss)
        grads = {name: module.utils.safe_get_full_grad(p).clone() for name, p in model.named_parameters()}
        engine.step()
    return grads


SHARDS = {"fsdp1": fsdp1, "fsdp2": fsdp2, "zero3": zero3}


def sharded_gradients(shard: str, cls: Any) -> dict[str, Any]:
    return SHARDS[shard](apply_ntl_to_model(make_model(cls=cls), NUMBERS))


@pytest.mark.parametrize("cls", [None, OfOthers])
@pytest.mark.parametrize(
    "shard", ["fsdp1", pytest.param("fsdp2", marks=AVERAGES), pytest.param("zero3", marks=WITH_DEEPSPEED)]
)
def test_sharded_parameters(shard: str, cls: Any, run: Any) -> None:
    """Of a model whose transform is guessed, and of one whose transform and shift are read in the first call."""
    model = make_model(cls=cls)
    for start in (0, HALF):
        batch = torch.utils.data.default_collate(to_rows(model)[start : start + HALF])
        (stock_output(model, batch).loss / 2).backward()
    assert_same_gradients(run(sharded_gradients, shard, cls), gradients(model))


class TokenLosses(torch.nn.Linear):
    """A head that returns the loss of every token."""

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy_ntl(hidden, self.weight, labels, NUMBERS, bias=self.bias, reduction="none")


def token_losses() -> tuple[dict[str, Any], dict[str, Any]]:
    """Gradients of a head that is resharded between its forward and its backward pass, and the truth."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.manual_seed(0)
    hidden, labels, factor = torch.randn(6, 16), torch.randint(0, VOCAB, (6,)), torch.rand(6)
    head, hidden = TokenLosses(16, VOCAB), hidden.requires_grad_()
    (head(hidden, labels) * factor).sum().backward()
    expected = {"hidden": hidden.grad, **gradients(head)}
    hidden.grad = None
    losses = fully_shard(head, reshard_after_forward=True)(hidden, labels)
    assert isinstance(head.weight, DTensor)
    (losses * factor).sum().backward()
    actual = {name: parameter.grad.full_tensor() for name, parameter in head.named_parameters()}
    return {"hidden": hidden.grad, **actual}, expected


@AVERAGES
def test_head_resharded_before_its_backward_pass(run: Any) -> None:
    actual, expected = run(token_losses)
    assert_same_gradients(actual, expected)
