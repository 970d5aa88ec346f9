"""`NumberTokens` of real tokenizers, trained here, and of mappings."""

from __future__ import annotations

import copy
import io
import math
import pickle
import random
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import (
    BertConfig,
    BertModel,
    ByT5Tokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.tokens import NumberTable
from ntl_kernels.tokens.__main__ import main as describe_command

from .integrations.models import make_model

TEXT = [
    "the answer is 42 and not 7 or 3.14, 2024 1999 10 11 12 007",
    "0 1 2 3 4 5 6 7 8 9 add 128 to 256, 1_0 1e5 nan ٣ ² costs 5 dollars",
] * 50
SPECIAL = ["<unk>", "<pad>"]


def byte_level(pre_tokenizer: Any = None) -> Tokenizer:
    """GPT-2: numbers behind a space are merged with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


def byte_level_with_digit_groups() -> Tokenizer:
    """Llama 3 and Qwen: runs of one to three digits, never with a space."""
    groups = pre_tokenizers.Split(Regex(r"[0-9]{1,3}"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(pre_tokenizers.Sequence([groups, bytes_]))


def sentencepiece_unigram() -> Tokenizer:
    """T5: pieces with a mark for the space before them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def sentencepiece_digits() -> Tokenizer:
    """Llama 2 and Mistral: single digits, and bytes for what is unknown."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *bytes_]))
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(TEXT, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    tokenizer.add_tokens(["1234", "5.25", "x9"])  # which count like any other
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT: the start of a word, and its continuations."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"]))
    return tokenizer


TOKENIZERS = [byte_level, byte_level_with_digit_groups, sentencepiece_unigram, sentencepiece_digits, word_level]
LABELS = torch.tensor([0, 1, 7])
WEIGHTED = {"labels": LABELS, "number_weights": torch.full(LABELS.shape, torch.nan)}
DIGITS = [*"0123456789"]


class FakeTokenizer:
    def __init__(self, *texts: Any, first: int = 0) -> None:
        self.vocab = {text: first + token for token, text in enumerate(texts)}

    def get_vocab(self) -> Any:
        return self.vocab


def snapshot(tokenizer: Any) -> tuple[Any, ...]:
    """A minimal tokenizer."""
    raw = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return raw.to_str(), dict(tokenizer.get_vocab()), raw.get_vocab_size(), str(raw.get_added_tokens_decoder())


def found(tokenizer: Any, **options: Any) -> tuple[NumberTokens, list[str]]:
    """The number tokens, and the warnings, each of which points to the calling line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = NumberTokens.from_tokenizer(tokenizer, **options)
    assert all(warning.filename == __file__ for warning in caught)
    return numbers, [str(warning.message) for warning in caught]


def mapping_of(numbers: NumberTokens) -> dict[int, float]:
    return dict(zip(numbers.ids.tolist(), numbers.values.tolist(), strict=True))


def groups_of(numbers: NumberTokens) -> list[tuple[float, dict[int, float]]]:
    """(unit, token id -> value) of each group."""
    pairs = list(mapping_of(numbers).items())
    return [(group.unit, dict(pairs[group.start :][: group.size])) for group in numbers.groups]


def in_first_digits(text: str) -> float:
    """A number's value in units of its first digit."""
    first, *others = text.replace(".", "")
    return float(f"{first}.{''.join(others)}")


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["tokenizers", "transformers"])
@pytest.mark.parametrize("space_prefixed", [False, True])
@pytest.mark.parametrize(("digits_only", "value_of"), [(True, float), (False, in_first_digits), (False, float)])
@pytest.mark.parametrize("build", TOKENIZERS)
def test_numbers_of_every_kind_of_tokenizer(
    build: Any, digits_only: bool, value_of: Callable[[str], float], space_prefixed: bool, is_wrapped: bool
) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build()) if is_wrapped else build()
    before = snapshot(tokenizer)
    options = {} if digits_only or value_of is in_first_digits else {"group_by": None}
    numbers, _ = found(tokenizer, digits_only=digits_only, space_prefixed=space_prefixed, **options)
    assert snapshot(tokenizer) == before
    pattern = ("[Ġ▁]?" if space_prefixed else "") + (r"(\d)" if digits_only else r"(\d+|\d+\.\d+)")
    matches = {token: re.fullmatch(pattern, text, re.ASCII) for text, token in tokenizer.get_vocab().items()}
    texts = {token: match[1] for token, match in matches.items() if match}
    if build is sentencepiece_digits:  # numbers of one length, which are compared by their values
        value_of = float
    assert mapping_of(numbers) == pytest.approx({token: value_of(text) for token, text in texts.items()})
    assert numbers.vocab_size == max(tokenizer.get_vocab().values()) + 1


@pytest.mark.parametrize("build", TOKENIZERS)
def test_encoded_numbers_are_recognised(build: Any) -> None:
    tokenizer = build()
    encoded = tokenizer.encode("the answer is 42")
    numbers, _ = found(tokenizer, digits_only=False, space_prefixed=True)
    index = numbers.lookup[torch.tensor(encoded.ids)]
    pieces = [piece.lstrip("Ġ▁") for piece in encoded.tokens if piece.lstrip("Ġ▁").isdigit()]
    assert "".join(pieces) == "42"
    assert numbers.values[index[index >= 0].long()].tolist() == pytest.approx(list(map(in_first_digits, pieces)))


def test_a_tokenizer_written_in_python() -> None:
    tokenizer = ByT5Tokenizer()  # its vocabulary is the 256 bytes as characters, "²" and "¹" among them
    size = len(tokenizer)
    numbers, warned = found(tokenizer, digits_only=False, space_prefixed=True)
    assert numbers.values.tolist() == [*range(10)] and warned == []
    assert numbers.vocab_size == len(tokenizer) == size


def test_only_ascii_digits_with_one_point_are_numbers() -> None:
    others = ["1_0", "1e5", "nan", "inf", "٣", "²", "႘", "+5", "-3", ".5", "5.", "1.2.3", "1,000", "", " ", "a1", "7\n"]
    numbers, _ = found(FakeTokenizer(*others, "<0x31>", "42", "007", "3.14", "8"), digits_only=False, group_by=None)
    assert numbers.values.tolist() == pytest.approx([3.14, 7.0, 8.0, 42.0])
    with_marks, _ = found(FakeTokenizer("Ġ4", "▁5", " 6", "ĠĠ7", "Ġ", "8"), space_prefixed=True)
    assert with_marks.values.tolist() == [4.0, 5.0, 6.0, 8.0]


@pytest.mark.filterwarnings("ignore:No token is worth")
def test_vocabulary_size() -> None:
    class Padded(FakeTokenizer):
        def __len__(self) -> int:
            return 16

    tokenizer = FakeTokenizer("1", "2", "x", first=5)
    assert NumberTokens.from_tokenizer(tokenizer).vocab_size == 8
    assert NumberTokens.from_tokenizer(tokenizer, vocab_size=64).vocab_size == 64
    assert NumberTokens.from_tokenizer(tokenizer, vocab_size=7).vocab_size == 7  # the numbers fit, "x" does not
    assert NumberTokens.from_tokenizer(Padded("1", "2")).vocab_size == 16
    assert NumberTokens.from_tokenizer(Padded("1", "2", first=30)).vocab_size == 32
    with pytest.raises(ValueError, match=r"1 number tokens.*vocab_size=6.*'2' \(id 6\)"):
        NumberTokens.from_tokenizer(tokenizer, vocab_size=6)
    with pytest.raises(TypeError, match="vocab_size.*'8'"):
        NumberTokens.from_tokenizer(tokenizer, vocab_size="8")  # type: ignore[arg-type]


TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def image_text_model() -> Any:
    """Its configuration has the size of the vocabulary only inside ``text_config``."""
    vision = TINY | {"image_size": 8, "patch_size": 4}
    config = Gemma3Config(text_config=TINY | {"vocab_size": 48}, vision_config=vision, mm_tokens_per_image=1)
    assert not hasattr(config, "vocab_size")
    return Gemma3ForConditionalGeneration(config)


def resized() -> Any:
    model = make_model("llama-tied")
    model.resize_token_embeddings(101)
    return model


def adapted(case: str = "llama", **options: Any) -> Any:
    """With LoRA, or with what else of its head is trained."""
    return get_peft_model(make_model(case), LoraConfig(r=2, **options))


MODELS_OF_SIZES: dict[str, tuple[Callable[[], Any], int]] = {
    "padded": (make_model, 97),
    "tied": (partial(make_model, "llama-tied"), 97),
    "resized": (resized, 101),
    "image and text": (image_text_model, 48),
    "encoder-decoder": (partial(make_model, "t5"), 97),
    "LoRA": (partial(adapted, target_modules=["q_proj"]), 97),
    "LoRA on the head": (partial(adapted, target_modules=["lm_head"]), 97),
    "head to save": (partial(adapted, target_modules=["q_proj"], modules_to_save=["lm_head"]), 97),
    "trained rows of a tied head": (
        partial(adapted, "llama-tied", target_modules=["q_proj"], trainable_token_indices=[1]),
        97,
    ),
}


@pytest.mark.parametrize(("make", "rows"), MODELS_OF_SIZES.values(), ids=MODELS_OF_SIZES)
def test_vocabulary_size_of_a_model(make: Any, rows: int) -> None:
    tokenizer, model = word_level(), make()
    assert len(tokenizer.get_vocab()) < rows
    assert NumberTokens.from_tokenizer(tokenizer, model=model).vocab_size == rows
    numbers = NumberTokens.from_texts(["7", "42"], tokenizer, model=model)
    assert cross_entropy_ntl(torch.zeros(1, rows), numbers.ids[:1], numbers).isfinite()


@pytest.mark.parametrize(
    ("make", "options", "error", "said"),
    [
        (lambda: "gpt2", {}, TypeError, "model must have a get_output_embeddings method; got str"),
        (lambda: BertModel(BertConfig(vocab_size=48, **TINY)), {}, ValueError, r"head.* of BertModel returned None$"),
        (make_model, {"vocab_size": 7}, ValueError, "either vocab_size or model; got vocab_size=7 and model=LlamaFor"),
    ],
)
def test_models_without_a_vocabulary_size_are_named(make: Any, options: Any, error: Any, said: str) -> None:
    for build in (NumberTokens.from_tokenizer, partial(NumberTokens.from_texts, ["7", "42"])):
        with pytest.raises(error, match=said):
            build(word_level(), model=make(), **options)


@pytest.mark.parametrize(
    ("texts", "digits_only", "message"),
    [
        ([], True, "no digit token among the tokenizer's 0 tokens. A whole token"),
        (["a", "b"], False, "no number token among the tokenizer's 2 tokens. A whole token must be ASCII digits"),
        (["a", "42", "43"], True, "2 of 2 number tokens would get no NTL: use digits_only=False. No token is worth 0"),
        (["a", "Ġ4", "Ġ5"], True, "2 of 2 number tokens would get no NTL: use space_prefixed=True. No token .* 3, 6"),
        (["a", "Ġ42"], True, "1 of 1 number tokens would get no NTL: use digits_only=False, space_prefixed=True."),
        (["a", "7"], True, r"two distinct.*'7' \(id 1\). All 1 number tokens count. No token is worth 0, .* 6, 8, 9.$"),
        (["7", "Ġ7", "Ġ8"], True, r"two distinct.*'7' \(id 0\). 2 of 3 number .*: use space_prefixed=True"),
        (["7", "07"], False, r"two distinct.*'7' \(id 0\), '07' \(id 1\)"),
    ],
)
def test_too_few_numbers_say_what_was_found(texts: list[str], digits_only: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NumberTokens.from_tokenizer(FakeTokenizer(*texts), digits_only=digits_only)


LIKE_LLAMA_3 = [f"{number:0{length}d}" for length in (1, 2, 3) for number in range(10**length)]
BOTH = {"digits_only": False, "space_prefixed": True}


@pytest.mark.parametrize(
    ("texts", "options", "others", "better"),
    [
        (LIKE_LLAMA_3, {}, "1,100 of 1,110", {"digits_only": False}),
        (LIKE_LLAMA_3[:21], {"space_prefixed": True}, "11 of 21", {"digits_only": False}),
        ([*DIGITS, *(f"Ġ{n}" for n in range(30))], {}, "30 of 40", BOTH),
        ([*DIGITS, *(f"▁{n}" for n in range(10, 30))], {"digits_only": False}, "20 of 30", {"space_prefixed": True}),
    ],
)
def test_options_that_leave_most_numbers_out_warn(
    texts: list[str], options: dict[str, bool], others: str, better: dict[str, bool]
) -> None:
    """The warning names the options to change, and then there is none."""
    change = ", ".join(f"{name}={value}" for name, value in better.items())
    _, (warned,) = found(FakeTokenizer(*texts), **options)
    assert warned == f"{others} number tokens would get no NTL: use {change}."
    numbers, warned_again = found(FakeTokenizer(*texts), **options | better)
    assert len(numbers) == len(texts) and warned_again == []


@pytest.mark.parametrize("texts", [DIGITS, LIKE_LLAMA_3[:20], [*DIGITS, "Ġ1", "Ġ2"]])
def test_options_that_count_half_of_the_numbers_do_not_warn(texts: list[str]) -> None:
    numbers, warned = found(FakeTokenizer(*texts))
    assert len(numbers) == 10 and warned == []


def test_missing_digits_warn_and_are_described() -> None:
    numbers, (warned,) = found(FakeTokenizer(*"01245678", "Ġ3"))
    assert warned == "1 of 9 number tokens would get no NTL: use space_prefixed=True. No token is worth 9."
    assert warned in numbers.describe()
    assert found(FakeTokenizer("10", "20"), digits_only=False)[1] == []  # which counts all of them


OF_EVERY_TOKENIZER = (
    r"NumberTokens\(|  ([\d.]+ is '|group \d|values with several tokens|\.\.\. and|All [\d,]+ number tokens count\.$)"
)


def advice(tokenizer: Any, **options: bool) -> tuple[str, str]:
    """(what from_tokenizer warns of, what describe() notes of other number tokens and options)."""
    numbers, warned = found(tokenizer, **options)
    notes = (line for line in numbers.describe(most=0).splitlines() if not re.match(OF_EVERY_TOKENIZER, line))
    return " ".join(warned), " ".join(notes)


@pytest.mark.parametrize(("is_normalized", "is_wrapped"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (byte_level, "26 of 36 number tokens would get no NTL: use digits_only=False, space_prefixed=True."),
        (byte_level_with_digit_groups, "14 of 24 number tokens would get no NTL: use digits_only=False."),
        (sentencepiece_unigram, "number tokens would get no NTL: use digits_only=False, space_prefixed=True."),
        (word_piece, "look like numbers that are written differently \\('##"),
    ],
)
def test_number_tokens_that_can_never_be_labels_are_not_advised(
    build: Any, said: str, is_normalized: bool, is_wrapped: bool
) -> None:
    """Where digits were added as tokens, a tokenizer uses none of the other number tokens of its vocabulary."""
    raw = build()
    assert re.search(said, " ".join(advice(raw)))
    raw.add_tokens([AddedToken(digit, normalized=is_normalized) for digit in "0123456789"])
    raw.enable_truncation(400)
    raw.enable_padding(pad_token="a", pad_id=raw.token_to_id("a"), length=500)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw) if is_wrapped else raw
    before = snapshot(tokenizer)
    for options in ({}, {"space_prefixed": True}):
        assert advice(tokenizer, **options) == ("", "")
    assert snapshot(tokenizer) == before


