"""The emulated GPU for every test of this folder."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ..emulator.needs import missing

if TYPE_CHECKING:
    from ..emulator.emulator import Emulator

collect_ignore_glob = ["test_*"] if missing() else []
"""`tests/emulator/test_needs.py` reports why."""
WAYS = ((0, 0), (1, 7), (5, 11))
"""(order of warps and programs, errors of approximate instructions): see `Emulator.schedule` and `Emulator.noise`."""
IS_WIDE = "NTL_KERNELS_EMULATE_ALL" in os.environ
"""Whether every test runs in every way instead of one, and with all of its cases. Mutants are tried in
one: each way alone finds enough of them, and they are slow."""


def some(every: int, *axes: Iterable[Any]) -> list[Any]:
    """The cases of a product, or of one axis, that a run tries: every n-th, or all in the wide run."""
    cases = list(product(*axes) if len(axes) > 1 else axes[0])
    return cases[:: 1 if IS_WIDE else every]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Assign the ways to the tests in turn."""
    if "way" in metafunc.fixturenames:
        is_wide = IS_WIDE and not metafunc.module.__name__.endswith("test_mutants")
        ways = WAYS if is_wide else (WAYS[zlib.crc32(metafunc.function.__qualname__.encode()) % len(WAYS)],)
        metafunc.parametrize("way", ways, ids=[f"order {order}, noise {noise}" for order, noise in ways])


@pytest.fixture(autouse=True)
def gpu(way: tuple[int, int]) -> Iterator[Emulator]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    from .gpu import emulated_gpu

    with emulated_gpu() as here:
        here.schedule, here.noise = way
        yield here
    torch.set_num_threads(threads)
