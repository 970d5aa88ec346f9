"""A model with its batches, its Trainer and the way it answers questions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import EvalPrediction, Trainer

from ntl_kernels import NTLConfig, NumberTokens, number_answers
from ntl_kernels.integrations.transformers import apply_ntl_to_model
from ntl_kernels.ntloss import NumberLevelLoss
from ntl_kernels.number_weights import BalancedWeights, WithNumberWeights

from ..commands import InputError, naming
from .codec import Bins, Codec, OwnCodec, RTCodec, XValCodec, make_codec
from .data import Pair, Splits
from .data.pairs import final_value
from .losses import GAUSSIAN, ntl_config, number_level_config
from .metrics import in_digits
from .models import ValueModel, add_number_embeddings, make_model, saved_model
from .ratings import probabilities, scores_of
from .training import IGNORE, AddedLossTrainer, PlainTrainer, TokenTrainer

LONGEST_ANSWER = 256
"""Maximum number of tokens; longer answers are truncated."""
VOCABULARY_TEXTS = 20_000
"""How many training pairs a tokenizer is trained on."""
Collate = Callable[[Sequence[Pair]], dict[str, Any]]
Sample = Callable[[Sequence[Pair], int], list[list[str]]]
"""Samples this many answers to each question."""


class Decoded(NamedTuple):
    """Other answers to a question than the greedy one."""

    answers: dict[str, str]
    """Decoder -> answer."""
    is_covered: bool | None = None
    """Whether the true bin is among those with 90 % of the probability, between two quantiles."""


Decode = Callable[[Sequence[Pair]], list[Decoded]]


@dataclass
class Task:
    """A model that can be trained and can answer questions."""

    model: Any
    codec: Codec
    loss: str
    """The name of its loss."""
    trainer: type[Trainer]
    trainer_arguments: dict[str, Any]
    collate: Collate
    sample: Sample | None = None
    """None for a head that predicts a value."""
    decode: Decode | None = None
    """Of ratings and bins, from their probabilities."""


def question_of(codec: Codec, pair: Pair) -> list[int]:
    return [*codec.begin, *codec.encode(pair.question)[-codec.longest_question :]]


def answer_of(codec: Codec, pair: Pair) -> list[int]:
    """The answer and the end token; a bin needs no end."""
    if codec.bins is not None:
        return codec.encode_answer(pair.answer)
    return [*codec.encode(pair.answer)[:LONGEST_ANSWER], codec.eos]


def padded(rows: Sequence[Sequence[int]], value: int, side: str = "right") -> Tensor:
    """[B, T] of rows of different lengths."""
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=value, padding_side=side)


def inputs_of(codec: Codec, questions: Sequence[Sequence[int]], side: str = "right") -> dict[str, Tensor]:
    mask = padded([[1] * len(question) for question in questions], 0, side)
    return {"input_ids": padded(questions, codec.pad, side), "attention_mask": mask}


def seq2seq_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    labels = padded([answer_of(codec, pair) for pair in pairs], IGNORE)
    return {**inputs_of(codec, [question_of(codec, pair) for pair in pairs]), "labels": labels}


def marked_questions(codec: Codec, pairs: Sequence[Pair]) -> list[list[int]]:
    return [[*question_of(codec, pair), *codec.mark] for pair in pairs]


def questions_and_answers(codec: Codec, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    return [(q, answer_of(codec, pair)) for q, pair in zip(marked_questions(codec, pairs), pairs, strict=True)]


def causal_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Question, answer mark and answer in one row; labels are the answer and its end token. The model shifts them."""
    both = questions_and_answers(codec, pairs)
    labels = padded([[IGNORE] * len(question) + answer for question, answer in both], IGNORE)
    return {**inputs_of(codec, [question + answer for question, answer in both]), "labels": labels}


def answers_batch(codec: Codec, pairs: Sequence[Pair]) -> dict[str, Any]:
    """``causal_batch`` with answers at the end of the rows. The model computes logits for these positions alone, which
    saves a quarter of a step of SmolLM2. A patched model needs no such batch: it computes no logits."""
    both = questions_and_answers(codec, pairs)
    labels = padded([[IGNORE, *answer] for _, answer in both], IGNORE, "left")
    inputs = inputs_of(codec, [question + answer for question, answer in both], "left")
    return {**inputs, "labels": labels, "logits_to_keep": labels.shape[1]}


