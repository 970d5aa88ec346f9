"""`NTLTrainer`: however a batch is divided over accumulation steps and processes, the gradients of the whole batch."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.integrations.transformers import (
    NTLSeq2SeqTrainer,
    NTLTrainer,
    NTLTrainerMixin,
    apply_ntl_to_model,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.transformers.frameworks import check_arguments
from ntl_kernels.integrations.transformers.targets import IGNORE_INDEX

from .models import NUMBERS, VOCAB, assert_same_gradients, gradients, make_model, make_targets, stock_output
from .training import (
    LOG_ERROR,
    ROWS,
    STOCK_SOURCE,
    InOrder,
    Record,
    all_rows,
    arguments,
    as_dataset,
    exact_loss,
    large_batch,
    log_of,
    make_tokenizer,
    settings,
    step_of,
    to_rows,
)

ROOT = Path(__file__).parent.parent.parent
EXACT = 1e-6
METRICS = {"ce": "cross_entropy", "ntl": "ntl", "token_accuracy": "token_accuracy", "number_mae": "number_mae"}
OPTIONS = {"config": NTLConfig(kind="mae", weight=0.5), "z_loss": 1e-2, "label_smoothing": 0.1}
OVER_TOKENS = NTLConfig(mean_over="tokens", weight=2.0)


def assert_metrics(log: dict[str, float], parts: NTLOutput, prefix: str = "") -> None:
    for name, field in METRICS.items():
        assert log[prefix + name] == pytest.approx(getattr(parts, field).item(), rel=1e-5), name


SOFT = NTLConfig("soft_labels", 0.7, label_sigma=1.5, label_share=0.25)
"""The loss is not the sum of the cross-entropy that is logged and NTL."""


def make_trainer(model: Any, folder: Path, batch: int = 2, steps: int = 4, **options: Any) -> NTLTrainer:
    keywords = {name: options.pop(name) for name in ("numbers", "ntl_config", "z_loss") if name in options}
    rows = options.pop("data", None) or to_rows(model)
    return NTLTrainer(
        model, arguments(folder, batch, steps, **options), train_dataset=rows, eval_dataset=rows, **keywords
    )


@pytest.mark.parametrize(
    ("case", "patched", "options", "weighted"),
    [
        ("llama-tied", True, OPTIONS, False),
        ("llama-tied", False, {"config": OVER_TOKENS}, False),
        ("gemma2", False, OPTIONS, False),
        ("gemma2", True, {"config": OVER_TOKENS}, False),
        ("gpt2", True, OPTIONS, False),
        ("t5", True, {"config": OVER_TOKENS}, False),
        ("t5", False, OPTIONS, False),
        ("llama", True, {"config": SOFT}, False),
        ("t5", False, {"config": SOFT}, False),
        *((case, patched, {}, True) for case in ("llama-tied", "t5") for patched in (True, False)),
        *(("llama", patched, {"config": OVER_TOKENS}, True) for patched in (True, False)),
    ],
)
def test_four_steps_equal_one_batch(
    case: str, patched: bool, options: dict[str, Any], weighted: bool, tmp_path: Path
) -> None:
    """``weighted``: with a column ``number_weights``, and one that the Trainer removes."""
    model = make_model(case)
    parts, expected = large_batch(model, weighted, **options)
    assert not weighted or abs(parts.ntl - large_batch(model, **options)[0].ntl) > 0.01
    given = {"data": as_dataset() if weighted else to_rows(model)}
    if patched:
        trainer = make_trainer(apply_ntl_to_model(model, NUMBERS, **options), tmp_path, **given)
    else:
        given |= {"numbers": NUMBERS, "ntl_config": options.get("config"), "z_loss": options.get("z_loss", 0.0)}
        trainer = make_trainer(model, tmp_path, label_smoothing_factor=options.get("label_smoothing", 0.0), **given)
    metrics = trainer.evaluate()
    assert_same_gradients(step_of(trainer), expected, EXACT)
    log = log_of(trainer)
    assert log["loss"] == pytest.approx(parts.loss.item(), rel=EXACT, abs=LOG_ERROR)
    assert metrics["eval_loss"] == pytest.approx(parts.loss.item(), rel=1e-5)
    assert_metrics(log, parts)
    assert_metrics(metrics, parts, "eval_")
    rows = all_rows(weighted)
    if weighted:
        rows["number_weights"] = (rows["number_weights"] != 0).float()
    counted = stock_output(make_model(case), rows)
    share = (counted.num_numbers / counted.num_tokens).item()
    assert [log["number_share"], metrics["eval_number_share"]] == pytest.approx([share, share])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
def test_evaluation_that_generates(patched: bool, weighted: bool, tmp_path: Path) -> None:
    """The loss that chooses the best model is CE + NTL, and the predictions are generated.

    ``generate`` refuses arguments that a model does not have, such as ``number_weights``.
    """
    model, seen = make_model("t5"), []
    parts, expected = large_batch(model, weighted, label_smoothing=0.1)
    if patched:
        apply_ntl_to_model(model, NUMBERS, label_smoothing=0.1)
    options = {"predict_with_generate": True, "generation_max_length": 5, "per_device_eval_batch_size": 3}
    args = Seq2SeqTrainingArguments(**settings(tmp_path, ROWS, 1, label_smoothing_factor=0.1, **options))
    data, numbers = as_dataset() if weighted else to_rows(model), None if patched else NUMBERS
    trainer = NTLSeq2SeqTrainer(model, args, train_dataset=data, eval_dataset=data, numbers=numbers)
    trainer.compute_metrics = lambda result: seen.append(result) or {"exact": 1.0}
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(parts.loss.item(), rel=1e-5)
    assert_metrics(metrics, parts, "eval_")
    assert metrics["eval_exact"] == 1.0
    inputs = {name: tensor for name, tensor in all_rows().items() if name != "labels"}
    generated = model.generate(**inputs, max_length=5).numpy()
    assert (seen[0].predictions[:, : generated.shape[1]] == generated).all()
    assert (seen[0].label_ids[:, :9] == all_rows()["labels"].numpy()).all()
    assert "eval_ntl" in trainer.evaluate(max_length=4)
    assert_same_gradients(step_of(trainer), expected, EXACT)


def test_evaluation_without_labels(tmp_path: Path) -> None:
    model = make_model()
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS)
    metrics = trainer.evaluate([{"input_ids": row["input_ids"]} for row in to_rows(model)])
    assert "eval_runtime" in metrics
    assert not {"eval_loss", "eval_ce"} & set(metrics)


@pytest.mark.parametrize(
    ("kind", "patched"), [(PromptTuningConfig, True), (PromptTuningConfig, False), (PrefixTuningConfig, True)]
)
def test_virtual_tokens(kind: Any, patched: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = get_peft_model(make_model(), kind(task_type="CAUSAL_LM", num_virtual_tokens=3)).train()
    output = model(**all_rows())
    virtual = output.logits.shape[1] - 9
    assert virtual == (3 if kind is PromptTuningConfig else 0)
    labels = torch.nn.functional.pad(all_rows()["labels"], (virtual, 0), value=IGNORE_INDEX)
    parts = cross_entropy_ntl(output.logits, make_targets(model, labels), NUMBERS, return_parts=True)
    parts.loss.backward()
    expected = {name: grad for name, grad in gradients(model).items() if grad is not None}
    if patched:
        apply_ntl_to_model(model, NUMBERS)
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS)
    assert_same_gradients(step_of(trainer), expected)
    assert log_of(trainer)["token_accuracy"] == pytest.approx(parts.token_accuracy.item(), rel=1e-5)


class TestLoggedLoss:
    """The loss of all rows, for any split into batches and steps; rows without labels do not count."""

    ROWS_WITHOUT_LABELS = 3

    def rows(self, model: Any) -> list[dict[str, Tensor]]:
        rows = to_rows(model)
        return (
            rows + [{**rows[0], "labels": torch.full_like(rows[0]["labels"], IGNORE_INDEX)}] * self.ROWS_WITHOUT_LABELS
        )

    def trainer(self, patched: bool, mean_over: str, args: Any) -> NTLTrainer:
        model, config = make_model(), NTLConfig(mean_over=mean_over)
        rows = self.rows(model)
        if patched:
            apply_ntl_to_model(model, NUMBERS, config)
        options = {"numbers": NUMBERS, "ntl_config": config, "train_dataset": InOrder(rows[:ROWS])}
        return NTLTrainer(model, args, eval_dataset={"all": rows, "few": rows[:3], "none": rows[-1:]}, **options)

    @pytest.mark.parametrize(
        ("batch", "patched", "mean_over"),
        [(1, True, "numbers"), (2, False, "tokens"), (3, False, "numbers"), (11, True, "tokens")],
    )
    def test_evaluation(self, batch: int, patched: bool, mean_over: str, tmp_path: Path) -> None:
        trainer, seen = self.trainer(patched, mean_over, arguments(tmp_path, batch, 1)), []
        model, rows = make_model(), self.rows(make_model())
        expected = {name: exact_loss(model, rows[:count], mean_over) for name, count in (("all", ROWS), ("few", 3))}
        keep_shape = lambda result: seen.append(result.predictions.shape) or {}  # noqa: E731
        for trainer.compute_metrics in (None, keep_shape):
            with pytest.raises(IndexError, match="labels must be"):  # after some batches, of which nothing remains
                trainer.evaluate([*rows[:4], {**rows[4], "labels": rows[4]["labels"] + VOCAB}])
            metrics = trainer.evaluate()
            assert math.isnan(metrics["eval_none_loss"])
            for name, value in expected.items():
                ce, ntl, loss = (metrics[f"eval_{name}_{part}"] for part in ("ce", "ntl", "loss"))
                assert [loss, ce + 0.3 * ntl] == pytest.approx([value, value], rel=1e-6)
        assert seen == [(len(rows), 9, VOCAB), (3, 9, VOCAB), (1, 9, VOCAB)]
        legacy = trainer.prediction_loop(trainer.get_eval_dataloader("all"), "Evaluation").metrics
        assert legacy["eval_loss"] == pytest.approx(expected["all"], rel=1e-6)
        for only_loss in (False, True):
            trainer.args.prediction_loss_only = only_loss
            metrics = trainer.predict(rows).metrics
            assert metrics["test_loss"] == pytest.approx(expected["all"], rel=1e-6) and metrics["test_number_mae"] > 0
        unlabelled = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        assert "test_loss" not in trainer.predict(unlabelled).metrics

    @pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
    def test_what_the_model_adds_is_weighted_by_tokens(self, patched: bool, tmp_path: Path) -> None:
        model = make_model("mixtral").eval()
        rows, added, tokens = self.rows(model), 0.0, 0
        for start in range(0, len(rows), 2):
            batch = torch.utils.data.default_collate(rows[start : start + 2])
            count = int((batch["labels"][:, 1:] != IGNORE_INDEX).sum())
            with torch.no_grad():
                added += model.router_aux_loss_coef * model(**batch).aux_loss.item() * count
            tokens += count
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        args = arguments(tmp_path, 2, 4, learning_rate=0.0)
        trainer = NTLTrainer(model, args, train_dataset=rows, eval_dataset=rows, numbers=NUMBERS)
        metrics, loss = trainer.evaluate(), model(**all_rows()).loss
        expected = metrics["eval_ce"] + 0.3 * metrics["eval_ntl"] + added / tokens
        assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)
        trainer.train()
        assert torch.equal(model.eval()(**all_rows()).loss, loss)  # not divided by the four steps
        trainer.train_dataset = [{**row, "labels": row["labels"] + VOCAB} for row in rows]
        with pytest.raises(IndexError, match="labels must be"):
            trainer.train()
        assert torch.equal(model.eval()(**all_rows()).loss, loss)

    @pytest.mark.parametrize(
        ("batch", "steps", "patched", "mean_over"),
        [(1, 1, True, "numbers"), (1, 2, False, "numbers"), (2, 1, True, "tokens"), (1, 2, True, "tokens")],
    )
    def test_training(self, batch: int, steps: int, patched: bool, mean_over: str, tmp_path: Path) -> None:
        in_one_log = {"max_steps": ROWS // batch // steps, "logging_steps": ROWS // batch // steps}
        trainer = self.trainer(patched, mean_over, arguments(tmp_path, batch, steps, learning_rate=0.0, **in_one_log))
        trainer.train()
        log, expected = log_of(trainer), exact_loss(make_model(), to_rows(make_model()), mean_over)
        assert log["ce"] + 0.3 * log["ntl"] == pytest.approx(expected, rel=1e-6)
        assert log["loss"] == pytest.approx(expected, rel=1e-6, abs=LOG_ERROR)

    def test_each_step_has_the_weight_of_its_time(self, tmp_path: Path) -> None:
        model, weights, ce, ntl, tokens, numbers = make_model(), (0.5, 0.0, 2.0, 1.0), 0.0, 0.0, 0.0, 0.0
        for step, weight in enumerate(weights):
            batch = torch.utils.data.default_collate(to_rows(model)[2 * step : 2 * step + 2])
            parts = stock_output(make_model().double(), batch)
            ce, tokens = ce + parts.cross_entropy * parts.num_tokens, tokens + parts.num_tokens
            ntl, numbers = ntl + weight * parts.ntl * parts.num_numbers, numbers + parts.num_numbers
        args = arguments(tmp_path, 2, 1, max_steps=4, logging_steps=4, learning_rate=0.0)
        schedule = lambda progress: weights[round(4 * progress)]  # noqa: E731
        options = {"train_dataset": InOrder(to_rows(model)), "numbers": NUMBERS, "ntl_weight_schedule": schedule}
        trainer = NTLTrainer(model, args, **options)
        trainer.train()
        expected = (ce / tokens + ntl / numbers).item()
        assert log_of(trainer)["loss"] == pytest.approx(expected, rel=1e-6, abs=LOG_ERROR)

    def test_step_that_the_trainer_filters(self, tmp_path: Path) -> None:
        """The loss of the second of two steps is NaN, for which the Trainer adds half of the first."""

        class NoGradients(TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
                model.zero_grad()

        model = make_model()
        rows = to_rows(model)[:4]
        expected = exact_loss(model, rows[:2])
        rows[3]["input_ids"] = torch.full_like(rows[3]["input_ids"], VOCAB - 1)
        with torch.no_grad():
            model.get_input_embeddings().weight[VOCAB - 1] = math.nan
        args = arguments(tmp_path, 2, 1, max_steps=2, logging_steps=2)
        options = {"train_dataset": InOrder(rows), "numbers": NUMBERS, "callbacks": [NoGradients()]}
        trainer = NTLTrainer(model, args, **options)
        trainer.train()
        assert log_of(trainer)["loss"] == pytest.approx(0.75 * expected, rel=1e-6, abs=LOG_ERROR)


@pytest.mark.parametrize(
    ("case", "patched", "options"),
    [
        ("llama", True, {}),
        ("llama", False, {}),
        ("llama", False, {"target_modules": ["lm_head"]}),
        ("llama-tied", False, {"trainable_token_indices": [10, 20]}),  # which also trains the head
    ],
)
def test_lora(case: str, patched: bool, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LoraConfig(r=2, init_lora_weights=False, **{"target_modules": ["q_proj", "v_proj"]} | options)
    model = get_peft_model(make_model(case), config).train()
    expected = {name: grad for name, grad in large_batch(model)[1].items() if grad is not None}
    if patched:
        apply_ntl_to_model(model, NUMBERS)
    checkpoints = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS, **checkpoints)
    assert_same_gradients(step_of(trainer), expected)


@pytest.mark.parametrize(("case", "left_out"), [("llama", ()), ("llama", ("labels",)), ("t5", ("labels",))])
def test_shifted_labels_of_the_collator(case: str, left_out: tuple[str, ...], tmp_path: Path) -> None:
    model = make_model(case)
    expected = large_batch(model)[1]
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS, remove_unused_columns=False)

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = torch.utils.data.default_collate(rows)
        batch["shift_labels"] = make_targets(model, batch["labels"])
        return {name: tensor for name, tensor in batch.items() if name not in left_out}

    trainer.data_collator = collate
    assert_same_gradients(step_of(trainer), expected, EXACT)


def test_a_model_init_may_patch_the_model(tmp_path: Path) -> None:
    rows, expected = to_rows(make_model()), large_batch(make_model())[1]
    patched = lambda: apply_ntl_to_model(make_model(), NUMBERS)  # noqa: E731
    trainer = NTLTrainer(model_init=patched, args=arguments(tmp_path, 2, 4), train_dataset=rows)
    assert_same_gradients(step_of(trainer), expected)


def test_several_answers_to_each_row_are_kept(tmp_path: Path) -> None:
    model = make_model("t5")
    args = Seq2SeqTrainingArguments(**settings(tmp_path, 3, 1, predict_with_generate=True))
    trainer = NTLSeq2SeqTrainer(model, args, numbers=NUMBERS)
    assert len(trainer.predict(to_rows(model)[:5], num_beams=2, num_return_sequences=2).predictions) == 10


def test_window_without_labels(tmp_path: Path) -> None:
    model = make_model()
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS)
    trainer.train_dataset = [{**row, "labels": torch.full_like(row["labels"], IGNORE_INDEX)} for row in to_rows(model)]
    assert not any(grad.any() for grad in step_of(trainer).values())
    log = log_of(trainer)
    assert log["loss"] == 0 and "ce" not in log


class Penalised(Trainer):
    """Changes the inputs and adds a penalty, as trainers of frameworks do."""

    PENALTY = 10.0
    calls = 0

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        self.calls += 1
        inputs = {**inputs, "input_ids": inputs["input_ids"].flip(0)}
        given = list(inputs)
        result = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        assert list(inputs) == given
        loss, outputs = result if return_outputs else (result, None)
        return (loss + self.PENALTY, outputs) if return_outputs else loss + self.PENALTY


class MixinFirst(NTLTrainerMixin, Penalised):
    """Its mixin calls the other's."""


