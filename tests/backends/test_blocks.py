"""Several blocks are as exact as one; of short sequences that are not adjacent in memory there are few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.backends.eager import blocks
from ntl_kernels.backends.eager.labels import Labels
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl

from ..problems import check, random_problem, solve

VOCAB, ROWS_PER_BLOCK = 53, 48
BATCH, FEWEST_BLOCKS = 40, 4
"""Of sequences of up to 4 rows."""
NUMBERS = NumberTokens.from_mapping({digit: digit for digit in range(10)}, VOCAB)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "all but the first": lambda full: full[:, 1:],
    "every second": lambda full: full[:, ::2],
    "the last": lambda full: full[:, -1:],
    "transposed": lambda full: full.transpose(0, 1).contiguous().transpose(0, 1),
    "four dimensions": lambda full: full.unflatten(0, (8, -1))[:, :, :-1],
    "fewer columns": lambda full: torch.nn.functional.pad(full, (1, 2))[..., 1:-2],
}


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks of each pass over the rows, of at most ROWS_PER_BLOCK rows."""
    counts: list[int] = []

    def spans_of(logits: Tensor) -> list[slice]:
        spans = original(logits)
        counts.append(len(spans))
        return spans

    original = blocks.spans_of
    monkeypatch.setattr(blocks, "spans_of", spans_of)
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", ROWS_PER_BLOCK * VOCAB * 4)
    return counts


def loss_and_gradient(logits: Tensor, labels: Tensor, compute: Callable[..., Any], **options: Any) -> list[Tensor]:
    output = compute(logits, labels, NUMBERS, return_parts=True, **options)
    if logits.requires_grad:
        output.loss.backward(torch.rand_like(output.loss))
    return [part.detach() for part in output]


def weighted(logits: Tensor, labels: Tensor, compute: Callable[..., Any], **options: Any) -> list[Tensor]:
    weights = torch.arange(labels.numel()).view(labels.shape) % 3 / 2
    return loss_and_gradient(logits, labels, compute, token_weights=weights, softcap=5.0, **options)


def of_shards(*arguments: Any, **options: Any) -> Any:
    return vocab_parallel_cross_entropy_ntl(*arguments, group=dist.group.WORLD, vocab_start=0, **options)


Road: TypeAlias = Callable[[Tensor, Tensor], list[Tensor]]
ROADS: dict[str, Road] = {
    "forward": lambda logits, labels: loss_and_gradient(logits.detach(), labels, cross_entropy_ntl),
    "gradient": partial(loss_and_gradient, compute=cross_entropy_ntl),
    "in place": partial(loss_and_gradient, compute=cross_entropy_ntl, inplace=True, label_smoothing=0.1),
    "none": partial(loss_and_gradient, compute=cross_entropy_ntl, reduction="none", config=NTLConfig(reweigh=True)),
    "none in place": partial(weighted, compute=cross_entropy_ntl, reduction="none", inplace=True),
    "weights in place": partial(weighted, compute=cross_entropy_ntl, inplace=True),
    "shards": partial(loss_and_gradient, compute=of_shards, config=NTLConfig(label_sigma=1.0)),
    "shards in place": partial(weighted, compute=of_shards, inplace=True),
}


@pytest.mark.parametrize("first_seed", range(2000, 2040, 10))
def test_random_problems_in_blocks_of_three_rows(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first_seed, first_seed + 10):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.bfloat16, torch.float16))
        monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * problem.logits.shape[-1] * 4)
        check(solve(problem, "eager"), problem)


@pytest.mark.parametrize("road", ROADS)
def test_short_sequences_share_blocks(road: str, counted: list[int]) -> None:
    for layout, dtype in zip(LAYOUTS.values(), cycle((torch.float32, torch.bfloat16, torch.float16)), strict=False):
        full = torch.randn(BATCH, 4, VOCAB).to(dtype)
        labels = torch.randint(0, 20, layout(full).shape[:-1])

        (found, own), (expected, of_copy) = (
            (results_of(ROADS[road], full, given, labels), [counted.pop() for _ in counted[:]])
            for given in (layout, lambda full: layout(full).contiguous())  # noqa: B023
        )
        assert all(map(torch.equal, found, expected))
        assert own == of_copy and max(own) <= FEWEST_BLOCKS


def results_of(road: Road, full: Tensor, layout: Callable[[Tensor], Tensor], labels: Tensor) -> list[Tensor]:
    """The results of a code path for a layout of the full logits, and their gradient."""
    torch.manual_seed(0)  # of the upstream gradient
    leaf = full.clone().requires_grad_()
    found = road(layout(leaf * 1), labels)
    return found if leaf.grad is None else [*found, leaf.grad]


@pytest.mark.parametrize("length", [ROWS_PER_BLOCK // 12 + 1, ROWS_PER_BLOCK, 2 * ROWS_PER_BLOCK + 1])
def test_longer_sequences_are_not_copied(length: int, counted: list[int]) -> None:
    """A block has rows of one sequence, whose memory is read and written directly."""
    logits = torch.randn(5, length + 1, VOCAB)[:, :-1]
    zeros = torch.zeros(5 * length, 1, dtype=torch.int64)
    of_rows = blocks.Blocks(logits, Labels(zeros, None, None, None, zeros == 0, 5 * length, zeros[:, 0], None), logits)
    assert len(of_rows.spans) == 5 * -(-length // ROWS_PER_BLOCK)
    for block in map(of_rows.block, of_rows.spans):
        assert block.gradient is not None and block.logits.data_ptr() == block.gradient.data_ptr()
