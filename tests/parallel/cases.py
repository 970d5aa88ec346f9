"""What the processes of `ranks.py` run. Each gets its group first; problems are made anew from their seeds."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, checks, cross_entropy_ntl, linear_cross_entropy_ntl
from ntl_kernels.backends import eager_shards
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..impossible_labels import unmeasured_problem
from ..problems import Problem, random_problem
from ..versions import has
from .shards import random_bounds

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def own_bounds(group: ProcessGroup, seed: int, vocab_size: int) -> tuple[int, int]:
    """(first, width) of this rank."""
    return random_bounds(random.Random(seed), vocab_size, dist.get_world_size(group))[dist.get_rank(group)]


def answer_of(output: NTLOutput, *gradients: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """In a form that can be sent."""
    return {name: part.detach() for name, part in output._asdict().items()}, gradients


def solve_logits(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradient of this rank's columns) of random problems."""
    answers = []
    for seed in seeds:
        problem = random_problem(seed, DTYPES)
        first, width = own_bounds(group, seed, problem.numbers.vocab_size)
        leaf = problem.logits[..., first : first + width].detach().clone().requires_grad_()
        inplace = seed % 3 == 0 and backend != "reference"
        output = vocab_parallel_cross_entropy_ntl(
            leaf * 1 if inplace else leaf,
            problem.labels,
            problem.numbers,
            group=group,
            vocab_start=first,
            inplace=inplace,
            return_parts=True,
            backend=backend,
            **problem.options,
        )
        (gradient,) = torch.autograd.grad(output.loss, leaf, problem.upstream.to(output.loss.dtype))
        answers.append(answer_of(output, gradient))
    return answers


