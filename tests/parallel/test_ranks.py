"""The losses of a sharded vocabulary on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig, NTLOutput

from ..problems import Answer, check, random_problem
from . import cases
from .cases import DTYPES
from .heads import check_head
from .ranks import Ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_problems_equal_the_reference(ranks: Ranks, size: int) -> None:
    seeds = list(range(1000 * size, 1000 * size + 60))
    answers = ranks.run(cases.solve_logits, seeds, ranks=size)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        problem = random_problem(seed, DTYPES)
        first, *others = (parts for parts, _ in of_ranks)
        for parts in others:  # the same bits on all ranks
            assert all(torch.equal(parts[name], first[name]) for name in first), (seed, first, parts)
        check(Answer(NTLOutput(**first), torch.cat([gradient for _, (gradient,) in of_ranks], -1)), problem)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_heads_equal_one_device(ranks: Ranks, size: int) -> None:
    """Chunks of any size, with and without bias: losses, parts and the gradients of hidden, weight and bias."""
    seeds = list(range(2000 * size, 2000 * size + 40))
    answers = ranks.run(cases.solve_linear, seeds, ranks=size)
    for seed, of_ranks in zip(seeds, zip(*answers, strict=True), strict=True):
        first, *others = of_ranks
        for parts, (hidden_gradient, *_) in others:
            assert all(torch.equal(parts[name], first[0][name]) for name in first[0]), seed
            assert torch.equal(hidden_gradient, first[1][0]), seed
        whole = (torch.cat(shards) for shards in zip(*(gradients[1:] for _, gradients in of_ranks), strict=True))
        got = {**first[0], **dict(enumerate([first[1][0], *whole]))}
        check_head(got, seed)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_eight_numbers_per_row_are_sent(ranks: Ranks, smoothing: float) -> None:
    """One gather per forward pass and nothing in the backward pass, whatever the vocabulary and the numbers."""
    rows = 64
    for kind in ("wasserstein", "mse"):
        for vocab_size in (1200, 100000):
            for count in (10, 1110):
                options = {"label_smoothing": smoothing, "config": NTLConfig(kind=kind), "reduction": "mean"}
                for forward, backward in ranks.run(cases.bytes_sent, vocab_size, count, rows, options, ranks=4):
                    # As many again for all rows together say which columns the rank has.
                    numbers = 8 if smoothing else 7
                    assert forward == {"all_gather_into_tensor": [4 * numbers * (rows + 1)]} and backward == {}


def test_smooth_labels_send_the_numbers_as_well(ranks: Ranks) -> None:
    options = {"config": NTLConfig(label_sigma=1.0), "reduction": "none"}
    for forward, backward in ranks.run(cases.bytes_sent, 1000, 30, 64, options, ranks=3):
        assert forward == {"all_gather_into_tensor": [4 * 7 * 65], "all_reduce": [4 * 30 * 64]} and backward == {}


def test_a_head_sums_its_hidden_gradient_once(ranks: Ranks) -> None:
    for options, chunks in (({}, [64]), ({"chunk_size": 40}, [20, 20, 20, 4]), ({"reduction": "none"}, [64])):
        sent = [4 * 7 * (rows + 1) for rows in chunks]
        for forward, backward in ranks.run(cases.bytes_sent_by_head, 64, options, ranks=4):
            assert forward == {"all_gather_into_tensor": sent} and backward == {"all_reduce": [4 * 64 * 16]}
        kept = {**options, "reduce_hidden_grad": False}
        for forward, backward in ranks.run(cases.bytes_sent_by_head, 64, kept, ranks=4):
            assert forward == {"all_gather_into_tensor": sent} and backward == {}


@pytest.mark.parametrize(
    "bounds",
    [
        [(0, 12), (0, 12), (0, 12)],  # gathered logits, by mistake
        [(0, 4), (5, 4), (9, 3)],
        [(0, 4), (3, 5), (8, 4)],
        [(0, 4), (4, 4), (8, 3)],
        [(1, 4), (5, 4), (9, 4)],
        [(0, 6), (0, 6), (6, 0)],
        [(0, 0), (0, 0), (0, 0)],
    ],
)
def test_columns_that_are_not_the_vocabulary(ranks: Ranks, bounds: list[tuple[int, int]]) -> None:
    (error,) = set(ranks.run(cases.wrong_bounds, bounds, ranks=3))
    listed = ", ".join(f"[{first}, {first + width})" for first, width in bounds)
    assert error.startswith("ValueError") and "[0, 12)" in error and error.endswith(listed)


def test_columns_in_any_order_of_the_ranks(ranks: Ranks) -> None:
    assert ranks.run(cases.wrong_bounds, [(8, 4), (0, 5), (5, 3)], ranks=3) == [""] * 3
    assert ranks.run(cases.wrong_bounds, [(5, 0), (0, 12), (0, 0)], ranks=3) == [""] * 3


def test_argument_errors_are_the_same_on_all_ranks(ranks: Ranks) -> None:
    first, *others = ranks.run(cases.wrong_arguments, ranks=3)
    assert all(first) and others == [first, first]
    words = ["[0, 12)", "[0, 12)", "(3,)", "int64", "float32", "vocab_start", "group", "reduction", "label_smoothing"]
    words += ["token_weights", "num_tokens", "backend"]
    assert all(word in error for word, error in zip(words, first, strict=True)), first


def test_what_has_no_derivative_says_so(ranks: Ranks) -> None:
    for found in ranks.run(cases.transforms, ranks=2):
        for word, error in zip(["torch.func", "torch.func", "second derivative", "inplace"], found, strict=True):
            assert word in error, (word, error)


def test_changed_labels_raise(ranks: Ranks) -> None:
    assert all("modified by an inplace operation" in error for error in ranks.run(cases.changed_labels, ranks=2))


def test_second_backward_is_right(ranks: Ranks) -> None:
    assert all(all(found) for found in ranks.run(cases.second_backward, ranks=2))


def test_a_failing_rank_is_an_error_on_the_others(tmp_path: Path) -> None:
    """Within the group's timeout, whether the rank raises, sleeps or dies."""
    processes = Ranks(2, tmp_path)
    try:
        for how in ("raises", "silent", "dies"):
            (is_fine, error), _ = processes.replies(cases.silent_rank, how, 2.0, ranks=2, seconds=60)
            assert not is_fine and "RuntimeError" in error, error
    finally:
        processes.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_float32_equals_one_device(ranks: Ranks, size: int) -> None:
    for vocab_size in (301, 4001):
        for errors in ranks.run(cases.against_one_device, torch.float32, vocab_size, ranks=size):
            assert max(errors) < 1e-6, errors


