"""One vocabulary split by columns, and the answer that its shards give together."""

from __future__ import annotations

import random
from itertools import pairwise

import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput
from ntl_kernels.backends import load_shard_backend
from ntl_kernels.backends.contract import NUM_MERGED, num_statistics
from ntl_kernels.backends.layout import gradient_like, loss_dtype
from ntl_kernels.formulas import divide
from ntl_kernels.parallel.headers import with_header
from ntl_kernels.problem import Problem as CheckedProblem
from ntl_kernels.problem import RowResult
from ntl_kernels.spec import LossSpec

from ..problems import Answer, Problem

DEFAULTS = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0, "softcap": None, "logit_scale": 1.0}


def random_bounds(rng: random.Random, vocab_size: int, ranks: int) -> list[tuple[int, int]]:
    """(first, width) of each rank: even, ragged, or with ranks that have no column at all."""
    if rng.random() < 0.3:
        step = -(-vocab_size // ranks)
        cuts = [min(rank * step, vocab_size) for rank in range(ranks + 1)]
    else:
        cuts = [0, *sorted(rng.choices(range(vocab_size + 1), k=ranks - 1)), vocab_size]
    return [(first, last - first) for first, last in pairwise(cuts)]


def checked(problem: Problem, backend: str) -> CheckedProblem:
    """What the backends take."""
    options = problem.options
    config = options.get("config", NTLConfig())
    spec = LossSpec.resolve(config, problem.numbers, **{k: options.get(k, v) for k, v in DEFAULTS.items()})
    dtype, weights = loss_dtype(problem.logits.dtype), options.get("token_weights")
    return CheckedProblem(
        problem.labels.reshape(-1),
        None if weights is None else weights.reshape(-1).to(dtype),
        options.get("num_tokens"),
        options.get("num_numbers"),
        config.weight,
        problem.numbers.table(problem.logits.device),
        spec,
        options["reduction"],
        backend,
    )


def solve_in_shards(problem: Problem, bounds: list[tuple[int, int]], backend: str, inplace: bool = False) -> Answer:
    """Every rank's part in one process, with stacking and adding in place of collectives."""
    steps, task = load_shard_backend(backend), checked(problem, backend)
    logits = problem.logits.detach().reshape(-1, problem.logits.shape[-1])
    shards = [logits[None, :, first : first + width].clone() for first, width in bounds]
    firsts = [first for first, _ in bounds]
    statistics = [sent_by(shard, task, first, backend) for shard, first in zip(shards, firsts, strict=True)]
    assert {part.shape for part in statistics} == {(num_statistics(task.spec), logits.shape[0] + 1)}
    number_logits = None
    if task.spec.label_sigma > 0:
        columns = [steps.number_columns(shard, task, first) for shard, first in zip(shards, firsts, strict=True)]
        assert (torch.stack(columns).count_nonzero(0) <= 1).all()
        number_logits = torch.stack(columns).sum(0)
    fields, merge = steps.merge_shards(torch.stack(statistics), number_logits, task)
    assert merge.merged.shape == (NUM_MERGED, logits.shape[0])
    output, task = reduced(fields, task, problem.labels.shape)
    upstream = problem.upstream.to(fields.dtype).reshape(-1) if task.reduction == "none" else problem.upstream
    gradients = []
    for shard, first in zip(shards, firsts, strict=True):
        gradient = shard if inplace else gradient_like(shard).fill_(torch.nan)
        steps.shard_gradients(shard, task, first, merge, upstream.to(fields.dtype), gradient)
        gradients.append(gradient[0])
    return Answer(output, torch.cat(gradients, -1).view(problem.logits.shape))


def sent_by(shard: Tensor, task: CheckedProblem, first: int, backend: str) -> Tensor:
    """The statistics of a rank, with its header."""
    statistics = load_shard_backend(backend).shard_statistics(shard, task, first)
    return with_header(statistics, task, first, shard.shape[-1])


def reduced(fields: Tensor, task: CheckedProblem, shape: torch.Size) -> tuple[NTLOutput, CheckedProblem]:
    found = RowResult(*fields.unbind())
    task = task.counted(found.weight.sum(), found.number_weight.sum())
    counts = task.num_tokens, task.num_numbers
    tokens, numbers = (torch.as_tensor(count, dtype=fields.dtype, device=fields.device) for count in counts)
    ce, ntl = found.cross_entropy, found.ntl
    if task.reduction == "none":
        ce, ntl = ce.view(shape), ntl.view(shape)
    else:
        ce, ntl = ce.sum(), ntl.sum()
    if task.reduction == "mean":
        ce, ntl = divide(ce, tokens), divide(ntl, tokens if task.spec.mean_over == "tokens" else numbers)
    counts, number_counts = ((part != 0).sum().to(fields.dtype) for part in (found.weight, found.mass))
    means = [
        divide(found.is_correct.sum(), counts),
        divide(found.absolute_error.sum(), number_counts),
        divide(found.mass.sum(), number_counts),
    ]
    return NTLOutput(ce + task.ntl_weight * ntl, ce, ntl, tokens, numbers, *means), task
