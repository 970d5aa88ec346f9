"""The stock `Trainer` with `ntl_compute_loss_func` or `set_ntl_loss_function`."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import BartConfig, BartForCausalLM, Trainer
from transformers.modeling_outputs import CausalLMOutputWithPast

from ntl_kernels import NTLConfig
from ntl_kernels.config import DEFAULT_CONFIG
from ntl_kernels.integrations.transformers import (
    apply_ntl_to_model,
    ntl_compute_loss_func,
    ntl_loss_function,
    remove_ntl_from_model,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.transformers.targets import warn_once

from .models import NUMBERS, assert_same_gradients, gradients, make_batch, make_model, make_targets, stock_output
from .training import ROWS, arguments, counts_targets, large_batch, log_of, step_of, to_rows

CAUSAL = ("llama-tied", "gemma2", "cohere", "granite", "gpt2", "phi")


@pytest.mark.parametrize("case", CAUSAL)
def test_loss_function(case: str) -> None:
    model, batch = make_model(case), make_batch()
    exact, options = copy.deepcopy(model).double(), {"config": NTLConfig(kind="mse"), "z_loss": 1e-2}
    expected = stock_output(exact, batch, label_smoothing=0.1, **options).loss
    expected.backward()
    expected_gradients, expected = gradients(exact), expected.detach().float()
    model.loss_function = ntl_loss_function(NUMBERS, NTLConfig(kind="mse"), label_smoothing=0.1, z_loss=1e-2)
    loss = model(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert_same_gradients(gradients(model), expected_gradients)
    targets = make_targets(model, batch["labels"])
    torch.testing.assert_close(model.eval()(**batch, shift_labels=targets).loss, expected)


@pytest.mark.parametrize(
    "install", [apply_ntl_to_model, set_ntl_loss_function, ntl_loss_function, ntl_compute_loss_func]
)
def test_an_option_of_the_configuration_is_told_where_it_belongs(install: Any) -> None:
    given = (make_model(), NUMBERS) if install in (apply_ntl_to_model, set_ntl_loss_function) else (NUMBERS,)
    with pytest.raises(TypeError, match=r"argument 'weight': pass config=NTLConfig\(weight=0.5\)$"):
        install(*given, weight=0.5)


def test_loss_function_denominators() -> None:
    model, batch = make_model(), make_batch()
    model.loss_function = ntl_loss_function(NUMBERS)
    expected = stock_output(model, batch, num_tokens=50, num_numbers=20).loss
    given = {"num_items_in_batch": torch.tensor([50]), "num_numbers_in_batch": 20}
    torch.testing.assert_close(model(**batch, **given).loss, expected)
    parts = stock_output(model, batch)
    share = parts.num_tokens / 50
    for count in (50, np.int64(50), np.float32(50)):
        torch.testing.assert_close(model(**batch, num_items_in_batch=count).loss, parts.loss * share)
    model = make_model("mixtral")  # which adds its router loss
    expected = stock_output(model, batch).loss
    model.loss_function = ntl_loss_function(NUMBERS)
    torch.testing.assert_close(model(**batch).loss, expected)


def test_loss_function_by_position_and_name() -> None:
    logits, labels = torch.randn(2, 5, 97), make_batch()["labels"][:2, :5]
    function = pickle.loads(pickle.dumps(copy.deepcopy(ntl_loss_function(NUMBERS))))
    expected = function(logits, labels, 97)
    assert torch.equal(function(logits=logits, labels=labels, vocab_size=97, output_attentions=True), expected)
    unshifted = ntl_loss_function(NUMBERS, shift=False)
    assert torch.equal(unshifted(logits, torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)), expected)
    with pytest.raises(ValueError, match="needs labels or shift_labels"):
        function(logits, None)
    with pytest.raises(ValueError, match="ignore_index=7"):
        function(logits, labels, ignore_index=7)
    with pytest.raises(ValueError, match="one element"):
        function(logits, labels, num_items_in_batch=torch.ones(2))


def test_a_count_of_numbers_needs_that_of_tokens() -> None:
    batch = make_batch()
    for put in (apply_ntl_to_model, set_ntl_loss_function):
        model = put(make_model(), NUMBERS)
        with pytest.raises(ValueError, match="num_numbers_in_batch was passed without num_items_in_batch"):
            model(**batch, num_numbers_in_batch=5)
        expected = put(model, NUMBERS, NTLConfig(mean_over="tokens"))(**batch).loss
        torch.testing.assert_close(model(**batch, num_numbers_in_batch=5).loss, expected)


def small_bart() -> Any:
    sizes = {"vocab_size": 97, "d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "dropout": 0.0}
    return BartForCausalLM(BartConfig(**sizes, is_decoder=True, is_encoder_decoder=False))


class TestSetLossFunction:
    def test_on_a_model_and_inside_peft(self) -> None:
        batch, config = make_batch(), NTLConfig(kind="mse")
        expected = stock_output(make_model(), batch, config=config, label_smoothing=0.1).loss
        model = make_model()
        assert set_ntl_loss_function(model, NUMBERS, config, label_smoothing=0.1) is model
        torch.testing.assert_close(model(**batch).loss, expected)
        torch.testing.assert_close(copy.deepcopy(model).eval()(**batch).loss, expected)
        wrapped = get_peft_model(make_model(), LoraConfig(r=2, target_modules=["q_proj"])).train()
        set_ntl_loss_function(wrapped, NUMBERS, config, label_smoothing=0.1)
        torch.testing.assert_close(wrapped(**batch).loss, expected)  # a new adapter changes nothing

    def test_remove_and_replace(self) -> None:
        model, batch = make_model(), make_batch()
        expected, attributes = model(**batch).loss, set(model.__dict__)
        for put, has_logits in ((set_ntl_loss_function, True), (apply_ntl_to_model, False)) * 2:
            put(model, NUMBERS)
            assert (model(**batch).logits is not None) == has_logits
            assert len(model._forward_hooks) == 1
        remove_ntl_from_model(set_ntl_loss_function(model, NUMBERS))
        assert torch.equal(model(**batch).loss, expected)
        assert set(model.__dict__) == attributes and not model._forward_hooks

    def test_forward_without_it(self) -> None:
        model, bart = set_ntl_loss_function(make_model(), NUMBERS), small_bart()
        assert model(**make_batch()).loss > 0  # computed it once
        model.forward = lambda input_ids, labels, **_: CausalLMOutputWithPast(logits=torch.zeros(1))
        said = "ran without the loss of set_ntl_loss_function: its forward is"
        for each, forward in ((model, "tests"), (model.eval(), "tests"), (make_model("t5"), ""), (bart, "")):
            with pytest.raises(RuntimeError, match=f"{type(each).__name__} {said} {forward}.*apply_ntl_to_model"):
                set_ntl_loss_function(each, NUMBERS, shift=False)(**make_batch())


@counts_targets
@pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
def test_stock_trainer(put: Any, tmp_path: Any) -> None:
    expected = large_batch(make_model(), label_smoothing=0.1)[1]
    model = put(make_model(), NUMBERS, label_smoothing=0.1)
    trainer = Trainer(model, arguments(tmp_path, batch=ROWS, steps=1), train_dataset=to_rows(model))
    assert_same_gradients(step_of(trainer), expected)


def test_stock_trainer_accumulates_a_patched_t5(tmp_path: Any) -> None:
    """Cross-entropy is divided by the tokens of the window, whose count T5's own loss ignores."""
    config = NTLConfig(weight=0.0)
    expected = large_batch(make_model("t5"), config=config)[1]
    model = apply_ntl_to_model(make_model("t5"), NUMBERS, config)
    rows = to_rows(model)
    trainer = Trainer(model, arguments(tmp_path, batch=2, steps=4), train_dataset=rows, eval_dataset=rows)
    assert_same_gradients(step_of(trainer), expected, 1e-6)
    assert trainer.evaluate()["eval_loss"] > 0
    remove_ntl_from_model(model)
    assert "accepts_loss_kwargs" not in model.__dict__


