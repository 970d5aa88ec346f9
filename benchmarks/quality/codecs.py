"""Encodings of texts, and of the numbers in them, as tokens.

- ``plain``: the unchanged tokenizer, which may merge digits;
- ``digits``: every digit, sign and point of a number is a separate token, as NTL needs;
- ``rt``: Regression Transformer (Born & Manica 2023): tokens like ``_8_-1_`` for the 8 in 0.8;
- ``xval``: one ``[NUM]`` token per number, with a separate value (Golkar et al. 2023).

The tokenizer is that of a checkpoint, or byte-level BPE trained on the training texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat, takewhile
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl_kernels import NumberTokens

SPECIAL = ("<pad>", "<eos>", "<answer>")
NUMBER = re.compile(r"((?:(?<![\w.)])-)?[0-9]+(?:\.[0-9]+)?)")
"""A number in a text, captured so that a split keeps it; a minus after a digit, letter or bracket is not part of it."""
DIGIT_LEVEL = r"[0-9]|[-+](?=[0-9])|(?<=[0-9])\.(?=[0-9])"
"""The characters that ``digits`` isolates."""
RT_POSITIONS = range(-8, 9)
"""Powers of ten that have tokens; numbers with other powers stay text."""
SIGN, POINT = "_sign_", "_point_"
LARGEST_VALUE = 1e30
"""The largest value of a ``[NUM]`` token: float32 holds up to about 3e38."""


class Encoded(NamedTuple):
    ids: list[int]
    values: list[float]
    """The values of ``[NUM]`` tokens; 1 for all others."""


def split_digits(raw: Tokenizer) -> None:
    """Make a tokenizer isolate the digits, signs and points of numbers, in addition to its own pre-tokenizer."""
    split = pre_tokenizers.Split(Regex(DIGIT_LEVEL), "isolated")
    own = raw.pre_tokenizer
    if own is None:
        raw.pre_tokenizer = split
        return
    # Metaspace marks the start of every piece that it gets, so it must come first; others would merge " -".
    is_metaspace = "Metaspace" in json.dumps(json.loads(raw.to_str())["pre_tokenizer"])
    raw.pre_tokenizer = pre_tokenizers.Sequence([own, split] if is_metaspace else [split, own])


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


def tokenizers_of(state: dict[str, Any]) -> dict[bool, Tokenizer]:
    """The tokenizer of a text (True), and of a piece inside a text (False), whose start gets no Metaspace mark."""
    text = json.dumps(state)
    inner = text if "WhitespaceSplit" in text else re.sub(r'"prepend_scheme": "\w+"', '"prepend_scheme": "never"', text)
    return {True: Tokenizer.from_str(text), False: Tokenizer.from_str(inner)}


class Codec:
    """Converts texts to tokens and back; lossless if the tokenizer is.

    Byte-level tokenizers are lossless, and those that mark spaces (Metaspace). One that drops spaces first
    (WhitespaceSplit, as in T5) loses the spaces next to numbers of ``rt`` and ``xval``.

    Special and added tokens are never recognised in a text: "<eos>" in a question is five characters.
    """

    has_numbers = False
    """Whether numbers have their own tokens, which never occur in text."""

    def __init__(self, tokenizer: Any, digits: bool) -> None:
        self.digits = digits
        self.tokenizer = tokenizer
        self.pad, self.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.mark: int = tokenizer.convert_tokens_to_ids(SPECIAL[2])
        state = {**json.loads(tokenizer.backend_tokenizer.to_str()), "post_processor": None}
        state |= {"truncation": None, "padding": None}
        self.writers, self.readers = tokenizers_of(state), tokenizers_of({**state, "added_tokens": []})

    @property
    def vocab_size(self) -> int:
        return max(self.tokenizer.get_vocab().values()) + 1

    def numbers(self) -> NumberTokens:
        """The number tokens for the Number Token Loss."""
        return NumberTokens.from_tokenizer(
            self.tokenizer, self.vocab_size, digits_only=self.digits, space_prefixed=not self.digits
        )

    def encode_number(self, number: str) -> Encoded | None:
        """The tokens of a number; None if it stays text."""
        return None

    def number_text(self, token: int, value: float) -> str | None:
        """The text of a number token; None for tokens of text."""
        return None

    def encode(self, text: str) -> Encoded:
        whole = Encoded([], [])
        for place, part in enumerate(NUMBER.split(text) if self.has_numbers else [text]):
            found = self.encode_number(part) if place % 2 else None  # numbers are between the other pieces
            if found is None:
                ids = self.readers[not whole.ids].encode(part, add_special_tokens=False).ids
                found = Encoded(ids, [1.0] * len(ids))
            whole.ids.extend(found.ids)
            whole.values.extend(found.values)
        return whole

    def decode(self, ids: Sequence[int], values: Iterable[float] = repeat(math.nan)) -> str:
        """The text up to the first end token; ``values`` are those of ``[NUM]`` tokens."""
        text, run = "", []
        for token, value in zip(takewhile(lambda token: token != self.eos, ids), values, strict=False):
            number = self.number_text(token, value)
            if number is None:
                run.append(token)
            else:
                text, run = text + self.text_of(run, not text) + number, []
        return text + self.text_of(run, not text)

    def text_of(self, ids: Sequence[int], is_first: bool) -> str:
        """The text of tokens without number tokens."""
        return self.writers[is_first].decode([token for token in ids if token != self.pad], skip_special_tokens=False)


class RTCodec(Codec):
    """Numbers as tokens of a digit with its power of ten: ``digit_tokens`` maps id -> (digit, power)."""

    has_numbers = True

    def __init__(self, tokenizer: Any) -> None:
        names = {f"_{digit}_{power}_": (digit, power) for digit in range(10) for power in RT_POSITIONS}
        tokenizer.add_tokens([*names, SIGN, POINT])
        super().__init__(tokenizer, digits=True)
        self.digit_tokens: dict[int, tuple[int, int]] = {
            tokenizer.convert_tokens_to_ids(name): place for name, place in names.items()
        }
        signs = {tokenizer.convert_tokens_to_ids(name): text for name, text in ((SIGN, "-"), (POINT, "."))}
        self.texts = {**{token: str(digit) for token, (digit, _) in self.digit_tokens.items()}, **signs}

    def numbers(self) -> NumberTokens:
        """Digits with their value regardless of their place, as in the paper: costs stay between 0 and 9."""
        values = {token: float(digit) for token, (digit, _) in self.digit_tokens.items()}
        return NumberTokens.from_mapping(values, self.vocab_size)

    def encode_number(self, number: str) -> Encoded | None:
        tokens = number_tokens(number)
        ids = self.tokenizer.convert_tokens_to_ids(tokens or [])
        return Encoded(ids, [1.0] * len(ids)) if ids else None

    def number_text(self, token: int, value: float) -> str | None:
        return self.texts.get(token)


class XValCodec(Codec):
    """Numbers as one token with a value."""

    has_numbers = True

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.add_tokens(["[NUM]"])
        super().__init__(tokenizer, digits=True)
        self.num = tokenizer.convert_tokens_to_ids("[NUM]")

    def encode_number(self, number: str) -> Encoded:
        return Encoded([self.num], [min(max(float(number), -LARGEST_VALUE), LARGEST_VALUE)])

    def number_text(self, token: int, value: float) -> str | None:
        return shortest(value) if token == self.num else None


def number_tokens(number: str) -> list[str] | None:
    """The tokens of a number, with power 0 for the digit before the point; None if a power has no token."""
    sign, number = ([SIGN], number[1:]) if number.startswith("-") else ([], number)
    whole, point, fraction = number.partition(".")
    if len(whole) - 1 not in RT_POSITIONS or -len(fraction) not in RT_POSITIONS:
        return None
    before = [f"_{digit}_{len(whole) - 1 - index}_" for index, digit in enumerate(whole)]
    after = [f"_{digit}_{-1 - index}_" for index, digit in enumerate(fraction)]
    return [*sign, *before, *([POINT] if point else []), *after]


def shortest(value: float) -> str:
    """A predicted value as text: an integer, or one to four decimals. "nan" and "inf" are not numbers for metrics."""
    if not math.isfinite(value):
        return str(value)
    return str(round(value)) if abs(value - round(value)) < 1e-4 else f"{value:.4f}".rstrip("0")


def make_codec(kind: str, texts: Sequence[str], size: int, checkpoint: str | None = None) -> Codec:
    """The codec of a model's configuration, with the checkpoint's tokenizer or one trained on ``texts``."""
    if kind not in ("plain", "digits", "rt", "xval"):
        raise ValueError(f"codec must be plain, digits, rt or xval; got {kind!r}")
    digits = kind != "plain"
    tokenizer = train_tokenizer(texts, size, digits) if checkpoint is None else checkpoint_tokenizer(checkpoint, digits)
    if kind == "rt":
        return RTCodec(tokenizer)
    return XValCodec(tokenizer) if kind == "xval" else Codec(tokenizer, digits)