def test_forms_that_a_tokenizer_does_not_use_are_not_advised() -> None:
    """One form can be a label and another not: here no space goes with digits."""
    tokenizer = byte_level()
    assert "Ġ42" in tokenizer.get_vocab()
    tokenizer.pre_tokenizer = byte_level_with_digit_groups().pre_tokenizer
    warned, notes = advice(tokenizer)
    assert "space_prefixed" not in warned + notes and "would get no NTL: use digits_only=False." in notes
    tokenizer.add_tokens(["<num_7>"])  # only a text that spells it has this label
    assert "written differently ('<num_7>'" in advice(tokenizer)[0]


def panicking() -> Tokenizer:
    """Its package panics, which is no ``Exception``."""
    tokenizer = Tokenizer(models.WordLevel({digit: int(digit) for digit in DIGITS}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(0)
    return tokenizer


class Encoder(FakeTokenizer):
    """Like Llama 3, with a custom ``encode``."""

    def __init__(self, encode: Callable[..., Any]) -> None:
        super().__init__(*LIKE_LLAMA_3, "Ġ7")
        self.encode = encode


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: [],  # accepts no options
        lambda text, add_special_tokens: [],
        lambda text, add_special_tokens: None,
        lambda text, add_special_tokens: [10**9, {}],
        lambda text, add_special_tokens: [7] * len(text),
        lambda text, add_special_tokens: [int(character) for character in text if character.isdigit()][:50],  # cut off
        lambda text, add_special_tokens: panicking().encode(text, add_special_tokens=add_special_tokens),
        None,
    ],
)
def test_objects_whose_encode_tells_nothing_are_taken_at_their_vocabulary(encode: Any) -> None:
    assert advice(Encoder(encode)) == advice(FakeTokenizer(*LIKE_LLAMA_3, "Ġ7")) and advice(Encoder(encode))[0]


def test_ids_and_tokens_of_bytes_tell_as_much() -> None:
    digits = Encoder(lambda text, add_special_tokens: [int(character) for character in text if character.isdigit()])
    assert advice(digits) == ("", "")
    digits.vocab = {text.encode(): token for text, token in digits.vocab.items()}  # type: ignore[misc]
    assert advice(digits) == ("", "")
    assert advice(ByT5Tokenizer(), digits_only=False) == ("", "")


OTHER_FORMS = {
    "word_piece": ["##3", "##34", "##3.5"],
    "end_of_word": ["3</w>", "34</w>", "3.5</w>"],
    "added": ["<num_7>", "<NUM 7>", "<7>", "<|number:12|>", "<-7>", "[NUM-7]", "[value_1.5]"],
    "regression_transformer": ["_7_0_", "_0_-1_", "_3_12_"],
}
NO_FORMS = ["<0x37>", "<extra_id_7>", "<unused7>", "[unused7]", "[7]", "<|reserved_token_7|>", "##a", "x7</w>", "_7_"]


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_numbers_written_differently_are_named(form: str) -> None:
    """They get no number loss, which would otherwise go unnoticed."""
    texts = OTHER_FORMS[form]
    message = f"{len(texts)} tokens look like numbers that are written differently ({texts[0]!r} (id 10)"
    numbers, (warned,) = found(FakeTokenizer(*DIGITS, *texts, *NO_FORMS))
    assert warned.startswith(message) and "from_mapping" in warned and f"  {message}" in numbers.describe()
    assert len(numbers) == 10
    for few in ([], ["7"]):
        with pytest.raises(ValueError, match=f"{re.escape(repr(texts[0]))}.*from_mapping"):
            NumberTokens.from_tokenizer(FakeTokenizer(*few, *texts))


@pytest.mark.parametrize("digits_only", [True, False])
@pytest.mark.parametrize("are_bytes_first", [True, False])
def test_one_text_as_bytes_and_as_str(are_bytes_first: bool, digits_only: bool) -> None:
    """As in tiktoken's vocabularies with tokens added by hand: each id keeps its number."""
    of_bytes: dict[Any, int] = {str(digit).encode(): digit for digit in range(10)} | {b"42": 10, b"##7": 11, b"a": 12}
    of_str: dict[Any, int] = {"3": 20, "7": 21, "42": 22, "##7": 23, "a": 24, "<|end|>": 25, "\u00e9": 26}
    of_bytes |= {b"\xe9": 13, "٣".encode(): 14, b" 7": 15}  # the byte of that character is not valid UTF-8
    tokenizer = FakeTokenizer()
    tokenizer.vocab = of_bytes | of_str if are_bytes_first else of_str | of_bytes
    numbers, warned = found(tokenizer, digits_only=digits_only)
    assert re.match(r"2 tokens look like.*\('##7' \(id 11\), '##7' \(id 23\)\)", warned[-1])
    expected = {**{digit: float(digit) for digit in range(10)}, 20: 3.0, 21: 7.0}
    assert mapping_of(numbers) == pytest.approx(expected | ({} if digits_only else {10: 4.2, 22: 4.2}))
    assert numbers.vocab_size == 27 and "  3  id 3 '3', id 20 '3'" in numbers.describe().splitlines()
    assert mapping_of(found(tokenizer, space_prefixed=True)[0]) == expected | {15: 7.0}


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        (LIKE_LLAMA_3, [(unit, [n / unit for n in range(10 * unit)]) for unit in (1, 10, 100)]),
        (
            ["3.14", "31", "7", "12.5", "2.71", "8", "007"],
            [(1, [7, 8]), (1, [2.71, 3.14]), (10, [3.1]), (10, [1.25]), (100, [0.07])],
        ),
        (["\u012042", "17", "7", "\u01207", "\u25819", "\u01203.5"], [(1, [7, 7, 9]), (1, [3.5]), (10, [1.7, 4.2])]),
        (["10", "\u012030", "20"], [(1, [10, 20, 30])]),
        (["10.5", "20.5"], [(1, [10.5, 20.5])]),
        (["0" * 400 + "7", "3", "4"], [(1, [3, 4]), (1e38, [7e-38])]),
    ],
    ids=["like Llama 3", "decimals", "space-prefixed", "one length", "decimals of one length", "beyond float64"],
)
def test_numbers_of_one_length_are_a_group(texts: list[str], groups: list[tuple[float, list[float]]]) -> None:
    """Before and after the point; in units of the first digit, unless they are all there is."""
    numbers, _ = found(FakeTokenizer(*texts), digits_only=False, space_prefixed=True)
    got = groups_of(numbers)
    assert [unit for unit, _ in got] == [unit for unit, _ in groups]
    assert [[*values.values()] for _, values in got] == [pytest.approx(values) for _, values in groups]
    plain, _ = found(FakeTokenizer(*texts), digits_only=False, space_prefixed=True, group_by=None)
    as_read = {token: unit * value for unit, values in got for token, value in values.items()}
    by_value = {token: float(text.lstrip("\u0120\u2581")) for token, text in enumerate(texts)}
    assert as_read == pytest.approx(by_value) and mapping_of(plain) == pytest.approx(by_value)
    assert len(plain.groups) == 1 and (plain == numbers) == (len(groups) == 1)


