"""Model classes whose own forward does more with labels than compare logits with them.

Without NTL (a weight of 0), the loss and every gradient must always equal those of the model's own forward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import MaskedLMOutput, ModelOutput

from ntl_kernels import NTLConfig
from ntl_kernels.integrations.transformers import (
    NTLTrainer,
    apply_ntl_to_model,
    ntl_compute_loss_func,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.transformers.forwards import INSTALLED
from ntl_kernels.integrations.transformers.models import added_loss

from ..versions import needs
from . import every_class
from .every_class import BERT
from .models import DECODER, NUMBERS, VOCAB, OfOthers, assert_same_gradients, gradients, make_batch, make_model
from .training import LOG_ERROR, InOrder, arguments, log_of, step_of

NO_NTL = NTLConfig(weight=0.0)
BUILT = needs("transformers", 5, 23, to="build every class from these configurations")
CASES = (
    *("SwitchTransformersForConditionalGeneration", "EncoderDecoderModel", "NllbMoeForConditionalGeneration"),
    *("Florence2ForConditionalGeneration", "Pix2StructForConditionalGeneration", "JetMoeForCausalLM"),
    *("M2M100ForConditionalGeneration", "DbrxForCausalLM", "ModernBertForMaskedLM", "BartForCausalLM"),
)
"""They add router losses, derive inputs and masks from labels, or compute their cross-entropy themselves."""


def batch_for(name: str, seed: int = 0) -> dict[str, Tensor]:
    """The start of each row is not trained: padding among the decoder's inputs."""
    batch = every_class.batch_for(name, seed)
    batch["labels"][:, :3] = -100
    if name == "EncoderDecoderModel" and seed == 1:  # otherwise it derives a mask from the labels
        batch["decoder_attention_mask"] = torch.ones_like(batch["labels"]).index_fill(1, torch.tensor([1, 2]), 0)
    return batch


def the_models_own(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """Truth: loss and gradients of the model's own forward."""
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), gradients(model)


class Batches:
    """A collator that returns batches of the data unchanged."""

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        (batch,) = rows
        return dict(batch)


@BUILT
@pytest.mark.parametrize(("name", "patched"), [(name, bool(place % 2)) for place, name in enumerate(CASES + CASES[1:])])
def test_trainer_without_ntl_trains_the_model(name: str, patched: bool, tmp_path: Path) -> None:
    """Over two steps: cross-entropy is divided by the tokens of both, added losses are averaged.

    Evaluation has the model's own loss.
    """
    model, total = every_class.make(name)[0], 0.0
    unshifted = "CausalLM" not in name or name.startswith("Bart")
    batches = [batch_for(name, seed) for seed in range(2)]
    labels = [batch["labels"] if unshifted else batch["labels"][:, 1:] for batch in batches]
    for batch, targets in zip(batches, labels, strict=True):
        output = model(**batch)
        logits = output.logits[:, : targets.shape[1]].flatten(0, 1)
        ce = cross_entropy(logits, targets.flatten(), reduction="sum")
        count = (torch.stack(labels) != -100).sum()
        loss = ce / count + (output.loss - ce / (targets != -100).sum()) / 2
        loss.backward()
        total += loss.item()
    expected, own = gradients(model), model(**batches[0]).loss.item()
    if patched:
        apply_ntl_to_model(model, NUMBERS, NO_NTL)
    trainer = NTLTrainer(
        model,
        # accelerate 1.10 concatenates dispatched batches, but output_router_logits is not a tensor
        arguments(tmp_path, 1, 2, remove_unused_columns=False, accelerator_config={"dispatch_batches": False}),
        train_dataset=InOrder(batches),
        data_collator=Batches(),
        numbers=NUMBERS,
        ntl_config=NO_NTL,
    )
    assert trainer.evaluate([batches[0]])["eval_loss"] == pytest.approx(own, rel=1e-5)
    assert_same_gradients(step_of(trainer), {name: grad for name, grad in expected.items() if grad is not None}, 1e-4)
    assert log_of(trainer)["loss"] == pytest.approx(total, rel=1e-5, abs=LOG_ERROR)


