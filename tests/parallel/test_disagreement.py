"""The errors of inconsistent columns and arguments on every rank: in one process, in threads that meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
import torch

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from .cases import DIGITS, ROWS
from .shards import group_of_one, together

FORMS = ("logits", "hidden", "chunks", "reference")
THIRDS = [(0, 4), (4, 4), (8, 4)]
OPTIONS_DIFFER = "options, reduction, numbers or backend (rank 0 differs from rank 2)"
ROWS_DIFFER = "labels, token_weights or number_weights (rank 0 differs from rank 2)"
HALF = torch.tensor(0.5)
OVER_TOKENS = {"config": NTLConfig(mean_over="tokens")}
WEIGHTS = ROWS["token_weights"]
PERMUTED = [
    {"labels": a, "token_weights": 1 + 2**-23 * b, "number_weights": 1 + 2**-23 * c}  # the bits of 1, and b or c more
    for a, b, c in permutations(torch.tensor([[0, 3, 11, 2, 9], [5, 1, 8, 2, 7], [4, 2, 6, 3, 1]]))
]
UNEQUAL: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    *((PERMUTED[0], others, ROWS_DIFFER) for others in PERMUTED[1:]),
    ({}, {"labels": torch.tensor([1, 3, 11, -100, 9])}, ROWS_DIFFER),
    ({}, {"labels": torch.tensor([3, 0, 11, -100, 9])}, ROWS_DIFFER),  # the same ones in another order
    ({}, {"labels": torch.tensor([0, 3, 11, 9, -100])}, ROWS_DIFFER),
    ({}, {"token_weights": WEIGHTS.flip(0)}, ROWS_DIFFER),
    ({"token_weights": torch.tensor([1.0, 2.0, 3.0, 1.0, 0.5])}, {"token_weights": None}, ROWS_DIFFER),
    ({}, {"number_weights": WEIGHTS}, ROWS_DIFFER),
    ({"number_weights": WEIGHTS}, {"number_weights": WEIGHTS.flip(0)}, ROWS_DIFFER),
    ({}, {"softcap": 5.0}, OPTIONS_DIFFER),
    ({"softcap": 4.0}, {"softcap": 5.0}, OPTIONS_DIFFER),
    ({"z_loss": 0.1, "label_smoothing": 0.2}, {"z_loss": 0.2, "label_smoothing": 0.1}, OPTIONS_DIFFER),
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
    ({}, {"numbers": NumberTokens.from_mapping({i: float(i) for i in (*range(5), 6, 5, 7, 9)}, 12)}, OPTIONS_DIFFER),
    ({}, {"numbers": NumberTokens.from_mapping({(i + 1) % 10: float(i) for i in range(10)}, 12)}, OPTIONS_DIFFER),
    ({}, {"numbers": NumberTokens.from_mapping({i: float(i) for i in range(10)}, 13)}, OPTIONS_DIFFER),
    ({}, {"config": NTLConfig(weight=0.4)}, "config.weight (0.3, 0.3, 0.4 in rank order)"),
    ({"config": NTLConfig(weight=HALF)}, {"config": NTLConfig(weight=2 * HALF)}, "config.weight (0.5, 0.5, 1 in"),
    ({**OVER_TOKENS, "num_tokens": 100}, {"num_tokens": 101}, "num_tokens (100, 100, 101 in rank order)"),
    ({**OVER_TOKENS, "num_tokens": HALF}, {"num_tokens": 2 * HALF}, "num_tokens (0.5, 0.5, 1 in rank order)"),
    (OVER_TOKENS, {"num_tokens": 100}, "num_tokens (None, None, 100 in rank order)"),
    (OVER_TOKENS, {"num_numbers": 0}, "num_numbers (None, None, 0 in rank order)"),
    (
        {"num_tokens": 100, "num_numbers": 10},
        {"num_tokens": 200, "num_numbers": 20, "labels": ROWS["labels"].flip(0), "softcap": 9.0},
        f"{OPTIONS_DIFFER}; {ROWS_DIFFER}; num_tokens (100, 100, 200 in rank order); num_numbers (10, 10, ",
    ),
]
"""(The arguments of all ranks, those that differ on the last one, the message of the error.)"""
EQUAL: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"labels": ROWS["labels"].int()}),
    ({}, {"labels": torch.tensor([0, 3, 5, -100, 9])}),  # of a row without weight
    ({}, {"token_weights": WEIGHTS.double()}),
    ({}, {"token_weights": WEIGHTS * torch.tensor([1, 1, -1, 1, 1])}),  # -0
    ({"token_weights": None}, {"token_weights": torch.ones(5)}),
    ({}, {"number_weights": torch.tensor([1, 1, 7, 1, 1])}),  # of a row without weight
    ({}, {"config": NTLConfig(weight=torch.tensor(0.3))}),
    ({}, {"config": NTLConfig(weight=torch.tensor(0.3, dtype=torch.float64))}),
    ({"softcap": 5.0, "z_loss": 0.0}, {"softcap": 5, "z_loss": 0}),
    ({"num_tokens": 100, "num_numbers": 10.0}, {"num_tokens": torch.tensor(100), "num_numbers": torch.tensor(10.0)}),
    ({**OVER_TOKENS, "num_tokens": 7.3}, {"num_tokens": torch.tensor(7.3) * (1 + 1e-6)}),  # summed in another order
    ({}, {"numbers": NumberTokens.from_mapping({i: i for i in reversed(range(10))}, 12)}),
]


def errors_of(
    form: str, common: dict[str, Any], others: dict[str, Any], bounds: Sequence[tuple[int, int]] = THIRDS, odd: int = 2
) -> list[str]:
    """What each rank raises, "" without any. The form is one of FORMS, or "half"; "reference" is of hidden states."""
    dtype = torch.float16 if form == "half" else torch.float32
    hidden, weight = torch.randn(5, 4).to(dtype), torch.randn(12, 4).to(dtype)
    given: dict[str, Any] = {**ROWS, "numbers": DIGITS, "backend": "reference" if form == "reference" else "eager"}
    given |= {"chunk_size": 2, "skip_ignored": False} if form == "chunks" else {}

    def call(rank: int) -> None:
        first, width = bounds[rank]
        own, where = weight[first : first + width], {"group": group, "vocab_start": first}
        arguments = {**given, **where, **common, **(others if rank == odd else {})}
        if form == "logits":
            vocab_parallel_cross_entropy_ntl(hidden @ own.t(), **arguments)
        else:
            vocab_parallel_linear_cross_entropy_ntl(hidden, own, **arguments)

    with group_of_one() as group:
        found = together([lambda rank=rank: call(rank) for rank in range(len(bounds))])
    assert all(error is None or isinstance(error, ValueError) for error in found), found
    return ["" if error is None else str(error) for error in found]


@pytest.mark.parametrize("form", FORMS)
def test_unequal_arguments_are_an_error_on_all_ranks(form: str) -> None:
    """The message names the difference, as far as the ranks know it."""
    for common, others, words in UNEQUAL:
        first, *rest = errors_of(form, common, others)
        assert rest == [first, first]
        assert first.startswith("all ranks of the group") and f"these differ: {words}" in first, (others, first)


@pytest.mark.parametrize("form", FORMS)
def test_equal_arguments_in_another_form(form: str) -> None:
    for common, others in EQUAL:
        assert errors_of(form, common, others) == [""] * 3


def test_the_first_rank_may_be_the_odd_one() -> None:
    counts = {"num_tokens": 5, "num_numbers": 2}
    others = {"labels": ROWS["labels"].flip(0), "num_tokens": 6}
    errors = set(errors_of("logits", counts, others, odd=0))
    assert len(errors) == 1 and "(rank 0 differs from ranks 1, 2); num_tokens (6, 5, 5 in" in errors.pop()


BOUNDS = [
    [(0, 12), (0, 12), (0, 12)],  # gathered logits, by mistake
    [(0, 4), (5, 4), (9, 3)],
    [(0, 4), (3, 5), (8, 4)],
    [(0, 4), (0, 4), (8, 4)],
    [(0, 4), (4, 4), (8, 3)],
    [(0, 6), (0, 6), (6, 0)],
    [(0, 0), (0, 0), (0, 0)],
]


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_columns_that_are_not_the_vocabulary(bounds: list[tuple[int, int]], backend: str) -> None:
    listed = ", ".join(f"[{first}, {first + width})" for first, width in bounds)
    (error,) = set(errors_of("logits", {"backend": backend}, {}, bounds))
    assert "[0, 12)" in error and error.endswith(listed)


def test_columns_in_any_order_of_the_ranks() -> None:
    for bounds in ([(8, 4), (0, 5), (5, 3)], [(5, 0), (0, 12), (0, 0)]):
        assert errors_of("logits", {}, {}, bounds) == [""] * 3


def test_a_float16_mean_compares_denominators_as_they_were_given() -> None:
    """Its gradients are computed for a mean over one token, regardless of the number of tokens."""
    for counts, others in (
        ({"num_tokens": 4, "num_numbers": 2}, {"num_tokens": 8, "num_numbers": 4}),
        ({"num_tokens": 4.0, "num_numbers": 2}, {"num_tokens": 8.0}),
    ):
        assert all("num_tokens (4, 4, 8 in" in error for error in errors_of("half", counts, others))