def test_groups_that_cannot_be_made_are_named() -> None:
    for group_by in ("digits", "", True, 1):
        with pytest.raises(ValueError, match=f'group_by must be "length" or None; got {group_by!r}'):
            found(FakeTokenizer(*DIGITS), group_by=group_by)
    texts = FakeTokenizer("7", "42", "365")
    with pytest.raises(ValueError, match="at least two distinct float32 values; each group has only one"):
        found(texts, digits_only=False)
    assert found(texts, digits_only=False, group_by=None)[0].values.tolist() == [7.0, 42.0, 365.0]


HUGE = ["9" * 40, "1" + "0" * 400, f"{'0' * 30}{'7' * 39}.5", "2" + "0" * 38]
"""Numbers that no loss holds: beyond float32, beyond float64, and one only within what differences need."""
LONG = ["0" * 50 + "7", "3." + "1" * 60, "1" * 38]
"""Numbers of the same length that are small enough."""


@pytest.mark.parametrize("space_prefixed", [False, True])
@pytest.mark.parametrize("texts", [HUGE[:1], HUGE[1:2], HUGE], ids=["one", "beyond float64", "all"])
def test_numbers_that_no_loss_holds_are_left_out_and_named(texts: list[str], space_prefixed: bool) -> None:
    marked = [f"\u0120{text}" for text in texts] if space_prefixed else texts
    tokenizer = FakeTokenizer(*DIGITS, *LONG, *marked)
    message = f"{len(texts)} tokens are numbers beyond 1.6e+38 ({marked[0][:24] + '...'!r} (id 13)"
    for group_by, largest in ((None, float(LONG[2])), ("length", 9.0)):
        numbers, (warned,) = found(tokenizer, digits_only=False, space_prefixed=space_prefixed, group_by=group_by)
        assert warned.startswith(message) and f"  {message}" in numbers.describe()
        assert max(map(len, numbers.describe().splitlines())) < 300
        assert sorted(numbers.ids.tolist()) == list(range(13))
        assert max(group.furthest for group in numbers.groups) == pytest.approx(largest)
        logits, labels = torch.randn(5, len(tokenizer.vocab)), torch.tensor([3, 10, 11, 12, 13])
        parts = cross_entropy_ntl(logits, labels, numbers, return_parts=True)
        assert torch.stack(tuple(parts)).isfinite().all()


def test_numbers_that_no_loss_holds_count_nowhere() -> None:
    """Not in the verdict, nor if there are no other numbers."""
    numbers, warned = found(FakeTokenizer(*DIGITS, *HUGE))  # only digits count
    assert warned == [] and "would get no NTL" not in numbers.describe() and "beyond" not in numbers.describe()
    for first, said in (("a", "no number token.*"), ("7", r"two distinct values.*'7' \(id 0\)\..*")):
        said += r"1 tokens are numbers beyond 1\.6e\+38 \('9{24}\.\.\.' \(id 1\)"
        with pytest.raises(ValueError, match=said):
            NumberTokens.from_tokenizer(FakeTokenizer(first, HUGE[0]), digits_only=False)
    # float32 rounds to either side of the limit: whatever a mapping accepts is counted
    for text in ("159999999999999999999999999999999999999", "160000000000000000000000000000000000000", "1" + "6" * 38):
        numbers, warned = found(FakeTokenizer("0", "1", text), digits_only=False)
        assert (len(numbers) == 3) == (float(np.float32(float(text))) <= 1.6e38) == (not warned)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({7: 0, 8: 1}, "got 7: 0"),
        ({"7": "0", "8": "1"}, "got '7': '0'"),
        ({"7": 0, b"x": None}, "got b'x': None"),
        ({"7": 0, "8": 1.0}, r"got '8': 1\.0"),
        (["7", "8"], "got list"),
        (None, "got NoneType"),
    ],
)
def test_vocabularies_that_are_none_are_named(vocab: Any, message: str) -> None:
    tokenizer = FakeTokenizer()
    tokenizer.vocab = vocab
    with pytest.raises(TypeError, match=rf"get_vocab\(\) must map tokens \(str or bytes\) to ids \(ints\); {message}$"):
        NumberTokens.from_tokenizer(tokenizer)
    with pytest.raises(TypeError, match="get_vocab.*str"):
        NumberTokens.from_tokenizer("gpt2")


def test_tokens_that_share_an_id_and_flags_that_are_none_are_named() -> None:
    """Which of the values would win depends on the order of the vocabulary."""
    tokenizer = FakeTokenizer("0", "1")
    with pytest.raises(TypeError, match="digits_only must be a bool; got 'length'"):
        NumberTokens.from_tokenizer(tokenizer, 16, "length")  # type: ignore[arg-type]
    tokenizer.vocab["2"] = 1
    with pytest.raises(ValueError, match=r"ids of their own; got '0' \(id 0\), '1' \(id 1\), '2' \(id 1\)"):
        NumberTokens.from_tokenizer(tokenizer)


PAIR = {1: 1.0, 2: 2.0}
APART = r"within 1\.6e\+38 of each other.*got -1e\+38 and 1e\+38"


@pytest.mark.parametrize(
    ("mapping", "error", "message"),
    [
        ({}, ValueError, "empty"),
        ({1: 1.0, 5: 2.0}, ValueError, r"\[0, 5\).*5"),
        ({-1: 1.0, 2: 2.0}, ValueError, "-1"),
        ({1: 1.0, 2: float("nan")}, ValueError, "token 2.*nan"),
        ({1: 1.0, 2: 1e39}, ValueError, r"token 2.*1e\+39"),
        ({1: 1.0, 2: 10**400}, ValueError, "token 2.*inf"),
        ({1: -1e38, 2: 1e38}, ValueError, APART),
        ({"1": 1.0}, TypeError, "'1'"),
        ({1.0: 1.0}, TypeError, r"ints; got 1\.0"),
        ({1: "1"}, TypeError, "token 1.*'1'"),
        ({1: True}, TypeError, "token 1.*True"),
        ({1: 1j}, TypeError, "token 1.*1j"),
        ([1, 2], TypeError, "mapping.*list"),
    ],
)
def test_bad_mappings_are_named(mapping: Any, error: type[Exception], message: str) -> None:
    """The only one, and any group."""
    for make in (
        NumberTokens.from_mapping,
        lambda given, size: NumberTokens.from_groups([{3: 1.0, 4: 2.0}, given], size),
    ):
        with pytest.raises(error, match=message):
            make(mapping, 5)


