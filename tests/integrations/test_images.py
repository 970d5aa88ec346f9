"""Models that read numbers off pictures: their losses and gradients are those of the stock forward and full logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from ntl_kernels import NTLConfig
from ntl_kernels.integrations.transformers import NTLTrainer, apply_ntl_to_model

from ..versions import needs
from .models import DECODER, NUMBERS, assert_same_gradients, gradients, stock_output
from .training import arguments, log_of, settings, step_of

BOTH_WAYS = pytest.mark.parametrize("is_patched", [True, False], ids=["hidden states", "logits"])
WORDS = ["<pad>", "<s>", "</s>", "<picture>", "<patch>", "<end>", "how", "dark", "is", "it", *"0123456789"]
QUESTION, SIDE = "<picture> how dark is it ", 16
PICTURES = {answer: Image.new("L", (SIDE, SIDE), 16 * answer) for answer in (3, 11, 7, 2, 13, 8, 4, 10)}


def make_processor() -> Any:
    """Gemma 3's, for tiny pictures and few words."""
    raw = Tokenizer(models.WordLevel({word: token for token, word in enumerate(WORDS)}))
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True)]
    raw.pre_tokenizer = pre_tokenizers.Sequence(splits)
    special = {"boi_token": "<picture>", "image_token": "<patch>", "eoi_token": "<end>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", extra_special_tokens=special
    )
    pixels = transformers.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    return transformers.Gemma3Processor(pixels, tokenizer, image_seq_length=4)


def make_model() -> Any:
    """A model in training mode whose logits are large, and differ from picture to picture."""
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": SIDE, "patch_size": 4, "vision_use_head": False}
    options = {"mm_tokens_per_image": 4, "image_token_id": WORDS.index("<patch>"), "tie_word_embeddings": False}
    config = transformers.Gemma3Config(text_config=DECODER, vision_config=vision, **options)
    model = transformers.Gemma3ForConditionalGeneration(config).train()
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # 0 by default
    return model


def collate(answers: list[int]) -> dict[str, Tensor]:
    """A batch, padded on the right, in which only the answers have labels."""
    texts = [f"{QUESTION}{answer}</s>" for answer in answers]
    pictures = [[PICTURES[answer]] for answer in answers]
    batch = make_processor()(images=pictures, text=texts, padding=True, return_tensors="pt")
    ids = batch["input_ids"]
    return {**batch, "labels": ids.where(NUMBERS.is_number(ids) | (ids == WORDS.index("</s>")), -100)}


def patch(model: Any, weight: float = 0.3) -> Any:
    return apply_ntl_to_model(model, NUMBERS, NTLConfig(weight=weight))


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_patched_model(weight: float) -> None:
    model, batch = make_model(), collate([*PICTURES])
    loss = stock_output(model, batch, config=NTLConfig(weight=weight)).loss if weight else model(**batch).loss
    loss.backward()
    expected = gradients(model)
    assert any(grad.any() for name, grad in expected.items() if name.endswith("patch_embedding.weight"))
    output = patch(model, weight)(**batch)
    output.loss.backward()
    assert output.logits is None and output.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert_same_gradients(gradients(model), expected)


def check_step(cls: Any, is_patched: bool, args: Any, rows: Any, **options: Any) -> None:
    """Four steps equal one large batch, and evaluation finds the same loss."""
    model = make_model()
    loss = stock_output(model, collate([*PICTURES])).loss
    loss.backward()
    expected, model = gradients(model), patch(model) if is_patched else model
    trainer = cls(model, args, train_dataset=rows, eval_dataset=rows, numbers=NUMBERS, **options)
    assert_same_gradients(step_of(trainer), expected)
    assert log_of(trainer)["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-5)


@BOTH_WAYS
def test_trainer(is_patched: bool, tmp_path: Path) -> None:
    args = arguments(tmp_path, 2, 4, learning_rate=0.0, remove_unused_columns=False)
    check_step(NTLTrainer, is_patched, args, [*PICTURES], data_collator=collate)


@needs("trl", 0, to="be tried")
@BOTH_WAYS
def test_sft_trainer(is_patched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TRL's own collator."""
    monkeypatch.setenv("CI", "1")  # otherwise, TRL reports its use over the network
    from datasets import Dataset
    from trl import SFTConfig

    from ntl_kernels.integrations.trl import NTLSFTTrainer

    rows = [{"images": [PICTURES[n]], "prompt": QUESTION, "completion": f"{n}</s>"} for n in PICTURES]
    args = SFTConfig(**settings(tmp_path, 2, 4, learning_rate=0.0, bf16=False))
    check_step(NTLSFTTrainer, is_patched, args, Dataset.from_list(rows), processing_class=make_processor())
