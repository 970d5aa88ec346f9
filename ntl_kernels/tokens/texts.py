"""Which tokens of a tokenizer are numbers, by their texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from .values import LARGEST_SPAN

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
"""Tokens for numbers in another notation. ``<0x37>``, ``<extra_id_7>`` and ``[unused7]`` are not numbers."""
SPACE_MARKS = ("Ġ", "▁", " ")
"""The marks of a leading space in byte-level, SentencePiece and plain vocabularies."""
DIGITS = tuple(float(digit) for digit in range(10))
NO_OPTION_HELPS = "no option finds more (the whole token must be ASCII digits with at most one decimal point)"
Vocab: TypeAlias = Sequence[tuple[str, int]]
"""(text, id) of every token. Not a dictionary: a token of bytes and one of str may have the same text."""


def value_of(text: str, digits_only: bool, space_prefixed: bool) -> float | None:
    """The value of a token's text; None if it is not a number, infinity if it is too large for the losses."""
    number = without_mark(text) if space_prefixed else text
    if not NUMBER.fullmatch(number) or (digits_only and len(number) > 1):
        return None
    value = float(number)
    return value if value <= LARGEST_SPAN else math.inf


def numbers_in(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> Vocab:
    """The tokens that count as numbers."""
    return [pair for pair in vocab if value_of(pair[0], digits_only, space_prefixed) not in (None, math.inf)]


def count_numbers(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> int:
    """How many tokens count as numbers."""
    return len(numbers_in(vocab, digits_only, space_prefixed))


def without_mark(text: str) -> str:
    """A token's text without a single leading space mark."""
    return text[1:] if text.startswith(SPACE_MARKS) else text


def length_of(text: str) -> tuple[int, int]:
    """How many digits a number's text has before and after the point."""
    whole, _, fraction = without_mark(text).partition(".")
    return len(whole), len(fraction)


def vocab_of(tokenizer: Any) -> Vocab:
    """The tokens of a tokenizer as text. Each byte becomes the character with its code, so that different tokens of
    bytes stay different.

    Raises:
        TypeError: there is no ``get_vocab()``, or it does not return a mapping from str or bytes to int.
    """
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise TypeError(f"tokenizer must have a get_vocab method; got {type(tokenizer).__name__}")
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
    """The form in which a token writes a number, such as "Ġ0" or "00"; "" for another notation, None for no number."""
    number = without_mark(text)
    if NUMBER.fullmatch(number):
        return text.removesuffix(number) + "00"[: len(number)]
    return "" if WRITTEN_DIFFERENTLY.fullmatch(text) else None


def possible_labels(tokenizer: Any, vocab: Vocab) -> Vocab:
    """The tokens for numbers, without the forms that can never be labels (all others, if digits were added as tokens).

    The tokenizer encodes samples of all forms. If number tokens spell every digit of them, only the forms of these
    tokens are kept. Otherwise, and for an object that cannot encode, all forms are.
    """
    known = {token: (form, text) for text, token in vocab if (form := form_of(text)) is not None}
    forms, given = sorted({form for form, _ in known.values()}), ""
    for form in forms:
        texts = sorted(text for other, text in known.values() if other == form)
        for text in texts[:: -(-len(texts) // 8)]:
            number = re.sub("[^0-9.]", "", text)
            given += f" {number} x{number} {text}"
    try:
        found = [known[token] for token in encoded(tokenizer, given) if token in known]
    except Exception:  # whatever it raises, the object cannot encode
        found = []
    if re.sub("[^0-9]", "", "".join(text for form, text in found if form)) == re.sub("[^0-9]", "", given):
        forms = [form for form, _ in found]
    return [(text, token) for token, (form, text) in known.items() if form in forms]


def encoded(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a text, without special tokens and padding."""
    # Through the tokenizer of transformers, the call would change the padding and truncation of its backend.
    found = getattr(tokenizer, "backend_tokenizer", tokenizer).encode(text, add_special_tokens=False)
    if not hasattr(found, "ids"):
        return list(found)
    return [token for token, is_text in zip(found.ids, found.attention_mask, strict=True) if is_text]


def single_tokens(texts: Iterable[str], tokenizer: Any, names: Mapping[int, str]) -> list[int]:
    """The token of each text; raise unless each is a single one. A token for the space before a text does not count."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "model", None)
    unknown = getattr(tokenizer, "unk_token", None) or getattr(model, "unk_token", None)
    found: dict[int, str] = {}
    for text in texts:
        ids = encoded(tokenizer, text)
        ids = ids[1:] if len(ids) > 1 and names.get(ids[0]) in SPACE_MARKS else ids
        pieces = [names.get(token, f"id {token}") for token in ids]
        if len(pieces) != 1 or pieces[0] == unknown:
            split = " + ".join(map(repr, pieces)) or "nothing"
            raise ValueError(f"each text must be one token of the tokenizer; {text!r} is {split}")
        if ids[0] in found:
            raise ValueError(f"{found[ids[0]]!r} and {text!r} are the same token {pieces[0]!r} (id {ids[0]})")
        found[ids[0]] = text
    return list(found)


def values_of(texts: Any) -> list[float]:
    """The values of a mapping from text to value, or of a sequence of written numbers."""
    if isinstance(texts, str) or not isinstance(texts, (Mapping, Sequence)):
        raise TypeError(f"texts must be a sequence of str, or map str to values; got {texts!r}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be str; got {text!r}")
    if isinstance(texts, Mapping):
        return list(texts.values())
    try:
        return [float(text) for text in texts]
    except ValueError as error:
        raise ValueError(f"texts that are not numbers need a mapping from text to value; {error}") from error


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


def most_left_out(counted: int, wider: list[tuple[str, int]]) -> list[str]:
    """A warning if other options count more than twice as many tokens."""
    option, count = wider[-1] if wider else ("", 0)
    if 2 * counted >= count:
        return []
    call = f"NumberTokens.from_tokenizer(tokenizer, {option.replace(' with ', ', ')})"
    return [
        f"only {counted} of the vocabulary's {count} number tokens count, and labels with the others get no number "
        f"loss; {call} counts them all"
    ]


def never_counted(vocab: Vocab, digits_only: bool, space_prefixed: bool) -> list[str]:
    """Warnings of tokens for numbers that no option counts, because of how they are written or how large they are."""
    different = [pair for pair in vocab if WRITTEN_DIFFERENTLY.fullmatch(pair[0])]
    large = [pair for pair in vocab if value_of(pair[0], digits_only, space_prefixed) == math.inf]
    found = []
    if different:
        found.append(
            f"{len(different)} tokens look like numbers that are written differently ({examples(different)}) and get "
            "no number loss as labels; use NumberTokens.from_mapping to count them"
        )
    if large:
        found.append(
            f"{len(large)} tokens are numbers beyond {LARGEST_SPAN:g} ({examples(large)}), which is too large for "
            "float32 losses, and get no number loss as labels"
        )
    return found


def examples(found: Vocab, most: int = 3, longest: int = 24) -> str:
    """The first few tokens by id, with long texts shortened."""
    tokens = sorted((token, text if len(text) <= longest else f"{text[:longest]}...") for text, token in found)
    return ", ".join([*(f"{text!r} (id {token})" for token, text in tokens[:most]), *["..."] * (len(tokens) > most)])
