"""Shared by all tests: seeds, the order of files, and the rules for tests that need a GPU."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .gpu import _time_limit, pytest_addoption, pytest_runtest_makereport  # noqa: F401
from .gpu import pytest_collection_modifyitems as skip_without_gpu

HERE = Path(__file__).parent
collect_ignore = [] if sys.version_info >= (3, 11) else ["integrations/test_trl.py"]  # which TRL requires

LONGEST = (
    "emulated/test_losses.py",
    "emulated/test_shards.py",
    "test_transforms.py",
    "backends/test_triton.py",
    "parallel/test_ranks.py",
    "benchmarks/test_quality_experiments.py",
    "test_ops.py",
    "emulated/test_model.py",
)
"""The slowest files, the slowest first. The others finish in seconds."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, each of which runs one file at a time, begin with the slowest, to end at the same time."""
    skip_without_gpu(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = {HERE / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(LONGEST)))


@pytest.fixture(autouse=True, scope="session")
def _rare_collections() -> Iterator[None]:
    """torch.compile and Triton create so many objects that garbage collection takes a tenth of their time."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def _small_collections() -> None:
    """Exclude objects of earlier files from garbage collection: each run of a Trainer collects everything, which takes
    most of a small run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
