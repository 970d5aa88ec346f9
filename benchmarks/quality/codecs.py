"""How a text becomes tokens, and its numbers among them.

- ``plain``: the tokenizer as it is, which may merge digits;
- ``digits``: every digit, sign and point of a number a token of its own, as NTL wants it;
- ``rt``: Regression Transformer (Born & Manica 2023): tokens like ``_8_-1_`` for the 8 in 0.8;
- ``xval``: one ``[NUM]`` token for every number, its value beside it (Golkar et al. 2023).

The tokenizer is a checkpoint's own, or byte-level BPE trained on the training texts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl_kernels import NumberTokens

SPECIAL = ("<pad>", "<eos>", "<answer>")
NUMBER = re.compile(r"(?:(?<![\w.)])-)?[0-9]+(?:\.[0-9]+)?")
"""A number in a text; a minus belongs to it unless it stands behind a digit, a letter or a bracket."""
DIGIT_LEVEL = r"[0-9]|[-+](?=[0-9])|(?<=[0-9])\.(?=[0-9])"
"""What ``digits`` isolates."""
RT_POSITIONS = range(-8, 9)
"""Powers of ten that have tokens; numbers with digits at others stay text."""
SIGN, POINT = "_sign_", "_point_"
LARGEST_VALUE = 1e30
"""Of a ``[NUM]`` token: float32 holds no more than about 3e38."""


class Encoded(NamedTuple):
    ids: list[int]
    values: list[float]
    """Of ``[NUM]`` tokens; 1 for all others."""


def split_digits(raw: Tokenizer) -> None:
    """Let a tokenizer isolate the digits, signs and points of numbers, around its own pre-tokenizer."""
    split = pre_tokenizers.Split(Regex(DIGIT_LEVEL), "isolated")
    own = raw.pre_tokenizer
    if own is None:
        raw.pre_tokenizer = split
        return
    # Metaspace marks the start of every piece that it gets, so it has to come first; others would glue " -".
    is_metaspace = "Metaspace" in json.dumps(json.loads(raw.to_str())["pre_tokenizer"])
    raw.pre_tokenizer = pre_tokenizers.Sequence([own, split] if is_metaspace else [split, own])


@lru_cache(maxsize=16)
def trained_bpe(texts: tuple[str, ...], size: int, digits: bool) -> str:
    """Byte-level BPE on ``texts``, as JSON; with ``digits``, no token holds more than one."""
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
    """A tokenizer trained here."""
    raw = Tokenizer.from_str(trained_bpe(tuple(texts), size, digits))
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=SPECIAL[0], eos_token=SPECIAL[1])


def checkpoint_tokenizer(checkpoint: str, digits: bool) -> Any:
    """A checkpoint's own tokenizer, at digit level if asked for, with the tokens of :data:`SPECIAL` that it lacks.

    Raises:
        ValueError: it is not built on ``tokenizers``.
    """
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{checkpoint}: its {type(tokenizer).__name__} is not built on the tokenizers package")
    if digits:
        split_digits(tokenizer.backend_tokenizer)
    missing = {"pad_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    tokenizer.add_special_tokens({k: v for k, v in missing.items() if getattr(tokenizer, k) is None})
    tokenizer.add_tokens([SPECIAL[2]], special_tokens=True)
    return tokenizer


def without_prefix(state: Any) -> Any:
    """A tokenizer's state whose Metaspace parts mark the spaces that are there, and no beginning of a text."""
    if isinstance(state, list):
        return [without_prefix(each) for each in state]
    if not isinstance(state, dict):
        return state
    is_metaspace = state.get("type") == "Metaspace"
    return {k: "never" if is_metaspace and k == "prepend_scheme" else without_prefix(v) for k, v in state.items()}


class Codec:
    """Texts to tokens and back; exactly, if the tokenizer is.

    Byte-level ones are, and those that mark spaces (Metaspace). One that drops spaces first (WhitespaceSplit, as T5's)
    loses those beside the numbers of ``rt`` and ``xval``.

    Special and added tokens are never read out of a text: "<eos>" in a question is five characters.

    Args:
        tokenizer: a fast tokenizer with padding and end tokens and ``<answer>``.
        digits: whether its numbers are digits.
    """

    def __init__(self, tokenizer: Any, digits: bool) -> None:
        self.digits = digits
        self.tokenizer = tokenizer
        self.pad, self.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.mark: int = tokenizer.convert_tokens_to_ids(SPECIAL[2])
        state = {**json.loads(tokenizer.backend_tokenizer.to_str()), "post_processor": None}
        state |= {"truncation": None, "padding": None}
        inner = without_prefix(state) if "WhitespaceSplit" not in json.dumps(state) else state
        readers = [json.dumps({**each, "added_tokens": []}) for each in (state, inner)]
        self.first_reader, self.reader = map(Tokenizer.from_str, readers)
        self.first_writer, self.writer = (Tokenizer.from_str(json.dumps(each)) for each in (state, inner))

    @property
    def vocab_size(self) -> int:
        return max(self.tokenizer.get_vocab().values()) + 1

    def numbers(self) -> NumberTokens:
        """The tokens that the Number Token Loss compares."""
        return NumberTokens.from_tokenizer(
            self.tokenizer, self.vocab_size, digits_only=self.digits, space_prefixed=not self.digits
        )

    def text_ids(self, text: str, is_first: bool = True) -> list[int]:
        """The tokens of a text, or of a piece inside one, which gets no mark of a beginning."""
        reader = self.first_reader if is_first else self.reader
        return reader.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> Encoded:
        ids = self.text_ids(text)
        return Encoded(ids, [1.0] * len(ids))

    def decode(self, ids: Sequence[int], values: Sequence[float] | None = None) -> str:
        """The text up to the first end token."""
        ids = self.before_end(ids)
        return self.join(ids, [None] * len(ids))

    def join(self, ids: Sequence[int], texts: Sequence[str | None]) -> str:
        """The text of tokens, of which some have one of their own."""
        joined, run = "", []
        for token, text in zip(ids, texts, strict=True):
            if text is None:
                run.append(token)
            else:
                joined, run = joined + self.text_of(run, not joined) + text, []
        return joined + self.text_of(run, not joined)

    def text_of(self, ids: Sequence[int], is_first: bool = True) -> str:
        """The inverse of :meth:`text_ids`."""
        writer = self.first_writer if is_first else self.writer
        return writer.decode([token for token in ids if token != self.pad], skip_special_tokens=False)

    def before_end(self, ids: Sequence[int]) -> list[int]:
        ids = list(ids)
        return ids[: ids.index(self.eos)] if self.eos in ids else ids


