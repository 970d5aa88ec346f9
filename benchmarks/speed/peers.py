"""The classes of the `ntloss` package and of its drop-in replacement."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor

from ntl_kernels import NumberTokens

from .workloads import DOT, Case

NTL_WEIGHT = 0.3
"""Lambda, the factor of NTL in all workloads."""


def package_tokenizer(numbers: NumberTokens) -> Any:
    """A word-level tokenizer with exactly these number tokens."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    values = {int(token): f"{value:.0f}" for token, value in zip(numbers.ids, numbers.values, strict=True)}
    words = {values.get(token, "." if token == DOT else f"w{token}"): token for token in range(numbers.vocab_size)}
    unknown = next(word for word, token in words.items() if token not in values)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token=unknown)), unk_token=unknown)


def class_loss(module: str, name: str, case: Case, reweigh: bool) -> Callable[..., Tensor]:
    """A loss class of the package, or of a module with the same class names, for the case's number tokens.

    ``reweigh`` must be False when added to cross-entropy: our own losses do not reweigh, the classes do by default.
    """
    options = {} if name == "NumberLevelLoss" else {"digit_level": len(case.numbers) == 10}
    loss = getattr(import_module(module), name)
    return loss(package_tokenizer(case.numbers), vocab_size=case.workload.vocab, reweigh=reweigh, **options)