class MixinLast(Penalised, NTLTrainer):
    """Its ``super().compute_loss`` is the mixin's."""


class TestLossOfTheirs:
    def flipped_rows(self, case: str) -> list[dict[str, Tensor]]:
        """Rows whose inputs are swapped in pairs."""
        rows = to_rows(make_model(case))
        return [{**row, "input_ids": rows[position ^ 1]["input_ids"]} for position, row in enumerate(rows)]

    def expected(self, case: str) -> tuple[Any, dict[str, Any]]:
        model = make_model(case)
        batch = torch.utils.data.default_collate(self.flipped_rows(case))
        parts = stock_output(model, batch)
        parts.loss.backward()
        return parts._replace(loss=parts.loss.detach()), gradients(model)

    @pytest.mark.parametrize(
        ("case", "cls", "patched"),
        [("llama", MixinFirst, True), ("llama", MixinLast, False), ("t5", MixinFirst, True), ("t5", MixinLast, True)],
    )
    def test_runs(self, case: str, cls: Any, patched: bool, tmp_path: Path) -> None:
        parts, expected = self.expected(case)
        model, seen = make_model(case), []
        if patched:
            apply_ntl_to_model(model, NUMBERS)
        rows = to_rows(model)
        trainer = cls(model, arguments(tmp_path, 2, 4), train_dataset=InOrder(rows), eval_dataset=rows, numbers=NUMBERS)
        for wants_logits in (False, True):
            trainer.compute_metrics = (lambda result: seen.append(result.predictions) or {}) if wants_logits else None
            metrics = trainer.evaluate()
            assert metrics["eval_loss"] == pytest.approx(parts.loss.item() + cls.PENALTY, rel=1e-5)
            assert_metrics(metrics, parts, "eval_")
        (predicted,) = [array for array in as_tuple(seen[0]) if array.shape[-1:] == (VOCAB,)]
        with torch.no_grad():
            logits = make_model(case).eval()(**torch.utils.data.default_collate(self.flipped_rows(case))).logits
        torch.testing.assert_close(torch.as_tensor(predicted), logits)
        trainer.calls = 0
        assert_same_gradients(step_of(trainer), expected, EXACT)
        assert trainer.calls == 4
        log = log_of(trainer)
        assert log["loss"] == pytest.approx(parts.loss.item() + 4 * cls.PENALTY, rel=EXACT)
        assert_metrics(log, parts)

    def test_refused_where_it_would_be_left_out(self, tmp_path: Path) -> None:
        args = arguments(tmp_path, 2, 1)
        remedies = r"class MixinFirst\(Penalised, NTLTrainer\), or patch the model with apply_ntl_to_model"
        with pytest.raises(ValueError, match=f"MixinFirst would leave out Penalised.compute_loss.*{remedies}"):
            MixinFirst(make_model(), args, numbers=NUMBERS)
        with pytest.raises(ValueError, match="would leave out Penalised.compute_loss"):
            MixinFirst(set_ntl_loss_function(make_model(), NUMBERS), args)
        trainer = MixinFirst(apply_ntl_to_model(make_model(), NUMBERS), args, train_dataset=to_rows(make_model()))
        trainer.get_cp_size = lambda: 2
        with pytest.raises(ValueError, match="would leave out Penalised.compute_loss"):
            trainer.compute_loss(trainer.model, all_rows())

    def test_model_that_is_not_run(self, tmp_path: Path) -> None:
        class Constant(Trainer):
            def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
                return torch.zeros((), requires_grad=True)

        class ConstantWithNTL(NTLTrainerMixin, Constant):
            pass

        model = apply_ntl_to_model(make_model(), NUMBERS)
        trainer = ConstantWithNTL(model, arguments(tmp_path, 2, 1), train_dataset=to_rows(model))
        with pytest.raises(RuntimeError, match="ConstantWithNTL.compute_loss did not run its model with the labels"):
            trainer.train()


