"""Which tokens of a tokenizer are numbers, by their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from .values import LARGEST_SPAN, checked_size

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
RARE = "\U00012000"
"""A cuneiform sign, which the tokens of hardly any tokenizer have: its last token is the unknown one."""
SAMPLES = ("1245", "3.14")
"""Numbers that :meth:`NumberTokens.describe` shows as the tokenizer splits them."""
Vocab: TypeAlias = Sequence[tuple[str, int]]
"""(text, id) of every token. Not a dictionary: a token of bytes and one of str may have the same text."""


class Options(NamedTuple):
    """Which tokens :meth:`NumberTokens.from_tokenizer` counts."""

    digits_only: bool = True
    space_prefixed: bool = False

    def instead_of(self, others: Options) -> str:
        """The arguments that differ from other options."""
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items() if value != getattr(others, name))

    @property
    def call(self) -> str:
        """The call with these options."""
        return f"NumberTokens.from_tokenizer({', '.join(filter(None, ['tokenizer', self.instead_of(Options())]))})"


def value_of(text: str, options: Options) -> float | None:
    """The value of a token's text; None if it is not a number."""
    number = without_mark(text) if options.space_prefixed else text
    is_number = NUMBER.fullmatch(number) and not (options.digits_only and len(number) > 1)
    return float(number) if is_number else None


def numbers_in(vocab: Vocab, options: Options) -> Vocab:
    """The tokens that count as numbers: those that are small enough for the losses."""
    return [pair for pair in vocab if (value := value_of(pair[0], options)) is not None and value <= LARGEST_SPAN]


def without_mark(text: str) -> str:
    """A token's text without a single leading space mark."""
    return text[1:] if text.startswith(SPACE_MARKS) else text


def length_of(text: str) -> tuple[int, int]:
    """How many digits a number's text has before and after the point."""
    whole, _, fraction = without_mark(text).partition(".")
    return len(whole), len(fraction)


def vocab_of(tokenizer: Any) -> Vocab:
    """The tokens of a tokenizer as text; raise unless its ``get_vocab()`` maps str or bytes to int. Each byte becomes
    the character with its code, so that different tokens of bytes stay different."""
    if not callable(getattr(tokenizer, "get_vocab", None)):
        raise TypeError(f"tokenizer must have a get_vocab method; got {type(tokenizer).__name__}")
    given = tokenizer.get_vocab()
    if not isinstance(given, Mapping):
        raise TypeError(f"get_vocab() must map tokens (str or bytes) to ids (ints); got {type(given).__name__}")
    for token, identity in given.items():
        if not isinstance(token, (str, bytes)) or not isinstance(identity, Integral):
            raise TypeError(f"get_vocab() must map tokens (str or bytes) to ids (ints); got {token!r}: {identity!r}")
    return [(token if isinstance(token, str) else token.decode("latin-1"), int(id)) for token, id in given.items()]


def size_for(vocab_size: int | None, model: Any, tokenizer: Any, vocab: Vocab) -> int:
    """The size of the vocabulary: as given, or the rows of the model's head, or else the tokenizer's number of ids with
    its gaps; raise if both are given, or the model has no head."""
    if model is None:
        lengths = len(tokenizer) if hasattr(tokenizer, "__len__") else 0, *(token + 1 for _, token in vocab)
        return checked_size(max(lengths) if vocab_size is None else vocab_size)
    name = type(model).__name__
    if vocab_size is not None:
        raise ValueError(f"pass either vocab_size or model; got vocab_size={vocab_size!r} and model={name}")
    if not callable(getattr(model, "get_output_embeddings", None)):
        raise TypeError(f"model must have a get_output_embeddings method; got {name}")
    head = model.get_output_embeddings()
    if hasattr(head, "out_features"):  # the weight of a quantized or sharded head has another shape
        return checked_size(head.out_features)
    if not isinstance(getattr(head, "weight", None), Tensor):
        raise ValueError(
            f"model must have a head with a row for each token, such as that of an AutoModelForCausalLM; "
            f"get_output_embeddings() of {name} returned {'None' if head is None else type(head).__name__}"
        )
    return checked_size(head.weight.shape[0])


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
    with panics_as_errors(f"the tokenizer cannot encode {shortened(text, 24)!r}"):
        found = getattr(tokenizer, "backend_tokenizer", tokenizer).encode(text, add_special_tokens=False)
    if not hasattr(found, "ids"):
        return list(found)
    if found.overflowing:
        raise ValueError(f"the tokenizer truncates {shortened(text, 24)!r}; switch off its truncation")
    return [token for token, is_text in zip(found.ids, found.attention_mask, strict=True) if is_text]


