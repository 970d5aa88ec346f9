"""`apply_ntl_to_model`: the loss and every gradient of the stock forward with full logits, and nothing else changed."""

from __future__ import annotations

import copy
import inspect
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.integrations.transformers import (
    LogitTransform,
    apply_ntl_to_model,
    probes,
    remove_ntl_from_model,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.transformers.forwards import INSTALLED

from ..versions import needs
from .models import (
    CASES,
    NUMBERS,
    VOCAB,
    OfOthers,
    assert_same_gradients,
    gradients,
    make_batch,
    make_model,
    make_targets,
    stock_output,
)

OPTIONS = {"config": NTLConfig(kind="huber", weight=0.7), "label_smoothing": 0.1, "z_loss": 1e-2}
FEW = ("llama", "gemma2", "t5")


def stock_loss_and_gradients(model: Any, batch: dict[str, Tensor], **options: Any) -> tuple[Tensor, dict[str, Any]]:
    loss = stock_output(model, batch, **options).loss
    loss.backward()
    return loss.detach(), gradients(model)


def loss_and_gradients(model: Any, batch: dict[str, Tensor], **keywords: Any) -> tuple[Tensor, dict[str, Any]]:
    output = model(**batch, **keywords)
    assert output.logits is None
    output.loss.backward()
    return output.loss.detach(), gradients(model)


def evaluate(model: Any, batch: dict[str, Tensor]) -> Any:
    """The output of an evaluation."""
    with torch.no_grad():
        return model.eval()(**batch)


def assert_matches_stock(model: Any, batch: dict[str, Tensor], reference: Any, **options: Any) -> None:
    """The patched model against an unpatched one of the same weights."""
    expected_loss, expected = stock_loss_and_gradients(reference, batch, **options)
    loss, actual = loss_and_gradients(model, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert_same_gradients(actual, expected)


@pytest.mark.parametrize(("case", "options"), [(case, (OPTIONS, {})[place % 2]) for place, case in enumerate(CASES)])
def test_loss_and_gradients_equal_stock(case: str, options: dict[str, Any]) -> None:
    """In training mode, and in evaluation mode, in which `from_pretrained` returns models that loops then train."""
    model = make_model(case).train(bool(options))
    reference = copy.deepcopy(model)
    assert apply_ntl_to_model(model, NUMBERS, **options, chunk_size=5) is model
    assert_matches_stock(model, make_batch(), reference, **options)
    assert not any(part.requires_grad for part in getattr(model, INSTALLED).parts)


def test_shift_labels() -> None:
    model, batch = make_model(), make_batch()
    expected, targets = stock_output(model, batch).loss, make_targets(model, batch["labels"])
    apply_ntl_to_model(model, NUMBERS)
    for labels in (None, torch.randint(3, VOCAB, targets.shape)):  # shift_labels win, as in the stock loss
        torch.testing.assert_close(model(**batch | {"labels": labels}, shift_labels=targets).loss, expected)


@pytest.mark.parametrize("case", FEW)
def test_arguments_by_position_and_tuples(case: str) -> None:
    model, batch = make_model(case), make_batch()
    expected = stock_output(model, batch).loss
    apply_ntl_to_model(model, NUMBERS)
    output = model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"], return_dict=False)
    assert isinstance(output, tuple)
    torch.testing.assert_close(output[0], expected)
    if case == "t5":
        decoded = model(**batch, decoder_input_ids=model._shift_right(batch["labels"]).flip(0)).loss
        assert not torch.isclose(decoded, expected)  # the caller's are used
    with pytest.raises(TypeError, match="by position and by name"):
        model(batch["input_ids"], input_ids=batch["input_ids"], labels=batch["labels"])


def test_batches_with_little_in_them() -> None:
    model, batch = make_model(), make_batch()
    reference = copy.deepcopy(model)
    apply_ntl_to_model(model, NUMBERS)
    without_numbers = torch.where(batch["labels"] >= 0, 50, batch["labels"])
    assert_matches_stock(model, batch | {"labels": without_numbers}, reference)
    loss, actual = loss_and_gradients(model, batch | {"labels": torch.full_like(without_numbers, -100)})
    assert loss == 0
    assert all(grad is not None and not grad.any() for grad in actual.values())


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = result if isinstance(result, (tuple, list)) else [result]
        self.elements = max([self.elements, *(t.numel() for t in tensors if isinstance(t, Tensor))])
        return result


def test_logits_are_never_held() -> None:
    model, batch = make_model(), make_batch(rows=16, length=20)
    logits = batch["labels"].numel() * VOCAB
    with LargestTensor() as stock:
        stock_output(model, batch).loss.backward()
    apply_ntl_to_model(model, NUMBERS, chunk_size=8)
    with LargestTensor() as fused:
        model(**batch).loss.backward()
    assert stock.elements >= logits > fused.elements


@pytest.mark.parametrize("case", FEW)
def test_all_but_training_is_unchanged(case: str) -> None:
    model, batch = make_model(case), make_batch()
    reference = copy.deepcopy(model)
    apply_ntl_to_model(model, NUMBERS)
    unlabelled = {name: tensor for name, tensor in batch.items() if name != "labels"}
    if case == "t5":
        unlabelled["decoder_input_ids"] = batch["input_ids"]
    assert torch.equal(model(**unlabelled).logits, reference(**unlabelled).logits)
    model.eval(), reference.eval()
    for no_gradients in (torch.no_grad, torch.inference_mode):
        with no_gradients():
            output, expected = model(**batch), reference(**batch)
            assert torch.equal(output.loss, expected.loss)
            assert torch.equal(output.logits, expected.logits)
    generated = {"max_new_tokens": 4, "do_sample": False}
    inputs = {"input_ids": batch["input_ids"][:, :4]}
    assert torch.equal(model.generate(**inputs, **generated), reference.generate(**inputs, **generated))


@pytest.mark.parametrize("case", FEW)
def test_skip_logits(case: str) -> None:
    model, batch = make_model(case).eval(), make_batch()
    expected = stock_output(model, batch, num_tokens=40, num_numbers=17).loss
    apply_ntl_to_model(model, NUMBERS)
    counts = {"num_items_in_batch": 40, "num_numbers_in_batch": 17}
    for keyword in ({"skip_logits": True}, {}):  # the count of numbers alone also requests it
        output = evaluate(model, {**batch, **counts, **keyword})
        assert output.logits is None
        torch.testing.assert_close(output.loss, expected)
    with pytest.raises(ValueError, match="needs labels"):
        model(batch["input_ids"], skip_logits=True)
    with pytest.raises(ValueError, match="skip_logits=False"):
        model.train()(**batch, skip_logits=False)


@pytest.mark.parametrize("case", FEW)
def test_remove(case: str) -> None:
    model, batch = make_model(case), make_batch()
    if case == "gemma2":
        model.loss_function = lambda logits, labels, vocab_size, **_: logits.mean()
    untouched = {name: set(module.__dict__) for name, module in model.named_modules()}
    expected, names = model(**batch).loss, list(inspect.signature(model.forward).parameters)
    apply_ntl_to_model(model, NUMBERS)
    apply_ntl_to_model(model, NUMBERS, NTLConfig(weight=0.0))  # once more replaces the first
    patched = list(inspect.signature(model.forward).parameters)
    assert [name for name in patched if name != "number_weights"] == names and patched != names
    if case != "gemma2":
        torch.testing.assert_close(model(**batch).loss, expected)
    torch.testing.assert_close(evaluate(model, batch).loss, expected)  # also with the user's own loss function
    for _ in range(2):
        remove_ntl_from_model(model.train())
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == untouched
    assert torch.equal(model(**batch).loss, expected)


def test_beneath_a_wrapper() -> None:
    model, batch = make_model(), make_batch()
    expected = model(**batch).loss
    apply_ntl_to_model(model, NUMBERS)
    inner, patched = model.forward, model(**batch).loss
    model.forward = lambda *args, **kwargs: inner(*args, **kwargs)  # as accelerate does for mixed precision
    with pytest.raises(ValueError, match="forward of .* has already been replaced by tests.integrations"):
        apply_ntl_to_model(model, NUMBERS, NTLConfig(weight=1.0))
    assert torch.equal(model(**batch).loss, patched)
    remove_ntl_from_model(model)
    assert torch.equal(model(**batch).loss, expected)
    output = set_ntl_loss_function(model, NUMBERS)(**batch)
    torch.testing.assert_close(output.loss, patched)
    assert output.logits is not None


@pytest.mark.parametrize("case", FEW)
def test_deepcopy_is_independent(case: str) -> None:
    model, batch = make_model(case), make_batch()
    apply_ntl_to_model(model, NUMBERS)
    model(**batch)
    clone = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    reference = make_model(case)
    assert_matches_stock(clone, batch, reference)
    assert all(parameter.grad is None for parameter in model.parameters())
    remove_ntl_from_model(model)
    assert clone(**batch).logits is None


def test_save_and_load(tmp_path: Path) -> None:
    model, batch = make_model("llama-tied"), make_batch()
    keys, config = list(model.state_dict()), model.config.to_dict()
    apply_ntl_to_model(model, NUMBERS)
    expected = model(**batch).loss
    assert list(model.state_dict()) == keys
    assert model.config.to_dict() == config
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    assert type(loaded) is type(model)
    assert loaded(**batch).logits is not None
    torch.testing.assert_close(apply_ntl_to_model(loaded, NUMBERS)(**batch).loss, expected)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(**batch).loss, expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("case", FEW)
def test_gradient_checkpointing(case: str, use_reentrant: bool) -> None:
    model = make_model(case)
    reference = copy.deepcopy(model)
    apply_ntl_to_model(model, NUMBERS)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    assert_matches_stock(model, make_batch(), reference)


@pytest.mark.parametrize(
    ("case", "dtype", "autocast", "tolerance"),
    [
        *((case, torch.float32, True, 2e-2) for case in FEW),
        ("gemma2", torch.bfloat16, False, 2e-2),
        ("gemma2", torch.float64, False, 1e-9),
    ],
)
def test_other_precisions(case: str, dtype: torch.dtype, autocast: bool, tolerance: float) -> None:
    model, batch = make_model(case).to(dtype), make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        expected = stock_output(model, batch).loss
        loss = apply_ntl_to_model(model, NUMBERS)(**batch).loss
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("case", ["granite", "t5"])
def test_compile_without_graph_breaks(case: str) -> None:
    model, batch = make_model(case, num_hidden_layers=1), make_batch()
    reference = copy.deepcopy(model)
    apply_ntl_to_model(model, NUMBERS)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected_loss, expected = stock_loss_and_gradients(reference, batch)
    loss = compiled(**batch).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected_loss, rtol=1e-5, atol=0)
    assert_same_gradients(gradients(model), expected)


@pytest.mark.slow
def test_compiled_model_of_another_transform_gives_nan() -> None:
    model = make_model("gemma2", num_hidden_layers=1)
    apply_ntl_to_model(model, NUMBERS, transform=LogitTransform(softcap=2.1))
    torch._dynamo.reset()
    assert torch.compile(model, backend="eager", fullgraph=True)(**make_batch()).loss.isnan()


class TestBypass:
    """Bypassing the patch in a forward pass that trains is an error, not plain cross-entropy."""

    def replace(self, model: Any) -> None:
        model.forward = MethodType(type(model).forward, model)  # as Liger and TRL do, with forwards of their own

    @pytest.mark.parametrize("by_position", [False, True])
    def test_replaced_forward(self, by_position: bool) -> None:
        model, batch = apply_ntl_to_model(make_model(), NUMBERS).train(by_position), make_batch()
        assert model(**batch).logits is None  # computed the loss once
        self.replace(model)
        args = (batch["input_ids"], batch["attention_mask"], None, None, None, batch["labels"]) if by_position else ()
        with pytest.raises(RuntimeError, match="ran without the loss of apply_ntl_to_model: its forward is transform"):
            model(*args, **({} if by_position else batch))
        assert evaluate(model, batch).logits is not None
        assert model.train()(batch["input_ids"]).logits is not None
        remove_ntl_from_model(model)
        assert model(**batch).logits is not None

    def test_beneath_peft_and_in_a_copy(self) -> None:
        model = apply_ntl_to_model(make_model(), NUMBERS)
        wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).train()
        self.replace(wrapped.get_base_model())
        for bypassed in (wrapped, copy.deepcopy(wrapped)):
            with pytest.raises(RuntimeError, match="ran without the loss of apply_ntl_to_model"):
                bypassed(**make_batch())

    def test_labels_that_a_trainer_keeps_back(self) -> None:
        batch = make_batch()
        del batch["labels"]
        for case in ("llama", "t5"):
            model = apply_ntl_to_model(make_model(case), NUMBERS)
            extra = {"decoder_input_ids": batch["input_ids"]} if case == "t5" else {}
            with pytest.raises(RuntimeError, match="withheld the labels.*pass label_smoothing to apply_ntl_to_model"):
                model(**batch, **extra, num_items_in_batch=torch.tensor(7))
            given = {**batch, **extra, "num_items_in_batch": torch.tensor(7)}
            assert evaluate(model, given).logits is not None