@BUILT
@pytest.mark.parametrize("steps", [1, 2])
def test_loss_of_other_labels(steps: int, tmp_path: Path) -> None:
    """LUKE adds that of its entities, which it also returns without `labels`."""
    entities = {"entity_ids": torch.arange(1, 5)[:, None], "entity_position_ids": torch.zeros(4, 1, 1).long()}
    batch = make_batch(rows=4) | entities | {"entity_labels": torch.arange(4)[:, None]}
    model, _ = every_class.make("LukeForMaskedLM")
    expected_loss, expected = the_models_own(model, batch)
    options = {"numbers": NUMBERS, "ntl_config": NO_NTL, "data_collator": Batches(), "train_dataset": [batch] * steps}
    args = arguments(tmp_path, 1, steps, remove_unused_columns=False)
    trainer = NTLTrainer(model, args, eval_dataset=[batch], **options)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected_loss.item(), rel=1e-5)
    assert_same_gradients(step_of(trainer), {name: grad for name, grad in expected.items() if grad is not None})


class Silent(transformers.PreTrainedModel):
    """A model as with ``trust_remote_code``, which does not indicate that position t predicts label t."""

    config_class = transformers.LlamaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = transformers.LlamaModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        logits = self.lm_head(self.model(input_ids, attention_mask).last_hidden_state)
        loss = None if labels is None else cross_entropy(logits.flatten(0, 1), labels.flatten())
        return ModelOutput(loss=loss, logits=logits)


class Denoiser(Silent):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        return MaskedLMOutput(**super().forward(input_ids, attention_mask, labels))