def linear_problem(
    seed: int, hidden_size: int = 12, **options: Any
) -> tuple[Problem, Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """(problem, hidden, weight, bias, chunking); the loss is that of ``hidden @ weight.T + bias``."""
    problem, rng = random_problem(seed, DTYPES, **options), random.Random(seed)
    torch.manual_seed(seed)
    dtype, shape = problem.logits.dtype, problem.logits.shape[:-1]
    hidden = torch.randn(*shape, hidden_size).to(dtype)
    weight = torch.randn(problem.numbers.vocab_size, hidden_size).to(dtype)
    bias = torch.randn(problem.numbers.vocab_size).to(dtype) if rng.random() < 0.5 else None
    chunking = {"chunk_size": rng.choice([None, 1, 2, 5, 100]), "skip_ignored": rng.random() < 0.5}
    return problem, hidden, weight, bias, chunking


def solve_linear(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradients of hidden and of this rank's weight and bias) of random problems."""
    answers = []
    for seed in seeds:
        problem, hidden, weight, bias, chunking = linear_problem(seed)
        first, width = own_bounds(group, seed, problem.numbers.vocab_size)
        own = slice(first, first + width)
        leaves = [hidden.clone().requires_grad_(), weight[own].clone().requires_grad_()]
        leaves += [] if bias is None else [bias[own].clone().requires_grad_()]
        output = vocab_parallel_linear_cross_entropy_ntl(
            *leaves[:2],
            problem.labels,
            problem.numbers,
            bias_shard=None if bias is None else leaves[2],
            group=group,
            vocab_start=first,
            return_parts=True,
            backend=backend,
            **chunking,
            **problem.options,
        )
        answers.append(
            answer_of(output, *torch.autograd.grad(output.loss, leaves, problem.upstream.to(output.loss.dtype)))
        )
    return answers


def compiled(group: ProcessGroup, options: dict[str, Any], linear: bool) -> list[Any]:
    """(loss, gradients, number of graphs) of compiled calls with 5, 7 and 9 rows, and the same of plain ones."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    numbers = NumberTokens.from_mapping({3 * i: float(i) for i in range(10)}, 32).to("cpu")
    first, width = own_bounds(group, 3, 32)
    counter = CompileCounterWithBackend("aot_eager")

    def call(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        if linear:
            arguments = {**options, "group": group, "vocab_start": first}
            return vocab_parallel_linear_cross_entropy_ntl(x, weight, labels, numbers, **arguments)
        return vocab_parallel_cross_entropy_ntl(
            x @ weight.t(), labels, numbers, group=group, vocab_start=first, **options
        )

    fast, results = torch.compile(call, backend=counter, fullgraph=True), []
    for rows in (5, 7, 9):
        torch.manual_seed(rows)
        hidden, weight = torch.randn(rows, 8), torch.randn(32, 8)[first : first + width]
        labels = torch.randint(0, 32, (rows,))
        labels[0], labels[1] = -100, 3
        found = []
        for function in (fast, call):
            leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
            loss = function(*leaves, labels)
            found.append([loss.detach(), *torch.autograd.grad(loss.sum(), leaves)])
        results.append((*found, counter.frame_count))
    return results


class Sent(TorchDispatchMode):
    """Counts the numbers that this rank hands to collectives, by collective."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "c10d" in name and "wait" not in name and "wrap" not in name:
            tensor = next(part for part in args if isinstance(part, Tensor))
            self.numbers.setdefault(name.split(".")[1], []).append(tensor.numel() * tensor.element_size())
        return func(*args, **(kwargs or {}))


def bytes_sent(group: ProcessGroup, vocab_size: int, count: int, rows: int, options: dict[str, Any]) -> Any:
    """What one step of logits hands to collectives, in bytes: in the forward and in the backward pass."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(count)}, vocab_size)
    first, width = shares(vocab_size, group)
    torch.manual_seed(0)
    logits = torch.randn(rows, vocab_size)[:, first : first + width].requires_grad_()
    labels = torch.randint(0, vocab_size, (rows,))
    with Sent() as forward:
        loss = vocab_parallel_cross_entropy_ntl(logits, labels, numbers, group=group, vocab_start=first, **options)
    with Sent() as backward:
        loss.sum().backward()
    return forward.numbers, backward.numbers


def bytes_sent_by_head(group: ProcessGroup, rows: int, options: dict[str, Any]) -> Any:
    """The same of a head, with the peak of its logits."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 100)
    first, width = shares(100, group)
    torch.manual_seed(0)
    hidden, weight = torch.randn(rows, 16, requires_grad=True), torch.randn(100, 16)[first : first + width]
    labels, arguments = torch.randint(0, 100, (rows,)), {"group": group, "vocab_start": first, **options}
    with Sent() as forward:
        loss = vocab_parallel_linear_cross_entropy_ntl(hidden, weight.requires_grad_(), labels, numbers, **arguments)
    with Sent() as backward:
        loss.sum().backward()
    return forward.numbers, backward.numbers


def shares(vocab_size: int, group: ProcessGroup) -> tuple[int, int]:
    """(first, width) of this rank, all as even as can be."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    first, last = rank * vocab_size // size, (rank + 1) * vocab_size // size
    return first, last - first


def wrong_bounds(group: ProcessGroup, bounds: list[tuple[int, int]], backend: str = "auto") -> str:
    """The error of columns that do not make up the vocabulary."""
    first, width = bounds[dist.get_rank(group)]
    where = {"group": group, "vocab_start": first, "backend": backend}
    return error_of(torch.randn(3, width), torch.tensor([0, 5, -100]), 12, **where)


def wrong_arguments(group: ProcessGroup) -> list[str]:
    """The errors of arguments that are wrong on all ranks alike."""
    first, width = shares(12, group)
    logits, labels, right = torch.randn(3, width), torch.tensor([0, 5, -100]), {"group": group, "vocab_start": first}
    calls: list[tuple[Tensor, Tensor, dict[str, Any]]] = [
        (logits, torch.tensor([0, 12, 1]), right),
        (logits, torch.tensor([0, -1, 1]), right),
        (logits, labels[:2], right),
        (logits, labels.float(), right),
        (logits.int(), labels, right),
        (logits, labels, {**right, "vocab_start": "0"}),
        (logits, labels, {**right, "group": None}),
        (logits, labels, {**right, "reduction": "median"}),
        (logits, labels, {**right, "label_smoothing": 2.0}),
        (logits, labels, {**right, "token_weights": torch.tensor([1.0, -1.0, 1.0])}),
        (logits, labels, {**right, "num_tokens": -1.0}),
        (logits, labels, {**right, "backend": "nope"}),
    ]
    return [error_of(*call[:2], 12, **call[2]) for call in calls]


def error_of(logits: Tensor, labels: Tensor, vocab_size: int, **arguments: Any) -> str:
    """The error of a call, "" without any."""
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, vocab_size)
    try:
        vocab_parallel_cross_entropy_ntl(logits, labels, numbers, **arguments)
    except (TypeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


ROWS = {"labels": torch.tensor([0, 3, 11, -100, 9]), "token_weights": torch.tensor([1.0, 2.0, 0.0, 3.0, 0.5])}
"""The third and the fourth do not count."""
DIGITS = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 12)


def errors_of_a_rank(group: ProcessGroup, calls: list[tuple[dict[str, Any], dict[str, Any]]], form: str) -> list[str]:
    """The errors of calls with (the arguments of all ranks, those that are others on the last rank), "" without any.

    The form is one of "logits", "hidden", "chunks" and "reference", the hidden states' by that backend.
    """
    first, width = shares(12, group)
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 4), torch.randn(12, 4)[first : first + width]
    where: dict[str, Any] = {"group": group, "vocab_start": first}
    if form == "chunks":
        where |= {"chunk_size": 2, "skip_ignored": False}
    if form == "reference":
        where["backend"] = "reference"
    found = []
    for common, others in calls:
        is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
        arguments = {**ROWS, "numbers": DIGITS, **where, **common, **(others if is_last else {})}
        try:
            if form == "logits":
                vocab_parallel_cross_entropy_ntl(hidden @ weight.t(), **arguments)
            else:
                vocab_parallel_linear_cross_entropy_ntl(hidden, weight, **arguments)
            found.append("")
        except ValueError as error:
            found.append(str(error))
    return found


def other_backend(group: ProcessGroup) -> list[str]:
    """The errors where the last rank has a backend of another name, whose statistics are in units of its own."""
    is_last = dist.get_rank(group) == dist.get_world_size(group) - 1
    with (
        patch.dict(sys.modules, {"ntl_kernels.backends.other_shards": eager_shards}),
        patch.object(checks, "resolve_backend", lambda *_: "other" if is_last else "eager"),
    ):
        return errors_of_a_rank(group, [({}, {})], "logits")


def smooth_on_one_rank(group: ProcessGroup) -> tuple[str, float]:
    """The error where one rank alone waits for the logits of number tokens, and the seconds until then."""
    start = time.monotonic()
    (error,) = errors_of_a_rank(group, [({}, {"config": NTLConfig(label_sigma=1.0)})], "logits")
    return error, time.monotonic() - start


def half_precision_denominators(group: ProcessGroup) -> list[str]:
    """The errors of other denominators in one ratio, on the last rank."""
    first, width = shares(12, group)
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 4).half(), torch.randn(12, 4).half()[first : first + width]
    scale, found = 1 + dist.get_rank(group), []
    for counts in ({"num_tokens": 4 * scale, "num_numbers": 2 * scale}, {"num_tokens": 4.0 * scale, "num_numbers": 2}):
        try:
            vocab_parallel_linear_cross_entropy_ntl(
                hidden, weight, **ROWS, numbers=DIGITS, group=group, vocab_start=first, **counts
            )
            found.append("")
        except ValueError as error:
            found.append(str(error))
    return found


def compiled_on_one_rank(group: ProcessGroup, others: dict[str, Any]) -> str:
    """The error where the first rank compiles the call and the last one, without that, has other arguments."""
    first, width = shares(12, group)
    torch.manual_seed(0)
    logits, rank = torch.randn(5, 12)[:, first : first + width], dist.get_rank(group)
    arguments = {**ROWS, "group": group, "vocab_start": first, **(others if rank else {})}

    def call(x: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy_ntl(x, numbers=DIGITS.to("cpu"), **arguments)

    torch._dynamo.reset()
    try:
        (torch.compile(call, backend="aot_eager", fullgraph=True) if rank == 0 else call)(logits)
    except ValueError as error:
        return str(error)
    return ""


def transforms(group: ProcessGroup) -> list[str]:
    """The errors of torch.func and forward mode, and of a derivative of the gradient."""
    first, width = shares(12, group)
    numbers, labels = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12), torch.tensor([0, 5, 1])
    logits = torch.randn(3, width)

    def loss_of(x: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy_ntl(x, labels, numbers, group=group, vocab_start=first)

    def second(x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(leaf**2), leaf, create_graph=True)
        return torch.autograd.grad(gradient.sum(), leaf)[0]

    def inplace_twice(x: Tensor) -> Tensor:
        logits = x.clone().requires_grad_() * 1
        arguments = {"group": group, "vocab_start": first, "inplace": True}
        loss = vocab_parallel_cross_entropy_ntl(logits, labels, numbers, **arguments)
        torch.autograd.grad(loss, logits, retain_graph=True)
        return torch.autograd.grad(loss, logits)[0]

    found = []
    for call in (torch.func.grad(loss_of), lambda x: torch.func.jvp(loss_of, (x,), (x,)), second, inplace_twice):
        try:
            call(logits)
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    return found


def changed_labels(group: ProcessGroup) -> str:
    """The error of labels that are changed in place between forward and backward pass."""
    first, width = shares(12, group)
    labels = torch.tensor([0, 5, 1])
    logits = torch.randn(3, width, requires_grad=True)
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12)
    loss = vocab_parallel_cross_entropy_ntl(logits, labels, numbers, group=group, vocab_start=first)
    labels.zero_()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
    return ""


def second_backward(group: ProcessGroup) -> list[bool]:
    """Whether a second backward pass gives the first one's gradient, times its own upstream gradient."""
    first, width = shares(12, group)
    numbers, labels = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12), torch.tensor([0, 5, 1, -100])
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(12, 3)[first : first + width].requires_grad_()
    right: dict[str, Any] = {"group": group, "vocab_start": first}
    found = []
    for options in ({}, {"reduction": "none"}, {"chunk_size": 2}):
        losses = [vocab_parallel_linear_cross_entropy_ntl(hidden, weight, labels, numbers, **right, **options)]
        if "chunk_size" not in options:
            losses.append(vocab_parallel_cross_entropy_ntl(hidden @ weight.t(), labels, numbers, **right, **options))
        for loss in losses:
            once = [g.clone() for g in torch.autograd.grad(loss.sum(), [hidden, weight], retain_graph=True)]
            twice = torch.autograd.grad(3 * loss.sum(), [hidden, weight])
            found.append(all(torch.allclose(3 * a, b) for a, b in zip(once, twice, strict=True)))
    return found


def silent_rank(group: ProcessGroup, how: str, seconds: float) -> float:
    """How long it takes until a rank learns that the last one said nothing."""
    own = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=seconds))
    numbers, start = NumberTokens.from_mapping({0: 0.0, 1: 1.0}, 8), time.monotonic()
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if is_last and how == "silent":
        time.sleep(4 * seconds)
    if is_last and how == "raises":
        raise ValueError("something else went wrong here")
    if is_last and how == "dies":
        os._exit(1)
    first, width = shares(8, own)
    vocab_parallel_cross_entropy_ntl(torch.randn(2, width), torch.tensor([0, 5]), numbers, group=own, vocab_start=first)
    return time.monotonic() - start