class TestMixedPrecision:
    """accelerate wraps the forward of a model, and leaves it wrapped after training."""

    @pytest.fixture(autouse=True)
    def state_of_its_own(self) -> Iterator[None]:
        """accelerate has one precision for a process, which a Trainer of another test may have set."""
        AcceleratorState._reset_state(reset_partial_state=True)
        yield
        AcceleratorState._reset_state(reset_partial_state=True)

    def prepared(self, model: Any) -> Any:
        return Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model)

    def loss(self, model: Any) -> Tensor:
        output = model(**make_batch())
        assert output.logits is None
        return output.loss.detach()

    def test_unwrapping(self) -> None:
        model = apply_ntl_to_model(make_model(), NUMBERS)
        expected, signature = self.loss(model), inspect.signature(model.forward)
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        prepared = accelerator.prepare_model(model)
        torch.testing.assert_close(self.loss(prepared), expected, rtol=2e-2, atol=0)
        unwrapped = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
        torch.testing.assert_close(self.loss(unwrapped), expected)
        torch.testing.assert_close(self.loss(copy.deepcopy(unwrapped)), expected)
        assert inspect.signature(unwrapped.forward) == signature
        assert evaluate(unwrapped, make_batch()).logits is not None
        remove_ntl_from_model(unwrapped)
        assert unwrapped.train()(**make_batch()).logits is not None

    @pytest.mark.parametrize("patched_before", [True, False])
    def test_patching_afterwards(self, patched_before: bool) -> None:
        model = make_model()
        expected = stock_output(model, make_batch(), config=NTLConfig(weight=1.0)).loss
        if patched_before:
            apply_ntl_to_model(model, NUMBERS)
        self.prepared(model)
        with torch.no_grad():
            autocast = stock_output(model.eval(), make_batch(), config=NTLConfig(weight=1.0)).loss
        apply_ntl_to_model(model.train(), NUMBERS, NTLConfig(weight=1.0))
        loss = self.loss(model)
        torch.testing.assert_close(loss, autocast, rtol=2e-3, atol=0)
        assert (loss - expected).abs() > 1e-5  # still in bfloat16
        bare = Accelerator(cpu=True).unwrap_model(copy.deepcopy(model), keep_fp32_wrapper=False)
        torch.testing.assert_close(self.loss(bare), expected, rtol=2e-2, atol=0)
        remove_ntl_from_model(model)
        output = model(**make_batch())
        assert output.logits is not None and output.logits.dtype == torch.float32
        assert hasattr(model, "_original_forward")


