"""Functions that the processes of `ranks.py` run. The first argument is the group; seeds determine the problems."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from ..heads import DTYPES, random_head
from ..problems import Problem, random_problem
from ..profiles import peak_of
from ..versions import has
from .shards import random_bounds, solve_shard


def own_bounds(group: ProcessGroup, seed: int, vocab_size: int) -> tuple[int, int]:
    """(first, width) of this rank."""
    return random_bounds(random.Random(seed), vocab_size, dist.get_world_size(group))[dist.get_rank(group)]


def sent(output: NTLOutput) -> dict[str, Tensor]:
    """In a form that can be sent to another process."""
    return {name: part.detach() for name, part in output._asdict().items()}


def solve_logits(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradient of this rank's columns) of random problems."""
    answers = []
    for seed in seeds:
        problem = random_problem(seed, DTYPES)
        inplace = seed % 3 == 0 and backend != "reference"
        bounds = own_bounds(group, seed, problem.numbers.vocab_size)
        output, gradient = solve_shard(problem, *bounds, group, backend, inplace)
        answers.append((sent(output), gradient))
    return answers


def solve_linear(group: ProcessGroup, seeds: list[int], backend: str = "eager") -> list[Any]:
    """(parts, gradients of hidden and of this rank's weight and bias) of random heads."""
    answers = []
    for seed in seeds:
        head = random_head(seed)
        first, width = own_bounds(group, seed, head.problem.numbers.vocab_size)
        columns = [tensor[first : first + width] for tensor in head.tensors[1:]]
        leaves = [tensor.clone().requires_grad_() for tensor in (head.hidden, *columns)]
        output = vocab_parallel_linear_cross_entropy_ntl(
            *leaves[:2],
            head.problem.labels,
            head.problem.numbers,
            bias_shard=None if head.bias is None else leaves[2],
            group=group,
            vocab_start=first,
            return_parts=True,
            backend=backend,
            **head.chunking,
            **head.problem.options,
        )
        gradients = torch.autograd.grad(output.loss, leaves, head.problem.upstream.to(output.loss.dtype))
        answers.append((sent(output), gradients))
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


def bytes_sent(
    group: ProcessGroup, vocab_size: int, count: int, rows: int, is_head: bool, options: dict[str, Any]
) -> Any:
    """What one step of logits, or of a head, hands to collectives, in bytes: in the forward and the backward pass."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(count)}, vocab_size)
    first, width = even_share(vocab_size, group)
    torch.manual_seed(0)
    dtype = options.pop("dtype", torch.float32)
    hidden, weight = (torch.randn(size, 16).to(dtype) for size in (rows, vocab_size))
    hidden, weight = hidden.requires_grad_(), weight[first : first + width].requires_grad_()
    labels, given = torch.randint(0, vocab_size, (rows,)), {"group": group, "vocab_start": first, **options}
    logits = hidden @ weight.t()
    with Sent() as forward:
        if is_head:
            loss = vocab_parallel_linear_cross_entropy_ntl(hidden, weight, labels, numbers, **given)
        else:
            loss = vocab_parallel_cross_entropy_ntl(logits, labels, numbers, **given)
    with Sent() as backward:
        loss.sum().backward()
    return forward.numbers, backward.numbers


def even_share(vocab_size: int, group: ProcessGroup) -> tuple[int, int]:
    """(first, width) of this rank, split as evenly as possible."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    first, last = rank * vocab_size // size, (rank + 1) * vocab_size // size
    return first, last - first


ROWS = {"labels": torch.tensor([0, 3, 11, -100, 9]), "token_weights": torch.tensor([1.0, 2.0, 0.0, 3.0, 0.5])}
"""The third and the fourth row do not count."""
DIGITS = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 12)


def smooth_on_one_rank(group: ProcessGroup) -> tuple[str, float]:
    """The error where the last of three ranks alone waits for the numbers' logits, and the seconds until then."""
    first, width = even_share(12, group)
    config = NTLConfig(label_sigma=1.0 if dist.get_rank(group) == 2 else 0.0)
    where, start = {"group": group, "vocab_start": first}, time.monotonic()
    (error,) = value_errors(
        [
            lambda: vocab_parallel_cross_entropy_ntl(
                torch.zeros(5, width), numbers=DIGITS, config=config, **ROWS, **where
            )
        ]
    )
    return error, time.monotonic() - start