def mesh_of(group: ProcessGroup, shape: tuple[int, ...]) -> DeviceMesh:
    """A mesh of all ranks, made once per shape."""
    if shape not in MESHES:
        MESHES[shape] = init_device_mesh("cpu", shape, mesh_dim_names=tuple("abc"[: len(shape)]))
    return MESHES[shape]


MESHES: dict[tuple[int, ...], DeviceMesh] = {}


def spread(tensor: Tensor, mesh: DeviceMesh, placements: Any) -> DTensor:
    """A whole tensor, the same on all ranks, as a DTensor; nothing is sent."""
    whole = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(placements=placements).detach()


def tensor_problem(seed: int | tuple[str, NTLConfig]) -> Problem:
    """A random problem; of (reduction, configuration), the one with rows that have no probability on numbers."""
    if isinstance(seed, tuple):
        return unmeasured_problem(torch.float32, *seed)
    return random_problem(seed, DTYPES, shapes=((7,), (3, 5), (4, 3, 2)))


def solve_dtensor(
    group: ProcessGroup, seeds: list[Any], shape: tuple[int, ...], placements: Any, backend: str = "eager"
) -> list[Any]:
    """(parts, gradient, its placements) of each seed's :func:`tensor_problem` with DTensor logits, all in whole."""
    mesh, answers = mesh_of(group, shape), []
    for seed in seeds:
        problem = tensor_problem(seed)
        logits = spread(problem.logits.contiguous(), mesh, placements).requires_grad_()
        columns = problem.logits.ndim - 1
        row_placements = [Replicate() if p == Shard(columns) else p for p in logits.placements]
        options = {**problem.options, "backend": backend}
        if options["token_weights"] is not None:
            options["token_weights"] = spread(options["token_weights"], mesh, row_placements)
        labels = spread(problem.labels, mesh, row_placements)
        if seed in range(1, 99, 2) and all(p == Replicate() for p in row_placements):
            labels = problem.labels  # plain, the same on all ranks
        output = cross_entropy_ntl(logits, labels, problem.numbers, return_parts=True, **options)
        assert isinstance(output, NTLOutput) and all(isinstance(part, DTensor) for part in output)
        upstream = problem.upstream.to(output.loss.dtype)
        if problem.options["reduction"] == "none":
            (output.loss * spread(upstream, mesh, row_placements)).sum().backward()
        else:
            (output.loss * upstream).backward()
        assert isinstance(logits.grad, DTensor)
        if has("torch", 2, 12):  # up to 2.11, the gradient of a leaf in column shards is whole on every rank
            assert logits.grad.placements == logits.placements
        whole = {name: part.full_tensor().detach() for name, part in output._asdict().items()}
        answers.append((whole, (logits.grad.full_tensor(),)))
    return answers


