"""A vocabulary split by columns, and the combined result of its shards, in one process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ntl_kernels import NTLConfig, NTLOutput
from ntl_kernels.backends.layout import loss_dtype
from ntl_kernels.parallel import collectives, vocab_parallel_cross_entropy_ntl
from ntl_kernels.problem import Problem as CheckedProblem
from ntl_kernels.problem import RowInputs
from ntl_kernels.spec import spec_of

from ..problems import Answer, Problem

T = TypeVar("T")
Bounds = Sequence[tuple[int, int]]
"""(first, width) of each rank."""


def random_bounds(rng: random.Random, vocab_size: int, ranks: int) -> list[tuple[int, int]]:
    """Even, ragged, or with ranks that have no columns."""
    if rng.random() < 0.3:
        step = -(-vocab_size // ranks)
        cuts = [min(rank * step, vocab_size) for rank in range(ranks + 1)]
    else:
        cuts = [0, *sorted(rng.choices(range(vocab_size + 1), k=ranks - 1)), vocab_size]
    return [(first, last - first) for first, last in pairwise(cuts)]


def uneven_bounds(vocab_size: int) -> list[tuple[int, int]]:
    """A few columns, none, half of them, and the rest."""
    cuts = [0, vocab_size // 20, vocab_size // 20, vocab_size * 3 // 5, vocab_size]
    return [(first, last - first) for first, last in pairwise(cuts)]


@contextmanager
def group_of_one(backend: str = "gloo") -> Iterator[ProcessGroup]:
    """A group of this process alone."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def together(calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """What a call per rank returns or raises: threads, of which one runs at a time, that meet at collectives."""
    turn, rank_of = threading.Condition(threading.Lock()), threading.local()
    sent: list[Tensor] = [torch.empty(0)] * len(calls)
    found: list[Any] = [None] * len(calls)
    arrived = meetings = 0

    def met() -> None:
        nonlocal arrived, meetings
        arrived, before = arrived + 1, meetings
        if arrived == len(calls):
            arrived, meetings = 0, meetings + 1
            turn.notify_all()
        elif not turn.wait_for(lambda: meetings != before or any(one is not None for one in found), 30):
            raise RuntimeError("the other ranks do not come to this collective")
        if meetings == before:
            raise RuntimeError("another rank has ended before this collective")

    def exchange(tensor: Tensor) -> list[Tensor]:
        sent[rank_of.rank] = tensor
        met()
        received = list(sent)
        met()
        return received

    def run(rank: int) -> None:
        rank_of.rank = rank
        with turn:
            try:
                found[rank] = calls[rank]()
            except Exception as error:
                found[rank] = error
            turn.notify_all()

    def gather(tensor: Tensor, *_: Any) -> Tensor:
        return torch.cat(exchange(tensor))

    def add(tensor: Tensor, *_: Any) -> Tensor:
        return torch.stack(exchange(tensor)).sum(0)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(calls))]
    with (
        mock.patch.object(collectives, "start_all_gather", gather),
        mock.patch.object(collectives.functional, "all_reduce", add),
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def solve_shard(
    problem: Problem, first: int, width: int, group: ProcessGroup, backend: str, inplace: bool = False
) -> tuple[NTLOutput, Tensor]:
    """The output on one rank, and the gradient of its columns."""
    leaf = problem.logits[..., first : first + width].detach().clone().requires_grad_()
    where: dict[str, Any] = {"group": group, "vocab_start": first, "inplace": inplace, "backend": backend}
    logits = leaf * 1 if inplace else leaf
    options = {**problem.options, **where, "return_parts": True}
    output = vocab_parallel_cross_entropy_ntl(logits, problem.labels, problem.numbers, **options)
    assert isinstance(output, NTLOutput)
    (gradient,) = torch.autograd.grad(output.loss, leaf, problem.upstream.to(output.loss.dtype))
    return NTLOutput(*(part.detach() for part in output)), gradient


def solve_in_shards(problem: Problem, bounds: Bounds, backend: str, inplace: bool = False) -> Answer:
    """The results, which must be bitwise equal on all ranks, and the concatenated gradients."""
    with group_of_one() as group:
        found = together(
            [lambda share=share: solve_shard(problem, *share, group, backend, inplace) for share in bounds]
        )
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    (output, _), *others = found
    for other, _ in others:
        assert all(map(torch.equal, (part.nan_to_num() for part in other), (part.nan_to_num() for part in output)))
    return Answer(output, torch.cat([gradient for _, gradient in found], -1))


OF_SPEC = ("ignore_index", "label_smoothing", "z_loss", "softcap", "logit_scale", "reduction")


def checked(problem: Problem, backend: str) -> CheckedProblem:
    """The arguments of the backends."""
    options = problem.options
    config = options.get("config", NTLConfig())
    given = {name: options[name] for name in OF_SPEC if name in options}
    rows = RowInputs(problem.labels, options.get("token_weights"), options.get("number_weights"))
    return CheckedProblem(
        rows.flat(loss_dtype(problem.logits.dtype)),
        options.get("num_tokens"),
        options.get("num_numbers"),
        config.weight,
        problem.numbers.table(problem.logits.device),
        spec_of(config, problem.numbers, **given),
        backend,
    )