@contextmanager
def panics_as_errors(problem: str) -> Iterator[None]:
    """Convert errors of the tokenizers package to a ValueError, also a panic, which is not an ``Exception``."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{problem}: {error}") from error


def mapping_of_texts(texts: Any, tokenizer: Any, names: Mapping[int, str]) -> dict[int, float]:
    """token -> value of written numbers, or of a mapping from text to value; raise unless each text is a single token.
    A token for the space before a text does not count."""
    if isinstance(texts, str) or not isinstance(texts, (Mapping, Sequence)):
        raise TypeError(f"texts must be a sequence of str, or map str to values; got {texts!r}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be str; got {text!r}")
    try:
        values = list(texts.values()) if isinstance(texts, Mapping) else [float(text) for text in texts]
    except ValueError as error:
        raise ValueError(f"texts that are not numbers need a mapping from text to value; {error}") from error
    model = getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "model", None)
    unknown = getattr(tokenizer, "unk_token", None) or getattr(model, "unk_token", None)
    if unknown is None:  # as for a Unigram model, which has an unknown token without a name
        with suppress(ValueError):  # there is no unknown token
            unknown = next((names.get(token) for token in encoded(tokenizer, RARE)[-1:]), None)
    found: dict[int, str] = {}
    for text in texts:
        ids = encoded(tokenizer, text)
        ids = ids[1:] if len(ids) > 1 and names.get(ids[0]) in SPACE_MARKS else ids
        pieces = [names.get(token, f"id {token}") for token in ids]
        if len(pieces) != 1 or pieces[0] == unknown != text:
            split = " + ".join(map(repr, pieces)) or "nothing"
            raise ValueError(f"each text must be one token of the tokenizer; {text!r} is {split}")
        if ids[0] in found:
            raise ValueError(f"{found[ids[0]]!r} and {text!r} are the same token {pieces[0]!r} (id {ids[0]})")
        found[ids[0]] = text
    return dict(zip(found, values, strict=True))


class Verdict(NamedTuple):
    """What the chosen options count of the number tokens that can be labels."""

    words: str
    """Whether they count all, and which options do."""
    uncounted: list[str]
    """Of the tokens that no options count: see :func:`never_counted`."""
    best: Options
    """The options that count most; of those that count as many, the chosen ones first."""
    counted: int
    """How many tokens the chosen options count,"""
    most: int
    """and the best."""
    is_good: bool
    """Nothing is left out, and each of the ten digits has a token."""


def verdict(tokenizer: Any, vocab: Vocab, chosen: Options) -> Verdict:
    """The verdict on the chosen options for a tokenizer with this vocabulary."""
    labels = possible_labels(tokenizer, vocab)
    choices = chosen, chosen._replace(digits_only=False), chosen._replace(space_prefixed=True), Options(False, True)
    counts = {options: len(numbers_in(labels, options)) for options in choices}
    best = max(counts, key=counts.__getitem__)
    counted, most, uncounted = counts[chosen], counts[best], never_counted(labels, chosen)
    words = f"All {most:,} number tokens count{', apart from those named below' * bool(uncounted)}."
    if counted < most:
        words = f"{most - counted:,} of {most:,} number tokens would get no NTL: use {best.instead_of(chosen)}."
    if not most:
        words = "A whole token must be ASCII digits with at most one decimal point, and none is."
    values = {value_of(text, best) for text, _ in vocab}
    missing = [str(digit) for digit in range(10) if digit not in values]
    if most and missing:
        words += f" No token is worth {', '.join(missing)}."
    return Verdict(words, uncounted, best, counted, most, not (counted < most or missing or uncounted))


def splits(tokenizer: Any, vocab: Vocab, groups: Mapping[int, int]) -> Iterator[str]:
    """How a tokenizer splits sample numbers, and the group of each number token, from 1, if there are several; nothing
    for an object that cannot encode."""
    names, several = {token: text for text, token in vocab}, len(set(groups.values())) > 1
    for sample in SAMPLES:
        try:
            tokens = encoded(tokenizer, sample)
            pieces = [repr(names[token]) for token in tokens]
        except Exception:  # whatever it raises, the object cannot encode
            return
        marks = [f" (group {groups[token]})" * several if token in groups else " (CE alone)" for token in tokens]
        if pieces:
            yield f"{sample} is {' + '.join(map(str.__add__, pieces, marks))}"


def never_counted(vocab: Vocab, options: Options) -> list[str]:
    """Warnings of tokens for numbers that no option counts, because of how they are written or how large they are."""
    different = [pair for pair in vocab if WRITTEN_DIFFERENTLY.fullmatch(pair[0])]
    large = [pair for pair in vocab if (value_of(pair[0], options) or 0.0) > LARGEST_SPAN]
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


def examples(found: Vocab) -> str:
    """The first three tokens by id, with long texts shortened."""
    tokens = sorted((token, shortened(text, 24)) for text, token in found)
    return ", ".join([*(f"{text!r} (id {token})" for token, text in tokens[:3]), *["..."] * (len(tokens) > 3)])


def shortened(text: str, longest: int) -> str:
    """A text for a message, cut off after this many characters."""
    return text if len(text) <= longest else f"{text[:longest]}..."