def regression_batch(codec: Codec, mean: float, deviation: float, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """Labels [B]: standardised values, NaN where an answer is not a number."""
    values = [final_value(pair.answer) for pair in pairs]
    labels = torch.tensor([math.nan if value is None else (value - mean) / deviation for value in values])
    return {**inputs_of(codec, [question_of(codec, pair) for pair in pairs]), "labels": labels}


def make_task(config: DictConfig, splits: Splits) -> Task:
    """Model, tokenizer, trainer and answering, as configured."""
    options, texts = config.model, [text for pair in splits.train[:VOCABULARY_TEXTS] for text in pair]
    with naming("model"):
        checkpoint = options.checkpoint and str(saved_model(options.checkpoint))
        codec = make_codec(options.codec, texts, options.vocabulary, checkpoint, options.longest_question)
        if options.bins:
            codec.answer_with(Bins([pair.answer for pair in splits.train], options.bins, options.scale))
        model = make_model(options, codec, config.seed)
    if isinstance(codec, OwnCodec):
        codec.vocab_size = model.get_input_embeddings().weight.shape[0]  # which may be padded
    if options.head == "regression":
        return regression_task(model, codec, splits)
    if isinstance(codec, XValCodec):
        return value_task(model, codec, splits)
    if isinstance(codec, RTCodec):
        add_number_embeddings(model, codec)
    task = token_task(config, model, codec, splits)
    if codec.bins is not None:
        task.decode = partial(decoded_bins, model, codec, codec.centres())
    return rating_task(task, splits) if config.dataset.get("ratings") else task


def decoded_bins(model: Any, codec: Codec, centres: NumberTokens, pairs: Sequence[Pair]) -> list[Decoded]:
    """Median, mean and interval of the distribution over the bins, the interval from quantile 0.05 to 0.95."""
    assert codec.bins is not None
    found = number_answers(next_logits(model, codec, pairs, []), centres)
    true = torch.tensor([codec.bins.centres[codec.bins.place(pair.answer)] for pair in pairs])
    lower, upper = found.quantiles.unbind(-1)
    rows = zip(found.median.tolist(), found.mean.tolist(), ((lower <= true) & (true <= upper)).tolist(), strict=True)
    return [
        Decoded({"median": in_digits(median), "expected": in_digits(mean)}, covered) for median, mean, covered in rows
    ]


def token_task(config: DictConfig, model: Any, codec: Codec, splits: Splits) -> Task:
    """A model that answers with tokens, trained with CE and a Number Token Loss."""
    is_seq2seq, longest = model.config.is_encoder_decoder, longest_answer(codec, splits)
    collate: Collate = partial(seq2seq_batch if is_seq2seq else causal_batch, codec)
    answer = seq2seq_answers if is_seq2seq else causal_answers
    trainer: type[Trainer] = TokenTrainer
    arguments: dict[str, Any] = {}
    if config.loss.name == "number_level":
        chosen = number_level_config(config.loss)
        added = NumberLevelLoss(codec.tokenizer, codec.vocab_size, reweigh=chosen.reweigh)
        measured = {"numbers": codec.numbers(), "ntl_config": NTLConfig(weight=0.0)}
        trainer, arguments = AddedLossTrainer, {"added": added, "weight": float(chosen.weight), **measured}
    else:
        grouped = None if config.loss.name == GAUSSIAN else config.loss.get("group_by", "length")
        numbers = codec.numbers(grouped)
        if config.model.adapter and codec.bins is not None:  # PEFT ties the head to the rows that it trains
            arguments = {"numbers": numbers, "ntl_config": ntl_config(config.loss)}
            collate = collate if is_seq2seq else partial(answers_batch, codec)
        else:
            apply_ntl_to_model(model, numbers, ntl_config(config.loss))
        if config.loss.get("balance"):
            balanced = BalancedWeights([padded([answer_of(codec, pair) for pair in splits.train], IGNORE)], numbers)
            collate = WithNumberWeights(collate, lambda batch: balanced(batch["labels"]))
    arguments["answer"] = lambda pairs: answer(model, codec, pairs, longest, do_sample=False, num_beams=config.beams)

    def sample(pairs: Sequence[Pair], count: int) -> list[list[str]]:
        answers = answer(model, codec, pairs, longest, do_sample=True, top_k=0, num_return_sequences=count)
        return [answers[start : start + count] for start in range(0, len(answers), count)]

    return Task(model, codec, config.loss.name, trainer, arguments, collate, sample)


def rating_task(task: Task, splits: Splits) -> Task:
    """A task whose answers are a few scores: samples are drawn from their probabilities."""
    model, codec, scores = task.model, task.codec, scores_of(splits.train)
    answers = [[*codec.encode(score), codec.eos] for score in scores]

    def rate(pairs: Sequence[Pair]) -> Tensor:
        return probabilities(answers, partial(next_logits, model, codec, pairs))

    def sample(pairs: Sequence[Pair], count: int) -> list[list[str]]:
        drawn = torch.multinomial(rate(pairs), count, replacement=True)
        return [[scores[place] for place in row] for row in drawn.tolist()]

    def decode(pairs: Sequence[Pair]) -> list[Decoded]:
        values = torch.tensor([float(score) for score in scores], dtype=torch.float64)
        return [Decoded({"expected": f"{value:.6f}"}) for value in (rate(pairs) @ values).tolist()]

    task.sample, task.decode = sample, decode
    return task


@torch.no_grad()
def next_logits(model: Any, codec: Codec, pairs: Sequence[Pair], begun: Sequence[int]) -> Tensor:
    """[B, V] on the CPU: the logits of the token after the first tokens of an answer, the same for all questions."""
    if model.config.is_encoder_decoder:
        inputs = inputs_on(model, seq2seq_batch(codec, pairs))
        given = torch.tensor([[codec.pad, *begun]], device=model.device).expand(len(pairs), -1)
        return model(**inputs, decoder_input_ids=given).logits[:, -1].cpu()
    rows = [[*question, *begun] for question in marked_questions(codec, pairs)]
    inputs = inputs_on(model, inputs_of(codec, rows, side="left"))
    return model(**inputs, logits_to_keep=1).logits[:, -1].cpu()


def regression_task(model: Any, codec: Codec, splits: Splits) -> Task:
    """A model that predicts a value for each question, trained with MSE of standardised values."""
    values = [value for pair in splits.train if (value := final_value(pair.answer)) is not None]
    if 2 * len(values) <= len(splits.train) or (isinstance(codec, OwnCodec) and len(values) < len(splits.train)):
        found = f"{len(values)} of {len(splits.train)} for training are"
        raise InputError(f"model.head=regression needs answers that are numbers; {found}")
    if not hasattr(model.config, "answer_mean"):  # otherwise the model was saved with it
        model.config.answer_mean = statistics.fmean(values)
        model.config.answer_deviation = max(statistics.pstdev(values), 1e-6)
    collate = partial(regression_batch, codec, model.config.answer_mean, model.config.answer_deviation)
    arguments = {"answer": lambda pairs: regression_answers(model, collate(pairs))}
    return Task(model, codec, "mse", PlainTrainer, arguments, collate)


def value_task(model: ValueModel, codec: XValCodec, splits: Splits) -> Task:
    """xVal, trained with CE and MSE."""
    model.config.num_token_id, longest = codec.num, longest_answer(codec, splits)

    def answer(pairs: Sequence[Pair]) -> list[str]:
        ids, values = model.answer(longest, **inputs_on(model, value_batch(codec, pairs)))
        return [codec.decode_values(row, value) for row, value in zip(ids.tolist(), values.tolist(), strict=True)]

    def cross_entropy(outputs: EvalPrediction) -> dict[str, float]:
        sums, tokens = outputs.predictions
        return {"ce": sums.sum() / tokens.sum()}

    arguments = {"answer": answer, "compute_metrics": cross_entropy}
    return Task(model, codec, "ce_mse", PlainTrainer, arguments, partial(value_batch, codec))


def value_batch(codec: XValCodec, pairs: Sequence[Pair]) -> dict[str, Tensor]:
    """A batch of :func:`seq2seq_batch` with the value of every token."""
    questions = [codec.values(pair.question)[-codec.longest_question :] for pair in pairs]
    answers = [[*codec.values(pair.answer)[:LONGEST_ANSWER], 1.0] for pair in pairs]
    values = {"input_values": padded(questions, 1), "label_values": padded(answers, 1)}
    return {**seq2seq_batch(codec, pairs), **values}


def longest_answer(codec: Codec, splits: Splits) -> int:
    """The maximum length of an answer in tokens: that of the longest answer in the data, the end token and two more."""
    parts = [splits.train[:VOCABULARY_TEXTS], splits.validation, *splits.tests.values()]
    return max(len(answer_of(codec, pair)) for part in parts for pair in part) + 2


def inputs_on(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch without its labels, on the model's device."""
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items() if not name.startswith("label")}


def seq2seq_answers(model: Any, codec: Codec, pairs: Sequence[Pair], longest: int, **decoding: Any) -> list[str]:
    inputs = inputs_on(model, seq2seq_batch(codec, pairs))
    ids = model.generate(**inputs, max_new_tokens=longest, **decoding)
    return [codec.decode(row[1:]) for row in ids.tolist()]


def causal_answers(
    model: Any, codec: Codec, pairs: Sequence[Pair], longest: int, num_return_sequences: int = 1, **decoding: Any
) -> list[str]:
    """Of several answers to a question, all share one pass over it."""
    inputs = inputs_on(model, inputs_of(codec, marked_questions(codec, pairs), side="left"))
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    decoding |= {"max_new_tokens": longest, "pad_token_id": codec.pad}
    if num_return_sequences > 1:
        positions = (mask.cumsum(1) - 1).clamp_min(0)[:, :-1]
        read = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], position_ids=positions, use_cache=True)
        read.past_key_values.batch_repeat_interleave(num_return_sequences)
        ids, mask = (each.repeat_interleave(num_return_sequences, 0) for each in (ids, mask))
        decoding["past_key_values"] = read.past_key_values
    rows = model.generate(input_ids=ids, attention_mask=mask, **decoding)
    return [codec.decode(row[ids.shape[1] :]) for row in rows.tolist()]


def regression_answers(model: Any, batch: dict[str, Tensor]) -> list[str]:
    predicted = model(**inputs_on(model, batch))["logits"].flatten().tolist()
    return [f"{value * model.config.answer_deviation + model.config.answer_mean:.6f}" for value in predicted]
