"""How strong the emulated tests are: the project's kernels, with one instruction broken each, do not pass them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from ntl_kernels import NTLConfig
from ntl_kernels.backends import triton as backend

from ..emulator.emulator import Emulator
from ..emulator.mutants import mutants_of
from ..versions import needs
from . import test_contract, test_shards
from .conftest import IS_WIDE
from .problems import check, problem_of

SAMPLE = 30
"""Mutants of a kernel that a run tries; `make emulated` tries them all."""
MOST_STEPS = 3_000_000
"""The limit for a mutant that may not terminate."""
LEAST_FOUND = {
    "barrier removed": 1.0,
    "pair swapped": 1.0,
    "exchange with another lane": 1.0,
    "branch inverted": 0.8,
    "choice swapped": 0.6,
    "operand taken twice": 0.7,
}
"""The share of mutants that must be found; 0.9 of the mutations that are not here. The others change nothing: what
guards against too large logits, too small totals or denominators of 0, a choice between equal numbers, a column that no
label needs."""


def row_losses() -> None:
    check(problem_of(torch.float32, 6003, layout="odd", scale=2.0, label_smoothing=0.1, z_loss=0.01), "in place")


def row_losses_with_softcap() -> None:
    config = NTLConfig(reweigh=True)
    problem = problem_of(torch.float32, 9000, layout="aligned gaps", scale=2.0, softcap=5.0, config=config)
    check(problem, "in place")


def row_losses_of_one_warp() -> None:
    check(problem_of(torch.bfloat16, 3001, layout="odd", scale=2.0), "in place")


def row_gradients() -> None:
    options = {"config": NTLConfig(kind="huber", reweigh=True), "reduction": "none", "z_loss": 0.01}
    check(problem_of(torch.float16, 9001, layout="gaps", scale=2.0, **options), "in place")


def shards() -> None:
    config = NTLConfig(kind="mse", reweigh=True)
    problem = problem_of(torch.bfloat16, 11003, scale=2.0, config=config, reduction="none", z_loss=0.01)
    test_shards.check(problem, [(0, 6003), (6003, 5000)], is_in_place=True)


def smooth_shards() -> None:
    config = NTLConfig(label_sigma=1.3, reweigh=True)
    test_shards.check(problem_of(torch.float32, 200, config=config, reduction="sum"), [(0, 100), (100, 100)])


def row_losses_of_groups() -> None:
    config = NTLConfig(squash_factor=3.0, reweigh=True)
    check(problem_of(torch.float32, 6003, count=(10, 1, 40, 2), layout="odd", scale=2.0, config=config), "in place")


def shards_of_groups() -> None:
    config = NTLConfig(label_sigma=1.3, reweigh=True)
    problem = problem_of(torch.float32, 300, count=(10, 1, 40, 2), shape=(2, 9), config=config)
    test_shards.check(problem, [(0, 100), (100, 200)], is_in_place=True)


SOFT = NTLConfig("soft_labels", label_sigma=1.3, label_share=0.5)


def row_losses_of_soft_labels() -> None:
    check(problem_of(torch.float32, 6003, count=40, layout="odd", scale=2.0, config=SOFT), "in place")


def shards_of_soft_labels() -> None:
    problem = problem_of(torch.float32, 300, count=40, config=SOFT, reduction="sum")
    test_shards.check(problem, [(0, 100), (100, 200)], is_in_place=True)


def scale() -> None:
    test_contract.test_scaling("odd", torch.bfloat16)


def totals() -> None:
    """On more rows than one block holds."""
    test_contract.test_sums_over_rows(9001)


def shared_totals() -> None:
    """Each program has one or two smaller blocks."""
    with mock.patch.multiple(backend, TOTAL_BLOCK=2048, TOTAL_PROGRAMS=3, MOST_ROWS_OF_A_PROGRAM=9000):
        test_contract.test_sums_over_rows(9001)


KERNELS: list[tuple[Callable[[], None], str]] = [
    (row_losses, "row_losses_kernel"),
    (row_losses_with_softcap, "row_losses_kernel"),
    (row_losses_of_one_warp, "row_losses_kernel"),
    (row_gradients, "row_gradients_kernel"),
    (shards, "shard_statistics_kernel"),
    (shards, "merge_shards_kernel"),
    (shards, "row_gradients_kernel"),
    (smooth_shards, "number_columns_kernel"),
    (smooth_shards, "cumulative_losses_kernel"),
    (row_losses_of_groups, "row_losses_kernel"),
    (shards_of_groups, "number_columns_kernel"),
    (shards_of_groups, "merge_shards_kernel"),
    (shards_of_groups, "row_gradients_kernel"),
    (row_losses_of_soft_labels, "row_losses_kernel"),
    (shards_of_soft_labels, "shard_statistics_kernel"),
    (shards_of_soft_labels, "merge_shards_kernel"),
    (shards_of_soft_labels, "row_gradients_kernel"),
    (scale, "scale_kernel"),
    (totals, "count_kernel"),
    (totals, "finish_kernel"),
    (shared_totals, "count_kernel"),
    (shared_totals, "sum_kernel"),
    (shared_totals, "finish_kernel"),
]


@needs("triton", 3, 5, to="compile the code for which LEAST_FOUND is set")
@pytest.mark.parametrize(("test", "name"), KERNELS, ids=[f"{name} in {test.__name__}" for test, name in KERNELS])
def test_broken_kernels_are_found(test: Callable[[], None], name: str, gpu: Emulator) -> None:
    gpu.launched.clear()
    test()
    kernels = {id(launched.kernel): launched.kernel for launched in gpu.launched if launched.kernel.name == name}
    for kernel in kernels.values():
        kernel.lanes[:] = kernel.executed[:] = 0
    test()
    kernel = max(kernels.values(), key=lambda kernel: kernel.lanes.sum())
    mutants = list(mutants_of(kernel))
    if name == "row_losses_kernel":  # its first barrier only keeps the assembler from moving loads
        mutants.remove(next(mutant for mutant in mutants if mutant.mutation == "barrier removed"))
    random.Random(0).shuffle(mutants)
    mutants.sort(key=lambda mutant: mutant.mutation != "barrier removed")
    found: dict[str, list[bool]] = defaultdict(list)
    survivors = []
    with mock.patch.multiple(gpu, most_steps=MOST_STEPS, replaced={}):
        for mutant in mutants if IS_WIDE else mutants[:SAMPLE]:
            gpu.replaced[id(kernel)] = mutant.kernel()
            found[mutant.mutation].append(fails(test))
            if not found[mutant.mutation][-1]:
                survivors.append(f"{mutant.mutation}: {mutant.line}")
    assert found
    for mutation, results in found.items():
        least, missed = LEAST_FOUND.get(mutation, 0.9), results.count(False)
        some = "\n".join(survivors)
        assert missed <= (1 - least) * len(results) + (least < 1), f"{missed} of {len(results)} missed\n{some}"


def fails(test: Callable[[], Any]) -> bool:
    try:
        test()
    except Exception:
        return True
    return False