def as_tuple(predictions: Any) -> tuple[Any, ...]:
    return predictions if isinstance(predictions, tuple) else (predictions,)


class TestLogs:
    def test_no_number_at_all(self, tmp_path: Path) -> None:
        """As with another tokenizer's number tokens: NaN as the error, and one warning of each kind."""
        model = make_model()
        rows = [{**row, "labels": torch.where(row["labels"] >= 0, 50, -100)} for row in to_rows(model)]
        args = arguments(tmp_path, 2, 1, max_steps=3, eval_strategy="steps", eval_steps=1)
        trainer = NTLTrainer(model, args, train_dataset=rows, eval_dataset=rows, numbers=NUMBERS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.train()
        said = [str(warning.message) for warning in caught if "is a number token" in str(warning.message)]
        assert [re.search("first logged (training|evaluation)", text)[1] for text in said] == ["training", "evaluation"]
        assert all("another tokenizer" in text and "masked" in text for text in said)
        logs = [(name, log[name]) for log in trainer.state.log_history for name in log]
        errors, shares = ([value for name, value in logs if part in name] for part in ("number_mae", "number_share"))
        assert len(errors) == 6 and all(math.isnan(error) for error in errors)
        assert shares == [0.0] * 6

    def test_attempt_that_ran_out_of_memory(self, tmp_path: Path) -> None:
        class OutOfMemory(NTLTrainer):
            steps = 0

            def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
                self.steps += 1
                loss = super().training_step(*args, **kwargs)
                if self.steps == 2:
                    raise RuntimeError("CUDA out of memory. Tried to allocate")
                return loss

        model = make_model()
        args = arguments(tmp_path, ROWS // 2, 2, auto_find_batch_size=True)
        trainer = OutOfMemory(model, args, train_dataset=InOrder(to_rows(model)), numbers=NUMBERS)
        trainer.train()
        log = log_of(trainer)
        assert trainer.steps > 3 and log["loss"] == pytest.approx(log["ce"] + 0.3 * log["ntl"], rel=1e-5)


class TestWeightSchedule:
    @pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
    def test_gradients_have_the_weight_of_their_step(self, patched: bool, tmp_path: Path) -> None:
        model, seen = make_model(), []
        weights = [0.5, 0.0, 2.0]
        expected = [large_batch(model, config=NTLConfig(weight=weight, kind="mse"))[1] for weight in weights]

        class Steps(Record):
            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                super().on_pre_optimizer_step(*args, **kwargs)
                seen.append(self.gradients)

        config, asked = NTLConfig(kind="mse"), []
        if patched:
            apply_ntl_to_model(model, NUMBERS, config)
        schedule = lambda progress: asked.append(progress) or weights[round(3 * progress)]  # noqa: E731
        trainer = NTLTrainer(
            model,
            arguments(tmp_path, 2, 4, max_steps=3, learning_rate=0.0),
            train_dataset=to_rows(model),
            numbers=NUMBERS,
            ntl_config=config,
            ntl_weight_schedule=schedule,
            callbacks=[Steps()],
        )
        tensor = trainer.ntl_weight
        trainer.train()
        for actual, gradient in zip(seen, expected, strict=True):
            assert_same_gradients(actual, gradient, EXACT)
        assert trainer.ntl_weight is tensor and trainer.ntl_options().config.weight is tensor
        assert asked[-3:] == [0, 1 / 3, 2 / 3]
        logged = [log["ntl_weight"] for log in trainer.state.log_history if "loss" in log]
        assert logged == pytest.approx(weights)


class TestErrors:
    @pytest.mark.parametrize(
        "options",
        [
            {"numbers": NumberTokens.from_mapping({1: 1.0, 2: 2.0}, VOCAB)},
            {"ntl_config": NTLConfig(weight=0.1)},
            {"z_loss": 1e-3},
            {"label_smoothing_factor": 0.1},
        ],
    )
    def test_other_options_than_the_patch(self, options: dict[str, Any], tmp_path: Path) -> None:
        model = apply_ntl_to_model(make_model(), NUMBERS)
        with pytest.raises(ValueError, match="the Trainer was given"):
            make_trainer(model, tmp_path, **options)

    def test_other_options_than_the_loss_function(self, tmp_path: Path) -> None:
        model = set_ntl_loss_function(make_model(), NUMBERS, NTLConfig(weight=1.0))
        with pytest.raises(ValueError, match="given config=.*, but set_ntl_loss_function"):
            make_trainer(model, tmp_path, numbers=NUMBERS, ntl_config=NTLConfig(weight=0.1))
        assert make_trainer(model, tmp_path).ntl_options().config.weight == 1.0

    def test_wrong_options_before_anything_else(self, tmp_path: Path) -> None:
        class Slow(Trainer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                raise AssertionError("the Trainer went to work")

        class SlowWithNTL(NTLTrainerMixin, Slow):
            pass

        with pytest.raises(ValueError, match="SlowWithNTL needs numbers=NumberTokens"):
            SlowWithNTL(make_model())
        with pytest.raises(ValueError, match="SlowWithNTL needs numbers=NumberTokens"):
            SlowWithNTL(model="the name of a model")
        with pytest.raises(TypeError, match="numbers must be NumberTokens; got list"):
            SlowWithNTL(make_model(), numbers=[1])
        with pytest.raises(ValueError, match="z_loss"):
            SlowWithNTL(make_model(), numbers=NUMBERS, z_loss=-1.0)

    def test_ulysses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """DeepSpeed's sequence parallelism: the Trainer would weight NTL by tokens."""
        trainer = Trainer(apply_ntl_to_model(make_model(), NUMBERS), arguments(tmp_path, 2, 4), train_dataset=[1])
        parallel = SimpleNamespace(sp_backend="deepspeed", sp_enabled=True)
        monkeypatch.setitem(AcceleratorState._shared_state, "parallelism_config", parallel)
        with pytest.raises(RuntimeError, match="Ulysses.*the NTL of apply_ntl_to_model"):
            trainer.model(**all_rows())
        with pytest.raises(ValueError, match="Trainer does not support DeepSpeed's sequence parallelism"):
            check_arguments("Trainer", trainer.args)

    def test_arguments(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(message: str, model: Any = None, **options: Any) -> None:
            with pytest.raises(ValueError, match=message):
                NTLTrainer(model or make_model(), arguments(tmp_path, 2, 4), **{"numbers": NUMBERS} | options)

        refused("NTLTrainer needs numbers=NumberTokens", numbers=None)
        refused("got a compute_loss_func", compute_loss_func=lambda *_: None)
        for weight in (-1.0, float("nan")):
            schedule = lambda _, weight=weight: weight  # noqa: E731
            refused(r"ntl_weight_schedule\(0\) must be finite and at least 0", ntl_weight_schedule=schedule)
        prompts = PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
        trainer = make_trainer(get_peft_model(make_model("t5"), prompts), tmp_path, numbers=NUMBERS)
        with pytest.raises(ValueError, match="PROMPT_TUNING of PeftModelForSeq2SeqLM puts virtual tokens among"):
            trainer.train()
        monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
        refused("DataParallel; got 2 GPUs")

    @pytest.mark.skipif(
        "liger-kernel >= 0.3.0 is not available" in STOCK_SOURCE,
        reason=f"the Trainer of transformers {transformers.__version__} looks for liger before its options are known",
    )
    @pytest.mark.parametrize("config", [None, {}, {"rms_norm": True}, {"fused_linear_cross_entropy": True}])
    def test_liger(self, config: Any, tmp_path: Path) -> None:
        args = arguments(tmp_path, 2, 4)
        args.use_liger_kernel, args.liger_kernel_config = True, config
        with pytest.raises(ValueError, match="'fused_linear_cross_entropy': False"):
            NTLTrainer(make_model(), args, numbers=NUMBERS)

    def test_options_of_the_configuration(self, tmp_path: Path) -> None:
        for cls in (NTLTrainer, NTLSeq2SeqTrainer):
            with pytest.raises(TypeError, match=r"argument 'weight': pass ntl_config=NTLConfig\(weight=0.5\)$"):
                cls(make_model(), arguments(tmp_path, 2, 4), numbers=NUMBERS, weight=0.5)

    @pytest.mark.parametrize(("cls", "case"), [(NTLTrainer, "llama"), (NTLSeq2SeqTrainer, "t5")])
    def test_batches_without_labels(self, cls: Any, case: str, tmp_path: Path) -> None:
        model = make_model(case)
        rows = [{"input_ids": row["input_ids"]} for row in to_rows(model)]
        args = Seq2SeqTrainingArguments(**settings(tmp_path, 2, 4))
        trainer = cls(model, args, train_dataset=rows, numbers=NUMBERS)
        said = f"{cls.__name__} needs labels in every batch; got input_ids.*the input_ids, with -100 where there is no"
        with pytest.raises(ValueError, match=said):
            trainer.train()

    @pytest.mark.parametrize(("cls", "case"), [(NTLTrainer, "llama"), (NTLSeq2SeqTrainer, "t5")])
    @pytest.mark.parametrize("form", [list, torch.tensor])
    @pytest.mark.parametrize("collator", [None, DataCollatorWithPadding, "labels alone"])
    def test_rows_that_nothing_pads(self, collator: Any, form: Any, cls: Any, case: str, tmp_path: Path) -> None:
        """In training and in evaluation; what the error recommends then works."""
        model, tokenizer = make_model(case), make_tokenizer(VOCAB)
        lengths = [(4 if collator == "labels alone" else 3 + place, 2 + place) for place in range(ROWS)]
        if case == "llama":
            lengths = [(max(pair), max(pair)) for pair in lengths]
        rows = [{"input_ids": form([20] * read), "labels": form([15] * told)} for read, told in lengths]
        args = Seq2SeqTrainingArguments(**settings(tmp_path, ROWS, 1))
        given = {"train_dataset": rows, "eval_dataset": rows, "numbers": NUMBERS}
        if collator is DataCollatorWithPadding:
            given["data_collator"] = collator(tokenizer)
        trainer = cls(model, args, **given)
        name = "DataCollatorWithPadding" if "data_collator" in given else "default_data_collator"
        said = rf"have \d to \d+ tokens, and {name} does not pad input_ids and labels: pass .*DataCollatorForSeq2Seq\("
        for run in (trainer.train, trainer.evaluate):
            with pytest.raises(ValueError, match=said):
                run()
        given["data_collator"] = DataCollatorForSeq2Seq(tokenizer)
        if form is list:
            assert cls(model, args, **given).evaluate()["eval_ce"] > 0

    def test_other_errors_of_a_collator_are_its_own(self, tmp_path: Path) -> None:
        """A tokenizer without padding, and a collator that also raises for one row."""
        rows = [{"input_ids": [20] * length, "labels": [15] * length} for length in (3, 5)]
        tokenizer = make_tokenizer(VOCAB)
        tokenizer.pad_token = None

        def broken(rows: list[Any]) -> Any:
            raise RuntimeError("of its own")

        for collator, said in ((DataCollatorForSeq2Seq(tokenizer), "does not have a padding token"), (broken, "own$")):
            trainer = make_trainer(make_model(), tmp_path, data=rows, numbers=NUMBERS)
            trainer.data_collator = collator
            with pytest.raises((RuntimeError, ValueError), match=said):
                trainer.train()
