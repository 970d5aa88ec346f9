"""`NTLSFTTrainer`: TRL's fine-tuning with the gradients of the stock forward and full logits."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainingArguments, training_args
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from ntl_kernels import NTLConfig, cross_entropy_ntl
from ntl_kernels.integrations.transformers import (
    NTLTrainerMixin,
    apply_ntl_to_model,
    remove_ntl_from_model,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.trl import NTLSFTTrainer

from ..versions import has, needs
from .models import NUMBERS, VOCAB, assert_same_gradients, make_model, make_targets
from .training import LOG_ERROR, ROWS, all_rows, large_batch, log_of, settings, step_of


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")  # otherwise, TRL reports its use over the network


def make_tokenizer() -> Any:
    """A word for each id of the tiny models."""
    vocabulary = {f"w{token}": token for token in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    names = ["input_ids", "attention_mask"]  # Llama does not accept token_type_ids, an older default
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **special)


def make_dataset(weighted: bool = False) -> Dataset:
    """The rows of `all_rows`, tokenized, with their labels."""
    batch = all_rows(weighted)
    lengths = batch.pop("attention_mask").sum(1).tolist()
    return Dataset.from_list(
        [{name: batch[name][row, :length].tolist() for name in batch} for row, length in enumerate(lengths)]
    )


def make_trainer(
    model: Any, folder: Path, batch: int = 2, steps: int = 4, cls: Any = NTLSFTTrainer, **options: Any
) -> NTLSFTTrainer:
    names = ("numbers", "ntl_config", "peft_config", "compute_metrics", "data_collator")
    keywords = {name: options.pop(name) for name in names if name in options}
    defaults = {"bf16": False, "gradient_checkpointing": False}
    data = make_dataset(options.pop("weighted", False))
    if options.pop("streamed", False):
        data = data.to_iterable_dataset().map(lambda row: row)  # whose columns are unknown
    args = SFTConfig(**settings(folder, batch, steps, **(defaults | options)))
    return cls(model, args, train_dataset=data, eval_dataset=data, processing_class=make_tokenizer(), **keywords)


@pytest.mark.parametrize(("case", "patched"), [("llama-tied", True), ("gemma2", True), ("gemma2", False)])
def test_four_steps_equal_one_batch(case: str, patched: bool, tmp_path: Path) -> None:
    model = make_model(case)
    config = NTLConfig(kind="mse", weight=0.05)
    parts, expected = large_batch(model, config=config)
    if patched:
        apply_ntl_to_model(model, NUMBERS, config)
    trainer = make_trainer(model, tmp_path, numbers=NUMBERS, ntl_config=config)
    assert_same_gradients(step_of(trainer), expected, 1e-6)
    log = log_of(trainer)
    assert log["loss"] == pytest.approx(parts.loss.item(), rel=1e-6, abs=LOG_ERROR)
    expected_log = {
        "ce": parts.cross_entropy,
        "ntl": parts.ntl,
        "token_accuracy": parts.token_accuracy,
        "mean_token_accuracy": parts.token_accuracy,
        "number_mae": parts.number_mae,
        "num_tokens": all_rows()["attention_mask"].sum(),
    }
    for name, value in expected_log.items():
        assert log[name] == pytest.approx(value.item(), rel=1e-5), name


def test_lora(tmp_path: Path) -> None:
    """TRL wraps the patched model by itself."""
    config = LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    model = apply_ntl_to_model(make_model(), NUMBERS)
    trainer = make_trainer(model, tmp_path, peft_config=config, learning_rate=0.0)
    actual = step_of(trainer)
    remove_ntl_from_model(trainer.model)
    trainer.model.zero_grad(set_to_none=True)
    expected = {name: grad for name, grad in large_batch(trainer.model)[1].items() if grad is not None}
    assert_same_gradients(actual, expected)


@pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
def test_evaluation(patched: bool, tmp_path: Path) -> None:
    model = make_model()
    parts = large_batch(model)[0]
    if patched:
        apply_ntl_to_model(model, NUMBERS)
    seen: list[Any] = []
    trainer = make_trainer(model, tmp_path, 3, 1, numbers=NUMBERS)
    names: set[str] = set()
    model.register_forward_pre_hook(lambda _, args, given: names.update(given), with_kwargs=True)
    for wants_logits in (False, True):
        trainer.compute_metrics = (lambda result: seen.append(result.predictions) or {}) if wants_logits else None
        metrics = trainer.evaluate()
        assert metrics["eval_loss"] == pytest.approx(parts.loss.item(), rel=1e-5)
        assert metrics["eval_number_mae"] == pytest.approx(parts.number_mae.item(), rel=1e-5)
        assert metrics["eval_mean_token_accuracy"] == pytest.approx(parts.token_accuracy.item(), rel=1e-5)
    assert seen[0].shape == (ROWS, 9, VOCAB)
    assert names <= {*inspect.signature(model.forward).parameters, "skip_logits"}


@needs("trl", 1, to="set the factor of the auxiliary loss")
@pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
def test_auxiliary_loss_has_the_factor_of_the_configuration(patched: bool, tmp_path: Path) -> None:
    model = make_model("mixtral")
    output = model(**all_rows())
    targets = make_targets(model, all_rows()["labels"])
    expected = cross_entropy_ntl(output.logits, targets, NUMBERS) + 0.7 * output.aux_loss
    if patched:
        apply_ntl_to_model(model, NUMBERS)
    trainer = make_trainer(model, tmp_path, ROWS, 1, numbers=NUMBERS, router_aux_loss_coef=0.7)
    trainer.train()
    log = log_of(trainer)
    assert log["loss"] == pytest.approx(expected.item(), rel=1e-5)


@needs("trl", 1, to="put a fused head of its own on models")
@pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
def test_stock_trainer_is_refused(put: Any, tmp_path: Path) -> None:
    """Its fused head replaces the model's forward, and would train plain cross-entropy."""
    args = SFTConfig(**settings(tmp_path, 2, 1, bf16=False, gradient_checkpointing=False))
    trainer = SFTTrainer(
        put(make_model(), NUMBERS), args, train_dataset=make_dataset(), processing_class=make_tokenizer()
    )
    with pytest.raises(
        RuntimeError, match=rf"ran without the loss of {put.__name__}: its forward is trl.*NTLSFTTrainer"
    ):
        trainer.train()


