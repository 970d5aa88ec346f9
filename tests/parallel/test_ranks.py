"""The losses of a sharded vocabulary on real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig, NTLOutput

from ..heads import DTYPES, check_head, random_head
from ..problems import Answer, check, random_problem
from ..versions import needs
from . import cases
from .cases import ROWS
from .ranks import Ranks

compiles = needs("torch", 2, 11, to="compile the vocabulary-parallel losses without a graph break")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_problems_equal_the_reference(ranks: Ranks, size: int) -> None:
    seeds = list(range(1000 * size, 1000 * size + 40))
    for backend in ("eager", "reference"):
        answers = ranks.run(cases.solve_logits, seeds[: 10 if backend == "reference" else None], backend, ranks=size)
        for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=False):
            first, *others = (parts for parts, _ in of_ranks)
            for parts in others:  # the same bits on all ranks
                assert all(torch.equal(parts[name], first[name]) for name in first), (seed, first, parts)
            gradient = torch.cat([gradient for _, gradient in of_ranks], -1)
            check(Answer(NTLOutput(**first), gradient), random_problem(seed, DTYPES))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_heads_equal_one_device(ranks: Ranks, size: int) -> None:
    """Chunks of any size, with and without bias: losses, parts and the gradients of hidden, weight and bias."""
    seeds = list(range(2000 * size, 2000 * size + 30))
    answers = ranks.run(cases.solve_linear, seeds, ranks=size)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        (parts, (of_hidden, *_)), *others = of_ranks
        for other, (hidden_gradient, *_) in others:
            assert all(torch.equal(other[name], parts[name]) for name in parts), seed
            assert torch.equal(hidden_gradient, of_hidden), seed
        whole = (torch.cat(shards) for shards in zip(*(gradients[1:] for _, gradients in of_ranks), strict=True))
        check_head({**parts, **dict(enumerate([of_hidden, *whole]))}, random_head(seed))


# What is sent


@pytest.mark.parametrize(
    ("vocab_size", "count", "options", "numbers"),
    [
        (1200, 10, {"config": NTLConfig(kind="mse")}, 7),
        (1200, 1110, {}, 7),
        (100000, 10, {"label_smoothing": 0.1}, 8),
        (100000, 1110, {"label_smoothing": 0.1, "config": NTLConfig(kind="huber")}, 8),
    ],
)
def test_eight_numbers_per_row_are_sent(
    ranks: Ranks, vocab_size: int, count: int, options: dict[str, Any], numbers: int
) -> None:
    """One gather per forward pass and nothing in the backward pass, for any vocabulary and any number tokens."""
    for forward, backward in ranks.run(cases.bytes_sent, vocab_size, count, 64, False, options, ranks=4):
        # As many more, once for all rows, contain the rank's columns.
        assert forward == {"all_gather_into_tensor": [4 * numbers * (64 + 1)]} and backward == {}


def test_smooth_labels_send_the_numbers_as_well(ranks: Ranks) -> None:
    options = {"config": NTLConfig(label_sigma=1.0), "reduction": "none"}
    for forward, backward in ranks.run(cases.bytes_sent, 1000, 30, 64, False, options, ranks=3):
        assert forward == {"all_gather_into_tensor": [4 * 7 * 65], "all_reduce": [4 * 30 * 64]} and backward == {}


def test_a_head_sums_its_hidden_gradient_once(ranks: Ranks) -> None:
    """In float32, whatever its dtype is."""
    whole = [{}, {"reduction": "none"}, {"dtype": torch.bfloat16}, {"dtype": torch.float16}]
    for options, chunks in (({"chunk_size": 40}, [20, 20, 20, 4]), *((options, [64]) for options in whole)):
        sent = [4 * 7 * (rows + 1) for rows in chunks]
        for forward, backward in ranks.run(cases.bytes_sent, 100, 10, 64, True, options, ranks=4):
            assert forward == {"all_gather_into_tensor": sent} and backward == {"all_reduce": [4 * 64 * 16]}
        kept = {**options, "reduce_hidden_grad": False}
        for forward, backward in ranks.run(cases.bytes_sent, 100, 10, 64, True, kept, ranks=4):
            assert forward == {"all_gather_into_tensor": sent} and backward == {}
    reference = {"dtype": torch.bfloat16, "backend": "reference"}
    for _, backward in ranks.run(cases.bytes_sent, 100, 10, 64, True, reference, ranks=4):
        assert backward == {"all_reduce": [4 * 64 * 16]}


def test_memory_falls_as_the_ranks(ranks: Ranks) -> None:
    """The gradient for logits, a chunk of the rank's columns for a head: a fourth of it on four ranks."""
    rows, vocab_size = 256, 40000
    one, four = (ranks.run(cases.peak_bytes, rows, vocab_size, ranks=size) for size in (1, 4))
    for (alone,), together, floor in zip(zip(*one, strict=True), zip(*four, strict=True), (1, 1 / 4), strict=True):
        assert alone > floor * rows * vocab_size * 4
        assert max(together) < 1.15 * alone / 4


# Ranks that differ or are missing


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Ranks]:
    """Three processes that the test may break."""
    processes = Ranks(3, tmp_path)
    yield processes
    processes.stop()


def test_a_smooth_label_on_one_rank_alone(own: Ranks) -> None:
    """An error, although that rank waits for a sum to which the others do not contribute."""
    for error, seconds in own.run(cases.smooth_on_one_rank, ranks=3, seconds=60):
        assert "options, reduction, numbers or backend (rank 0 differs from rank 2)" in error and seconds < 10


def test_a_failing_rank_is_an_error_on_the_others(own: Ranks) -> None:
    """Within the group's timeout, whether the rank raises, sleeps or dies."""
    for how in ("raises", "silent", "dies"):
        (is_fine, error), *_ = own.replies(cases.silent_rank, how, 1.0, ranks=3, seconds=60)
        assert not is_fine and "RuntimeError" in error, error


@compiles
def test_compiled_and_plain_ranks_compare_arguments(ranks: Ranks) -> None:
    for others, words in (
        ({}, ""),
        ({"softcap": 5.0}, "options, reduction, numbers or backend (rank 0 differs from rank 1)"),
        ({"labels": ROWS["labels"].flip(0)}, "labels, token_weights or number_weights (rank 0"),
    ):
        for error in ranks.run(cases.compiled_on_one_rank, others, ranks=2):
            assert words in error and bool(words) == bool(error)


@compiles
@pytest.mark.parametrize(
    ("is_linear", "options"),
    [
        (False, {}),
        (False, {"reduction": "none", "config": NTLConfig(label_sigma=1.0, reweigh=True)}),
        (True, {"reduction": "none"}),
        (True, {"chunk_size": 4}),
    ],
)
def test_compiled_without_a_break(ranks: Ranks, is_linear: bool, options: dict[str, Any]) -> None:
    """One graph with static shapes and one with dynamic ones, each with visible collectives. (Several chunks need
    a graph for each number of rows.)"""
    for results in ranks.run(cases.compiled, options, is_linear, ranks=2):
        for compiled, plain, graphs in results:
            torch.testing.assert_close(compiled, plain)
            assert graphs <= 2 + ("chunk_size" in options)  # one more for another number of chunks