@pytest.mark.parametrize(
    ("groups", "vocab_size", "error", "message"),
    [
        (PAIR, 5, TypeError, "groups must be a sequence of mappings; got dict"),
        (iter([PAIR]), 5, TypeError, "a sequence of mappings; got list_iterator"),
        ([], 5, ValueError, "there is no group"),
        ([PAIR, {3: 1.0}, {2: 2.0, 4: 2.0}], 5, ValueError, r"a token must be in one group; .* several: \[2\]"),
        ([{1: 1.0, 2: 1.0 + 1e-12}], 5, ValueError, "two distinct float32"),
        ([{1: 1.0}, {2: 2.0}, {3: 5.0, 4: 5.0}], 5, ValueError, "two distinct float32 values; each group has only one"),
        ([PAIR], 0, ValueError, "vocab_size.*0"),
        ([PAIR], 2**31 + 1, ValueError, r"vocab_size must be from 1 to 2\*\*31; got 2147483649"),
        ([PAIR], 5.0, TypeError, r"vocab_size.*5\.0"),
        ([PAIR], True, TypeError, "vocab_size.*True"),
    ],
)
def test_bad_groups_are_named(groups: Any, vocab_size: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        NumberTokens.from_groups(groups, vocab_size)


@pytest.mark.parametrize("unit", [0.0, -1.0, math.nan, math.inf, 1e39])
def test_bad_units_are_named(unit: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"units must be above 0 and at most 1.6e+38; got {unit!r}")):
        NumberTokens(PAIR, 5, units=[unit])


def test_groups_stay_in_their_order_and_are_compared() -> None:
    groups: list[dict[int, float]] = [{3: 2.0, 7: -1.0, 5: 0.5}, {1: 100.0}, {20: 4.0, 0: 4.0, 9: 8.0}]
    numbers = NumberTokens.from_groups(groups, 30)
    assert numbers.ids.tolist() == [7, 5, 3, 1, 0, 20, 9]
    assert numbers.groups == ((0, 3, 1.0, 1.5, 3.0), (3, 1, 1.0, 0.0, 0.0), (4, 3, 1.0, 4.0, 4.0))
    table = numbers.table("cpu")
    assert table.groups is not None and table.groups.dtype == torch.float32 and table.width == 3
    assert table.groups.tolist() == [list(numbers.groups[group]) for group in (0, 0, 0, 1, 2, 2, 2)]
    same = NumberTokens.from_groups([dict(reversed(group.items())) for group in groups], 30)
    assert numbers == same and hash(numbers) == hash(same)
    in_units = NumberTokens(groups, 30, units=[1.0, 10.0, 0.5])
    joined = NumberTokens.from_groups([groups[0] | groups[1], groups[2]], 30)
    others = [in_units, joined, NumberTokens.from_groups(groups[::-1], 30), NumberTokens.from_groups(groups, 31)]
    for other in others:
        assert numbers != other and pickle.loads(pickle.dumps(other)) == other
    assert [unit for unit, _ in groups_of(in_units)] == [1.0, 10.0, 0.5]
    one, mapped = NumberTokens.from_groups((groups[0],), 30), NumberTokens.from_mapping(groups[0], 30)
    assert one == mapped and hash(one) == hash(mapped) and one.table("cpu").groups is None
    given = torch.randn(2, 30), torch.tensor([3, 5])
    in_tens = NumberTokens(groups[:1], 30, units=[10.0])
    assert in_tens != one and "group 1: 3 tokens worth -1 to 2, in units of 10" in in_tens.describe()
    errors = [cross_entropy_ntl(*given, each, return_parts=True).number_mae for each in (in_tens, one)]
    torch.testing.assert_close(errors[0], 10 * errors[1])


def test_numbers_of_other_libraries_are_numbers() -> None:
    mapping = {np.int64(1): np.float32(0.5), 2: Fraction(1, 4), np.int32(3): 7}
    numbers = NumberTokens.from_mapping(mapping, np.int64(5))
    assert numbers == NumberTokens.from_mapping({1: 0.5, 2: 0.25, 3: 7.0}, 5)
    assert all(type(token) is int for token in numbers.ids.tolist()) and type(numbers.vocab_size) is int


def test_values_that_round_to_one_float32_are_one_value() -> None:
    numbers = NumberTokens.from_mapping({1: 0.1, 2: 0.1 + 1e-12, 3: 16777217, 4: 16777216, 5: 1e-50, 6: -0.0}, 7)
    assert numbers.values.tolist() == [0.0, 0.0, *[float(np.float32(0.1))] * 2, 16777216.0, 16777216.0]
    assert numbers.ids.tolist() == [5, 6, 1, 2, 3, 4]
    assert numbers.groups[0].nearest == float(np.float32(0.1))
    assert "values with several tokens: 3" in numbers.describe()
    assert "worth 0 to 1," in repr(NumberTokens.from_mapping({0: -0.0, 1: 1.0}, 2))


@given(
    st.dictionaries(st.integers(0, 60), st.floats(-(2.0**125), 2.0**125, width=32), min_size=2, max_size=60),
    st.integers(61, 5000),
    st.integers(1, 4),
)
def test_sorted_by_value_then_id_and_looked_up(mapping: dict[int, float], vocab_size: int, count: int) -> None:
    """Within each group."""
    shares = [{token: mapping[token] for token in mapping if token % count == rest} for rest in range(count)]
    groups = [group for group in shares if group]
    assume(any(len(set(group.values())) > 1 for group in groups))
    numbers = NumberTokens.from_groups(groups, vocab_size)
    pairs = [sorted((value, token) for token, value in group.items()) for group in groups]
    assert list(zip(numbers.values.tolist(), numbers.ids.tolist(), strict=True)) == [*chain(*pairs)]
    table = numbers.table("cpu")
    assert (table.ids.dtype, table.values.dtype, table.lookup.dtype) == (torch.int32, torch.float32, torch.int32)
    assert table.lookup[numbers.ids].tolist() == list(range(len(mapping))) == list(range(len(numbers)))
    assert int((table.lookup >= 0).sum()) == len(mapping) and table.lookup.shape == (vocab_size,)
    for group, members in zip(numbers.groups, pairs, strict=True):
        distances = [abs(left - right) for left, _ in members for right, _ in members if left != right] or [0.0]
        assert (group.size, group.nearest, group.furthest) == (len(members), min(distances), max(distances))


