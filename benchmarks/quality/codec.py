"""Texts as tokens and back. The tokenizer is that of a checkpoint, or byte-level BPE trained on the training texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl_kernels import NumberTokens

SPECIAL = ("<pad>", "<eos>", "<answer>")
DIGIT_LEVEL = r"[0-9]|[-+](?=[0-9])|(?<=[0-9])\.(?=[0-9])"
"""The characters that are tokens of their own at digit level."""


def split_digits(raw: Tokenizer) -> None:
    """Make a tokenizer isolate the digits, signs and points of numbers, in addition to its own pre-tokenizer."""
    split = pre_tokenizers.Split(Regex(DIGIT_LEVEL), "isolated")
    before = raw.pre_tokenizer
    if before is None:
        raw.pre_tokenizer = split
        return
    # Metaspace marks the start of every piece that it gets, so it must come first; others would merge " -".
    is_metaspace = "Metaspace" in json.dumps(json.loads(raw.to_str())["pre_tokenizer"])
    raw.pre_tokenizer = pre_tokenizers.Sequence([before, split] if is_metaspace else [split, before])


@lru_cache(maxsize=16)
def trained_bpe(texts: tuple[str, ...], size: int, digits: bool) -> str:
    """Byte-level BPE trained on ``texts``, as JSON; with ``digits``, no token has more than one digit."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if digits:
        split_digits(raw)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return raw.to_str()


def train_tokenizer(texts: Sequence[str], size: int, digits: bool) -> PreTrainedTokenizerFast:
    """A newly trained tokenizer."""
    raw = Tokenizer.from_str(trained_bpe(tuple(texts), size, digits))
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=SPECIAL[0], eos_token=SPECIAL[1])


def checkpoint_tokenizer(checkpoint: str, digits: bool) -> Any:
    """A checkpoint's tokenizer, optionally at digit level, with missing tokens of :data:`SPECIAL` added."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{checkpoint}: its {type(tokenizer).__name__} is not built on the tokenizers package")
    if digits:
        split_digits(tokenizer.backend_tokenizer)
    missing = {"pad_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    tokenizer.add_special_tokens({k: v for k, v in missing.items() if getattr(tokenizer, k) is None})
    tokenizer.add_tokens([SPECIAL[2]], special_tokens=True)
    return tokenizer


class Codec:
    """Converts texts to tokens and back; lossless if the tokenizer is.

    Byte-level tokenizers are lossless, and those that mark spaces (Metaspace). Special and added tokens are never
    recognised in a text: "<eos>" in a question is five characters.
    """

    def __init__(self, tokenizer: Any, digits: bool) -> None:
        """``digits``: every digit, sign and point of a number is a token, as NTL needs; otherwise digits may merge."""
        self.digits = digits
        self.tokenizer = tokenizer
        self.pad, self.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.mark: int = tokenizer.convert_tokens_to_ids(SPECIAL[2])
        state = {**json.loads(tokenizer.backend_tokenizer.to_str()), "post_processor": None}
        state |= {"truncation": None, "padding": None}
        self.writer = Tokenizer.from_str(json.dumps(state))
        self.reader = Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))

    @property
    def vocab_size(self) -> int:
        return max(self.tokenizer.get_vocab().values()) + 1

    def numbers(self) -> NumberTokens:
        """The number tokens for the Number Token Loss."""
        return NumberTokens.from_tokenizer(
            self.tokenizer, self.vocab_size, digits_only=self.digits, space_prefixed=not self.digits
        )

    def encode(self, text: str) -> list[int]:
        return self.reader.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first end token."""
        kept = [token for token in takewhile(lambda token: token != self.eos, ids) if token != self.pad]
        return self.writer.decode(kept, skip_special_tokens=False)


def make_codec(kind: str, texts: Sequence[str], size: int, checkpoint: str | None = None) -> Codec:
    """The codec "plain" or "digits" with the checkpoint's tokenizer, or with one trained on ``texts``."""
    digits = kind == "digits"
    tokenizer = train_tokenizer(texts, size, digits) if checkpoint is None else checkpoint_tokenizer(checkpoint, digits)
    return Codec(tokenizer, digits)
