"""Problems for compiled kernels: rows at any offset and stride, in place or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl

from ..problems import Answer, Problem
from .judge import hold

LAYOUTS = {  # offset of the first row, gap after a row, gap after T rows; None: a multiple of 16 bytes
    "contiguous": (0, 0, 0),
    "odd": (3, 1, 0),
    "shifted": (5, 0, 0),
    "gaps": (1, 7, 13),
    "aligned gaps": (8, None, 32),
    "sliced": (0, 0, None),
}
MODES = ("new", "in place", "loss only")


def strided(values: Tensor, layout: str) -> Tensor:
    """[B, T, V] values in a buffer that is NaN elsewhere."""
    offset, row_gap, batch_gap = LAYOUTS[layout]
    batch, length, columns = values.shape
    row = columns + (-columns % 16 + 16 if row_gap is None else row_gap)
    block = length * row + (row if batch_gap is None else batch_gap)
    buffer = torch.full((offset + batch * block + 16,), torch.nan, dtype=values.dtype)
    view = buffer.as_strided((batch, length, columns), (block, row, 1), offset)
    return view.copy_(values)


def digits(vocab_size: int, count: int, seed: int = 0) -> NumberTokens:
    """The values 0, 1, 2, ... on tokens anywhere in the vocabulary."""
    return groups_of(vocab_size, (min(count, vocab_size),), seed)


def groups_of(vocab_size: int, sizes: Sequence[int], seed: int = 0) -> NumberTokens:
    """The values 0, 1, 2, ... of each group on tokens anywhere; units keep several groups below 10."""
    ids = random.Random(seed).sample(range(vocab_size), sum(sizes))
    units = [max(1.0, size / 10) if len(sizes) > 1 else 1.0 for size in sizes]
    groups = [{ids.pop(0): value / unit for value in range(size)} for size, unit in zip(sizes, units, strict=True)]
    return NumberTokens(groups, vocab_size, units=units)


def labels_of(
    numbers: NumberTokens,
    count: int,
    seed: int = 0,
    ignored: float = 0.15,
    are_numbers: float = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """[count]: some are ignored, some numbers, as many of each group, and some others."""
    rng, groups = random.Random(seed), numbers.groups

    def number(k: int) -> int:
        group, place = groups[k % len(groups)], k // len(groups)
        return int(numbers.ids[group.start + place % group.size])

    draws = [(rng.random(), rng.randrange(len(numbers)), rng.randrange(numbers.vocab_size)) for _ in range(count)]
    return torch.tensor(
        [ignore_index if u < ignored else number(k) if u < ignored + are_numbers else other for u, k, other in draws],
        dtype=torch.int64,
    )


def problem_of(
    dtype: torch.dtype,
    vocab_size: int,
    *,
    shape: tuple[int, int] = (2, 3),
    count: int | Sequence[int] = 10,
    layout: str = "contiguous",
    scale: float = 3.0,
    upstream: float = 1.0,
    label_dtype: torch.dtype = torch.int64,
    seed: int = 0,
    weights: bool = False,
    number_weights: bool = False,
    **options: Any,
) -> Problem:
    """Random logits [B, T, V] with ``count`` number tokens, or groups of these sizes."""
    torch.manual_seed(seed)
    numbers = digits(vocab_size, count, seed) if isinstance(count, int) else groups_of(vocab_size, count, seed)
    logits = strided((torch.randn(*shape, vocab_size) * scale).to(dtype), layout)
    labels = labels_of(numbers, shape[0] * shape[1], seed, ignore_index=options.get("ignore_index", -100))
    labels = labels.to(label_dtype).view(shape)
    if weights:
        options["token_weights"] = torch.rand(shape) * (torch.rand(shape) < 0.8)
    if number_weights:
        options["number_weights"] = 2 * torch.rand(shape) * (torch.rand(shape) < 0.8)
    options = {"config": NTLConfig(), "reduction": "mean", **options}
    incoming = torch.randn(shape) if options["reduction"] == "none" else torch.tensor(upstream)
    return Problem(logits, labels, numbers, options, incoming, seed)


class NonLeaf(torch.autograd.Function):
    """A tensor in its own strides that autograd may pass to an in-place function."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, given: list[Tensor]) -> Tensor:
        return given[0]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
        return None, None


def same_memory(logits: Tensor) -> Tensor:
    """A copy with the same strides, offset and gaps."""
    storage = torch.empty(0, dtype=logits.dtype).set_(logits.untyped_storage()).clone()
    copy = torch.empty(0, dtype=logits.dtype)
    return copy.set_(storage.untyped_storage(), logits.storage_offset(), logits.shape, logits.stride())


def solve(problem: Problem, mode: str = "new") -> Answer:
    """The output and the gradient of the Triton backend; in place, the gradient overwrites the logits."""
    logits = NonLeaf.apply(torch.zeros((), requires_grad=True), [same_memory(problem.logits)])
    received: list[Tensor] = []
    logits.register_hook(received.append)
    options = {**problem.options, **({"inplace": True} if mode == "in place" else {})}
    with torch.set_grad_enabled(mode != "loss only"):
        output = cross_entropy_ntl(
            logits, problem.labels, problem.numbers, backend="triton", return_parts=True, **options
        )
    assert isinstance(output, NTLOutput)
    if mode == "loss only":
        return Answer(output, torch.empty(0))
    output.loss.backward(problem.upstream)
    (gradient,) = received
    if mode == "in place":
        assert gradient.data_ptr() == logits.data_ptr()
    return Answer(output, gradient)


def roundings(problem: Problem) -> int:
    """How often the gradient is rounded to the logits' dtype: where the forward pass leaves it, it is scaled later."""
    is_one_pass = problem.options["reduction"] != "none" and problem.logits.dtype != torch.float16
    return 2 if is_one_pass and float(problem.upstream) != 1 else 1


def check(problem: Problem, mode: str = "new") -> Answer:
    """Solve a problem on the emulated GPU and compare the result with the truth."""
    answer = solve(problem, mode)
    hold(answer, problem, roundings(problem))
    return answer
