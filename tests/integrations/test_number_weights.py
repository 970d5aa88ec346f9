"""A batch's column ``number_weights`` in other Trainers than ours (`test_transformers_trainer.py`), and wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import PromptTuningConfig, get_peft_model
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from ntl_kernels import NTLConfig
from ntl_kernels.integrations.transformers import NTLTrainer, apply_ntl_to_model, set_ntl_loss_function

from .models import NUMBERS, assert_same_gradients, make_batch, make_model, make_targets, stock_output
from .test_transformers_trainer import EXACT, assert_metrics
from .test_trl import make_trainer as make_sft_trainer
from .training import ROWS, arguments, as_dataset, counts_targets, large_batch, log_of, step_of

OVER_TOKENS = NTLConfig(mean_over="tokens", weight=2.0)


@counts_targets
@pytest.mark.parametrize(("put", "keeps_columns"), [(apply_ntl_to_model, False), (set_ntl_loss_function, True)])
@pytest.mark.parametrize(("config", "steps"), [(NTLConfig(), 1), (OVER_TOKENS, 4)], ids=["numbers", "tokens"])
def test_stock_trainer(put: Any, keeps_columns: bool, config: NTLConfig, steps: int, tmp_path: Path) -> None:
    """A patched model has the argument, by which the Trainer keeps the column."""
    expected = large_batch(make_model(), weighted=True, config=config)[1]
    data = as_dataset().remove_columns("source") if keeps_columns else as_dataset()
    args = arguments(tmp_path, ROWS // steps, steps, remove_unused_columns=not keeps_columns)
    trainer = Trainer(put(make_model(), NUMBERS, config), args, train_dataset=data)
    assert_same_gradients(step_of(trainer), expected, EXACT)


@pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
def test_labels_that_are_shifted_already(put: Any) -> None:
    """Weights belong to the labels; without labels, to the shifted ones."""
    model, batch = make_model(), make_batch()
    weights = torch.rand(batch["labels"].shape)
    expected = stock_output(model, {**batch, "number_weights": weights}).loss
    put(model, NUMBERS)
    batch["shift_labels"] = make_targets(model, batch["labels"])
    torch.testing.assert_close(model(**batch, number_weights=weights).loss, expected)
    if put is apply_ntl_to_model:
        del batch["labels"]
        torch.testing.assert_close(model(**batch, number_weights=weights.roll(-1, dims=1)).loss, expected)


def test_other_calls_of_a_patched_model_ignore_them() -> None:
    model, batch = make_model().eval(), make_batch()
    with torch.no_grad():
        expected = model(**batch)
        apply_ntl_to_model(model, NUMBERS)
        output = model(**batch, number_weights=torch.rand(batch["labels"].shape))
    assert torch.equal(output.loss, expected.loss) and torch.equal(output.logits, expected.logits)


def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Unequal rows as a batch."""
    padding = {"input_ids": 0, "labels": -100, "number_weights": 0.0}
    columns = {name: [torch.as_tensor(row[name]) for row in rows] for name in padding}
    return {name: pad_sequence(values, True, padding[name]) for name, values in columns.items()}


def test_trl(tmp_path: Path) -> None:
    parts, expected = large_batch(make_model(), weighted=True)
    options = {"numbers": NUMBERS, "weighted": True}
    trainer = make_sft_trainer(make_model(), tmp_path, data_collator=pad, **options)
    assert_same_gradients(step_of(trainer), expected, EXACT)
    assert_metrics(log_of(trainer), parts)
    assert trainer.data_collator is pad  # though batches are watched
    for streamed in (False, True):
        trainer = make_sft_trainer(make_model(), tmp_path, streamed=streamed, **options)
        for run in (trainer.train, trainer.evaluate):
            with pytest.raises(ValueError, match="column number_weights, but its batches do not: pass a data_collator"):
                run()
        with pytest.raises(ValueError, match="packing drops the column number_weights: set packing=False"):
            make_sft_trainer(make_model(), tmp_path, packing=True, streamed=streamed, **options)


def test_wrong_columns(tmp_path: Path) -> None:
    def train(model: Any, data: Dataset = as_dataset(), **changed: Any) -> None:  # noqa: B008
        trainer = NTLTrainer(model, arguments(tmp_path, 2, 4), train_dataset=data, numbers=NUMBERS)
        vars(trainer).update(changed)
        trainer.train()

    shorter = as_dataset().map(lambda row: {"number_weights": row["number_weights"][1:]})
    with pytest.raises(ValueError, match=r"number_weights must have the labels' shape \(2, 9\); got \(2, 8\)"):
        train(make_model(), shorter)
    prompts = get_peft_model(make_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ValueError, match="3 virtual tokens per row, for which PEFT does not extend .* number_weights"):
        train(prompts)
    with pytest.raises(ValueError, match="context parallelism does not split number_weights"):
        train(make_model(), get_cp_size=lambda: 2)