def test_over_a_thousand_numbers_in_any_order() -> None:
    mapping = {3 * token: -token / 8 for token in range(1111)}
    shuffled = dict(random.Random(0).sample(list(mapping.items()), 1111))
    numbers, other = NumberTokens.from_mapping(mapping, 4000), NumberTokens.from_mapping(shuffled, 4000)
    assert numbers == other and hash(numbers) == hash(other)
    assert numbers != NumberTokens.from_mapping(mapping, 4001) and numbers != mapping
    assert len(numbers) == 1111 and numbers.ids.tolist() == [3 * token for token in reversed(range(1111))]
    assert numbers.lookup[::3][:1111].tolist() == list(reversed(range(1111)))
    assert numbers.describe(most=3).count("\n") == 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_labels_that_are_numbers_are_found_and_counted(dtype: torch.dtype) -> None:
    numbers = NumberTokens.from_mapping({3: 1.0, 5: -2.5, 9: 1.0, 70000: 3.0}, 128256)  # V may not fit the dtype
    labels = torch.tensor([[3, 4, 9, -100], [5, 10, -1, 5]], dtype=dtype)
    expected = torch.tensor([[True, False, True, False], [True, False, False, True]])
    assert torch.equal(numbers.is_number(labels), expected) and torch.equal(numbers.is_number(labels.T), expected.T)
    count = numbers.count(labels)
    assert count.ndim == 0 and count.dtype == torch.int64 and count == 4
    weights = torch.tensor([[0.5, 9.0, 0.25, torch.nan], [0.0, 9.0, 9.0, 2.0]])
    weighted = numbers.count(labels, weights)
    assert weighted.ndim == 0 and weighted.dtype == torch.float32 and weighted == 2.75
    assert numbers.count(labels, weights.double()).dtype == torch.float64
    assert numbers.count(labels, weights.bfloat16()).dtype == torch.float32
    assert numbers.count(torch.full((1001,), 3), torch.ones(1001).bfloat16()) == 1001
    assert numbers.count(labels[:0]) == 0 and numbers.is_number(labels[0, 0]) and numbers.count(labels[0, 1]) == 0


def test_the_count_is_the_denominator_of_the_loss() -> None:
    numbers = NumberTokens.from_mapping({3: 1.0, 5: -2.5, 9: 1.0}, 10)
    labels, weights = torch.randint(0, 10, (40,)), torch.rand(40)
    labels[::7] = -100
    for chosen in (None, weights):
        parts = cross_entropy_ntl(torch.randn(40, 10), labels, numbers, token_weights=chosen, return_parts=True)
        assert isinstance(parts, NTLOutput)
        torch.testing.assert_close(numbers.count(labels, chosen).float(), parts.num_numbers)


def test_a_weight_over_tokens_is_found_from_batches() -> None:
    """The mean over all data then weighs NTL as the mean over numbers does."""
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(5)}, 30)
    labels, logits = torch.randint(0, 30, (4, 16)), torch.randn(4, 16, 30)
    labels[0, :9] = -100
    for batches in (labels.split(1), [{"labels": part, "input_ids": part} for part in labels.split(3)]):
        ratio = numbers.tokens_per_number(batches)
        assert ratio == int((labels != -100).sum()) / int(numbers.count(labels))
    assert numbers.tokens_per_number([torch.tensor([0, 1, 1, 7, 8, -100])], ignore_index=1) == 4
    for column in ({}, {"number_weights": torch.rand(labels.shape)}):
        ratio = numbers.tokens_per_number([{"labels": labels, **column}])
        over_tokens = NTLConfig(weight=0.3 * ratio, mean_over="tokens")
        got = cross_entropy_ntl(logits, labels, numbers, config=over_tokens, **column)
        torch.testing.assert_close(got, cross_entropy_ntl(logits, labels, numbers, **column))


NO_LABELS = r"labels must be a tensor of integers; got "


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda n: n.is_number(torch.ones(3)), TypeError, NO_LABELS + "torch.float32"),
        (lambda n: n.is_number(torch.ones(3) > 0), TypeError, NO_LABELS + "torch.bool"),
        (lambda n: n.count([0, 1]), TypeError, NO_LABELS + "list"),
        (lambda n: n.tokens_per_number([(LABELS, LABELS)]), TypeError, NO_LABELS + "tuple"),
        (lambda n: n.count(LABELS, torch.ones(2)), ValueError, r"labels' shape \(3,\); got \(2,\)"),
        (lambda n: n.count(LABELS, [1.0] * 3), TypeError, "weights must be a real tensor; got list"),
        (lambda n: n.count(LABELS, LABELS * 1j), TypeError, "a real tensor; got torch.complex64"),
        (lambda n: n.count(LABELS, LABELS.to("meta")), ValueError, "weights must be .*device cpu; got meta"),
        (lambda n: n.tokens_per_number([LABELS[2:] + 1]), ValueError, "none of 1 labels is a number token"),
        (lambda n: n.tokens_per_number([WEIGHTED]), ValueError, "none of 3 labels is a number token"),
        (lambda n: n.tokens_per_number([{"ids": 1, None: 2}]), ValueError, "got the keys ids, None"),
        (lambda n: n.tokens_per_number([LABELS], "a"), TypeError, "ignore_index must be an int; got 'a'"),
        (lambda n: n.tokens_per_number([LABELS], 2**63), ValueError, "ignore_index must fit int64.*; got 9223"),
        (lambda n: n.tokens_per_number([LABELS], 10**400), ValueError, "fit int64.*; got an int of 1329 bits"),
    ],
)
def test_what_cannot_be_counted_is_named(ask: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(NumberTokens.from_mapping({0: 0.0, 1: 1.0}, 30))


def test_is_immutable() -> None:
    mapping = {1: 1.0, 2: 2.0}
    numbers = NumberTokens.from_mapping(mapping, 5)
    mapping[3] = 3.0
    numbers.ids.zero_(), numbers.values.zero_(), numbers.lookup.zero_()
    assert (numbers.ids.tolist(), numbers.values.tolist()) == ([1, 2], [1.0, 2.0])
    assert numbers.lookup.tolist() == [-1, 0, 1, -1, -1]
    for name in ("ids", "values", "vocab_size", "groups", "anything"):
        with pytest.raises(AttributeError):
            setattr(numbers, name, 3)


@pytest.mark.parametrize("part", ["ids", "values", "lookup", "groups"])
def test_writing_to_a_shared_table_is_noticed(part: str) -> None:
    numbers = NumberTokens.from_groups([{1: 1.0, 2: 2.0}, {4: 1.0}], 5)
    getattr(numbers.table("cpu"), part).add_(1)
    with pytest.raises(RuntimeError, match="shared by all callers"):
        cross_entropy_ntl(torch.randn(3, 5), torch.tensor([1, 2, 0]), numbers)


def tensors_of(table: NumberTable) -> list[torch.Tensor]:
    return [part for part in table if isinstance(part, torch.Tensor)]


def test_tables_are_copied_to_a_device_once() -> None:
    numbers = NumberTokens.from_groups([{1: 1.0, 2: 2.0}, {4: 1.0}], 5)
    assert numbers.to("cpu") is numbers
    assert numbers.table("cpu") is numbers.table(torch.device("cpu")) is numbers.table("cpu:0")
    assert numbers.table("meta") is numbers.table("meta")
    with ThreadPoolExecutor(8) as pool:
        assert all(table is numbers.table("cpu") for table in pool.map(numbers.table, ["cpu"] * 32))
    assert {part.device.type for part in tensors_of(numbers.table("meta"))} == {"meta"}


@pytest.mark.gpu
def test_tables_on_a_gpu_are_copied_once() -> None:
    numbers = NumberTokens.from_groups([{1: 1.0, 2: 2.0}, {4: 1.0}], 5).to("cuda")
    device = torch.zeros(1, device="cuda").device
    assert numbers.table(device) is numbers.table("cuda") is numbers.table(device)
    assert {part.device for part in tensors_of(numbers.table("cuda"))} == {device}


def test_copies_travel_without_their_tables() -> None:
    numbers = NumberTokens.from_tokenizer(FakeTokenizer(*DIGITS, "10"), digits_only=False).to("cpu").to("meta")
    travelled = pickle.loads(pickle.dumps(numbers))
    assert travelled == numbers and hash(travelled) == hash(numbers) and travelled.describe() == numbers.describe()
    assert set(travelled._tables) == {torch.device("cpu")}
    assert copy.deepcopy(numbers) is copy.copy(numbers) is numbers
    module = torch.nn.Linear(2, 2)
    module.numbers = numbers  # type: ignore[assignment]
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).numbers == copy.deepcopy(module).numbers == module.numbers