def compiled_on_one_rank(group: ProcessGroup, others: dict[str, Any]) -> str:
    """The error where the first rank compiles the call and the last one, without that, has other arguments."""
    first, width = even_share(12, group)
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


def silent_rank(group: ProcessGroup, how: str, seconds: float) -> float:
    """The seconds until a rank detects that the last one sends nothing."""
    own = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=seconds))
    numbers, start = NumberTokens.from_mapping({0: 0.0, 1: 1.0}, 8), time.monotonic()
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if is_last and how == "silent":
        time.sleep(4 * seconds)
    if is_last and how == "raises":
        raise ValueError("something else went wrong here")
    if is_last and how == "dies":
        os._exit(1)
    first, width = even_share(8, own)
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


def tensor_problem(seed: int) -> Problem:
    return random_problem(seed, DTYPES, shapes=((7,), (3, 5), (4, 3, 2)))


def solve_dtensor(
    group: ProcessGroup, seeds: list[int], shape: tuple[int, ...], placements: Any, backend: str = "eager"
) -> list[Any]:
    """(parts, gradient, its placements) of each seed's :func:`tensor_problem` with DTensor logits, all in whole."""
    mesh, answers = mesh_of(group, shape), []
    for seed in seeds:
        problem = tensor_problem(seed)
        logits = spread(problem.logits.contiguous(), mesh, placements).requires_grad_()
        columns = problem.logits.ndim - 1
        row_placements = [Replicate() if p == Shard(columns) else p for p in logits.placements]
        options = {**problem.options, "backend": backend}
        for name in ("token_weights", "number_weights"):
            if options[name] is not None:
                options[name] = spread(options[name], mesh, row_placements)
        labels = spread(problem.labels, mesh, row_placements)
        if seed % 2 and all(p == Replicate() for p in row_placements):
            labels = problem.labels  # plain, the same on all ranks
        output = cross_entropy_ntl(logits, labels, problem.numbers, return_parts=True, **options)
        assert isinstance(output, NTLOutput) and all(isinstance(part, DTensor) for part in output)
        upstream = problem.upstream.to(output.loss.dtype)
        if problem.options["reduction"] == "none":
            (output.loss * spread(upstream, mesh, row_placements)).sum().backward()
        else:
            (output.loss * upstream).backward()
        assert isinstance(logits.grad, DTensor)
        if has("torch", 2, 12):  # up to 2.11, the gradient of a column-sharded leaf is whole on every rank
            assert logits.grad.placements == logits.placements
        whole = {name: part.full_tensor().detach() for name, part in output._asdict().items()}
        answers.append((whole, logits.grad.full_tensor()))
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
        head = random_head(seed, shapes=((7,), (5, 4)))
        problem, leaves = head.problem, []
        for tensor, placements in zip(head.tensors, (of_hidden, of_weight, of_weight), strict=False):
            leaf = tensor.clone() if placements is None else spread(tensor, mesh, placements)
            leaves.append(leaf.requires_grad_())
        options, is_spread = {**problem.options, "backend": backend}, of_hidden is not None
        rows = of_hidden if is_spread else [Replicate()] * mesh.ndim
        for name in ("token_weights", "number_weights"):
            if options[name] is not None and is_spread:
                options[name] = spread(options[name], mesh, rows)
        labels = spread(problem.labels, mesh, rows) if is_spread else problem.labels
        arguments = {"bias": None if head.bias is None else leaves[2], "return_parts": True, **head.chunking, **options}
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
    """The errors of unsupported placements."""
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
    """The errors of plain labels that differ on the last rank, with DTensor logits and then with a DTensor head."""
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
    """A loss over sharded rows through ``item``, ``float`` and ``full_tensor``."""
    mesh = mesh_of(group, (4,))
    numbers = NumberTokens.from_mapping({0: 0.0, 5: 1.0}, 12)
    torch.manual_seed(0)
    logits, labels = torch.randn(8, 12), torch.arange(8)
    loss = cross_entropy_ntl(spread(logits, mesh, [Shard(0)]), spread(labels, mesh, [Shard(0)]), numbers)
    plain = cross_entropy_ntl(logits, labels, numbers)
    return [loss.item(), loss.full_tensor().item(), plain.item()]


def peak_bytes(group: ProcessGroup, rows: int, vocab_size: int) -> list[int]:
    """The peak memory of forward and backward passes from logits, and from a head, besides their arguments."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, vocab_size)
    first, width = even_share(vocab_size, group)
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
