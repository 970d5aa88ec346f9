"""The loss of logits and its gradient, as compiled for a GPU: every kind, option, dtype, layout and length of row."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.speed.candidates import Candidate, walking
from ntl_kernels import NTLConfig
from ntl_kernels.backends import triton as backend
from ntl_kernels.config import KINDS as ALL_KINDS

from .conftest import some
from .gpu import DTYPES
from .problems import LAYOUTS, MODES, check, labels_of, problem_of

KINDS = {
    "wasserstein": NTLConfig(reweigh=True),
    "wasserstein, not reweighed": NTLConfig(reweigh=False),
    "squashed": NTLConfig(squash_factor=3.0, reweigh=True),
    "smooth": NTLConfig(label_sigma=1.3, reweigh=True),
    "smooth, not reweighed": NTLConfig(label_sigma=0.4, reweigh=False),
    "mse": NTLConfig(kind="mse", reweigh=True),
    "mse, not reweighed": NTLConfig(kind="mse", reweigh=False),
    "mae": NTLConfig(kind="mae", reweigh=True),
    "huber": NTLConfig(kind="huber", huber_delta=1.5, reweigh=True),
    "huber, not reweighed": NTLConfig(kind="huber", huber_delta=3.0, reweigh=False),
    "soft_labels": NTLConfig(kind="soft_labels", label_sigma=1.3),
    "soft_labels alone": NTLConfig(kind="soft_labels", label_temperature=20.0, label_share=0.0),
}
assert set(KINDS) >= set(ALL_KINDS)


@pytest.mark.parametrize(("count", "kind"), some(3, [2, 10, 1110], KINDS))
def test_every_kind(kind: str, count: int) -> None:
    number, config = list(KINDS).index(kind), KINDS[kind]
    dtype = DTYPES[(number + count) % 3]
    layout = list(LAYOUTS)[number % 2]
    check(problem_of(dtype, 1301, count=count, config=config, seed=number, layout=layout, scale=2.0), MODES[number % 2])


GROUPS = [(10, 100, 1000), (3, 1, 40), (1, 300, 2, 33), (1, 2)]
"""Sizes of groups, first those of Llama 3."""


@pytest.mark.parametrize(("sizes", "kind"), some(3, GROUPS, KINDS), ids=str)
def test_every_kind_with_groups(kind: str, sizes: tuple[int, ...]) -> None:
    """With a gradient from either pass, and the loss alone."""
    number = list(KINDS).index(kind) + GROUPS.index(sizes)
    options: dict[str, Any] = {"config": KINDS[kind], "reduction": ("none", "mean")[number // 3 % 2]}
    problem = problem_of(DTYPES[number % 3], 1301, count=sizes, shape=(2, 6), seed=number, scale=2.0, **options)
    check(problem, MODES[number // 2 % 3])


LENGTHS = [2, 3, 5, 7, 8, 16, 1000, 1001, 4099, 8192]
WAYS = cycle(product(LAYOUTS, MODES))


@pytest.mark.parametrize(("_", "length", "dtype"), some(4, range(2), LENGTHS, DTYPES), ids=str)
def test_rows_of_every_length(_: int, length: int, dtype: torch.dtype) -> None:
    """Less than a vector, whole vectors, whole groups of vectors, and the remainders at both ends."""
    layout, mode = next(WAYS)
    label_dtype = torch.int32 if length % 2 else torch.int64
    check(problem_of(dtype, length, count=10, layout=layout, label_dtype=label_dtype, seed=length), mode)


MODELS = [
    (50257, torch.float32, "contiguous", "new"),
    (32000, torch.float32, "contiguous", "loss only"),
    (50259, torch.float16, "odd", "new"),
    (32000, torch.bfloat16, "contiguous", "new"),
    (128256, torch.bfloat16, "contiguous", "in place"),
    (128256, torch.float32, "aligned gaps", "new"),
    (50257, torch.bfloat16, "contiguous", "in place"),
]


@pytest.mark.parametrize("row", some(2, MODELS), ids=str)
def test_rows_of_language_models(row: tuple[int, torch.dtype, str, str]) -> None:
    """Several groups of vectors per thread."""
    length, dtype, layout, mode = row
    count = GROUPS[0] if length == 128256 else 10
    check(problem_of(dtype, length, count=count, shape=(1, 3), layout=layout, seed=5, scale=2.0), mode)


MANY: list[tuple[int, Any, str, dict[str, Any]]] = [
    (20000, 3000, "new", {}),
    (40003, 3000, "in place", {}),
    (8191, (2000, 2095), "new", {"config": NTLConfig(label_sigma=1.0)}),
    (3001, 3000, "new", {"reduction": "none"}),
    (132, 66, "new", {}),
]


@pytest.mark.parametrize(("length", "count", "mode", "options"), MANY, ids=str)
def test_rows_with_many_number_tokens(length: int, count: Any, mode: str, options: dict[str, Any]) -> None:
    """A row that is kept whole, one with a front, by as many threads as a program can have; groups; few threads."""
    check(problem_of(torch.bfloat16, length, count=count, shape=(1, 3), seed=7, scale=2.0, **options), mode)


KEPT: list[tuple[int, int, torch.dtype, dict[str, Any]]] = [
    (1, 64, torch.bfloat16, {}),
    (2, 32, torch.float32, {"softcap": 5.0}),
    (3, 64, torch.bfloat16, {"softcap": 5.0, "config": NTLConfig(kind="mse", reweigh=True)}),
    (5, 32, torch.float32, {"label_smoothing": 0.1}),
    (7, 32, torch.bfloat16, {"label_smoothing": 0.1, "config": NTLConfig(label_sigma=0.7, reweigh=True)}),
]


@pytest.mark.parametrize(("strides", "row"), some(2, [("odd", "in place"), ("aligned gaps", "new")], KEPT), ids=str)
def test_rows_of_which_a_part_is_kept(
    strides: tuple[str, str], row: tuple[int, int, torch.dtype, dict[str, Any]]
) -> None:
    """A front of several groups of vectors, and a kept part of pairs of vectors and a single one."""
    (layout, mode), (keep, threads, dtype, options) = strides, row
    with walking(Candidate(threads, keep)), mock.patch.object(backend, "CACHED_BYTES", 0):
        check(problem_of(dtype, 9000, shape=(1, 3), layout=layout, seed=keep, scale=2.0, **options), mode)


OPTIONS: list[dict[str, Any]] = [
    {"label_smoothing": 0.1},
    {"z_loss": 0.01},
    {"softcap": 5.0},
    {"softcap": 30.0, "label_smoothing": 0.2, "z_loss": 1e-3},
    {"logit_scale": 0.7},
    {"logit_scale": 0.25, "softcap": 3.0},
    {"weights": True},
    {"weights": True, "label_smoothing": 1.0},
    {"num_tokens": 7, "num_numbers": 5.5},
    {"num_tokens": torch.tensor(3.0), "num_numbers": torch.tensor(2)},
    {"num_tokens": 0, "num_numbers": 0},
    {"num_tokens": torch.tensor(4.0, dtype=torch.float64), "num_numbers": torch.tensor(3, dtype=torch.int32)},
    {"ignore_index": 1},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"reduction": "none", "weights": True, "softcap": 4.0},
    {"reduction": "none", "config": NTLConfig(label_sigma=0.7, reweigh=True)},
    {"upstream": -2.5},
    {"upstream": 65536.0, "num_tokens": 10**6, "num_numbers": 10**6},
    {"config": NTLConfig(weight=torch.tensor(0.7), reweigh=True)},
    {"config": NTLConfig(weight=torch.tensor(0.3, dtype=torch.bfloat16))},
    {"config": NTLConfig(weight=torch.tensor(2.0, dtype=torch.float64), kind="mse", reweigh=True), "reduction": "none"},
    {"config": NTLConfig(weight=0.0)},
    {"softcap": 50.0},
    {"config": NTLConfig(mean_over="tokens"), "weights": True},
    {"config": NTLConfig(mean_over="tokens", reweigh=True), "num_tokens": 7},
    {"config": NTLConfig(mean_over="tokens"), "num_tokens": torch.tensor(3.0), "num_numbers": torch.tensor(2)},
    {"config": NTLConfig(mean_over="tokens", kind="mse"), "reduction": "sum"},
    {"softcap": 5.0, "config": NTLConfig(reweigh=True), "weights": True},
    {"label_smoothing": 0.2, "logit_scale": 0.7, "config": NTLConfig(reweigh=True)},
    {"z_loss": 0.01, "num_tokens": 7, "num_numbers": 5.5, "config": NTLConfig(kind="huber", reweigh=True)},
    {"count": (3, 1, 20), "softcap": 5.0, "weights": True, "config": NTLConfig(squash_factor=3.0, reweigh=True)},
    {"number_weights": True},
    {"number_weights": True, "weights": True, "config": NTLConfig(reweigh=True)},
    {"number_weights": True, "weights": True, "reduction": "none", "softcap": 4.0},
    {"number_weights": True, "reduction": "sum", "config": NTLConfig(label_sigma=0.7)},
    {"number_weights": True, "count": (3, 1, 20), "config": NTLConfig(kind="huber", reweigh=True)},
]


@pytest.mark.parametrize(("is_odd", "number"), some(2, [False, True], range(len(OPTIONS))))
def test_every_option(number: int, is_odd: bool) -> None:
    """In float32 with plain rows, or in half precision with others."""
    options = OPTIONS[number]
    dtype = DTYPES[1 + number % 2] if is_odd else torch.float32
    layout = ("odd", "gaps", "sliced")[number % 3] if is_odd else "contiguous"
    mode = MODES[number % 3] if is_odd else "new"
    check(problem_of(dtype, (1001, 64)[number % 2], layout=layout, seed=number, **options), mode)


@pytest.mark.parametrize(("rows", "most"), [(0, 0), (1, 1), (1, 0), (5000, 5000), (5000, 4999)])
def test_any_number_of_rows(rows: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 5,000, the sums over all rows need several blocks; with more than ``most``, several programs."""
    monkeypatch.setattr(backend, "MOST_ROWS_OF_A_PROGRAM", most)
    both = {"weights": rows == 5000, "number_weights": rows == 5000}
    check(problem_of(torch.float32, 16, shape=(1, rows), count=5, **both))


@pytest.mark.parametrize("are_numbers", [0.0, 1.0])
@pytest.mark.parametrize("ignored", [0.0, 1.0])
def test_rows_of_one_sort(ignored: float, are_numbers: float) -> None:
    for reduction in ("mean", "none"):
        problem = problem_of(torch.bfloat16, 64, reduction=reduction)
        problem.labels = labels_of(problem.numbers, 6, 1, ignored, are_numbers).view(2, 3)
        check(problem)