PREFERENCES = [{"prompt": "w5 w6", "chosen": "w10 w11", "rejected": "w12 w13"}] * 4


def preference_trainer(cls: Any, model: Any, folder: Path) -> Any:
    args = settings(folder / "run", 2, 1, bf16=False, gradient_checkpointing=False)
    common = {"processing_class": make_tokenizer(), "train_dataset": Dataset.from_list(PREFERENCES)}
    if cls is DPOTrainer:
        return DPOTrainer(model, args=DPOConfig(**args), **common)
    args |= {"num_generations": 2, "max_completion_length": 3}
    rewards = lambda completions, **_: [float(position) for position in range(len(completions))]  # noqa: E731
    return GRPOTrainer(model, reward_funcs=rewards, args=GRPOConfig(**args), **common)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [DPOTrainer, GRPOTrainer])
@pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
def test_trainers_without_a_place_for_ntl(put: Any, cls: Any, tmp_path: Path) -> None:
    """The error names a remedy that applies to them, and it helps."""
    make_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    model = put(AutoModelForCausalLM.from_pretrained(tmp_path), NUMBERS)
    if has("trl", 1, 15):  # earlier versions pass no labels, which goes undetected
        with pytest.raises(
            RuntimeError, match=r"DPO, GRPO and others have no .*: call remove_ntl_from_model\(model\) for"
        ):
            preference_trainer(cls, model, tmp_path).train()
    model = put(AutoModelForCausalLM.from_pretrained(tmp_path), NUMBERS)
    remove_ntl_from_model(model)
    assert preference_trainer(cls, model, tmp_path).train().global_step == 1


@pytest.mark.parametrize("patched", [True, False], ids=["hidden states", "logits"])
@pytest.mark.parametrize("given", [None, TrainingArguments, SFTConfig, partial(SFTConfig, loss_type="chunked_nll")])
def test_arguments_that_do_not_select_a_loss(
    given: Any, patched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, TRL 1.7 to 1.14 replace the model's forward by one that computes cross-entropy in chunks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)  # which TRL's own arguments query
    model = make_model()
    expected = large_batch(model)[0].loss.item()
    if patched:
        apply_ntl_to_model(model, NUMBERS)
    args = given and given("out", report_to=[], bf16=False, use_cpu=True)
    before = args and vars(args).copy()
    data, tokenizer = make_dataset(), make_tokenizer()
    trainer = NTLSFTTrainer(
        model, args, train_dataset=data, eval_dataset=data, processing_class=tokenizer, numbers=NUMBERS
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5 if given else 2e-2)  # or bfloat16
    assert args is None or vars(args) == before
    assert Path(trainer.args.output_dir).name == ("out" if given else "-SFT")


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    with pytest.raises(ValueError, match="activation_offloading=True moves activations from a GPU.*there is none"):
        make_trainer(make_model("llama-tied"), tmp_path, numbers=NUMBERS, activation_offloading=True)
    with pytest.raises(ValueError, match="loss_type='nll'; got 'dft'"):
        make_trainer(make_model(), tmp_path, numbers=NUMBERS, loss_type="dft")
    trainer = make_trainer(apply_ntl_to_model(make_model(), NUMBERS), tmp_path)
    trainer.model.forward = lambda **_: {"loss": torch.zeros(())}
    with pytest.raises(RuntimeError, match="ran without the loss of apply_ntl_to_model"):
        trainer.train()


def test_compute_loss_of_theirs(tmp_path: Path) -> None:
    """SFTTrainer's own is replaced, one between it and the mixin is not: behind it, NTL is its super()."""

    class Penalised(SFTTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs) + 10.0

    class MixinFirst(NTLTrainerMixin, Penalised):
        pass

    class MixinBehind(Penalised, NTLSFTTrainer):
        pass

    parts, expected = large_batch(make_model())
    for put in (lambda model, _: model, apply_ntl_to_model):
        with pytest.raises(ValueError, match=r"leave out Penalised.compute_loss.*\(Penalised, NTLSFTTrainer\)$"):
            make_trainer(put(make_model(), NUMBERS), tmp_path, cls=MixinFirst, loss_type="nll", numbers=NUMBERS)
        trainer = make_trainer(put(make_model(), NUMBERS), tmp_path, cls=MixinBehind, loss_type="nll", numbers=NUMBERS)
        assert_same_gradients(step_of(trainer), expected, 1e-6)
        log = log_of(trainer)
        assert log["loss"] == pytest.approx(parts.loss.item() + 40, rel=1e-6)