class TestHooksOfAccelerate:
    """The hooks that a device_map over several devices and offloading put around forwards."""

    @pytest.mark.parametrize("where", ["model", "head"])
    @pytest.mark.parametrize("case", ["llama", "t5"])
    def test_before_the_patch(self, case: str, where: str) -> None:
        model, batch = make_model(case), make_batch()
        expected = stock_output(model, batch).loss
        add_hook_to_module(model if where == "model" else model.get_output_embeddings(), ModelHook())
        remedy = r"remove_hook_from_module\(model, recurse=True\); otherwise train on full logits.*numbers=numbers"
        other = r" or, if .* set_ntl_loss_function\(model, numbers\)$" if case == "llama" else r"\)$"
        with pytest.raises(ValueError, match=f"has accelerate's hooks around its forward.*{remedy}.*{other}"):
            apply_ntl_to_model(model, NUMBERS)
        if case == "llama":
            torch.testing.assert_close(set_ntl_loss_function(model, NUMBERS)(**batch).loss, expected)
        remove_hook_from_module(model, recurse=True)
        apply_ntl_to_model(model, NUMBERS)
        torch.testing.assert_close(model(**batch).loss, expected)
        copied = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        torch.testing.assert_close(copied(**batch).loss, expected)
        remove_ntl_from_model(copied)
        assert copied(**batch).logits is not None

    @pytest.mark.parametrize("where", ["model", "head"])
    def test_after_the_patch(self, where: str) -> None:
        model, batch = apply_ntl_to_model(make_model(), NUMBERS), make_batch()
        expected = model(**batch).loss
        add_hook_to_module(model if where == "model" else model.lm_head, ModelHook())
        assert torch.equal(model(**batch).loss, expected)


