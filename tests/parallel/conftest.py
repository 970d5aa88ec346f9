"""Four processes for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .ranks import Ranks


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ranks]]:
    """The processes that have been started; the last of them may still run."""
    started: list[Ranks] = []
    yield started
    for processes in started:
        processes.stop()


@pytest.fixture
def ranks(running: list[Ranks], tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Four processes, restarted only after a test that broke them."""
    if not running or not running[-1].are_alive():
        for processes in running:
            processes.stop()
        running.append(Ranks(4, tmp_path_factory.mktemp("ranks")))
    return running[-1]
