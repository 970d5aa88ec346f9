"""The verdict on a tokenizer: what the library finds in it, and a sentence for everything else."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers

from ntl_kernels import NumberTokens
from ntl_kernels.demo.tokenizer import MOST_LETTERS, MOST_VALUES, answer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:ntl_kernels.demo", "ignore::UserWarning:tests.demo")

DIGITS = [*"0123456789", "▁", "▁the", "apples"]
MERGED = [*map(str, range(1000)), *(f"Ġ{number}" for number in range(100)), "Ġthe", "apples"]
GAPS = ["0", "1", "2", "5", "30", "the", "apples"]
SPACED = ["the", *(f"▁{digit}" for digit in range(10))]


def made_of(texts: list[str]) -> Any:
    """A tokenizer with these tokens, by id."""
    vocab = {text: token for token, text in enumerate(texts)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="the"))


def asked(tokenizer: Any, digits_only: bool = True, space_prefixed: bool = False, vocab_size: str = "") -> Any:
    flags = {"digits_only": str(digits_only).lower(), "space_prefixed": str(space_prefixed).lower()}
    return answer({"name": "my.json", "vocab_size": vocab_size, **flags}, tokenizer.to_str().encode())


@pytest.mark.parametrize("options", [(True, False), (False, False), (True, True), (False, True)])
@pytest.mark.parametrize("texts", [DIGITS, MERGED, GAPS])
def test_the_numbers_are_those_the_library_finds(texts: list[str], options: tuple[bool, bool]) -> None:
    found = asked(made_of(texts), *options)
    expected = NumberTokens.from_tokenizer(made_of(texts), None, *options)
    assert found["numbers"] == expected.describe(MOST_VALUES)
    assert found["source"] == f"my.json: {len(texts):,} tokens" and "problem" not in found


def test_added_tokens_and_padding_count() -> None:
    tokenizer = made_of(DIGITS)
    tokenizer.add_tokens(["10", "<pad>"])
    numbers = asked(tokenizer, digits_only=False, vocab_size="64")["numbers"]
    assert "vocab_size=64" in numbers and f"id {len(DIGITS)} '10'" in numbers


LOST = "number tokens would get no NTL: use"
BOTH = "digits_only=False, space_prefixed=True"
MISSING = " No token is worth 3, 4, 6, 7, 8, 9."


@pytest.mark.parametrize(
    ("texts", "options", "good", "words", "call"),
    [
        (DIGITS, (True, False), True, "All 10 number tokens count.", ")"),
        (MERGED, (True, False), False, f"1,090 of 1,100 {LOST} {BOTH}.", f", {BOTH})"),
        (MERGED, (False, False), False, f"100 of 1,100 {LOST} space_prefixed=True.", f", {BOTH})"),
        (MERGED, (False, True), True, "All 1,100 number tokens count.", f", {BOTH})"),
        (GAPS, (True, False), False, f"1 of 5 {LOST} digits_only=False.{MISSING}", ", digits_only=False)"),
        (SPACED, (False, False), False, f"10 of 10 {LOST} space_prefixed=True.", f", {BOTH})"),  # the least change
    ],
)
def test_the_verdict(texts: list[str], options: tuple[bool, bool], good: bool, words: str, call: str) -> None:
    found = asked(made_of(texts), *options)
    expected = (good, words, f"NumberTokens.from_tokenizer(tokenizer{call}")
    assert (found["good"], found["words"], found["call"]) == expected


def test_the_verdict_is_on_tokens_that_can_be_labels() -> None:
    """Where digits were added as tokens, no other number token can."""
    tokenizer = made_of(["the", "x", "42", "43"])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([*"0123456789"])
    found = asked(tokenizer)
    assert (found["good"], found["words"]) == (True, "All 10 number tokens count.")


def test_what_the_library_refuses_is_said_in_its_words() -> None:
    """With the options that would help, but never with a verdict that all is well."""
    assert asked(made_of(["the", "apples"])) == {
        "source": "my.json: 2 tokens",
        "problem": "no digit token among the tokenizer's 2 tokens. A whole token must be ASCII digits with at most one "
        "decimal point, and none is.",
    }
    spaced = asked(made_of(SPACED))
    assert "no digit token among" in spaced["problem"] and "use space_prefixed=True" in spaced["words"]
    beyond = asked(made_of(DIGITS), vocab_size="3")
    assert "beyond vocab_size=3" in beyond["problem"] and set(beyond) == {"source", "problem"}


@pytest.mark.parametrize("size", ["abc", "0", "-1", "1.5", "²", "1_0", "10000001", "9" * 5000])
def test_an_invalid_vocab_size_is_refused(size: str) -> None:
    problem = asked(made_of(DIGITS), vocab_size=size)["problem"]
    assert problem == f"vocab_size must be a whole number from 1 to 10,000,000; got {size[:40]!r}."


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not JSON: Expecting value in line 1, column 1"),
        (b"\x80\x04\x95", "is not a text file: byte 0 is not valid UTF-8"),
        (b"[1, 2]", "it holds a list"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"0": 0, "1": 1}', "looks like a vocab.json"),
        (b'{"tokenizer_class": "T"}', "looks like a tokenizer_config.json"),
        (b'{"model": "BPE"}', "it has no “model”"),
        (b'{"model": {"type": "Nothing"}}', "the tokenizers package cannot read it"),
    ],
)
def test_a_wrong_file_gets_a_sentence(content: bytes, sentence: str) -> None:
    found = answer({"name": "given.json"}, content)
    assert list(found) == ["problem"]
    assert found["problem"].startswith("given.json is ") and sentence in found["problem"]
    assert len(found["problem"]) <= MOST_LETTERS + len("...")