def small_case() -> tuple[NumberTokens, torch.Tensor, torch.Tensor]:
    numbers = NumberTokens.from_groups([{1: 1.0, 2: 2.0}, {3: 5.0}], 5)
    return numbers, torch.randn(3, 5), torch.tensor([1, 2, 0])


def assert_usable(numbers: NumberTokens) -> None:
    """The tables are ordinary tensors that give the loss and gradient of a fresh object."""
    fresh, logits, labels = small_case()
    results = []
    for used in (numbers, fresh):
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy_ntl(leaf, labels, used, backend="reference")
        results.append((loss, *torch.autograd.grad(loss, leaf)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert_ordinary(numbers.table("cpu"), torch.device("cpu"))


def assert_ordinary(table: NumberTable, device: torch.device) -> None:
    for part in tensors_of(table):
        assert type(part) is torch.Tensor and part.device == device and not part.is_inference()
        assert not torch._C._functorch.is_functorch_wrapped_tensor(part)


def test_compiled_and_traced() -> None:
    numbers, logits, labels = small_case()
    others = NumberTokens.from_mapping({0: 3.0, 2: 7.0}, 5)

    def loss(logits: torch.Tensor, numbers: NumberTokens) -> torch.Tensor:
        return cross_entropy_ntl(logits, labels, numbers, backend="eager")

    torch.compiler.reset()  # a function that once broke the graph is not compiled again, which would test nothing
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for used in (numbers, others, numbers):
        left, right = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        result, expected = compiled(left, used), loss(right, used)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result, left), torch.autograd.grad(expected, right))
    traced = make_fx(lambda x, y: cross_entropy_ntl(x, y, numbers, backend="eager"), tracing_mode="fake")
    torch.testing.assert_close(traced(logits, labels)(logits, labels), loss(logits, numbers))
    assert_usable(numbers)


def test_compiled_on_a_device_without_tables() -> None:
    numbers, *_ = small_case()
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x + numbers.table("meta").lookup, backend="aot_eager", fullgraph=True)
    assert compiled(torch.zeros(5, device="meta")).device.type == "meta"
    assert set(numbers._tables) == {torch.device("cpu")}


def in_a_transform(make: Callable[[], Any]) -> Any:
    """What ``make`` returns while ``torch.func.grad`` is at work."""
    made = []
    torch.func.grad(lambda x: (made.append(make()), x)[1])(torch.zeros(()))
    return made[0]


def in_context(context: Any) -> Callable[[Callable[[], Any]], Any]:
    """What ``make`` returns under a context manager."""

    def run(make: Callable[[], Any]) -> Any:
        with context:
            return make()

    return run


SURROUNDINGS = {
    "default device": in_context(torch.device("meta")),
    "fake tensors": in_context(FakeTensorMode()),
    "inference mode": in_context(torch.inference_mode()),
    "function transform": in_a_transform,
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS.values(), ids=SURROUNDINGS)
def test_made_or_used_in_odd_surroundings(surroundings: Callable[[Callable[[], Any]], Any]) -> None:
    plain, *_ = small_case()
    made = surroundings(lambda: small_case()[0])
    assert made == plain
    assert_usable(made)
    surroundings(lambda: plain.table("meta"))
    assert_ordinary(plain.table("meta"), torch.device("meta"))
    surroundings(lambda: cross_entropy_ntl(torch.randn(3, 5), torch.tensor([1, 2, 0]), plain, backend="eager"))
    assert_usable(plain)
    assert surroundings(lambda: plain.ids).device.type == "cpu"


def test_descriptions() -> None:
    tokenizer = FakeTokenizer("a", "7", "07", "3.5", "12", "Ġ4")
    numbers = NumberTokens.from_tokenizer(tokenizer, digits_only=False)
    assert repr(numbers) == "NumberTokens(4 tokens in 3 groups, vocab_size=6)"
    notes = [
        "  1 of 5 number tokens would get no NTL: use space_prefixed=True. No token is worth 0, 1, 2, 3, 5, 6, 8, 9.",
    ]
    assert numbers.describe(most=1).splitlines() == [
        repr(numbers),
        *notes,
        "  group 1: 1 tokens worth 7",
        "  7  id 1 '7'",
        "  group 2: 1 tokens worth 3.5",
        "  3.5  id 3 '3.5'",
        "  group 3: 2 tokens worth 0.7 to 1.2, in units of 10",
        "  0.7  id 2 '07'",
        "  ... and 1 more values",
    ]
    numbers = NumberTokens.from_tokenizer(tokenizer, digits_only=False, group_by=None)
    assert repr(numbers) == "NumberTokens(4 tokens worth 3.5 to 12, vocab_size=6)"
    assert numbers.describe(most=2).splitlines() == [
        repr(numbers),
        *notes,
        "  3.5  id 3 '3.5'",
        "  7  id 1 '7', id 2 '07'",
        "  ... and 1 more values",
        "  values with several tokens: 1",
    ]
    assert NumberTokens.from_mapping({**dict.fromkeys(range(6), 0.5), 6: -2.0}, 7).describe().splitlines() == [
        "NumberTokens(7 tokens worth -2 to 0.5, vocab_size=7)",
        "  -2  id 6",
        "  0.5  id 0, id 1, id 2, id 3 and 2 more",
        "  values with several tokens: 1",
    ]


