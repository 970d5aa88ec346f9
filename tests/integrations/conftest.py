"""Each test has the environment to itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """In transformers 4, TrainingArguments set variables that give later Trainers bfloat16 and a compiled model."""
    with mock.patch.dict(os.environ):
        yield
