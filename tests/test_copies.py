"""The watch for copies between host and device sees each kind of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .copies import refused_copies

THERE, HERE = torch.empty(4, device="meta"), torch.ones(4)
COPIES: list[Callable[[], Any]] = [
    lambda: torch.as_tensor(3.0, device="meta"),
    lambda: torch.tensor([3.0, 1.0], device="meta"),
    lambda: THERE.new_tensor(3.0),
    lambda: HERE.to("meta"),
    lambda: torch.empty(4, device="meta").copy_(HERE),
    lambda: THERE[[0, 2]],
    lambda: THERE[torch.tensor([0, 2])],
]


def test_copies_are_refused() -> None:
    for copy in COPIES:
        with pytest.raises(AssertionError, match="copied between devices"), refused_copies():
            copy()