def as_transformers(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("wrap", [lambda tokenizer: tokenizer, as_transformers])
@pytest.mark.parametrize(
    ("make", "before", "texts", "pieces"),
    [
        (byte_level, "(", ["1", "7"], ["1", "7"]),
        (byte_level, "add ", [" 1", " 7", " 42"], ["Ġ1", "Ġ7", "Ġ42"]),
        (byte_level_with_digit_groups, "add ", [" 1", " 7", "42"], ["1", "7", "42"]),  # the space is its own token
        (sentencepiece_digits, "add ", ["1", " 7"], ["1", "7"]),  # as is the mark before the text
        (word_level, "add ", ["5.25", "7", "1234"], ["5.25", "7", "1234"]),
        (word_piece, "add ", ["1", "7", "128"], ["1", "7", "128"]),
    ],
)
def test_texts_are_the_tokens_that_occur(
    make: Any, before: str, texts: list[str], pieces: list[str], wrap: Any
) -> None:
    tokenizer = make()
    original, ids = snapshot(tokenizer), [tokenizer.token_to_id(piece) for piece in pieces]
    assert [tokenizer.encode(before + text.strip()).ids[-1] for text in texts] == ids
    numbers = NumberTokens.from_texts(texts, wrap(tokenizer))
    assert mapping_of(numbers) == {token: float(text) for token, text in zip(ids, texts, strict=True)}
    assert numbers.vocab_size == tokenizer.get_vocab_size() and len(numbers.groups) == 1
    ratings = {text: -place / 2 for place, text in enumerate(texts)}
    rated = NumberTokens.from_texts(ratings, wrap(tokenizer), vocab_size=600)
    assert mapping_of(rated) == dict(zip(ids, ratings.values(), strict=True)) and rated.vocab_size == 600
    assert repr(pieces[0]) in rated.describe() and snapshot(tokenizer) == original


@pytest.mark.parametrize("wrap", [lambda tokenizer: tokenizer, as_transformers])
def test_the_unknown_token_is_a_text_if_it_is_written_out(wrap: Any) -> None:
    """As for GPT-2, whose unknown token ends documents."""
    numbers = NumberTokens.from_texts({"7": 7.0, "<unk>": -1.0}, wrap(word_level()))
    assert mapping_of(numbers) == {word_level().token_to_id("7"): 7.0, word_level().token_to_id("<unk>"): -1.0}


def test_texts_without_the_padding_of_an_earlier_call() -> None:
    """Which a tokenizer of transformers leaves behind, and also of one that is written in Python."""
    tokenizer = as_transformers(byte_level())
    tokenizer.pad_token = "!"
    tokenizer(["7"], padding="max_length", max_length=4)
    expected = {tokenizer.get_vocab()[digit]: float(digit) for digit in DIGITS}
    assert mapping_of(NumberTokens.from_texts(DIGITS, tokenizer)) == expected
    assert mapping_of(NumberTokens.from_texts(DIGITS, ByT5Tokenizer())) == {51 + digit: digit for digit in range(10)}
    tokenizer(["7 8"], truncation=True, max_length=1)
    with pytest.raises(ValueError, match="the tokenizer truncates '10'; switch off its truncation"):
        NumberTokens.from_texts(["7", "10"], tokenizer)


def test_texts_of_tokenizers_without_an_unknown_token() -> None:
    unigram = Tokenizer(models.Unigram([(digit, -1.0) for digit in DIGITS]))
    assert mapping_of(NumberTokens.from_texts(DIGITS, unigram)) == {digit: float(digit) for digit in range(10)}
    words = Tokenizer(models.WordLevel({digit: int(digit) for digit in DIGITS}))
    for tokenizer in (unigram, words):
        with pytest.raises(ValueError, match="the tokenizer cannot encode 'x': "):
            NumberTokens.from_texts({"7": 7.0, "x": 1.0}, tokenizer)


@pytest.mark.parametrize("wrap", [lambda tokenizer: tokenizer, as_transformers])
@pytest.mark.parametrize(
    ("make", "texts", "error", "said"),
    [
        (byte_level, ["128"], ValueError, "each text must be one token of the tokenizer; '128' is '1' + '2' + '8'"),
        (panicking, ["7", "8"], ValueError, "the tokenizer cannot encode '7': "),
        (sentencepiece_digits, ["7", "10"], ValueError, "'10' is '1' + '0'"),
        (byte_level, {"7": 7, "": 1}, ValueError, "'' is nothing"),
        (word_level, ["7", "6666"], ValueError, "'6666' is '<unk>'"),
        (sentencepiece_unigram, {"7": 7, "日": 1}, ValueError, "'日' is '<unk>'"),
        (byte_level_with_digit_groups, ["7", " 7"], ValueError, "'7' and ' 7' are the same token '7' (id 22)"),
        (word_level, ["7", "7"], ValueError, "'7' and '7' are the same token"),
        (word_level, ["+"], ValueError, "need a mapping from text to value; could not convert string to float: '+'"),
        (word_level, ["7"], ValueError, "at least two distinct float32 values; all are 7"),
        (word_level, {"7": math.nan, "42": 1.0}, ValueError, "must be finite in float32; got nan"),
        (word_level, "742", TypeError, "texts must be a sequence of str, or map str to values; got '742'"),
        (word_level, range(7), TypeError, "texts must be str; got 0"),
        (word_level, {7: 7.0}, TypeError, "texts must be str; got 7"),
    ],
)
def test_texts_that_are_no_number_tokens(make: Any, texts: Any, error: Any, said: str, wrap: Any) -> None:
    with pytest.raises(error) as raised:
        NumberTokens.from_texts(texts, wrap(make()))
    assert said in str(raised.value)
    with pytest.raises(TypeError, match="tokenizer must have a get_vocab method; got str"):
        NumberTokens.from_texts(["1", "2"], "gpt2")


@pytest.mark.parametrize("most", [-2, -100, 2.0, "3", None, True])
def test_a_description_lists_no_negative_number_of_values(most: Any) -> None:
    numbers = NumberTokens.from_mapping({i: i for i in range(15)}, 20)
    with pytest.raises(ValueError, match=f"at least 0, or -1 for all; got {re.escape(repr(most))}"):
        numbers.describe(most)
    assert numbers.describe(-1) == numbers.describe(15) == numbers.describe(10**30)
    assert numbers.describe(np.int64(3)).splitlines()[3:] == ["  2  id 2", "  ... and 12 more values"]


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (byte_level_with_digit_groups, {}, "14 of 24 number tokens would get no NTL: use digits_only=False."),
        (sentencepiece_digits, {}, "All 10 number tokens count."),
        (word_piece, {"digits_only": False}, "All 24 number tokens count, apart from those named below."),
    ],
)
def test_descriptions_begin_with_a_verdict(build: Any, options: dict[str, bool], said: str) -> None:
    assert found(build(), **options)[0].describe().splitlines()[1].strip() == said


def test_descriptions_show_how_numbers_are_split_and_what_has_cross_entropy_alone() -> None:
    """As the tokenizer itself splits them, with the group of each number token if there are several."""
    for build, options in product(
        (byte_level, byte_level_with_digit_groups, sentencepiece_digits, sentencepiece_unigram, word_piece),
        ({}, {"digits_only": False}, {"digits_only": False, "space_prefixed": True, "group_by": None}),
    ):
        tokenizer = build()
        numbers, lines = found(tokenizer, **options)[0], []
        for text in ("1245", "3.14"):
            pieces, split = [], tokenizer.encode(text, add_special_tokens=False)
            for token, piece in zip(split.ids, split.tokens, strict=True):
                starts = [group.start for group in numbers.groups]
                place = numbers.ids.tolist().index(token) if token in numbers.ids else None
                mark = "" if len(starts) == 1 else f" (group {bisect_right(starts, place or 0)})"
                mark = " (CE alone)" if place is None else mark
                pieces.append(f"{piece!r}{mark}")
            lines.append(f"  {text} is {' + '.join(pieces)}")
        assert [line for line in numbers.describe().splitlines() if " is '" in line] == lines


def test_the_command_describes_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the default options and, if others count more, with those; of a file as of a folder."""
    tokenizer = byte_level_with_digit_groups()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert describe_command([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for options, call in (({}, "tokenizer"), ({"digits_only": False}, "tokenizer, digits_only=False")):
        described = found(tokenizer, **options)[0].describe(3)
        assert f"NumberTokens.from_tokenizer({call})\n{described}\n" in printed
    assert describe_command([str(tmp_path / "tokenizer.json")]) == 0
    assert capsys.readouterr().out == printed


NO_NUMBERS = Tokenizer(models.WordLevel({"a": 0, "7": 1}, unk_token="a")).to_str()


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("{", "EOF while"), ("{}", "Model missing"), (NO_NUMBERS, "two distinct values")],
)
def test_the_command_names_files_that_hold_no_tokenizer(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        describe_command([str(tmp_path)])
    assert said in (told := capsys.readouterr().err) and str(tmp_path) in told and len(told.splitlines()) <= 3