OPTIONS: list[dict[str, Any]] = [{}, {"reduction": "none"}, {"config": NTLConfig(label_sigma=1.0)}]


@pytest.mark.parametrize("is_linear", [False, True])
def test_compiled_without_a_break(ranks: Ranks, is_linear: bool) -> None:
    """One graph with static shapes and one with dynamic ones, each with the collectives in sight. (Several chunks take
    a graph for each number of rows.)"""
    options = [*OPTIONS, {"chunk_size": 4} if is_linear else {"label_smoothing": 0.1}]
    for chosen in options:
        for results in ranks.run(cases.compiled, chosen, is_linear, ranks=2):
            for compiled, plain, graphs in results:
                torch.testing.assert_close(compiled, plain)
                assert graphs <= 2 + ("chunk_size" in chosen)  # one more for another number of chunks


def test_memory_falls_as_the_ranks(ranks: Ranks) -> None:
    """Of logits their gradient, of a head a chunk of its own columns alone: a fourth of it on four ranks."""
    rows, vocab_size = 256, 40000
    one, four = (ranks.run(cases.peak_bytes, rows, vocab_size, ranks=size) for size in (1, 4))
    for (alone,), together, floor in zip(zip(*one, strict=True), zip(*four, strict=True), (1, 1 / 4), strict=True):
        assert alone > floor * rows * vocab_size * 4
        assert max(together) < 1.15 * alone / 4
