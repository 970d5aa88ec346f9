"""The losses of a sharded vocabulary on real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens

from ..problems import Answer, check, random_problem
from ..versions import needs
from . import cases
from .cases import DTYPES, ROWS
from .heads import check_head
from .ranks import Ranks

compiles = needs("torch", 2, 11, to="compile the vocabulary-parallel losses without a graph break")


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
    listed = ", ".join(f"[{first}, {first + width})" for first, width in bounds)
    for backend in ("eager", "reference"):
        (error,) = set(ranks.run(cases.wrong_bounds, bounds, backend, ranks=3))
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


FORMS = ("logits", "hidden", "chunks", "reference")
OPTIONS_DIFFER = "options, reduction, numbers or backend (rank 0 differs from rank 2)"
ROWS_DIFFER = "labels or token_weights (rank 0 differs from rank 2)"
HALF = torch.tensor(0.5)
OVER_TOKENS = {"config": NTLConfig(mean_over="tokens")}
WEIGHTS = ROWS["token_weights"]
UNEQUAL: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"labels": torch.tensor([1, 3, 11, -100, 9])}, ROWS_DIFFER),
    ({}, {"labels": torch.tensor([3, 0, 11, -100, 9])}, ROWS_DIFFER),  # the same ones in another order
    ({}, {"labels": torch.tensor([0, 3, 11, 9, -100])}, ROWS_DIFFER),
    ({}, {"token_weights": WEIGHTS.flip(0)}, ROWS_DIFFER),
    ({"token_weights": torch.tensor([1.0, 2.0, 3.0, 1.0, 0.5])}, {"token_weights": None}, ROWS_DIFFER),
    ({}, {"softcap": 5.0}, OPTIONS_DIFFER),
    ({"softcap": 4.0}, {"softcap": 5.0}, OPTIONS_DIFFER),
    ({}, {"z_loss": 1e-4}, OPTIONS_DIFFER),
    ({}, {"logit_scale": 0.5}, OPTIONS_DIFFER),
    ({"label_smoothing": 0.1}, {"label_smoothing": 0.2}, OPTIONS_DIFFER),
    ({"labels": ROWS["labels"].abs() % 12}, {"ignore_index": -1}, OPTIONS_DIFFER),
    ({}, {"reduction": "sum"}, OPTIONS_DIFFER),
    ({}, {"reduction": "none"}, OPTIONS_DIFFER),
    ({}, {"config": NTLConfig(kind="mse")}, OPTIONS_DIFFER),
    ({}, {"config": NTLConfig(reweigh=True)}, OPTIONS_DIFFER),
    ({}, {"config": NTLConfig(squash_factor=3.0)}, OPTIONS_DIFFER),
    ({}, OVER_TOKENS, OPTIONS_DIFFER),
    ({"config": NTLConfig(kind="huber")}, {"config": NTLConfig(kind="huber", huber_delta=2.0)}, OPTIONS_DIFFER),
    ({"config": NTLConfig(label_sigma=1.0)}, {"config": NTLConfig(label_sigma=2.0)}, OPTIONS_DIFFER),
    # of the same smallest and largest distance
    (
        {},
        {"numbers": NumberTokens.from_mapping({i: float(i) for i in (0, 1, 2, 3, 4, 6, 5, 7, 9)}, 12)},
        OPTIONS_DIFFER,
    ),
    ({}, {"numbers": NumberTokens.from_mapping({(i + 1) % 10: float(i) for i in range(10)}, 12)}, OPTIONS_DIFFER),
    ({}, {"numbers": NumberTokens.from_mapping({i: float(i) for i in range(10)}, 13)}, OPTIONS_DIFFER),
    ({}, {"config": NTLConfig(weight=0.4)}, "config.weight (0.3, 0.3, 0.4 in rank order)"),
    ({"config": NTLConfig(weight=HALF)}, {"config": NTLConfig(weight=2 * HALF)}, "config.weight (0.5, 0.5, 1 in"),
    ({**OVER_TOKENS, "num_tokens": 100}, {"num_tokens": 101}, "num_tokens (100, 100, 101 in rank order)"),
    (
        {**OVER_TOKENS, "num_tokens": HALF},
        {"num_tokens": 2 * HALF},
        "num_tokens (0.5, 0.5, 1 in rank order)",
    ),
    (OVER_TOKENS, {"num_tokens": 100}, "num_tokens (None, None, 100 in rank order)"),
    (OVER_TOKENS, {"num_numbers": 0}, "num_numbers (None, None, 0 in rank order)"),
    (
        {"num_tokens": 100, "num_numbers": 10},
        {"num_tokens": 200, "num_numbers": 20, "labels": ROWS["labels"].flip(0), "softcap": 9.0},
        f"{OPTIONS_DIFFER}; {ROWS_DIFFER}; num_tokens (100, 100, 200 in rank order); num_numbers (10, 10, ",
    ),
]
"""(The arguments of all ranks, the others of the last one, what the error says of it.)"""
EQUAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"labels": ROWS["labels"].int()}),
    ({}, {"labels": torch.tensor([0, 3, 5, -100, 9])}),  # of a row without weight
    ({}, {"token_weights": WEIGHTS.double()}),
    ({}, {"token_weights": WEIGHTS * torch.tensor([1, 1, -1, 1, 1])}),  # -0
    ({"token_weights": None}, {"token_weights": torch.ones(5)}),
    ({}, {"config": NTLConfig(weight=torch.tensor(0.3))}),
    ({}, {"config": NTLConfig(weight=torch.tensor(0.3, dtype=torch.float64))}),
    ({"softcap": 5.0, "z_loss": 0.0}, {"softcap": 5, "z_loss": 0}),
    ({"num_tokens": 100, "num_numbers": 10.0}, {"num_tokens": torch.tensor(100), "num_numbers": torch.tensor(10.0)}),
    ({**OVER_TOKENS, "num_tokens": 7.3}, {"num_tokens": torch.tensor(7.3) * (1 + 1e-6)}),  # summed in another order
    ({}, {"numbers": NumberTokens.from_mapping({i: i for i in reversed(range(10))}, 12)}),
]


@pytest.mark.parametrize("form", FORMS)
def test_unequal_arguments_are_an_error_on_all_ranks(ranks: Ranks, form: str) -> None:
    """And say what differs, as far as the ranks know."""
    calls = [(common, others) for common, others, _ in UNEQUAL]
    first, *rest = ranks.run(cases.errors_of_a_rank, calls, form, ranks=3)
    assert rest == [first, first]
    for error, (_, others, words) in zip(first, UNEQUAL, strict=True):
        assert error.startswith("all ranks of the group") and f"these differ: {words}" in error, (others, error)


@pytest.mark.parametrize("form", FORMS)
def test_equal_arguments_in_another_form(ranks: Ranks, form: str) -> None:
    for found in ranks.run(cases.errors_of_a_rank, EQUAL, form, ranks=3):
        assert found == [""] * len(EQUAL)


def test_the_first_rank_may_be_the_odd_one(ranks: Ranks) -> None:
    counts = {"num_tokens": 5, "num_numbers": 2}
    calls = [({"labels": ROWS["labels"].flip(0), **counts}, {**ROWS, "num_tokens": 6})]
    (first,), (last,) = ranks.run(cases.errors_of_a_rank, calls, "logits", ranks=2)
    assert first == last and "(rank 0 differs from rank 1); num_tokens (5, 6 in" in first


def test_another_backend_on_one_rank(ranks: Ranks) -> None:
    assert all(OPTIONS_DIFFER in error for (error,) in ranks.run(cases.other_backend, ranks=3))


def test_a_float16_mean_compares_denominators_as_they_were_given(ranks: Ranks) -> None:
    """Its gradients are computed for a mean over one token, whatever the number of tokens."""
    for errors in ranks.run(cases.half_precision_denominators, ranks=2):
        assert all("num_tokens (4, 8 in" in error for error in errors), errors


@compiles
def test_compiled_and_plain_ranks_compare_arguments(ranks: Ranks) -> None:
    for others, words in (
        ({}, ""),
        ({"softcap": 5.0}, "options, reduction, numbers or backend (rank 0 differs from rank 1)"),
        ({"labels": ROWS["labels"].flip(0)}, "labels or token_weights (rank 0"),
        ({"num_tokens": 5, "num_numbers": 2}, "num_tokens (None, 5 in"),
    ):
        for error in ranks.run(cases.compiled_on_one_rank, others, ranks=2):
            assert words in error and bool(words) == bool(error)


def test_a_smooth_label_on_one_rank_alone(tmp_path: Path) -> None:
    """An error, although that rank has asked for a sum to which the others add nothing."""
    processes = Ranks(3, tmp_path)
    try:
        for error, seconds in processes.run(cases.smooth_on_one_rank, ranks=3, seconds=60):
            assert OPTIONS_DIFFER in error and seconds < 10
    finally:
        processes.stop()


def test_what_has_no_derivative_says_so(ranks: Ranks) -> None:
    for found in ranks.run(cases.transforms, ranks=2):
        for word, error in zip(["torch.func", "forward-mode", "second derivative", "inplace"], found, strict=True):
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


OPTIONS: list[dict[str, Any]] = [{}, {"reduction": "none"}, {"config": NTLConfig(label_sigma=1.0, reweigh=True)}]


@compiles
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
