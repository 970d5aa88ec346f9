"""Model classes whose own forward does more with labels than compare logits with them.

Without NTL (a weight of 0), the loss and every gradient must always equal those of the model's own forward.
"""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput, ModelOutput

from ntl_kernels import NTLConfig
from ntl_kernels.integrations.transformers import (
    LogitTransform,
    NTLTrainer,
    apply_ntl_to_model,
    ntl_compute_loss_func,
    remove_ntl_from_model,
    set_ntl_loss_function,
)
from ntl_kernels.integrations.transformers.models import MODEL_CLASSES, ModelClass, added_loss

from ..versions import has, needs
from .models import DECODER, NUMBERS, VOCAB, assert_same_gradients, gradients, make_batch
from .training import LOG_ERROR, InOrder, arguments, log_of, step_of

NO_NTL = NTLConfig(weight=0.0)
SEQ2SEQ = {"vocab_size": VOCAB, "d_model": 16, "hidden_size": 16, "pad_token_id": 0, "decoder_start_token_id": 2}
SEQ2SEQ |= dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), 2)
SEQ2SEQ |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "sparse_step")}
SEQ2SEQ |= {f"num_{side}_attention_heads": 2 for side in ("encoder", "decoder")}
SEQ2SEQ |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 2}
SEQ2SEQ |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "dropout_rate"), 0.0)
SEQ2SEQ |= dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "router_jitter_noise", "moe_token_dropout"), 0.0)
SEQ2SEQ |= {"num_experts": 4, "expert_capacity": 64, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}
SEQ2SEQ |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "output_router_logits": True}
SEQ2SEQ |= {"ngram": 2, "max_position_embeddings": 64, "num_buckets": 4, "relative_max_distance": 8}
PROPHETNET = {name: value for name, value in SEQ2SEQ.items() if not name.startswith("num_") or "_attention" in name}
PROPHETNET = {name: value for name, value in PROPHETNET.items() if not name.endswith(("coder_layers", "_heads"))}
PROPHETNET |= {f"num_{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
BERT = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
BERT |= {"num_attention_heads": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT |= {"initializer_range": 0.3, "reference_compile": False}
PATCHES = {"hidden_size": 16, "d_ff": 24, "d_kv": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "seq_len": 64}
PATCHES |= {"patch_embed_hidden_size": 6, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
PATCHES |= {"attention_dropout": 0.0, "vocab_size": VOCAB, "pad_token_id": 0, "decoder_start_token_id": 2}
JETMOE = DECODER | {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
JETMOE |= {"aux_loss_coef": 0.5, "num_key_value_heads": 1, "num_attention_heads": 2}
DBRX: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": VOCAB, "output_router_logits": True}
DBRX |= {"attn_config": {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 8.0}}
DBRX |= {"ffn_config": {"moe_num_experts": 4, "moe_top_k": 2, "moe_loss_weight": 0.5}}
DBRX["ffn_config"] |= {"ffn_hidden_size": 16} | ({"hidden_size": 16} if has("transformers", 5) else {})
BAMBA = DECODER | {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_expand": 2}
BAMBA |= {"attn_layer_indices": [0, 1], "z_loss_coefficient": 0.1}


def small(name: str, config: dict[str, Any]) -> Any:
    """A model in training mode whose logits differ."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**config)).train()
    with torch.no_grad():
        for parameter in model.get_output_embeddings().parameters():
            parameter.normal_(std=0.5)
    return model


def encoder_decoder() -> Any:
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**BERT), transformers.BertConfig(**BERT, is_decoder=True, add_cross_attention=True)
    )
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config).train()
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 0
    return model


def pix2struct() -> Any:
    torch.manual_seed(0)
    config = transformers.Pix2StructConfig(
        text_config=PATCHES | {"is_decoder": True}, vision_config=PATCHES, tie_word_embeddings=False
    )
    model = transformers.Pix2StructForConditionalGeneration(config).train()
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 0
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.normal_(std=0.3)
    return model


def florence2() -> Any:
    """Its token ids are in the configuration of its text model."""
    names = [name for name in SEQ2SEQ if not name.startswith("num_") and name != "hidden_size"]
    text = {name: SEQ2SEQ[name] for name in names} | {"model_type": "bart", "scale_embedding": False}
    vision: dict[str, Any] = {"embed_dim": [8], "patch_size": [3], "patch_stride": [2], "patch_prenorm": [False]}
    vision |= {key: [1] for key in ("num_heads", "num_groups", "depths", "patch_padding")}
    vision |= {"projection_dim": 16, "window_size": 2}
    return small("Florence2ForConditionalGeneration", {"text_config": text, "vision_config": vision})


CASES = {
    "switch": lambda: small("SwitchTransformersForConditionalGeneration", SEQ2SEQ),
    "switch with a dense encoder": lambda: small(
        "SwitchTransformersForConditionalGeneration", SEQ2SEQ | {"num_sparse_encoder_layers": 0}
    ),
    "nllb-moe": lambda: small("NllbMoeForConditionalGeneration", SEQ2SEQ),
    "encoder-decoder": encoder_decoder,
    "pix2struct": pix2struct,
    "florence2": florence2,
    "modern-bert": lambda: small(
        "ModernBertForMaskedLM", BERT | {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
    ),
    "m2m100": lambda: small("M2M100ForConditionalGeneration", SEQ2SEQ),
    "jetmoe": lambda: small("JetMoeForCausalLM", JETMOE),
    "dbrx": lambda: small("DbrxForCausalLM", DBRX),
}
IS_5_0 = has("transformers", 5) and not has("transformers", 5, 1)
SWITCH = pytest.mark.skipif(IS_5_0, reason="transformers 5.0 fails to return the router logits of Switch Transformers")
DBRX_ROUTERS = pytest.mark.skipif(IS_5_0, reason="transformers 5.0 fails to compute the router loss of DBRX")
SKIPS = {
    "dbrx": DBRX_ROUTERS,
    "switch": SWITCH,
    "switch with a dense encoder": SWITCH,
    "nllb-moe": needs("transformers", 5, to="compute the router loss of NLLB-MoE's decoder"),
    "florence2": needs("transformers", 5, 1, to="compute Florence-2's loss without shifting its labels twice"),
}
EVERY_CASE = pytest.mark.parametrize("case", [pytest.param(case, marks=SKIPS.get(case, ())) for case in CASES])
EVERY_ROAD = pytest.mark.parametrize(
    ("case", "patched"),
    [
        pytest.param(case, patched, marks=[*([SKIPS[case]] if case in SKIPS else []), *([pytest.mark.slow] * slow)])
        for place, case in enumerate(CASES)
        for patched, slow in ((place % 2 == 0, False), (place % 2 == 1, True))
    ],
)


def batch_for(case: str, seed: int = 0) -> dict[str, Tensor]:
    """The start of each row is not trained: padding among the decoder's inputs."""
    batch: dict[str, Any] = make_batch(rows=4, seed=seed)
    batch["labels"][:, :3] = -100
    if case.startswith("switch"):
        batch["output_router_logits"] = True
    if case == "pix2struct":
        patches = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(seed))
        patches[..., :2] = torch.arange(1, 6)[:, None]
        return {"flattened_patches": patches, "labels": batch["labels"]}
    return batch


def the_models_own(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """Truth: loss and gradients of the model's own forward."""
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), gradients(model)


@EVERY_CASE
def test_patched_model_without_ntl_is_the_model(case: str) -> None:
    model, batch = CASES[case](), batch_for(case)
    expected_loss, expected = the_models_own(copy.deepcopy(model), batch)
    apply_ntl_to_model(model, NUMBERS, NO_NTL, transform=LogitTransform())
    given = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
    loss, actual = the_models_own(model, given)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert_same_gradients(actual, expected)
    assert all(torch.equal(given[name], value) for name, value in batch.items() if isinstance(value, Tensor))


class Batches:
    """A collator that returns batches of the data unchanged."""

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        (batch,) = rows
        return dict(batch)


def trainer_of(model: Any, case: str, patched: bool, folder: Path, steps: int) -> NTLTrainer:
    if patched:
        apply_ntl_to_model(model, NUMBERS, NO_NTL, transform=LogitTransform())
    batches = InOrder([batch_for(case, seed) for seed in range(steps)])
    return NTLTrainer(
        model,
        # accelerate 1.10 concatenates dispatched batches, but output_router_logits is not a tensor
        arguments(folder, 1, steps, remove_unused_columns=False, accelerator_config={"dispatch_batches": False}),
        train_dataset=batches,
        eval_dataset=batches,
        data_collator=Batches(),
        numbers=NUMBERS,
        ntl_config=NO_NTL,
    )


@EVERY_ROAD
def test_trainer_without_ntl_trains_the_model(case: str, patched: bool, tmp_path: Path) -> None:
    """Over two steps: cross-entropy is divided by the tokens of both, added losses are averaged.

    Evaluation has the model's own loss.
    """
    model = CASES[case]()
    total = 0.0
    for seed in range(2):
        batch = batch_for(case, seed)
        output = model(**batch)
        targets = batch["labels"][:, 1:] if "CausalLM" in type(model).__name__ else batch["labels"]
        logits = output.logits[:, : targets.shape[1]].flatten(0, 1)
        ce = torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        tokens = (targets != -100).sum()
        others = [(batch_for(case, other)["labels"][:, 9 - targets.shape[1] :] != -100).sum() for other in range(2)]
        loss = ce / sum(others) + (output.loss - ce / tokens) / 2
        loss.backward()
        total += loss.item()
    expected = gradients(model)
    own = model(**batch_for(case)).loss.item()
    trainer = trainer_of(model, case, patched, tmp_path, 2)
    assert trainer.evaluate([batch_for(case)])["eval_loss"] == pytest.approx(own, rel=1e-5)
    assert_same_gradients(step_of(trainer), {name: grad for name, grad in expected.items() if grad is not None}, 1e-4)
    assert log_of(trainer)["loss"] == pytest.approx(total, rel=1e-5, abs=LOG_ERROR)


@pytest.mark.parametrize("steps", [1, 2])
def test_loss_of_other_labels(steps: int, tmp_path: Path) -> None:
    """LUKE adds that of its entities, which it also returns without `labels`."""
    entities = {"entity_ids": torch.arange(1, 5)[:, None], "entity_position_ids": torch.zeros(4, 1, 1).long()}
    batch = make_batch(rows=4) | entities | {"entity_labels": torch.arange(4)[:, None]}
    config = BERT | {"entity_vocab_size": 7, "entity_emb_size": 8, "max_position_embeddings": 64, "pad_token_id": 0}
    model = small("LukeForMaskedLM", config)
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
ROADS = {
    "set_ntl_loss_function": lambda model: set_ntl_loss_function(model, NUMBERS, NO_NTL),
    "apply_ntl_to_model": lambda model: apply_ntl_to_model(model, NUMBERS, NO_NTL, transform=LogitTransform()),
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

    def test_no_name_tells(self, tmp_path: Path) -> None:
        """The Trainer compares the model's own loss with both; the other functions raise."""
        config, batch = transformers.LlamaConfig(**DECODER), make_batch(rows=4)
        for road in (lambda model: ntl_compute_loss_func(NUMBERS, model=model), *ROADS.values()):
            with pytest.raises(ValueError, match="^Silent does not indicate whether labels .* pass shift=True"):
                road(Silent(config))
        for own in (True, False):
            for shift in (None, True, False):
                model = (CausalByItsLoss if own else Silent)(config).train()
                loss, expected = self.plain(model, batch, own if shift is None else shift)
                trainer = self.trainer(model, batch, tmp_path, shift=shift)
                assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)
                assert_same_gradients(step_of(trainer), expected)

    def test_number_weights_are_no_argument_of_the_model(self, tmp_path: Path) -> None:
        class Strict(Silent):
            def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
                return super().forward(input_ids, attention_mask, labels)

        batch = {**make_batch(rows=4), "number_weights": torch.ones(4, 9)}
        trainer = self.trainer(Strict(transformers.LlamaConfig(**DECODER)), batch, tmp_path)
        assert trainer.evaluate()["eval_loss"] > 0

    def test_loss_that_is_neither(self, tmp_path: Path) -> None:
        class Doubled(Silent):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                output = super().forward(*args, **kwargs)
                return ModelOutput(loss=2 * output.loss, logits=output.logits)

        trainer = self.trainer(Doubled(transformers.LlamaConfig(**DECODER)), make_batch(rows=4), tmp_path)
        with pytest.raises(ValueError, match="^Doubled does not indicate whether labels .* pass shift=True"):
            trainer.train()

    def plain(self, model: Any, batch: dict[str, Tensor], shift: bool) -> tuple[Tensor, dict[str, Any]]:
        logits, labels = model(**batch).logits, batch["labels"]
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        return loss.detach(), gradients(model)

    @pytest.mark.parametrize("put", [apply_ntl_to_model, set_ntl_loss_function])
    def test_installed_with_another(self, put: Any, tmp_path: Path) -> None:
        """The Trainer adopts it, and rejects a third one."""
        model, batch = small("LlamaForCausalLM", DECODER), make_batch(rows=4)
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


class TestRefused:
    """Losses with parts that do not follow from the logits."""

    @pytest.mark.parametrize(
        ("name", "config", "message"),
        [
            ("BambaForCausalLM", BAMBA, "adds a z-loss.*set model.z_loss_coefficient = 0"),
            ("ProphetNetForConditionalGeneration", PROPHETNET, "n-grams.*model.disable_ngram_loss = True"),
            ("ProphetNetForCausalLM", PROPHETNET, "n-grams.*model.disable_ngram_loss = True"),
        ],
    )
    def test_by_name(self, name: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
        model = small(name, config)
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            apply_ntl_to_model(model, NUMBERS, transform=LogitTransform())
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            NTLTrainer(model, arguments(tmp_path, 1, 1), numbers=NUMBERS)
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            ntl_compute_loss_func(NUMBERS, model=model)

    def test_router_logits_that_the_model_did_not_find(self) -> None:
        with pytest.raises(ValueError, match=r"DbrxForCausalLM returned 0 .*output_router_logits=False"):
            added_loss(CASES["dbrx"](), {"aux_loss": 0}, {})

    @pytest.mark.skipif(has("transformers", 5), reason="transformers 5 computes the router loss of NLLB-MoE's decoder")
    def test_router_loss_of_a_mistaken_forward(self, tmp_path: Path) -> None:
        for patched in (True, False):
            with pytest.raises(ValueError, match=r"router loss of NllbMoe.* in transformers 4 uses its encoder's"):
                trainer_of(CASES["nllb-moe"](), "nllb-moe", patched, tmp_path, 1).train()

    @SWITCH
    def test_router_losses_of_two_sides_in_a_compute_loss_func(self) -> None:
        model, batch = CASES["switch"](), batch_for("switch")
        labels = batch.pop("labels")
        with pytest.raises(ValueError, match=r"router losses of an encoder and a decoder.*use NTLTrainer"):
            ntl_compute_loss_func(NUMBERS, model=model)(model(**batch, decoder_input_ids=labels.clamp(0)), labels)


class TestLossThatNeedsLogits:
    """If a declared transform cannot help, the message names a remedy, which works."""

    NAMES = ("BartForConditionalGeneration", "BartForCausalLM", "BertForMaskedLM", "MarianMTModel")

    @pytest.mark.parametrize("transform", [None, LogitTransform()])
    @pytest.mark.parametrize("name", NAMES)
    def test_patch_is_refused(self, name: str, transform: Any) -> None:
        model, batch = small(name, BERT if "Bert" in name else SEQ2SEQ), make_batch()
        with pytest.raises((ValueError, RuntimeError), match=f"{name} .*rain on full logits.*NTLTrainer.*numbers=num"):
            apply_ntl_to_model(model, NUMBERS, transform=transform)(**batch)
        remove_ntl_from_model(model)
        assert model(**batch).logits is not None

    def test_at_the_first_step(self) -> None:
        """A forward that computes something from its logits, which a patched model does not have."""

        class Biased(transformers.LlamaForCausalLM):
            def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
                logits = self.lm_head(self.model(input_ids).last_hidden_state) + torch.zeros(VOCAB)
                return CausalLMOutputWithPast(loss=self.loss_function(logits, labels, VOCAB), logits=logits)

        model, batch = Biased(transformers.LlamaConfig(**DECODER)).train(), make_batch()
        given = {name: batch[name] for name in ("input_ids", "labels")}
        model(**given)
        apply_ntl_to_model(model, NUMBERS)
        with pytest.raises(
            RuntimeError, match=r"Biased computes something from its logits.*NTLTrainer.*set_ntl_loss_function.*size"
        ):
            model(**given)
        set_ntl_loss_function(model, NUMBERS)(**given)


def forwards_with_labels() -> dict[str, ast.FunctionDef]:
    """The forward of every class of transformers that predicts tokens from labels, by the name of the class."""
    forwards = {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        for cls in ast.parse(path.read_text()).body:
            if not (isinstance(cls, ast.ClassDef) and re.search(PREDICTS_TOKENS, cls.name)):
                continue
            for method in cls.body:
                is_forward = isinstance(method, ast.FunctionDef) and method.name == "forward"
                if is_forward and "labels" in [argument.arg for argument in method.args.args]:
                    forwards[cls.name] = method
    return forwards


PREDICTS_TOKENS = "CausalLM|ConditionalGeneration|ForGeneration|LMHead|MaskedLM|EncoderDecoder|TextToText|SpeechToText"
FACTOR = r"self(\.config\.text_config)?\.((router_)?aux_loss_coef|moe_loss_weight)"
ROUTERS = rf"loss \+= {FACTOR} \* aux_loss\.to\(loss\.device\)"
OTHER_ARGUMENTS = {"GraniteDoclingForConditionalGeneration", "LukeForMaskedLM"}
"""These add losses of other labels, which they also return without `labels`."""
SOUND = {
    "CsmForConditionalGeneration",
    "MusicgenForCausalLM",
    "MusicgenMelodyForCausalLM",
    "VibeVoiceForConditionalGeneration",
}
"""These predict sound, which has no number tokens."""


@pytest.mark.slow
def test_every_forward_that_does_more_with_labels_is_known() -> None:
    """Adds something to its loss, or derives more than decoder_input_ids from the labels."""
    adding, making, forwards = set(), {}, forwards_with_labels()
    for name, forward in forwards.items():
        derives_inputs = "decoder_input_ids" in [argument.arg for argument in forward.args.args]
        for node in ast.walk(forward):
            text = ast.unparse(node) if isinstance(node, (ast.Assign, ast.AugAssign)) else ""
            is_sum = isinstance(node, ast.AugAssign) or isinstance(getattr(node, "value", None), ast.BinOp)
            if is_sum and "loss" in text.split("=")[0] and not re.fullmatch(ROUTERS, text):
                adding.add(name)
            if derives_inputs and isinstance(node, ast.If) and re.search(r"\blabels\b", ast.unparse(node.test)):
                names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
                stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
                if "decoder_input_ids" in stored:
                    making[name] = stored - {"decoder_input_ids", "use_cache"}
    default = ModelClass()
    known = {name for name, row in MODEL_CLASSES.items() if (row.adds, row.more) != (default.adds, default.more)}
    assert {"SwitchTransformersForConditionalGeneration", "BambaForCausalLM"} < adding
    assert adding - known == (OTHER_ARGUMENTS | SOUND) & set(forwards)  # older versions have fewer
    assert making["T5ForConditionalGeneration"] == set()
    more = {name for name, stored in making.items() if stored}
    assert more - {name for name, row in MODEL_CLASSES.items() if row.decoder_mask} == {
        "MusicgenForConditionalGeneration"  # sound, where it has no labels
    }