class TestNumbersThatNobodyCounted:
    """The stock Trainer counts only the tokens of a window."""

    @pytest.fixture(autouse=True)
    def _always(self) -> Iterator[None]:
        warn_once.cache_clear()
        with warnings.catch_warnings(record=True) as self.caught:
            warnings.simplefilter("always")
            yield

    def said(self) -> int:
        return sum("without num_numbers_in_batch" in str(warning.message) for warning in self.caught)

    def install(self, road: str, config: NTLConfig = DEFAULT_CONFIG) -> tuple[Any, Any]:
        """(model, loss function or None)"""
        model = make_model()
        if road == "compute_loss_func":
            return model, ntl_compute_loss_func(NUMBERS, config)
        put = {"hidden states": apply_ntl_to_model, "loss function": set_ntl_loss_function}[road]
        return put(model, NUMBERS, config), None

    ROADS = pytest.mark.parametrize("road", ["hidden states", "loss function", "compute_loss_func"])

    @ROADS
    @pytest.mark.parametrize(("steps", "expected"), [(4, 1), pytest.param(1, 0, marks=counts_targets)])
    def test_warns_once_where_a_batch_is_a_part(self, road: str, steps: int, expected: int, tmp_path: Any) -> None:
        model, function = self.install(road)
        args = arguments(tmp_path, ROWS // steps, steps, max_steps=2)
        trainer = Trainer(model, args, train_dataset=to_rows(model) * 2, compute_loss_func=function)
        for _ in range(2):
            trainer.train()
            assert self.said() == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
    def test_compiled(self, put: Any) -> None:
        """Without a graph break, and with the same loss."""
        model = make_model(num_hidden_layers=1)
        batch = {**make_batch(), "use_cache": False}  # torch 2.8 cannot trace the cache of transformers 5
        expected = put(model, NUMBERS)(**batch, num_items_in_batch=torch.tensor(100)).loss
        assert self.said() == 1
        warn_once.cache_clear()
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(3):
            loss = compiled(**batch, num_items_in_batch=torch.tensor(100)).loss
            torch.testing.assert_close(loss, expected)
        assert self.said() == 2

    @ROADS
    @counts_targets
    def test_mean_over_tokens_accumulates_exactly(self, road: str, tmp_path: Any) -> None:
        config = NTLConfig(mean_over="tokens", weight=2.0)
        parts, expected = large_batch(make_model(), config=config)
        model, function = self.install(road, config)
        args = arguments(tmp_path, batch=2, steps=4)
        trainer = Trainer(model, args, train_dataset=to_rows(model), compute_loss_func=function)
        assert_same_gradients(step_of(trainer), expected, 1e-6)
        assert self.said() == 0
        assert log_of(trainer)["loss"] == pytest.approx(parts.loss.item(), rel=1e-6)


def test_compute_loss_func_of_a_class_that_does_not_tell() -> None:
    """Bart's decoder computes its cross-entropy itself; GPT-2 has the same class of outputs, but shifts labels."""
    model, batch = small_bart(), make_batch()
    output = model(**batch)
    for options in ({}, {"model": model}):
        with pytest.raises(ValueError, match="CrossAttentions does not indicate whether labels .*: pass model"):
            ntl_compute_loss_func(NUMBERS, **options)(output, batch["labels"])
    function = ntl_compute_loss_func(NUMBERS, NTLConfig(weight=0.0), model=model, shift=False)
    torch.testing.assert_close(function(output, batch["labels"]), output.loss)


@counts_targets
@pytest.mark.parametrize("case", ["llama", "gpt2", "t5"])
def test_compute_loss_func_in_one_batch(case: str, tmp_path: Any) -> None:
    model = make_model(case)
    rows = to_rows(model, decoder_inputs=True)
    function = ntl_compute_loss_func(NUMBERS, model=model, label_smoothing=0.1)
    expected_gradients = large_batch(model, label_smoothing=0.1)[1]
    trainer = Trainer(model, arguments(tmp_path, batch=ROWS, steps=1), train_dataset=rows, compute_loss_func=function)
    trainer._loss_shifts_labels = case != "t5"  # the stock Trainer also counts GPT-2's first tokens
    assert_same_gradients(step_of(trainer), expected_gradients)


@pytest.mark.filterwarnings("ignore:num_items_in_batch was passed")
def test_a_batch_without_labels_adds_nothing_to_its_window() -> None:
    logits, labels = torch.randn(1, 4, 97), torch.full((1, 4), -100)
    assert ntl_loss_function(NUMBERS)(logits, labels, num_items_in_batch=8) == 0


def test_compute_loss_func_needs_the_factor_of_auxiliary_losses() -> None:
    model, batch = make_model("mixtral"), make_batch()
    expected = stock_output(model, batch).loss
    labels = batch.pop("labels")
    with pytest.raises(ValueError, match="aux_loss_coef"):
        ntl_compute_loss_func(NUMBERS)(model(**batch), labels)
    actual = ntl_compute_loss_func(NUMBERS, aux_loss_coef=0.1)(model(**batch), labels)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ntl_compute_loss_func(NUMBERS, model=model)(model(**batch), labels), expected)
    without = ntl_compute_loss_func(NUMBERS, model=model, aux_loss_coef=0.0)(model(**batch), labels)
    torch.testing.assert_close(without, expected - 0.1 * model(**batch).aux_loss)
    with pytest.raises(ValueError, match="tuple does not indicate whether labels must be shifted"):
        ntl_compute_loss_func(NUMBERS)((labels,), labels)
    with pytest.raises(ValueError, match="returned no logits"):
        ntl_compute_loss_func(NUMBERS, shift=True)({"loss": labels}, labels)


@pytest.mark.parametrize("factory", [ntl_loss_function, ntl_compute_loss_func])
def test_bad_options(factory: Any) -> None:
    with pytest.raises(TypeError, match="numbers must be NumberTokens; got list"):
        factory([1, 2])
    with pytest.raises(TypeError, match="config must be an NTLConfig"):
        factory(NUMBERS, 0.3)
    with pytest.raises(ValueError, match="label_smoothing"):
        factory(NUMBERS, label_smoothing=-0.1)
