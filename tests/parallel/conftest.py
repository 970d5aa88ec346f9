"""Four processes for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    processes = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.stop()