def solve_dtensor_head(
    group: ProcessGroup,
    seeds: list[int],
    shape: tuple[int, ...],
    of_hidden: Any,
    of_weight: Any,
    backend: str = "eager",
) -> list[Any]:
    """(parts, gradients in whole, their placements) of random heads; ``None`` placements: a plain tensor."""
    mesh, answers = mesh_of(group, shape), []
    for seed in seeds:
        problem, hidden, weight, bias, chunking = linear_problem(seed, shapes=((7,), (5, 4)))
        leaves = []
        for tensor, placements in ((hidden, of_hidden), (weight, of_weight), (bias, of_weight)):
            if tensor is not None:
                leaf = tensor.clone() if placements is None else spread(tensor, mesh, placements)
                leaves.append(leaf.requires_grad_())
        options, is_spread = {**problem.options, "backend": backend}, of_hidden is not None
        rows = of_hidden if is_spread else [Replicate()] * mesh.ndim
        if options["token_weights"] is not None and is_spread:
            options["token_weights"] = spread(options["token_weights"], mesh, rows)
        labels = spread(problem.labels, mesh, rows) if is_spread else problem.labels
        arguments = {"bias": None if bias is None else leaves[2], "return_parts": True, **chunking, **options}
        output = linear_cross_entropy_ntl(*leaves[:2], labels, problem.numbers, **arguments)
        assert isinstance(output, NTLOutput) and isinstance(output.loss, DTensor) == is_spread
        upstream = problem.upstream.to(output.loss.dtype)
        if problem.options["reduction"] == "none":
            loss = output.loss * (spread(upstream, mesh, rows) if is_spread else upstream)
        else:
            loss = output.loss * upstream
        loss.sum().backward()
        for leaf in leaves[1:]:
            assert isinstance(leaf.grad, DTensor)
            if not any(isinstance(p, Shard) for p in rows):
                assert leaf.grad.placements == leaf.placements
        gradients = tuple(in_whole(leaf.grad) for leaf in leaves)
        answers.append(({name: in_whole(part).detach() for name, part in output._asdict().items()}, gradients))
    return answers


