"""The watch for copies between host and device sees each kind of them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .copies import refused_copies

THERE, HERE = torch.empty(4, device="meta"), torch.ones(4)
COPIES: dict[str, Callable[[], Any]] = {
    "as_tensor": lambda: torch.as_tensor(3.0, device="meta"),
    "tensor": lambda: torch.tensor([3.0, 1.0], device="meta"),
    "new_tensor": lambda: THERE.new_tensor(3.0),
    "to": lambda: HERE.to("meta"),
    "copy_": lambda: torch.empty(4, device="meta").copy_(HERE),
    "a list as an index": lambda: THERE[[0, 2]],
    "an index on the host": lambda: THERE[torch.tensor([0, 2])],
}
NO_COPIES: dict[str, Callable[[], Any]] = {
    "full": lambda: torch.full((), 3.0, device="meta"),
    "where": lambda: torch.where(THERE > 0, 1.0, THERE),
    "a number": lambda: THERE * 2 + torch.tensor(1.0),
    "a slice": lambda: THERE[1:3].fill_(2.0),
    "an entry": lambda: torch.empty(4, device="meta").__setitem__(1, 2.0),
    "as_tensor of a tensor": lambda: torch.as_tensor(THERE, device="meta"),
    "another dtype": lambda: THERE.to(torch.float16),
    "on the host": lambda: torch.tensor([1.0])[[0]],
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_refused(name: str) -> None:
    with pytest.raises(AssertionError, match="copied between devices"), refused_copies():
        COPIES[name]()


@pytest.mark.parametrize("name", NO_COPIES)
def test_what_copies_nothing_passes(name: str) -> None:
    with refused_copies():
        NO_COPIES[name]()
