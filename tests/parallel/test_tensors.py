"""DTensors, on real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from ntl_kernels import NTLOutput

from ..heads import check_head, random_head
from ..problems import Answer, check
from . import cases
from .ranks import Ranks

LAYOUTS = [
    ((4,), [Shard(-1)]),
    ((4,), [Replicate()]),
    ((4,), [Shard(0)]),
    ((2, 2), [Shard(0), Shard(-1)]),
    ((2, 2), [Shard(-1), Replicate()]),
    ((2, 2), [Shard(0), Shard(0)]),
]


@pytest.mark.parametrize(
    ("shape", "placements", "backend"),
    [*((*layout, "eager") for layout in LAYOUTS), ((4,), [Shard(-1)], "reference"), ((4,), [Shard(0)], "reference")],
)
def test_random_problems_equal_the_reference(
    ranks: Ranks, shape: tuple[int, ...], placements: list[Any], backend: str
) -> None:
    seeds = list(range(18 if backend == "eager" else 8))
    answers = ranks.run(cases.solve_dtensor, seeds, shape, placements, backend, ranks=4)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        problem = cases.tensor_problem(seed)
        first, *others = of_ranks
        assert all(torch.equal(parts[name], first[0][name]) for parts, _ in others for name in parts), seed
        parts, gradient = first
        check(Answer(NTLOutput(**parts), gradient), problem)


@pytest.mark.parametrize(
    ("shape", "of_hidden", "of_weight", "backend"),
    [
        ((4,), None, [Shard(0)], "eager"),
        ((4,), [Replicate()], [Shard(0)], "eager"),
        ((4,), [Replicate()], [Shard(0)], "reference"),
        ((4,), [Shard(0)], [Replicate()], "eager"),
        ((4,), [Shard(0)], [Replicate()], "reference"),
        ((2, 2), [Shard(0), Replicate()], [Replicate(), Shard(0)], "eager"),
        ((2, 2), [Replicate(), Replicate()], [Shard(0), Replicate()], "eager"),
    ],
)
def test_random_heads_equal_one_device(
    ranks: Ranks, shape: tuple[int, ...], of_hidden: Any, of_weight: Any, backend: str
) -> None:
    seeds = list(range(15 if backend == "eager" else 8))
    answers = ranks.run(cases.solve_dtensor_head, seeds, shape, of_hidden, of_weight, backend, ranks=4)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        first, *others = of_ranks
        assert all(torch.equal(parts[name], first[0][name]) for parts, _ in others for name in parts), seed
        check_head(dict(enumerate(first[1])) | first[0], random_head(seed, shapes=((7,), (5, 4))))


def test_what_is_not_served_says_what_is(ranks: Ranks) -> None:
    first, *others = ranks.run(cases.tensor_errors, ranks=4)
    assert others == [first] * 3
    words = ["Partial", "Shard(dim=1), Shard(dim=1)", "plain tensor", "plain logits", "Shard(dim=0)", "mesh of shape"]
    words += ["ntl_kernels.parallel", "Shard(dim=1)", "Shard(dim=0)", "Shard(dim=0)", "bias", "ntl_kernels.parallel"]
    words += ["config.weight has placements"]
    for word, error in zip(words, first, strict=True):
        assert word in error and ("Supported" in error or "parallel" in error), (word, error)


def test_plain_labels_must_be_equal(ranks: Ranks) -> None:
    first, *others = ranks.run(cases.unequal_rows, ranks=4)
    assert others == [first] * 3
    assert all("labels, token_weights or number_weights (rank 0 differs from rank 3)" in error for error in first)


def test_a_loss_of_sharded_rows_reads_as_the_whole(ranks: Ranks) -> None:
    for item, full, plain in ranks.run(cases.scalar_reads, ranks=4):
        assert item == pytest.approx(plain, rel=1e-6) and full == pytest.approx(plain, rel=1e-6)
