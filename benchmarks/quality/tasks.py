"""A model that can be trained and asked: its batches, its Trainer and the way it gives answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from ntl_kernels import NTLConfig
from ntl_kernels.integrations.transformers import apply_ntl_to_model

from ..errors import InputError, naming
from .codecs import Codec, make_codec
from .data import Pair, Splits
from .data.pairs import final_value
from .losses import CodecNumberLevelLoss, ntl_config, options_of
from .models import NumericEmbedding, RegressionModel, ValueModel, transformer
from .training import IGNORE, NumberLevelTrainer, PlainTrainer, TokenTrainer, token_metrics, token_scores

LONGEST_QUESTION, LONGEST_ANSWER = 512, 256
"""Tokens; what is longer is cut, questions at their start."""
VOCABULARY_TEXTS = 20_000
"""Training pairs that a tokenizer is trained on."""


@dataclass
class Task:
    """A model that can be trained, and asked for answers."""

    model: Any
    codec: Codec
    loss: str
    """What it is trained by."""
    trainer: type[Trainer]
    trainer_arguments: dict[str, Any]
    collate: Callable[[Sequence[Pair]], dict[str, Tensor]]


def question_ids(codec: Codec, pair: Pair) -> tuple[list[int], list[float]]:
    encoded = codec.encode(pair.question)
    return encoded.ids[-LONGEST_QUESTION:], encoded.values[-LONGEST_QUESTION:]


def answer_ids(codec: Codec, pair: Pair) -> tuple[list[int], list[float]]:
    """The answer and its end."""
    encoded = codec.encode(pair.answer)
    return [*encoded.ids[:LONGEST_ANSWER], codec.eos], [*encoded.values[:LONGEST_ANSWER], 1.0]


def padded(
    rows: Sequence[Sequence[float]], value: float, dtype: torch.dtype = torch.long, side: str = "right"
) -> Tensor:
    """[B, T] of rows of different lengths."""
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)


def inputs_of(codec: Codec, questions: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    ids = padded(questions, codec.pad)
    return {"input_ids": ids, "attention_mask": (ids != codec.pad).long()}


def seq2seq_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    questions = [question_ids(codec, pair)[0] for pair in pairs]
    answers = [answer_ids(codec, pair)[0] for pair in pairs]
    return {**inputs_of(codec, questions), "labels": padded(answers, IGNORE)}


def value_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """:func:`seq2seq_batch` with the values of the ``[NUM]`` tokens."""
    questions = [question_ids(codec, pair)[1] for pair in pairs]
    answers = [answer_ids(codec, pair)[1] for pair in pairs]
    values = {"input_values": questions, "label_values": answers}
    return {**seq2seq_batch(codec, pairs), **{k: padded(rows, 1.0, torch.float32) for k, rows in values.items()}}


def causal_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Question, mark and answer in one row; only the answer and its end are labels. The model shifts them."""
    questions = [[*question_ids(codec, pair)[0], codec.mark] for pair in pairs]
    answers = [answer_ids(codec, pair)[0] for pair in pairs]
    rows = [q + a for q, a in zip(questions, answers, strict=True)]
    labels = [[IGNORE] * len(q) + a for q, a in zip(questions, answers, strict=True)]
    mask = padded([[1] * len(row) for row in rows], 0)
    return {"input_ids": padded(rows, codec.pad), "attention_mask": mask, "labels": padded(labels, IGNORE)}


