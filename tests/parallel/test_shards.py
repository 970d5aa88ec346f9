"""Shards in one process; `test_ranks.py` has real ones."""

from __future__ import annotations

import pytest

from .shard_cases import ShardCases


class TestEager(ShardCases):
    backend = "eager"
    is_compiled = False


@pytest.mark.gpu
class TestOnTheGpu(ShardCases):
    device = "cuda"
    every = 5  # nearly every problem compiles its own kernels