NAMED = "remove the head from PEFT's target_modules, modules_to_save and trainable_token_indices, or"
TIED = "PEFT ties it to the embeddings that it trains, so"
KEPT = {"ensure_weight_tying": True}
KEEPS_TIED = needs("peft", 0, 19, to="wrap a tied head with its embeddings on request")


class TestLoRA:
    def wrap(self, model: Any, **options: Any) -> Any:
        torch.manual_seed(1)
        options = {"target_modules": ["q_proj", "v_proj"]} | options
        wrapped = get_peft_model(model, LoraConfig(r=2, init_lora_weights=False, **options))
        return wrapped.train()

    @pytest.mark.parametrize("order", ["before", "after"])
    def test_gradients_equal_stock(self, order: str) -> None:
        reference, batch = self.wrap(make_model()), make_batch()
        model = make_model()
        if order == "before":
            apply_ntl_to_model(model, NUMBERS)
        model = self.wrap(model)
        if order == "after":
            assert apply_ntl_to_model(model, NUMBERS) is model
        expected_loss = stock_output(reference, batch).loss
        expected_loss.backward()
        output = model(**batch)
        assert output.logits is None
        output.loss.backward()
        torch.testing.assert_close(output.loss, expected_loss)
        assert_same_gradients(gradients(model), gradients(reference))
        remove_ntl_from_model(model)
        assert model(**batch).logits is not None

    @pytest.mark.parametrize(
        ("case", "options", "advice"),
        [
            ("llama", {"target_modules": ["lm_head"]}, NAMED),
            ("llama", {"modules_to_save": ["lm_head"]}, NAMED),
            ("llama-tied", {"trainable_token_indices": [20, 21]}, TIED),
            ("t5", {"trainable_token_indices": [20, 21], "target_modules": ["q"]}, TIED),
            pytest.param("llama-tied", {"modules_to_save": ["embed_tokens"]} | KEPT, TIED, marks=KEEPS_TIED),
            pytest.param("llama-tied", {"target_modules": ["embed_tokens"]} | KEPT, TIED, marks=KEEPS_TIED),
        ],
    )
    def test_head_with_adapter_is_an_error_that_says_what_works(
        self, case: str, options: dict[str, Any], advice: str
    ) -> None:
        batch = make_batch()
        said = rf"head of \w+ must be an nn.Linear without adapter.*peft[^:]*: {advice} train on full logits with NTLTr"
        with pytest.raises(TypeError, match=said):
            apply_ntl_to_model(self.wrap(make_model(case), **options), NUMBERS)
        model = self.wrap(apply_ntl_to_model(make_model(case), NUMBERS), **options)
        with pytest.raises(TypeError, match=said):
            model(**batch)


