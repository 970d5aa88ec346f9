"""The examples in public docstrings run and print the documented results."""

from __future__ import annotations

import doctest
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import transformers
from tokenizers import Tokenizer, models

import ntl_kernels

from .integrations.models import make_batch, make_model

MODULES = ["", ".evaluation", ".ntloss", ".number_weights", ".parallel", ".integrations.transformers"]
WITHOUT = {"NTLOutput", "NumberAnswers", "NumberStatistics", "LogitTransform"}
WITHOUT |= {"NumberTokens", "NTLTrainer", "NTLSeq2SeqTrainer"}
"""Classes without an example: results and options, one built by its class methods, and Trainers used like the mixin."""


class Checker(doctest.OutputChecker):
    """Allows any output where none is documented: some libraries print when a Trainer imports them."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def examples() -> list[doctest.DocTest]:
    """The examples of every public name and of its methods."""
    finder, found = doctest.DocTestFinder(), []
    for module in MODULES:
        public = importlib.import_module(f"ntl_kernels{module}")
        for name in public.__all__:
            tests = finder.find(getattr(public, name), name, module=False, globs=vars(public))
            found += [test for test in tests if test.examples or test.name == name not in WITHOUT]
    return found


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the examples use without defining it."""
    monkeypatch.chdir(tmp_path)
    raw = Tokenizer(models.WordLevel({"[UNK]": 0, "km": 1, **{str(digit): 2 + digit for digit in range(10)}}, "[UNK]"))
    names: dict[str, Any] = {"torch": torch, "transformers": transformers, **vars(ntl_kernels)}
    names |= {"tokenizer": transformers.PreTrainedTokenizerFast(tokenizer_object=raw), "model": make_model()}
    with mock.patch.dict(os.environ):  # transformers 4 sets variables
        args = transformers.TrainingArguments("runs", report_to=[])
        yield names | {"ids": make_batch()["input_ids"], "rows": [], "args": args}


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_example(test: doctest.DocTest, given: dict[str, Any], request: pytest.FixtureRequest) -> None:
    assert test.examples, f"{test.name} has no example"
    test.globs = given | test.globs
    if test.name.startswith("vocab_parallel"):
        test.globs["group"] = request.getfixturevalue("group")
    assert doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS).run(test).failed == 0
