"""The truth for every framework's loop: the gradient of one large batch, in float64.

A tiny model, twelve rows of which the first have no numbers, and random splits of them into uneven micro-batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

VOCAB, WIDTH, ROWS, LENGTH = 24, 8, 12, 6
NUMBERS = NumberTokens.from_mapping({10 + digit: float(digit) for digit in range(10)}, vocab_size=VOCAB)
WEIGHT = 0.3
MEANS = ("numbers", "tokens")
SPLITS = tuple(range(3))
"""Seeds of random splits."""
Grads = dict[str, Tensor]


class Model(nn.Sequential):
    """Ids [B..., T] to logits [B..., T, V]."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, VOCAB))


def all_rows() -> tuple[Tensor, Tensor]:
    """Ids and labels [12, 6]: a third of the labels do not count, and the first four rows have no numbers."""
    generator = torch.Generator().manual_seed(2)
    ids, labels = torch.randint(0, VOCAB, (2, ROWS, LENGTH), generator=generator)
    labels[:4][is_number(labels[:4])] = 3
    ignored = torch.rand(ROWS, LENGTH, generator=generator) < 1 / 3
    ignored[:, 0] = False
    return ids, labels.masked_fill(ignored, -100)


def is_number(labels: Tensor) -> Tensor:
    return (labels >= 10) & (labels < 20)


def counts(labels: Tensor, mean_over: str) -> dict[str, int]:
    """The denominators that a mean needs of the whole batch."""
    num_tokens = {"num_tokens": int((labels != -100).sum())}
    return num_tokens if mean_over == "tokens" else {**num_tokens, "num_numbers": int(is_number(labels).sum())}


def config(mean_over: str) -> NTLConfig:
    return NTLConfig(weight=WEIGHT, mean_over=mean_over)


def loss_of(logits: Tensor, labels: Tensor, mean_over: str) -> Tensor:
    """A micro-batch's share of the loss of all rows, from their counts."""
    return cross_entropy_ntl(
        logits,
        labels,
        NUMBERS,
        config=config(mean_over),
        **counts(all_rows()[1], mean_over),  # type: ignore[arg-type]
    )


def expected(mean_over: str) -> Grads:
    """The gradients of all rows at once."""
    model, (ids, labels) = Model().double(), all_rows()
    logits = model(ids)
    ce = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    both = cross_entropy_ntl(
        logits, labels, NUMBERS, config=NTLConfig(weight=1.0), reduction="sum", backend="reference"
    )
    tokens = (labels != -100).sum()
    (ce / tokens + WEIGHT * (both - ce) / (tokens if mean_over == "tokens" else is_number(labels).sum())).backward()
    return grads_of(model)


def grads_of(model: nn.Module, prefix: str = "") -> Grads:
    """Gradients by the names of the bare model's parameters, gathered if they are sharded."""
    found = {}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None
        full: Tensor = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        found[prefix + name.removeprefix("module.")] = full.detach().clone()
    return found


def error(actual: Grads, reference: Grads) -> float:
    """The largest difference of any parameter, relative to its largest entry."""
    assert actual.keys() <= reference.keys() and actual
    pairs = [(grad.double(), reference[name]) for name, grad in actual.items()]
    return max(((ours - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in pairs)


def split(seed: int, ranks: int, steps: int) -> list[list[tuple[Tensor, Tensor]]]:
    """The micro-batches of each rank: rows in order, split at random places. The first ones have no numbers."""
    ids, labels = all_rows()
    generator = torch.Generator().manual_seed(seed)
    cuts = 1 + torch.randperm(ROWS - 1, generator=generator)[: ranks * steps - 1].sort().values
    parts = [(ids[a:b], labels[a:b]) for a, b in pairwise([0, *cuts.tolist(), ROWS])]
    assert any(not is_number(part).any() for _, part in parts)
    return [parts[rank::ranks] for rank in range(ranks)]


@contextmanager
def as_launched() -> Iterator[None]:
    """The environment that torchrun gives a process of the group that runs."""
    names = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size()}
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", LOCAL_WORLD_SIZE=str(dist.get_world_size()))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def assert_equal_to_one_batch(results: list[Any], mean_over: str, factor: float = 1.0) -> None:
    """Every rank's gradients, times a factor, are those of all rows at once."""
    reference = expected(mean_over)
    for grads in results:
        assert error({name: grad.double() * factor for name, grad in grads.items()}, reference) < 1e-6
