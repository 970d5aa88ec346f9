"""What the third page shows: a small model that learns sums with and without the number loss, while one looks on.

The model is a decoder with random weights, of the kind and size of the main job's, on shorter questions. The loop is
its own and short: ``benchmarks`` is no part of an installed package, and here two models go through the same batches
side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import NTLConfig, NTLOutput, check_number
from ..functional import linear_cross_entropy_ntl
from ..tokens import NumberTokens

TOKENS = (*"0123456789", "+", "=")
ANSWER = 3
"""Digits of an answer, with leading zeros: 000 to 198."""
TEST_SIZE = 200
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
MOST_STEPS = 2000
SECONDS_BETWEEN = 0.5
MOST_SEED = 2**32 - 1


class Vocabulary:
    """Digits, plus and equals, in the form in which :meth:`NumberTokens.from_tokenizer` reads a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        return {text: token for token, text in enumerate(TOKENS)}


NUMBERS = NumberTokens.from_tokenizer(Vocabulary())


@dataclass(frozen=True)
class Settings:
    """What one live run does.

    Raises:
        TypeError, ValueError: a number of steps outside 1 to MOST_STEPS, or a seed outside 0 to MOST_SEED.
    """

    config: NTLConfig = field(default_factory=NTLConfig)
    steps: int = 300
    seed: int = 1
    hidden_size: int = 128
    layers: int = 3

    def __post_init__(self) -> None:
        for name, low, high in (("steps", 1, MOST_STEPS), ("seed", 0, MOST_SEED)):
            check_number(name, getattr(self, name), minimum=low)
            if getattr(self, name) > high:
                raise ValueError(f"{name} must be at most {high}; got {getattr(self, name)}")


class Score(NamedTuple):
    """How a model does on the questions that are not trained on."""

    cross_entropy: float
    """Of the true answers' tokens."""
    answer_mae: float
    """Mean |answer - truth| of greedy answers that are numbers; NaN if none is."""
    exact: float
    """Share of the greedy answers that are right."""


@dataclass
class Run:
    """One loss and what its model has come to."""

    name: str
    config: NTLConfig
    model: Any
    optimizer: torch.optim.Optimizer
    steps: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    """Of all test questions, as of the last score."""


class Progress(NamedTuple):
    """What is known after a step."""

    step: int
    seconds: float
    """Since the first step, the scores included."""
    runs: list[Run]
    questions: list[str]
    truths: list[int]


def train(settings: Settings) -> Iterator[Progress]:
    """Train with cross-entropy and with cross-entropy + NTL: the same first weights, the same batches.

    Yields some twice a second, and whenever the models have been scored: every tenth of the run, or every 5 steps if
    that is less often. Needs ``transformers``.
    """
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(100))
    generator = torch.Generator().manual_seed(settings.seed)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    test, known = pairs[:TEST_SIZE], pairs[TEST_SIZE:]
    questions = [f"{a}+{b}" for a, b in test.tolist()]
    runs = [start("CE", replace(settings.config, weight=0.0), settings)]
    runs.append(start(f"CE + {settings.config.weight:g} NTL", settings.config, settings))
    scored = {*range(0, settings.steps, max(5, settings.steps // 10)), settings.steps}
    started = shown = time.perf_counter()
    for step in range(settings.steps + 1):
        if step > 0:
            batch = known[torch.randint(len(known), (BATCH_SIZE,), generator=generator)]
            for run in runs:
                update(run, batch)
        if step in scored:
            for run in runs:
                score(run, step, test)
        now = time.perf_counter()
        if step in scored or now - shown > SECONDS_BETWEEN:
            shown = now
            yield Progress(step, now - started, runs, questions, test.sum(-1).tolist())


def start(name: str, config: NTLConfig, settings: Settings) -> Run:
    """A model with random weights of the settings' seed; the process's own random state is left as it was."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(TOKENS),
                hidden_size=settings.hidden_size,
                intermediate_size=4 * settings.hidden_size,
                num_hidden_layers=settings.layers,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=16,
            )
        )
    return Run(name, config, model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01))


def sequences(pairs: Tensor) -> Tensor:
    """Token ids [N, 9] of "07+45=052" for pairs [N, 2]."""
    a, b = pairs.unbind(-1)
    plus, equals = (torch.full_like(a, TOKENS.index(sign)) for sign in "+=")
    total = a + b
    columns = [a // 10, a % 10, plus, b // 10, b % 10, equals, total // 100, total // 10 % 10, total % 10]
    return torch.stack(columns, -1)


def losses(model: Any, pairs: Tensor, config: NTLConfig) -> NTLOutput:
    """Of the answers alone: the hidden state of one token is compared with the next token."""
    ids = sequences(pairs)
    labels = ids[:, 1:].clone()
    labels[:, :-ANSWER] = -100
    hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state
    output = linear_cross_entropy_ntl(hidden, model.lm_head.weight, labels, NUMBERS, config=config, return_parts=True)
    assert isinstance(output, NTLOutput)
    return output


def update(run: Run, pairs: Tensor) -> None:
    """One step of AdamW."""
    losses(run.model, pairs, run.config).loss.backward()
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def score(run: Run, step: int, pairs: Tensor) -> None:
    """Add the score of a model on pairs [N, 2], and its answers."""
    ids = sequences(pairs)[:, :-ANSWER]
    for _ in range(ANSWER):
        ids = torch.cat([ids, run.model(input_ids=ids).logits[:, -1:].argmax(-1)], -1)
    run.answers = ["".join(TOKENS[token] for token in row[-ANSWER:]) for row in ids.tolist()]
    truths = pairs.sum(-1).tolist()
    errors = [abs(int(answer) - truth) for answer, truth in zip(run.answers, truths, strict=True) if answer.isdigit()]
    run.steps.append(step)
    run.scores.append(
        Score(
            losses(run.model, pairs, run.config).cross_entropy.item(),
            sum(errors) / len(errors) if errors else float("nan"),
            sum(answer == f"{truth:03d}" for answer, truth in zip(run.answers, truths, strict=True)) / len(truths),
        )
    )
