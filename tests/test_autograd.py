"""The gradients of plain calls on the eager backend: `gradient_cases.py` has what holds for every backend."""

from __future__ import annotations

import pytest

from .gradient_cases import GradientCases


class TestEager(GradientCases):
    backend = "eager"
    device = "cpu"


@pytest.mark.gpu
class TestEagerOnTheGpu(GradientCases):
    backend = "eager"
    device = "cuda"
