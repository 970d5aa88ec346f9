"""The mathematics of shards in one process, without any collective: `test_ranks.py` has those."""

from __future__ import annotations

import pytest
import torch

from .shard_cases import ShardCases


class TestEager(ShardCases):
    backend = "eager"
    is_compiled = False
    dtypes = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.gpu
class TestOnTheGpu(ShardCases):
    device = "cuda"
    every = 5  # nearly every problem compiles kernels of its own