class CausalByItsLoss(Silent):
    """Its loss function shifts labels, whatever the class of its outputs."""

    def forward(self, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> Any:
        logits = super().forward(*args, **kwargs).logits
        loss = None if labels is None else self.loss_function(logits, labels, VOCAB, **kwargs)
        return MaskedLMOutput(loss=loss, logits=logits)


TOKEN_CLASSES: dict[str, Any] = {"num_labels": VOCAB, "classifier_dropout": 0.0}
SHIFTS = {
    "denoiser": lambda: Denoiser(transformers.LlamaConfig(**DECODER)),
    "causal by its loss": lambda: CausalByItsLoss(transformers.LlamaConfig(**DECODER)),
    "classes of tokens": lambda: transformers.LlamaForTokenClassification(
        transformers.LlamaConfig(**DECODER, **TOKEN_CLASSES)
    ),
    "classes of tokens, cross-entropy inside": lambda: transformers.BertForTokenClassification(
        transformers.BertConfig(**BERT, **TOKEN_CLASSES)
    ),
    "bert as a decoder": lambda: transformers.BertLMHeadModel(transformers.BertConfig(**BERT, is_decoder=True)),
}


class TestShift:
    """Labels are shifted as the model's own loss does it."""

    def make(self, case: str) -> tuple[Any, dict[str, Tensor]]:
        torch.manual_seed(0)
        return SHIFTS[case]().train(), make_batch(rows=4)

    def trainer(self, model: Any, batch: dict[str, Tensor], folder: Path, **options: Any) -> NTLTrainer:
        rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(4)]
        options = {"train_dataset": rows, "eval_dataset": rows, "numbers": NUMBERS, "ntl_config": NO_NTL} | options
        return NTLTrainer(model, arguments(folder, 2, 2, remove_unused_columns=False), **options)

    @pytest.mark.parametrize("case", SHIFTS)
    def test_trainer(self, case: str, tmp_path: Path) -> None:
        model, batch = self.make(case)
        loss, expected = the_models_own(model, batch)
        trainer = self.trainer(model, batch, tmp_path)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)
        expected = {name: grad for name, grad in expected.items() if grad is not None}
        assert_same_gradients(step_of(trainer), expected)

    @pytest.mark.parametrize("case", SHIFTS)
    def test_compute_loss_func(self, case: str) -> None:
        """By the name of the model's class, or else by the type of its outputs."""
        model, batch = self.make(case)
        expected = model(**batch).loss
        labels = batch.pop("labels")
        by_name = (model,) if "class" in case or "bert" in case else ()
        by_outputs = (None,) if "class" in case or case == "denoiser" else ()
        for given in by_name + by_outputs:
            actual = ntl_compute_loss_func(NUMBERS, NO_NTL, model=given)(model(**batch), labels)
            torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("own", [True, False])
    def test_loss_of_others_is_measured(self, own: bool, tmp_path: Path) -> None:
        """By the Trainer and the patch; functions that cannot do so raise unless its loss function tells."""
        config, batch = transformers.LlamaConfig(**DECODER), make_batch(rows=4)
        for shift in (None, True, False):
            for patched in (True, False):
                model = (CausalByItsLoss if own else Silent)(config).train()
                loss, expected = self.plain(model, batch, own if shift is None else shift)
                if patched:
                    apply_ntl_to_model(model, NUMBERS, NO_NTL, shift=shift)
                trainer = self.trainer(model, batch, tmp_path, shift=shift)
                assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)
                assert_same_gradients(step_of(trainer), expected)

    def test_functions_for_the_stock_trainer_raise_unless_the_loss_function_tells(self) -> None:
        batch, silent = make_batch(), Silent(transformers.LlamaConfig(**DECODER))
        set_ntl_loss_function(CausalByItsLoss(silent.config), NUMBERS)
        with pytest.raises(ValueError, match="^Silent does not indicate whether labels .* pass shift=True"):
            set_ntl_loss_function(silent, NUMBERS)
        with pytest.raises(ValueError, match="^ModelOutput does not indicate whether labels .* pass .*shift=True"):
            ntl_compute_loss_func(NUMBERS, model=silent)(silent(**batch), batch["labels"])

    def test_number_weights_are_no_argument_of_the_model(self, tmp_path: Path) -> None:
        class Strict(Silent):
            def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
                return super().forward(input_ids, attention_mask, labels)

        batch = {**make_batch(rows=4), "number_weights": torch.ones(4, 9)}
        trainer = self.trainer(Strict(transformers.LlamaConfig(**DECODER)), batch, tmp_path)
        assert trainer.evaluate()["eval_loss"] > 0

    @pytest.mark.parametrize("patched", [True, False])
    @pytest.mark.parametrize("base", [Silent, CausalByItsLoss])
    def test_loss_that_is_neither(self, base: Any, patched: bool, tmp_path: Path) -> None:
        class Doubled(base):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                output = super().forward(*args, **kwargs)
                return ModelOutput(loss=None if output.loss is None else 2 * output.loss, logits=output.logits)

        model, batch = Doubled(transformers.LlamaConfig(**DECODER)), make_batch(rows=4)
        expected = self.plain(model, batch, shift=False)[0]
        said = r"Doubled's own loss .* is 9\.\d+, .* 4\.\d+ with shifted .* 4\.\d+ without: it has other parts. Pass s"
        with pytest.raises(ValueError, match=said):
            self.trainer(apply_ntl_to_model(model, NUMBERS, NO_NTL) if patched else model, batch, tmp_path).train()
        torch.testing.assert_close(apply_ntl_to_model(model, NUMBERS, NO_NTL, shift=False)(**batch).loss, expected)

    def test_losses_that_are_too_close(self) -> None:
        """In bfloat16, both round to the same number, and the message has it."""
        model, batch = Silent(transformers.LlamaConfig(**DECODER)), make_batch(rows=4)
        with torch.no_grad():
            model.lm_head.weight.zero_()
        apply_ntl_to_model(model.bfloat16(), NUMBERS)
        with pytest.raises(ValueError, match=r"is (\S+), .* \1 with .* \1 without: too close. Pass shift"):
            model(**batch)

    def test_half_precision(self) -> None:
        """The own loss, rounded to bfloat16, equals one of them in the same precision."""
        model, batch = Silent(transformers.LlamaConfig(**DECODER)), make_batch(rows=4)
        with torch.no_grad():
            model.lm_head.weight.normal_(std=0.5)
        patched = apply_ntl_to_model(model.bfloat16(), NUMBERS)
        patched(**batch)
        assert getattr(patched, INSTALLED).options.shift is False

    def plain(self, model: Any, batch: dict[str, Tensor], shift: bool) -> tuple[Tensor, dict[str, Any]]:
        logits, labels = model(**batch).logits, batch["labels"]
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        return loss.detach(), gradients(model)

    @pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
    def test_installed_with_another(self, put: Any, tmp_path: Path) -> None:
        """The Trainer adopts it, and rejects a third one."""
        model, batch = make_model(), make_batch(rows=4)
        loss, expected = self.plain(model, batch, shift=False)
        put(model, NUMBERS, NO_NTL, shift=False)
        torch.testing.assert_close(model(**batch).loss, loss)
        with pytest.raises(ValueError, match=f"given shift=True, but {put.__name__} was given False"):
            self.trainer(model, batch, tmp_path, shift=True)
        trainer = self.trainer(model, batch, tmp_path)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert_same_gradients(step_of(trainer), expected)
        with pytest.raises(TypeError, match="shift must be True, False or None; got 'no'"):
            put(model, NUMBERS, shift="no")


