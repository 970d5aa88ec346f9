"""Each test restores the environment; two processes for distributed loops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from ..parallel.ranks import Ranks


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """In transformers 4, TrainingArguments set variables that give later Trainers bfloat16 and a compiled model."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes with a gloo group."""
    ranks = Ranks(2, tmp_path_factory.mktemp("two_ranks"))
    yield ranks
    ranks.stop()
