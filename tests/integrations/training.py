"""One training step of a Trainer, and the large batch that it must equal."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import transformers
import transformers.trainer
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, TrainingArguments

from ntl_kernels import NTLOutput

from ..versions import has
from .models import gradients, make_batch, make_targets, stock_output

ROWS = 8

STOCK_SOURCE = inspect.getsource(transformers.trainer)
counts_targets = pytest.mark.skipif(
    "_loss_shifts_labels" not in STOCK_SOURCE,
    reason=f"the stock Trainer of transformers {transformers.__version__} also divides by each row's first label",
)
LOG_ERROR = 0.0 if has("transformers", 5) else 5.1e-5
"""transformers 4 rounds the loss in its log."""


def all_rows(weighted: bool = False) -> dict[str, Tensor]:
    """The data: as a batch of every row. Rows differ in their tokens and number tokens, and in the weights of these."""
    batch = make_batch(ROWS, seed=3)
    batch["labels"][1, 3:] = -100
    batch["labels"][2] = torch.where(batch["labels"][2] >= 0, 50, -100)
    if weighted:
        steps = torch.randint(0, 5, batch["labels"].shape, generator=torch.Generator().manual_seed(4))
        batch["number_weights"] = steps * torch.linspace(0.01, 1, ROWS)[:, None]
    return batch


def to_rows(model: Any, decoder_inputs: bool = False, weighted: bool = False) -> list[dict[str, Tensor]]:
    """The data in the form that a Trainer expects."""
    batch = all_rows(weighted)
    if decoder_inputs and model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    return [{name: tensor[row] for name, tensor in batch.items()} for row in range(ROWS)]


def as_dataset() -> Any:
    """All rows with number weights, and a column that the Trainer removes, since no model has such an argument."""
    from datasets import Dataset

    batch = {name: tensor.tolist() for name, tensor in all_rows(weighted=True).items()}
    return Dataset.from_dict({**batch, "source": ["a file"] * ROWS})


def large_batch(model: Any, weighted: bool = False, **options: Any) -> tuple[NTLOutput, dict[str, Tensor | None]]:
    """Truth: the stock forward's parts and gradients for all rows at once."""
    parts = stock_output(model, all_rows(weighted), **options)
    parts.loss.backward()
    return parts._replace(loss=parts.loss.detach()), gradients(model)


def exact_loss(model: Any, rows: list[dict[str, Tensor]], mean_over: str = "numbers") -> float:
    """Truth: the mean cross-entropy + 0.3 times the mean NTL-WAS of all rows by their formulas, in float64."""
    batch = torch.utils.data.default_collate(rows)
    targets = make_targets(model, batch["labels"])
    counts = targets != -100
    with torch.no_grad():
        logits = copy.deepcopy(model).double().eval()(**batch).logits[counts]
    targets = targets[counts]
    cross_entropy = -logits.log_softmax(-1).gather(1, targets[:, None]).mean()
    is_number = (targets >= 10) & (targets < 20)
    distances = (torch.arange(10, 20) - targets[is_number, None]).abs()
    ntl = (logits[is_number, 10:20].softmax(-1) * distances).sum()
    return float(cross_entropy + 0.3 * ntl / (is_number if mean_over == "numbers" else targets >= 0).sum())


class InOrder(torch.utils.data.IterableDataset):
    """Rows that are not shuffled."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def settings(folder: Any, batch: int, steps: int, **options: Any) -> dict[str, Any]:
    """Settings of one optimizer step over ``batch * steps`` rows per process."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": steps,
        "max_steps": 1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "average_tokens_across_devices": True,
    }
    return defaults | options


def arguments(folder: Any, batch: int, steps: int, **options: Any) -> TrainingArguments:
    """The settings as the Trainer's arguments."""
    return TrainingArguments(**settings(folder, batch, steps, **options))


class Record(TrainerCallback):
    """Keeps the gradients that the optimizer gets."""

    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}

    def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
        self.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def step_of(trainer: Any) -> dict[str, Tensor]:
    """The gradients of one training step."""
    record = Record()
    trainer.add_callback(record)
    trainer.train()
    return {name.removeprefix("module."): gradient for name, gradient in record.gradients.items()}


def log_of(trainer: Any) -> dict[str, float]:
    """The only log of training that has a loss."""
    (log,) = [log for log in trainer.state.log_history if "loss" in log]
    return log


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A word for each id, of which the numbers are digits."""
    words = {str(token - 10) if 10 <= token < 20 else f"w{token}": token for token in range(vocab)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w3")), pad_token="w0")


def make_llama(vocab: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab, **sizes))