@BUILT
class TestRefused:
    """Losses with parts that do not follow from the logits."""

    def test_z_loss(self, tmp_path: Path) -> None:
        model, _ = every_class.make("BambaForCausalLM")
        model.z_loss_coefficient = 0.1
        said = "BambaForCausalLM adds a z-loss.*set model.z_loss_coefficient = 0"
        for road in (apply_ntl_to_model, lambda model, numbers: ntl_compute_loss_func(numbers, model=model)):
            with pytest.raises(ValueError, match=said):
                road(model, NUMBERS)
        with pytest.raises(ValueError, match=said):
            NTLTrainer(model, arguments(tmp_path, 1, 1), numbers=NUMBERS)

    def test_router_logits_that_the_model_did_not_find(self) -> None:
        with pytest.raises(ValueError, match=r"DbrxForCausalLM returned 0 .*output_router_logits=False"):
            added_loss(every_class.make("DbrxForCausalLM")[0], {"aux_loss": 0}, {})

    def test_router_loss_of_a_mistaken_forward(self) -> None:
        """That of transformers 4, whose NLLB-MoE has no num_experts."""
        model, _ = every_class.make("NllbMoeForConditionalGeneration")
        del model.num_experts
        with pytest.raises(ValueError, match=r"router loss of NllbMoe.* in transformers 4 uses its encoder's"):
            added_loss(model, {"encoder_router_logits": ()}, {})

    def test_router_losses_of_two_sides_in_a_compute_loss_func(self) -> None:
        model, batch = every_class.make("SwitchTransformersForConditionalGeneration")
        labels = batch.pop("labels")
        with pytest.raises(ValueError, match=r"router losses of an encoder and a decoder.*use NTLTrainer"):
            ntl_compute_loss_func(NUMBERS, model=model)(model(**batch, decoder_input_ids=labels.clamp(0)), labels)


def test_forward_that_computes_something_from_its_logits() -> None:
    """The message names a remedy, which works."""

    class Reshaped(OfOthers):
        def transform(self, outputs: Tensor) -> Tensor:
            return outputs.view(4, 9, VOCAB)

    model, batch = Reshaped(transformers.LlamaConfig(**DECODER)).train(), make_batch(rows=4)
    apply_ntl_to_model(model, NUMBERS)
    with pytest.raises(
        RuntimeError, match=r"Reshaped computes something from its logits.*NTLTrainer.*set_ntl_loss_function.*size"
    ):
        model(**batch)
    set_ntl_loss_function(model, NUMBERS)(**batch)
