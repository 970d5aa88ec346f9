"""The cases of a GPU, on the emulated GPU; slow compilations in the wide run only."""

from __future__ import annotations

import pytest

from ..backends.triton_cases import CallCases, TritonCases
from ..gradient_cases import GradientCases
from ..parallel.shard_cases import ShardCases
from .conftest import IS_WIDE


class TestGradientsEmulated(GradientCases):
    backend = "triton"
    device = "cpu"


class TestCallsEmulated(CallCases):
    device = "cpu"


@pytest.mark.skipif(not IS_WIDE, reason="part of `make emulated`")
class TestEmulated(TritonCases):
    device = "cpu"
    every = 5


@pytest.mark.skipif(not IS_WIDE, reason="part of `make emulated`")
class TestShardsEmulated(ShardCases):
    device = "cpu"
    every = 5
