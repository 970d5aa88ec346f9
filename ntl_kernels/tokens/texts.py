"""Which tokens of a tokenizer are numbers, by their texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from .values import LARGEST_SPAN, to_float32

NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
"""A number is ASCII digits with at most one point between them: not "1_0", "1e5", "-3", "nan", "٣" or "²"."""
ANY = NUMBER.pattern
WRITTEN_DIFFERENTLY = re.compile(
    rf"""\#\#{ANY}                                           # WordPiece: inside a word
      | {ANY}</w>                                          # BPE of words: at the end of a word
      | <\|?(num|number|digit|value)?[ _:-]?-?{ANY}\|?>    # a token added by hand
      | \[(num|number|digit|value)[ _:-]?-?{ANY}\]
      | _[0-9]_-?[0-9]+_                                   # Regression Transformer: a digit and its power of ten
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Tokens for a number that is written differently. "<0x37>", "<extra_id_7>" and "[unused7]" are not numbers."""
SPACE_MARKS = ("Ġ", "▁", " ")
"""The marks of a leading space in byte-level, SentencePiece and plain vocabularies."""
DIGITS = tuple(float(digit) for digit in range(10))
NO_OPTION_HELPS = "no option finds more (the whole token must be ASCII digits with at most one decimal point)"
Vocab: TypeAlias = Sequence[tuple[str, int]]
"""(text, id) of every token. Not a dictionary: a token of bytes and one of str may have the same text."""


def is_number(text: str, digits_only: bool, space_prefixed: bool) -> bool:
    """Whether a token's text counts as a number."""
    return is_written_number(text, digits_only, space_prefixed) and not is_too_large(text)


def is_written_number(text: str, digits_only: bool, space_prefixed: bool) -> bool:
    """Whether a token's text is a number of any size."""
    text = without_mark(text) if space_prefixed else text
    return NUMBER.fullmatch(text) is not None and (len(text) == 1 or not digits_only)


def is_too_large(text: str) -> bool:
    """Whether a number, rounded to float32, is too large for the losses."""
    value = float(without_mark(text))
    return value > LARGEST_SPAN or to_float32(value, 0) > LARGEST_SPAN


def without_mark(text: str) -> str:
    """A token's text without a single leading space mark."""
    return text[1:] if text.startswith(SPACE_MARKS) else text


def vocab_of(tokenizer: Any) -> Vocab:
    """The tokens of a tokenizer as text. Each byte becomes the character with its code, so that different tokens of
    bytes stay different.

    Raises:
        TypeError: ``get_vocab()`` does not return a mapping from str or bytes to int.
    """
    given = tokenizer.get_vocab()
    if not isinstance(given, Mapping):
        raise TypeError(f"get_vocab() must map tokens (str or bytes) to ids (ints); got {type(given).__name__}")
    for token, identity in given.items():
        if not isinstance(token, (str, bytes)) or not isinstance(identity, Integral):
            raise TypeError(f"get_vocab() must map tokens (str or bytes) to ids (ints); got {token!r}: {identity!r}")
    return [(token if isinstance(token, str) else token.decode("latin-1"), id) for token, id in given.items()]


def id_count(tokenizer: Any, vocab: Vocab) -> int:
    """How many ids a tokenizer has, gaps included."""
    length = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    return max(length, max((token for _, token in vocab), default=-1) + 1)


def form_of(text: str) -> str | None:
    """Which form of a number a token is, such as "Ġ0" or "00"; "" for one written differently, None for none."""
    number = without_mark(text)
    if NUMBER.fullmatch(number):
        return text.removesuffix(number) + "00"[: len(number)]
    return "" if WRITTEN_DIFFERENTLY.fullmatch(text) else None


def possible_labels(tokenizer: Any, vocab: Vocab) -> Vocab:
    """The tokens for numbers, without the forms that can never be labels: if digits were added as tokens, all others.

    The tokenizer is given samples of all forms. If number tokens spell every digit of them, only the forms of these
    tokens stay. Otherwise, and for an object that cannot encode, all do.
    """
    known = {token: (form, text) for text, token in vocab if (form := form_of(text)) is not None}
    forms, given = sorted({form for form, _ in known.values()}), ""
    for form in forms:
        texts = sorted(text for other, text in known.values() if other == form)
        for text in texts[:: -(-len(texts) // 8)]:
            number = re.sub("[^0-9.]", "", text)
            given += f" {number} x{number} {text}"
    try:  # through the tokenizer of transformers, the call would change the padding and truncation of its backend
        ids = getattr(tokenizer, "backend_tokenizer", tokenizer).encode(given, add_special_tokens=False)
        found = [known[token] for token in getattr(ids, "ids", ids) if token in known]
    except Exception:  # whatever it raises, the object cannot encode
        found = []
    if re.sub("[^0-9]", "", "".join(text for form, text in found if form)) == re.sub("[^0-9]", "", given):
        forms = [form for form, _ in found]
    return [(text, token) for token, (form, text) in known.items() if form in forms]


def count_numbers(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> int:
    """How many tokens count as numbers."""
    return sum(is_number(text, digits_only, space_prefixed) for text, _ in vocab)


def wider_options(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> list[tuple[str, int]]:
    """(options, how many tokens they count) for each choice that counts more than this one and the ones before it."""
    options = {
        "digits_only=False": (False, space_prefixed),
        "space_prefixed=True": (digits_only, True),
        "digits_only=False with space_prefixed=True": (False, True),
    }
    most, wider = count_numbers(vocab, digits_only, space_prefixed), []
    for option, arguments in options.items():
        if (count := count_numbers(vocab, *arguments)) > most:
            wider.append((option, count))
            most = count
    return wider


def most_left_out(counted: int, wider: list[tuple[str, int]]) -> str:
    """A warning that other options count more than twice as many tokens; otherwise empty."""
    if not wider or 2 * counted >= wider[-1][1]:
        return ""
    option, count = wider[-1]
    call = f"NumberTokens.from_tokenizer(tokenizer, {option.replace(' with ', ', ')})"
    scale = ", and NTLConfig(squash_factor=9) keeps their loss on the scale of digits"
    return (
        f"only {counted} of the vocabulary's {count} number tokens count, and labels with the others get no number "
        f"loss; {call} counts them all{scale if 'digits_only' in option else ''}"
    )


def numbers_written_differently(vocab: Vocab) -> str:
    """A note on tokens for numbers that are written differently, with a remedy; empty if there are none."""
    found = sorted((token, text) for text, token in vocab if WRITTEN_DIFFERENTLY.fullmatch(text))
    if not found:
        return ""
    return (
        f"{len(found)} tokens look like numbers that are written differently ({examples(found)}) and get no number "
        "loss as labels; use NumberTokens.from_mapping to count them"
    )


def numbers_too_large(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> str:
    """A note on number tokens that are too large for the losses; empty if there are none."""
    found = sorted(
        (token, text)
        for text, token in vocab
        if is_written_number(text, digits_only, space_prefixed) and is_too_large(text)
    )
    if not found:
        return ""
    return (
        f"{len(found)} tokens are numbers beyond {LARGEST_SPAN:g} ({examples(found)}), which is too large for float32 "
        "losses, and get no number loss as labels"
    )


def examples(found: list[tuple[int, str]], most: int = 3, longest: int = 24) -> str:
    """The first few of (id, text), with long texts shortened."""
    texts = [(token, text if len(text) <= longest else f"{text[:longest]}...") for token, text in found[:most]]
    return ", ".join([*(f"{text!r} (id {token})" for token, text in texts), *(["..."] if len(found) > most else [])])