class TestTransform:
    """What is read off the probes of a model whose code and configuration say nothing."""

    def make(self, transform: Any, **config: Any) -> Any:
        model = make_model(cls=type("Theirs", (OfOthers,), {"transform": lambda self, outputs: transform(outputs)}))
        model.config.update(config)
        return model

    @pytest.mark.parametrize(
        "transform",
        [
            lambda outputs: outputs / 7,
            lambda outputs: 0.123456789 * outputs,
            lambda outputs: 2.5 * torch.tanh(outputs * (3 / 2.5)),
            lambda outputs: OfOthers.transform(None, outputs),  # type: ignore[arg-type]
        ],
    )
    def test_in_float32(self, transform: Any) -> None:
        model = self.make(transform)
        assert_matches_stock(apply_ntl_to_model(model, NUMBERS), make_batch(), self.make(transform))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(
        ("transform", "config", "expected"),
        [
            (lambda outputs: 0.3 * outputs, {"factor": 0.3}, (0.3, None)),
            (lambda outputs: outputs / 3.3, {"divisor": 3.3}, (1 / 3.3, None)),
            (lambda outputs: 12 * outputs, {}, (12.0, None)),
            (lambda outputs: 30 * torch.tanh(outputs * 0.3 / 30), {"factor": 0.3}, (0.3, 30.0)),
        ],
    )
    def test_in_half_precision(self, transform: Any, config: Any, expected: Any, dtype: torch.dtype) -> None:
        model = apply_ntl_to_model(self.make(lambda outputs: transform(outputs.to(dtype)), **config), NUMBERS)
        model(**make_batch())
        assert getattr(model, INSTALLED).reading.transform == expected

    @pytest.mark.parametrize(
        ("transform", "config"),
        [
            (lambda outputs: (0.37 * outputs).bfloat16(), {}),  # known to 1 %, but the loss needs all digits
            (lambda outputs: (0.37 * outputs).bfloat16(), {"one": 0.37, "other": 0.371}),
            (lambda outputs: outputs.clamp(-5, 5), {}),
            (lambda outputs: outputs + 1, {}),
            (lambda outputs: 0 * outputs, {}),
            (lambda outputs: outputs / 0, {}),
            (lambda outputs: -outputs, {}),
            (lambda outputs: outputs[..., :90], {}),  # without the padding of the vocabulary
            (lambda outputs: outputs.index_fill_(-1, torch.tensor([90]), -torch.inf), {}),  # changed in place
            (lambda outputs: outputs + torch.linspace(0, 1, VOCAB), {}),
            (lambda outputs: outputs.relu(), {}),
        ],
    )
    def test_refused(self, transform: Any, config: Any) -> None:
        model = apply_ntl_to_model(self.make(transform, **config), NUMBERS, shift=True)
        for _ in range(2):
            with pytest.raises(ValueError, match="Theirs does not turn its head's output into logits by Log.*numbers="):
                model(**make_batch())

    def test_learned_scale(self) -> None:
        for start in (1.0, 0.4):
            scale = nn.Parameter(torch.tensor(start))
            model = self.make(lambda outputs, scale=scale: scale * outputs)
            with torch.no_grad():  # where the probes cannot show it
                apply_ntl_to_model(model, NUMBERS)(**make_batch())
            with pytest.raises(ValueError, match="Theirs scales its logits by a trained parameter: train on"):
                model(**make_batch())

    def test_the_second_run_draws_the_same(self) -> None:
        """And a part that was put into evaluation mode stays in it."""
        model, batch = make_model(cls=OfOthers, attention_dropout=0.5), make_batch()
        model.model.layers[1].eval()
        reference = copy.deepcopy(model)
        apply_ntl_to_model(model, NUMBERS)
        for _ in range(2):
            torch.manual_seed(5)
            expected_loss, expected = stock_loss_and_gradients(reference, batch)
            torch.manual_seed(5)
            loss, actual = loss_and_gradients(model, batch)
            torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
            assert_same_gradients(actual, expected)
        assert not model.model.layers[1].training

    @pytest.mark.parametrize(("case", "change"), [("gemma2", {"final_logit_softcapping": 2.001}), ("cohere", {})])
    def test_scale_that_changes_later(self, case: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        model, reference, batch = make_model(case), make_model(case), make_batch()
        apply_ntl_to_model(model, NUMBERS)(**batch)
        for each in (model, reference):
            each.config.update(change)
            if case == "cohere":
                each.logit_scale *= 1.001
        with pytest.raises(ValueError, match="after a change of scale, call apply_ntl_to_model again"):
            model(**batch)
        with monkeypatch.context() as on_a_device:
            on_a_device.setattr(probes, "is_on_host", lambda tensor: False)
            assert model(**batch).loss.isnan()
        assert_matches_stock(apply_ntl_to_model(model, NUMBERS), batch, reference)


def test_two_threads_have_a_loss_each() -> None:
    """Both are in the body of one model, and the second goes on when the first is done."""
    model, batches = apply_ntl_to_model(make_model(), NUMBERS), [make_batch(seed=seed) for seed in range(2)]
    expected = [stock_output(make_model(), batch).loss for batch in batches]
    inside, is_done, losses = threading.Barrier(2), threading.Event(), [Tensor()] * 2

    def meet(*_: Any) -> None:
        inside.wait(10)
        if threading.current_thread().name == "1":
            is_done.wait(10)

    def call(place: int) -> None:
        losses[place] = model(**batches[place]).loss
        is_done.set()

    model.model.register_forward_hook(meet)
    threads = [threading.Thread(target=call, args=(place,), name=str(place)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(losses, expected)


class TestErrors:
    @pytest.mark.parametrize(
        ("case", "transform"),
        [
            ("llama", LogitTransform(logit_scale=0.5)),
            ("gemma2", LogitTransform()),
            ("gemma2", LogitTransform(softcap=2.1)),
            ("gemma2", LogitTransform(logit_scale=1.05, softcap=2.0)),
            ("granite", LogitTransform(logit_scale=0.25)),
            ("granite", LogitTransform(logit_scale=4.001)),
            ("t5", LogitTransform(softcap=30.0)),
        ],
    )
    def test_wrong_transform(self, case: str, transform: LogitTransform) -> None:
        model = apply_ntl_to_model(make_model(case), NUMBERS, transform=transform)
        with pytest.raises(ValueError, match=r"does not turn its head's output into logits by LogitTransform"):
            model(**make_batch())

    def test_model_that_cannot_be_patched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Quantised(nn.Linear):
            def forward(self, hidden: Tensor) -> Tensor:
                return super().forward(hidden).round()

        numbers = NumberTokens.from_mapping({1: 1.0, 2: 2.0}, vocab_size=VOCAB - 1)
        with pytest.raises(ValueError, match=f"vocabulary of {VOCAB - 1} tokens.*has {VOCAB} rows"):
            apply_ntl_to_model(make_model(), numbers)
        for head in (nn.Sequential(nn.Linear(16, VOCAB)), Quantised(16, VOCAB)):
            model = make_model()
            model.lm_head = head
            with pytest.raises(TypeError, match="must be an nn.Linear"):
                apply_ntl_to_model(model, NUMBERS)

        def lce_forward(self: Any, *args: Any, **kwargs: Any) -> None: ...

        lce_forward.__module__ = "liger_kernel.transformers.model.llama"
        monkeypatch.setattr(type(model), "forward", lce_forward)
        with pytest.raises(ValueError, match="Liger has patched LlamaForCausalLM.forward"):
            apply_ntl_to_model(make_model(), NUMBERS)

    def test_replaced_head(self) -> None:
        model = apply_ntl_to_model(make_model(), NUMBERS)
        model.lm_head = nn.Linear(16, VOCAB, bias=False)
        with pytest.raises(RuntimeError, match="replaced: call apply_ntl_to_model again"):
            model(**make_batch())
        assert apply_ntl_to_model(model, NUMBERS)(**make_batch()).logits is None

    def test_replaced_loss_function(self) -> None:
        model = apply_ntl_to_model(make_model(), NUMBERS)
        model.loss_function = mine = lambda logits, **_: logits.sum()
        with pytest.raises(RuntimeError, match="loss_function was assigned to Llama.* after apply_ntl_to_model"):
            model(**make_batch())
        remove_ntl_from_model(model)
        assert model.loss_function is mine

    def test_forward_that_runs_the_head_twice_or_not_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def bypass(self: Any, input_ids: Tensor, **_: Any) -> Any:
            return CausalLMOutput(logits=self.model(input_ids).last_hidden_state @ self.lm_head.weight.T)

        def twice(self: Any, **_: Any) -> Any:
            return [self.lm_head(torch.ones(3, 9, 16)) for _ in range(2)]

        model = apply_ntl_to_model(make_model(), NUMBERS)
        for forward, message in ((bypass, "the head of LlamaForCausalLM did not run"), (twice, "ran its head twice")):
            monkeypatch.setattr(type(model), "forward", forward)
            with pytest.raises(RuntimeError, match=message):
                model(**make_batch())

    def test_state_is_clean_after_an_error(self) -> None:
        model, batch = make_model(), make_batch()
        reference = copy.deepcopy(model)
        apply_ntl_to_model(model, NUMBERS)
        with pytest.raises(IndexError):
            model(input_ids=batch["input_ids"], labels=torch.full_like(batch["labels"], VOCAB))
        assert torch.equal(evaluate(model, batch).logits, reference.eval()(**batch).logits)
        assert_matches_stock(model.train(), batch, reference.train())