def in_whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tensor_errors(group: ProcessGroup) -> list[str]:
    """The errors of placements that are not served."""
    mesh, other = mesh_of(group, (4,)), mesh_of(group, (2, 2))
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12)
    logits, labels, weight = torch.randn(4, 12), torch.tensor([0, 5, 1, -100]), torch.randn(12, 3)
    hidden = torch.randn(4, 3)

    def partial(tensor: Tensor) -> DTensor:
        return DTensor.from_local(tensor, mesh, [Partial()], run_check=False)

    calls: list[Any] = [
        lambda: cross_entropy_ntl(partial(logits), labels, numbers),
        lambda: cross_entropy_ntl(spread(logits, other, [Shard(1), Shard(1)]), labels, numbers),
        lambda: cross_entropy_ntl(spread(logits, mesh, [Shard(0)]), labels, numbers),
        lambda: cross_entropy_ntl(logits, spread(labels, mesh, [Replicate()]), numbers),
        lambda: cross_entropy_ntl(spread(logits, mesh, [Shard(1)]), spread(labels, mesh, [Shard(0)]), numbers),
        lambda: cross_entropy_ntl(
            spread(logits, mesh, [Shard(1)]), spread(labels, other, [Replicate(), Replicate()]), numbers
        ),
        lambda: cross_entropy_ntl(logits[:, :3], labels, numbers),  # a local shard
        lambda: linear_cross_entropy_ntl(hidden, spread(weight, mesh, [Shard(1)]), labels, numbers),
        lambda: linear_cross_entropy_ntl(
            spread(hidden, mesh, [Shard(0)]), spread(weight, mesh, [Shard(0)]), labels, numbers
        ),
        lambda: linear_cross_entropy_ntl(spread(hidden, mesh, [Shard(0)]), weight, labels, numbers),
        lambda: linear_cross_entropy_ntl(
            hidden, spread(weight, mesh, [Shard(0)]), labels, numbers, bias=torch.zeros(12)
        ),
        lambda: linear_cross_entropy_ntl(hidden, weight[:3], labels, numbers),
        lambda: cross_entropy_ntl(
            spread(logits, mesh, [Shard(1)]), labels, numbers, config=NTLConfig(weight=partial(torch.tensor(0.3)))
        ),
    ]
    return value_errors(calls)