def regression_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Labels [B]: values, NaN where an answer is not a number."""
    values = [final_value(pair.answer) for pair in pairs]
    labels = torch.tensor([math.nan if value is None else value for value in values])
    return {**inputs_of(codec, [question_ids(codec, pair)[0] for pair in pairs]), "labels": labels}


def make_task(config: DictConfig, splits: Splits) -> Task:
    """Model, tokenizer, trainer and the way to ask for answers, as configured."""
    texts = [text for pair in splits.train[:VOCABULARY_TEXTS] for text in pair]
    checkpoint = config.model.checkpoint
    if checkpoint is not None and not Path(checkpoint).is_dir():
        raise InputError(f"model.checkpoint={checkpoint}: no such folder")
    with naming("model"):
        codec = make_codec(config.model.codec, texts, config.model.vocabulary, checkpoint)
        base = transformer(config.model.architecture, config.model.size, checkpoint, codec, config.seed)
    if config.model.numeric_embeddings:
        base.set_input_embeddings(NumericEmbedding(base.get_input_embeddings(), codec))
    longest = longest_answer(codec, splits)
    if config.model.head == "value":
        return value_task(ValueModel(base, codec), codec, longest)
    if config.model.head == "regression":
        return regression_task(base, codec, splits)
    return token_task(config, base, codec, longest)


def token_task(config: DictConfig, model: Any, codec: Codec, longest: int) -> Task:
    """Answers as tokens, under CE and a Number Token Loss."""
    is_seq2seq = model.config.is_encoder_decoder
    collate = seq2seq_batch if is_seq2seq else causal_batch
    answer = seq2seq_answers if is_seq2seq else causal_answers
    trainer: type[Trainer] = TokenTrainer
    arguments: dict[str, Any] = {}
    if config.loss.name == "number_level":
        with naming("loss=number_level"):
            chosen = NTLConfig(**options_of(config.loss))  # which checks weight and reweigh
        loss = CodecNumberLevelLoss(codec, chosen.reweigh)
        measured = {"numbers": codec.numbers(), "ntl_config": NTLConfig(weight=0.0)}
        trainer, arguments = NumberLevelTrainer, {"number_loss": loss, "weight": chosen.weight, **measured}
    else:
        apply_ntl_to_model(model, codec.numbers(), ntl_config(config.loss))
    arguments["answer"] = lambda pairs: answer(model, codec, pairs, longest)
    return Task(model, codec, config.loss.name, trainer, arguments, partial(collate, codec))


def value_task(model: ValueModel, codec: Codec, longest: int) -> Task:
    """xVal, by CE + MSE whatever the loss configured: its numbers are no tokens that NTL could compare."""
    measures = {"compute_metrics": token_metrics, "preprocess_logits_for_metrics": token_scores}
    arguments = {"answer": lambda pairs: value_answers(model, codec, pairs, longest), **measures}
    return Task(model, codec, "ce_mse", PlainTrainer, arguments, partial(value_batch, codec))


def regression_task(base: Any, codec: Codec, splits: Splits) -> Task:
    """A value for each question, by MSE whatever the loss configured: there are no number tokens."""
    values = [value for pair in splits.train if (value := final_value(pair.answer)) is not None] or [0.0]
    model = RegressionModel(base, statistics.fmean(values), statistics.pstdev(values))
    arguments = {"answer": lambda pairs: regression_answers(model, codec, pairs)}
    return Task(model, codec, "mse", PlainTrainer, arguments, partial(regression_batch, codec))


def device_of(model: Any) -> torch.device:
    return next(model.parameters()).device


def longest_answer(codec: Codec, splits: Splits) -> int:
    """Tokens that an answer may have: those of the longest one in the data, its end, and two more."""
    parts = [splits.train[:VOCABULARY_TEXTS], splits.validation, *splits.tests.values()]
    return max(len(answer_ids(codec, pair)[0]) for part in parts for pair in part) + 2


@torch.no_grad()
def seq2seq_answers(model: Any, codec: Codec, pairs: Sequence[Pair], longest: int) -> list[str]:
    batch = {k: v.to(device_of(model)) for k, v in seq2seq_batch(codec, pairs).items() if k != "labels"}
    ids = model.generate(**batch, max_new_tokens=longest, do_sample=False)
    return [codec.decode(row[1:]) for row in ids.tolist()]


@torch.no_grad()
def causal_answers(model: Any, codec: Codec, pairs: Sequence[Pair], longest: int) -> list[str]:
    questions = [[*question_ids(codec, pair)[0], codec.mark] for pair in pairs]
    ids = padded(questions, codec.pad, side="left")
    mask = padded([[1] * len(q) for q in questions], 0, side="left")
    inputs = {"input_ids": ids.to(device_of(model)), "attention_mask": mask.to(device_of(model))}
    generated = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
    return [codec.decode(row[ids.shape[1] :]) for row in generated.tolist()]


@torch.no_grad()
def value_answers(model: ValueModel, codec: Codec, pairs: Sequence[Pair], longest: int) -> list[str]:
    batch = {k: v.to(device_of(model)) for k, v in value_batch(codec, pairs).items() if not k.startswith("label")}
    ids, values = model.answer(**batch, longest=longest)
    return [codec.decode(row, value) for row, value in zip(ids.tolist(), values.tolist(), strict=True)]


@torch.no_grad()
def regression_answers(model: RegressionModel, codec: Codec, pairs: Sequence[Pair]) -> list[str]:
    batch = {k: v.to(device_of(model)) for k, v in regression_batch(codec, pairs).items() if k != "labels"}
    return [f"{value:.6f}" for value in model(**batch)["logits"].tolist()]
