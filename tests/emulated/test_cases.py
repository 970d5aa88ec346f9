"""What the interpreter and a GPU run, on the emulated GPU: in the wide run alone, since each case compiles kernels."""

from __future__ import annotations

import pytest

from ..backends.triton_cases import TritonCases
from ..parallel.shard_cases import ShardCases
from .conftest import IS_WIDE


@pytest.mark.skipif(not IS_WIDE, reason="part of `make emulated`")
class TestEmulated(TritonCases):
    device = "cpu"
    every = 5


@pytest.mark.skipif(not IS_WIDE, reason="part of `make emulated`")
class TestShardsEmulated(ShardCases):
    device = "cpu"
    every = 5