class RTCodec(Codec):
    """Numbers as digits that know their power of ten.

    Attributes:
        digit_tokens: id -> (digit, power of ten).
    """

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
        """Digits by their value, whatever their place, as the paper's authors do: costs stay between 0 and 9."""
        values = {token: float(digit) for token, (digit, _) in self.digit_tokens.items()}
        return NumberTokens.from_mapping(values, self.vocab_size)

    def encode(self, text: str) -> Encoded:
        ids: list[int] = []
        for part, is_number in parts_of(text):
            tokens = number_tokens(part) if is_number else None
            ids += self.text_ids(part, not ids) if tokens is None else self.tokenizer.convert_tokens_to_ids(tokens)
        return Encoded(ids, [1.0] * len(ids))

    def decode(self, ids: Sequence[int], values: Sequence[float] | None = None) -> str:
        ids = self.before_end(ids)
        return self.join(ids, [self.texts.get(token) for token in ids])


class XValCodec(Codec):
    """Numbers as one token and their value."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.add_tokens(["[NUM]"])
        super().__init__(tokenizer, digits=True)
        self.num: int = tokenizer.convert_tokens_to_ids("[NUM]")

    def encode(self, text: str) -> Encoded:
        ids: list[int] = []
        values: list[float] = []
        for part, is_number in parts_of(text):
            tokens = [self.num] if is_number else self.text_ids(part, not ids)
            ids += tokens
            values += [value_of_number(part) if is_number else 1.0] * len(tokens)
        return Encoded(ids, values)

    def decode(self, ids: Sequence[int], values: Sequence[float] | None = None) -> str:
        ids = self.before_end(ids)
        values = [math.nan] * len(ids) if values is None else list(values)[: len(ids)]
        texts = [shortest(value) if token == self.num else None for token, value in zip(ids, values, strict=True)]
        return self.join(ids, texts)


def parts_of(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, and which of them are numbers."""
    parts, end = [], 0
    for match in NUMBER.finditer(text):
        parts += [(text[end : match.start()], False), (match.group(), True)]
        end = match.end()
    return [part for part in [*parts, (text[end:], False)] if part[0]]


def number_tokens(number: str) -> list[str] | None:
    """A number's tokens, the digit before the point at power 0; None if a digit's power has no token."""
    sign, number = ([SIGN], number[1:]) if number.startswith("-") else ([], number)
    whole, point, fraction = number.partition(".")
    if len(whole) - 1 not in RT_POSITIONS or -len(fraction) not in RT_POSITIONS:
        return None
    before = [f"_{digit}_{len(whole) - 1 - index}_" for index, digit in enumerate(whole)]
    after = [f"_{digit}_{-1 - index}_" for index, digit in enumerate(fraction)]
    return [*sign, *before, *([POINT] if point else []), *after]


def value_of_number(number: str) -> float:
    """A number's value, at most :data:`LARGEST_VALUE` either way."""
    return min(max(float(number), -LARGEST_VALUE), LARGEST_VALUE)


def shortest(value: float) -> str:
    """A predicted value as text: an integer, or one to four decimals; "nan" and "inf" are no numbers to a metric."""
    if not math.isfinite(value):
        return str(value)
    return str(round(value)) if abs(value - round(value)) < 1e-4 else f"{value:.4f}".rstrip("0")


def make_codec(kind: str, texts: Sequence[str], size: int, checkpoint: str | None = None) -> Codec:
    """The codec of a model's configuration; its tokenizer is the checkpoint's, else trained on ``texts``.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in ("plain", "digits", "rt", "xval"):
        raise ValueError(f"codec must be plain, digits, rt or xval; got {kind!r}")
    digits = kind != "plain"
    tokenizer = train_tokenizer(texts, size, digits) if checkpoint is None else checkpoint_tokenizer(checkpoint, digits)
    if kind == "rt":
        return RTCodec(tokenizer)
    return XValCodec(tokenizer) if kind == "xval" else Codec(tokenizer, digits)