def value_errors(calls: Sequence[Callable[[], Any]]) -> list[str]:
    """The errors of calls, "" without any."""
    found = []
    for call in calls:
        try:
            call()
            found.append("")
        except ValueError as error:
            found.append(str(error))
    return found


def unequal_rows(group: ProcessGroup) -> list[str]:
    """The errors of plain labels that are others on the last rank, beside a DTensor of logits, then of a head."""
    mesh = mesh_of(group, (4,))
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12)
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 3), torch.randn(12, 3)
    labels = torch.tensor([0, 5, 1, 7 + (dist.get_rank() == 3)])
    return value_errors(
        [
            lambda: cross_entropy_ntl(spread(hidden @ weight.t(), mesh, [Shard(1)]), labels, numbers),
            lambda: linear_cross_entropy_ntl(hidden, spread(weight, mesh, [Shard(0)]), labels, numbers),
        ]
    )


def scalar_reads(group: ProcessGroup) -> list[float]:
    """What a loss over sharded rows shows to ``item`` and ``float``, and in whole."""
    mesh = mesh_of(group, (4,))
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12)
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 12), torch.arange(8)
    loss = cross_entropy_ntl(spread(logits, mesh, [Shard(0)]), spread(labels, mesh, [Shard(0)]), numbers)
    plain = cross_entropy_ntl(logits, labels, numbers)
    return [loss.item(), loss.full_tensor().item(), plain.item()]


def against_one_device(group: ProcessGroup, dtype: torch.dtype, vocab_size: int) -> list[float]:
    """How far loss and gradients of hidden states and head are from those of one device, relative to the largest."""
    numbers = NumberTokens.from_mapping({7 * i: i / 3 for i in range(40)}, vocab_size)
    first, width = own_bounds(group, vocab_size, vocab_size)
    torch.manual_seed(0)
    rows, own = 48, slice(first, first + width)
    hidden, weight = torch.randn(rows, 32).to(dtype), (torch.randn(vocab_size, 32) / 4).to(dtype)
    labels = torch.randint(0, vocab_size, (rows,))
    labels[:10], labels[10:16] = numbers.ids[:10], -100
    errors = []
    for options in (
        {},
        {"reduction": "none"},
        {"config": NTLConfig(kind="huber", reweigh=True), "label_smoothing": 0.1},
    ):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        whole = cross_entropy_ntl(leaves[0] @ leaves[1].t(), labels, numbers, **options)
        expected = [whole.detach(), *torch.autograd.grad(whole.sum(), leaves)]
        expected[2] = expected[2][own]
        mine = [hidden.clone().requires_grad_(), weight[own].clone().requires_grad_()]
        loss = vocab_parallel_linear_cross_entropy_ntl(
            *mine, labels, numbers, group=group, vocab_start=first, **options
        )
        got = [loss.detach(), *torch.autograd.grad(loss.sum(), mine)]
        for a, b in zip(got, expected, strict=True):
            errors.append(((a.double() - b.double()).abs().max() / b.abs().max()).item() if b.numel() else 0.0)
    return errors


def peak_bytes(group: ProcessGroup, rows: int, vocab_size: int) -> list[int]:
    """The most memory that forward and backward of logits, and of a head, hold at a time beside what they are given."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, vocab_size)
    first, width = shares(vocab_size, group)
    torch.manual_seed(0)
    labels, where = torch.randint(0, vocab_size, (rows,)), {"group": group, "vocab_start": first}
    logits, weight = torch.randn(rows, width, requires_grad=True), torch.randn(width, 8, requires_grad=True)
    hidden = torch.randn(rows, 8, requires_grad=True)
    calls = [
        lambda: vocab_parallel_cross_entropy_ntl(logits, labels, numbers, **where).backward(),
        lambda: vocab_parallel_linear_cross_entropy_ntl(
            hidden, weight, labels, numbers, chunk_size=rows // 4, **where
        ).backward(),
    ]
    return [peak_of(call) for call in calls]


def peak_of(call: Any) -> int:
    """The most bytes that a call holds at a time."""
    call()  # what is made once
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
