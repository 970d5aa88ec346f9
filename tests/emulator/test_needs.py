"""Whether the emulator runs here."""

import pytest

from .needs import missing


def test_the_emulator_runs_here() -> None:
    if reason := missing():
        pytest.skip(f"no compiled kernel is tested: {reason}")
