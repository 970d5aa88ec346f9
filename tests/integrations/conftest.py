"""Two processes for the tests of loops that are spread over several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..parallel.ranks import Ranks


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two processes with a gloo group."""
    ranks = Ranks(2, tmp_path_factory.mktemp("two_ranks"))
    yield ranks
    ranks.stop()
