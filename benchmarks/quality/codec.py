"""Texts as tokens and back. The tokenizer is that of a checkpoint, or byte-level BPE trained on the training texts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product, takewhile
from pathlib import Path
from string import digits
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ntl_kernels import NumberTokens
from ntl_kernels.tokens.texts import shortened

from ..commands import InputError
from .data.pairs import final_value
from .metrics import in_digits

SPECIAL = ("<pad>", "<eos>", "<answer>")
LONGEST_QUESTION = 512
SCORES = [str(score) for score in range(12)]
RUNS = {"digits": "[0-9]", "triples": "[0-9]{1,3}", "scores": "(?<![0-9])1[01](?![0-9])|[0-9]"}
RUNS |= {"rt": RUNS["digits"], "xval": RUNS["digits"]}
"""Codec -> the runs of digits that are a token; "plain" merges digits as it merges letters."""
LONGER = {
    "triples": ["".join(run) for length in (2, 3) for run in product(digits, repeat=length)],
    "scores": SCORES[10:],
}
"""Codec -> its tokens of several digits."""
UNSIGNED = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
"""A number of the paper's code: a sign before it is a token of its own."""
POWERS = range(-12, 20)
"""The powers of ten of RT's tokens; numbers beyond them are written in digits."""
NUM = "[NUM]"
"""xVal's token for every number."""


def split_digits(raw: Tokenizer, runs: str = RUNS["digits"]) -> None:
    """Make a tokenizer isolate the signs and points of numbers, and these runs of digits, in addition to its own
    pre-tokenizer."""
    split = pre_tokenizers.Split(Regex(rf"{runs}|[-+](?=[0-9])|(?<=[0-9])\.(?=[0-9])"), "isolated")
    before = raw.pre_tokenizer
    if before is None:
        raw.pre_tokenizer = split
        return
    # Metaspace marks the start of every piece that it gets, so it must come first; others would merge " -".
    is_metaspace = "Metaspace" in json.dumps(json.loads(raw.to_str())["pre_tokenizer"])
    raw.pre_tokenizer = pre_tokenizers.Sequence([before, split] if is_metaspace else [split, before])


