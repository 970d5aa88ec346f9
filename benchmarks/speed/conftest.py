"""Options of the pytest-benchmark suite."""

from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("speed")
    group.addoption("--speed-suite", choices=("quick", "full", "gpu"), default="quick", help="which workloads to time")
    group.addoption(
        "--speed-dry", action="store_true", help="run the same workloads at tiny sizes, to test the code only"
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    group.addoption("--speed-device", type=torch.device, default=torch.device(default), help=f"default: {default}")
    group.addoption("--speed-threads", type=int, default=2, help="CPU threads (default: 2)")
