"""The emulated GPU for every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ..emulator import needs
from .gpu import GPU, emulated_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := needs.missing():
        for item in items:
            if "tests/emulated/" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def gpu() -> Iterator[GPU]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with emulated_gpu() as here:
        here.emulator.schedule = here.emulator.noise = 0
        yield here
    torch.set_num_threads(threads)