@lru_cache(maxsize=16)
def trained_bpe(texts: tuple[str, ...], size: int, kind: str) -> str:
    """Byte-level BPE trained on ``texts``, as JSON, for a kind of codec."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in RUNS:
        split_digits(raw)  # while it is trained, so that no merge contains two digits
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(texts, trainer)
    return with_longer(raw, kind) if kind in LONGER else raw.to_str()


def with_longer(raw: Tokenizer, kind: str) -> str:
    """A tokenizer of single digits with more numbers as tokens, as JSON: all of two and three digits, like Llama 3's,
    or the scores 10 and 11."""
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split_digits(raw, RUNS[kind])
    state = json.loads(raw.to_str())
    vocabulary, merges = state["model"]["vocab"], state["model"]["merges"]
    for text in LONGER[kind]:
        vocabulary[text] = len(vocabulary)
        # All cuts: the merges of two digits come first, wherever they are in a run.
        merges += [[text[:cut], text[cut:]] for cut in range(1, len(text))]
    return json.dumps(state)


def train_tokenizer(texts: Sequence[str], size: int, kind: str) -> PreTrainedTokenizerFast:
    """A newly trained tokenizer."""
    raw = Tokenizer.from_str(trained_bpe(tuple(texts), size, kind))
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=SPECIAL[0], eos_token=SPECIAL[1])


@contextmanager
def reading(folder: str | Path) -> Iterator[None]:
    """Convert errors of transformers and PEFT about the folder of a model to an :class:`InputError`."""
    try:
        yield
    except Exception as error:  # a torn or wrong file raises errors of many packages
        reason = shortened(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        raise InputError(f"model.checkpoint={folder}: transformers cannot read it: {reason}") from error


def checkpoint_tokenizer(checkpoint: str, kind: str) -> Any:
    """A checkpoint's tokenizer for a kind of codec, with missing tokens of :data:`SPECIAL` added."""
    with reading(checkpoint):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"{checkpoint}: its {type(tokenizer).__name__} is not built on the tokenizers package")
    if kind == "own":
        return tokenizer
    if kind in RUNS:
        split_digits(tokenizer.backend_tokenizer, RUNS[kind])
    missing = {"pad_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    tokenizer.add_special_tokens({k: v for k, v in missing.items() if getattr(tokenizer, k) is None})
    tokenizer.add_tokens([SPECIAL[2]], special_tokens=True)
    return tokenizer


SCALES = ("linear", "log", "quantile")
"""How bins divide the range of the training answers: equally wide, equally wide in the logarithm, or equally full."""
SPAN = 10.0
"""The values of bins for the loss go from 0 to this, like those of digits, whatever their number."""


class Bins:
    """Intervals of the range of answers, each of which is written as one token."""

    def __init__(self, answers: Sequence[str], count: int, scale: str) -> None:
        values = np.asarray([self.value_of(answer) for answer in answers])
        if scale == "log" and not values.min() > 0:
            raise ValueError(f"scale=log needs answers above 0; got {values.min():g}")
        logs = np.log(values) if scale == "log" else values
        places = np.arange(2 * count + 1) / (2 * count)
        points = np.quantile(logs, places) if scale == "quantile" else logs.min() + places * np.ptp(logs)
        points = np.exp(points) if scale == "log" else points
        self.edges, self.centres = points[2:-1:2], points[1::2].tolist()
        self.values = [SPAN * place / count for place in range(count)]
        self.names = [f"<bin{place}>" for place in range(count)]

    @staticmethod
    def value_of(answer: str) -> float:
        value = final_value(answer)
        if value is None:
            raise ValueError(f"bins need answers that are numbers; got {answer[:60]!r}")
        return value

    def place(self, answer: str) -> int:
        """The bin of an answer; what is beyond the range is in the first or the last one."""
        return int(np.searchsorted(self.edges, self.value_of(answer), side="right"))


class Codec:
    """Converts texts to tokens and back; lossless if the tokenizer is.

    Byte-level tokenizers are lossless, and those that mark spaces (Metaspace). Special and added tokens are never
    recognised in a text: "<eos>" in a question is five characters.
    """

    def __init__(self, tokenizer: Any, kind: str, longest_question: int, added: Sequence[str] = ()) -> None:
        """``longest_question``: in tokens; of longer questions, only the end is encoded. ``added``: more tokens."""
        self.kind, self.longest_question = kind, longest_question
        self.tokenizer = tokenizer
        tokenizer.add_tokens(list(added))
        self.pad, self.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self.begin: list[int] = []
        """The tokens before a question."""
        self.mark: list[int] = [tokenizer.convert_tokens_to_ids(SPECIAL[2])]
        """The tokens between a question and its answer."""
        state = {**json.loads(tokenizer.backend_tokenizer.to_str()), "post_processor": None}
        state |= {"truncation": None, "padding": None}
        self.writer = Tokenizer.from_str(json.dumps(state))
        self.reader = Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))
        self.bins: Bins | None = None
        self.bin_ids: list[int] = []

    def answer_with(self, bins: Bins) -> None:
        """Write answers as bins, each a new token."""
        self.tokenizer.add_tokens(bins.names)
        self.bins, self.bin_ids = bins, self.tokenizer.convert_tokens_to_ids(bins.names)
        self.vocab_size = max(self.vocab_size, *(token + 1 for token in self.bin_ids))

    def centres(self) -> NumberTokens:
        """The bins with their centres as values."""
        assert self.bins is not None
        return self.bins_with(self.bins.centres)

    def bins_with(self, values: Sequence[float]) -> NumberTokens:
        return NumberTokens.from_mapping(dict(zip(self.bin_ids, values, strict=True)), self.vocab_size)

    def numbers(self, group_by: str | None = "length") -> NumberTokens:
        """The number tokens for the Number Token Loss. Scores and bins are all compared with each other."""
        if self.bins is not None:
            return self.bins_with(self.bins.values)
        if self.kind == "scores":
            return NumberTokens.from_texts(SCORES, self.tokenizer, self.vocab_size)
        digits_only = self.kind == "digits"
        options = {"digits_only": digits_only, "space_prefixed": not digits_only, "group_by": group_by}
        return NumberTokens.from_tokenizer(self.tokenizer, self.vocab_size, **options)

    def encode(self, text: str) -> list[int]:
        return self.reader.encode(text, add_special_tokens=False).ids

    def encode_answer(self, text: str) -> list[int]:
        """An answer, which with bins must be a number."""
        if self.bins is None:
            return self.encode(text)
        return [self.bin_ids[self.bins.place(text)]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first end token; of a bin, its centre."""
        if self.bins is not None and len(ids) and ids[0] in self.bin_ids:
            return in_digits(self.bins.centres[self.bin_ids.index(ids[0])])
        kept = [token for token in takewhile(lambda token: token != self.eos, ids) if token != self.pad]
        return self.writer.decode(kept, skip_special_tokens=False)


class OwnCodec(Codec):
    """A pretrained model's tokenizer as it is: a space follows a question, the end token an answer."""

    def __init__(self, tokenizer: Any, kind: str, longest_question: int) -> None:
        super().__init__(tokenizer, kind, longest_question)
        first = tokenizer("0").input_ids[:1]
        self.begin = first if first == [tokenizer.bos_token_id] else []
        self.mark = self.encode(" ")
        if self.pad is None:
            self.pad = self.eos  # masked wherever it is padding


class NumberCodec(Codec):
    """A codec of digits in which unsigned numbers are replaced by other tokens."""

    def __init__(self, tokenizer: Any, kind: str, longest_question: int, added: Sequence[str]) -> None:
        super().__init__(tokenizer, kind, longest_question, added)
        self.written = {character: self.reader.token_to_id(character) for character in f"{digits}.-"}
        if lacking := [character for character, token in self.written.items() if token is None]:
            raise ValueError(
                f"codec={kind} needs a tokenizer with tokens for digits, point and minus; no {lacking[0]!r}"
            )
        self.characters = {token: character for character, token in self.written.items()}
        self.space = super().encode("1 1")[-2]

    def encode(self, text: str) -> list[int]:
        ids = super().encode(text)
        for found in reversed(self.numbers_in(ids)):
            ids[slice(*found.span())] = self.replacement(*found.groups(default=""))
        return ids

    def numbers_in(self, ids: Sequence[int]) -> list[re.Match[str]]:
        """The numbers among tokens of digits that :data:`POWERS` can write; a match's span is that of its tokens."""
        found = UNSIGNED.finditer("".join(self.characters.get(token, " ") for token in ids))
        return [each for each in found if len(each[1]) <= POWERS.stop and len(each[2] or "") <= -POWERS.start]

    def replacement(self, whole: str, fraction: str) -> list[int]:
        """The tokens of a number with these digits before and after its point."""
        raise NotImplementedError

    def in_digits(self, number: str) -> list[int]:
        return [self.written[character] for character in number]


class RTCodec(NumberCodec):
    """The Regression Transformer's (Born and Manica 2023): a token for a digit and its power of ten, none for a point.

    3.05 is ``_3_0_ _0_-1_ _5_-2_``.
    """

    def __init__(self, tokenizer: Any, kind: str, longest_question: int) -> None:
        names = {f"_{digit}_{power}_": (digit, power) for power in POWERS for digit in digits}
        super().__init__(tokenizer, kind, longest_question, list(names))
        self.places = {tokenizer.convert_tokens_to_ids(name): place for name, place in names.items()}
        self.tokens = {place: token for token, place in self.places.items()}

    def numbers(self, group_by: str | None = None) -> NumberTokens:
        """A token has the value of its digit, whatever the power: NTL compares digits, as in the paper."""
        return NumberTokens.from_mapping({t: float(digit) for t, (digit, _) in self.places.items()}, self.vocab_size)

    def replacement(self, whole: str, fraction: str) -> list[int]:
        return [self.tokens[digit, len(whole) - 1 - index] for index, digit in enumerate(whole + fraction)]

    def decode(self, ids: Sequence[int]) -> str:
        """A number ends where powers stop falling. Powers left out are zeros, and a space separates two numbers."""
        written: list[int] = []
        number: dict[int, str] = {}
        for token in ids:
            digit, power = self.places.get(token, ("", POWERS.stop))
            if number and power >= min(number):
                written += self.placed(number) + [self.space] * bool(digit)
                number = {}
            if digit:
                number[power] = digit
            else:
                written.append(token)
        return super().decode(written + self.placed(number))

    def placed(self, number: dict[int, str]) -> list[int]:
        """The digits of a number, given by their powers, with its point."""
        powers = range(max(*number, 0), min(*number, 0) - 1, -1) if number else ()
        return self.in_digits("".join("." * (power == -1) + number.get(power, "0") for power in powers))


class XValCodec(NumberCodec):
    """xVal's (Golkar et al. 2023): one token for all numbers, whose values are given besides."""

    def __init__(self, tokenizer: Any, kind: str, longest_question: int) -> None:
        super().__init__(tokenizer, kind, longest_question, [NUM])
        self.num: int = tokenizer.convert_tokens_to_ids(NUM)

    def replacement(self, whole: str, fraction: str) -> list[int]:
        return [self.num]

    def values(self, text: str) -> list[float]:
        """The value of every token of a text; 1 for those that are no number."""
        numbers = (float(found[0]) for found in self.numbers_in(Codec.encode(self, text)))
        return [next(numbers) if token == self.num else 1.0 for token in self.encode(text)]

    def decode_values(self, ids: Sequence[int], values: Sequence[float]) -> str:
        """The text of tokens and their values; what is not finite is left out."""
        numbers = (in_digits(value if math.isfinite(value) else None) for value in values)
        pairs = zip(ids, numbers, strict=True)
        written = [self.in_digits(number) if token == self.num else [token] for token, number in pairs]
        return self.decode([token for tokens in written for token in tokens])


SPECIAL_CODECS: dict[str, Callable[[Any, str, int], Codec]] = {"own": OwnCodec, "rt": RTCodec, "xval": XValCodec}
"""Kind -> its class; all others are a plain :class:`Codec`."""


def make_codec(
    kind: str, texts: Sequence[str], size: int, checkpoint: str | None = None, longest_question: int | None = None
) -> Codec:
    """The codec "plain", "digits", "triples", "scores", "rt" or "xval" with the checkpoint's tokenizer, or with one
    trained on ``texts``; "own" with the checkpoint's alone."""
    tokenizer = checkpoint_tokenizer(checkpoint, kind) if checkpoint else train_tokenizer(texts, size, kind)
    return SPECIAL_CODECS.get(kind, Codec)(tokenizer, kind, longest_question or LONGEST_QUESTION)
