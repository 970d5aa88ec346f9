"""The cases of a GPU, on the emulated GPU; slow compilations in the wide run only."""

from __future__ import annotations

import pytest

from ntl_kernels import NTLConfig

from .. import test_functional
from ..backends.triton_cases import CallCases, TritonCases
from ..gradient_cases import GradientCases
from ..parallel.shard_cases import ShardCases
from ..parallel.test_gradients import TestGradients as ShardGradients  # not collected by this name
from .conftest import IS_WIDE


class TestGradientsEmulated(GradientCases):
    backend = "triton"
    device = "cpu"


class TestShardGradientsEmulated(ShardGradients):
    """Of one rank."""


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


@pytest.mark.parametrize("cases", [TestEmulated, TestShardsEmulated])
def test_large_values_cost_no_digits(cases: type[TritonCases | ShardCases]) -> None:
    """Every kind reads the same differences of values."""
    cases().test_large_values_cost_no_digits([NTLConfig("mse", reweigh=True)])


def test_parts_say_what_is_predicted() -> None:
    test_functional.test_parts_say_what_is_predicted("triton")
