"""DeepSpeed where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from ..stand_ins import is_installed

WITH_DEEPSPEED = pytest.mark.skipif(not is_installed("deepspeed"), reason="needs DeepSpeed: pip install -e .[dev]")


def without_compiler() -> Any:
    """The module ``deepspeed``, with gloo for all collectives; otherwise it would compile its own for a minute."""
    import deepspeed
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@contextmanager
def started_by_its_launcher() -> Iterator[None]:
    """In one process, without compiling anything."""
    without_compiler()
    with patch.dict(os.environ, LOCAL_RANK="0"):
        yield
