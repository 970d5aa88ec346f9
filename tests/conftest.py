"""What every test shares: seeds, and the rule for tests that need a GPU."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch

from .gpu import _time_limit, pytest_addoption, pytest_collection_modifyitems, pytest_runtest_makereport  # noqa: F401

collect_ignore = [] if sys.version_info >= (3, 11) else ["integrations/test_trl.py"]  # as TRL asks for


@pytest.fixture(autouse=True, scope="session")
def _rare_collections() -> Iterator[None]:
    """Leave what is imported to no collection: each run of a Trainer collects all, which takes half of a small run.
    The rest is collected seldom: torch.compile and Triton make so many objects that it takes a tenth of their time."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
