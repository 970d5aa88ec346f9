"""The gradients of plain calls on the eager backend: `gradient_cases.py` has what holds for every backend."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ntl_kernels import NumberTokens, cross_entropy_ntl

from .gradient_cases import GradientCases


class TestEager(GradientCases):
    backend = "eager"
    device = "cpu"


@pytest.mark.gpu
class TestEagerOnTheGpu(GradientCases):
    backend = "eager"
    device = "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_autograd_fills_no_gradients_of_parts_that_nobody_asked_for(dtype: torch.dtype) -> None:
    """Each would be a launch on a GPU."""
    logits = torch.randn(8, 50).to(dtype).requires_grad_()
    numbers = NumberTokens.from_mapping({token: float(token) for token in range(10)}, 50)
    loss = cross_entropy_ntl(logits, torch.arange(8), numbers)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        torch.autograd.grad(loss, logits, torch.ones(()))
    names = [event.name for event in recorded.events()]
    assert any("CrossEntropyNTL" in name for name in names) and "aten::zeros" not in names
