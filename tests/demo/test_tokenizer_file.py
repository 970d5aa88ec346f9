"""The demo's second page: what the library finds in a tokenizer, and a sentence for everything else."""

from __future__ import annotations

import json
import warnings
from html import escape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntl_kernels import NumberTokens
from ntl_kernels.demo import tokenizer_file, views
from ntl_kernels.demo.tokenizer_file import (
    EXAMPLES,
    Choice,
    FileError,
    examine,
    example,
    histogram,
    judge,
    read_tokenizer,
)

OPTIONS = [(digits_only, space_prefixed) for digits_only in (True, False) for space_prefixed in (True, False)]


@pytest.mark.parametrize(("digits_only", "space_prefixed"), OPTIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_is_read_as_the_library_reads_the_tokenizer(
    name: str, digits_only: bool, space_prefixed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    example(name).save(str(path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = NumberTokens.from_tokenizer(example(name), None, digits_only, space_prefixed)
    finding = examine(read_tokenizer(path), None, digits_only, space_prefixed)
    assert finding.numbers == expected
    assert [(token, value) for token, _, value in finding.tokens] == list(
        zip(expected.ids.tolist(), expected.values.tolist(), strict=True)
    )
    assert all(EXAMPLES[name][token] == text for token, text, _ in finding.tokens)
    assert finding.warnings == [str(warning.message) for warning in caught]
    assert bool(finding.warnings) == (name in ("some digits missing", "merged digits") and digits_only)
    judged = judge(example(name), Choice(digits_only, space_prefixed))
    assert judged is not None
    page = views.found_numbers("Example", finding, judged)
    assert all(escape(warning) in page for warning in finding.warnings)


def tokenizer_content() -> dict[str, Any]:
    return json.loads(example("digits").to_str())


def test_added_tokens_and_padding_count(tmp_path: Path) -> None:
    tokenizer = example("digits")
    tokenizer.add_tokens(["10", "<pad>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    finding = examine(read_tokenizer(path), 64, False, False)
    assert finding.tokens[-1] == (len(EXAMPLES["digits"]), "10", 10.0)
    assert finding.numbers.vocab_size == 64


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not JSON: Expecting value in line 1, column 1"),
        (b'{"model": ', "is not JSON"),
        (b"\x80\x04\x95", "is not a text file: byte 0 is no UTF-8"),
        (b"[1, 2]", "it holds a list"),
        (b"3", "it holds a int"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"0": 0, "1": 1}', "looks like a vocab.json"),
        (b'{"tokenizer_class": "T"}', "looks like a tokenizer_config.json"),
        (b"{}", "it has no “model”"),
        (b'{"model": "BPE"}', "it has no “model”"),
        (b'{"model": {"type": "Nothing"}}', "the tokenizers package cannot read it"),
        (json.dumps({**tokenizer_content(), "added_tokens": 3}).encode(), "the tokenizers package cannot read it"),
    ],
)
def test_a_wrong_file_gets_a_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"^given\.json is .*\.$") as raised:
        read_tokenizer(path)
    assert sentence in str(raised.value)


def test_a_tokenizer_without_numbers_gets_the_librarys_sentence() -> None:
    content = tokenizer_content()
    content["model"]["vocab"] = {"the": 0, "apples": 1}
    from tokenizers import Tokenizer

    with pytest.raises(ValueError, match="no digit token among the tokenizer's 2 tokens"):
        examine(Tokenizer.from_str(json.dumps(content)), None, True, False)


BOTH = "NumberTokens.from_tokenizer(tokenizer, digits_only=False, space_prefixed=True)"
SQUASHED = " Values go up to 999: squash their distances, or NTL outweighs cross-entropy."
MISSING = " No token is worth 3, 4, 6, 7, 8, 9."


@pytest.mark.parametrize(
    ("name", "options", "good", "words", "call"),
    [
        ("digits", (True, False), True, "All 10 number tokens get NTL.", "NumberTokens.from_tokenizer(tokenizer)"),
        (
            "merged digits",
            (True, False),
            False,
            "1,090 of 1,100 number tokens would get no NTL: use digits_only=False, space_prefixed=True." + SQUASHED,
            f"{BOTH}\nNTLConfig(squash_factor=9)",
        ),
        (
            "merged digits",
            (False, False),
            False,
            "100 of 1,100 number tokens would get no NTL: use space_prefixed=True." + SQUASHED,
            f"{BOTH}\nNTLConfig(squash_factor=9)",
        ),
        (
            "merged digits",
            (False, True),
            True,
            "All 1,100 number tokens get NTL." + SQUASHED,
            f"{BOTH}\nNTLConfig(squash_factor=9)",
        ),
        (
            "some digits missing",
            (True, False),
            False,
            "1 of 5 number tokens would get no NTL: use digits_only=False." + MISSING,
            "NumberTokens.from_tokenizer(tokenizer, digits_only=False)",
        ),
    ],
)
def test_the_verdict(name: str, options: tuple[bool, bool], good: bool, words: str, call: str) -> None:
    assert judge(example(name), Choice(*options)) == (good, words, call)


def test_the_verdict_changes_no_more_options_than_it_must() -> None:
    from tokenizers import Tokenizer, models

    spaced = Tokenizer(models.WordLevel({"the": 0, **{f"▁{n}": 1 + n for n in range(10)}}, unk_token="the"))
    found = judge(spaced, Choice(digits_only=False))
    assert found is not None and found.words == "10 of 10 number tokens would get no NTL: use space_prefixed=True."
    assert judge(Tokenizer(models.WordLevel({"the": 0}, unk_token="the")), Choice()) is None


def test_the_verdict_is_on_tokens_that_can_be_labels() -> None:
    """Where digits were added as tokens, no other number token can."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "x": 1, "42": 2, "43": 3}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([*"0123456789"])
    good = (True, "All 10 number tokens get NTL.", "NumberTokens.from_tokenizer(tokenizer)")
    assert judge(tokenizer, Choice()) == good and examine(tokenizer, None, True, False).warnings == []


def test_warnings_of_others_are_left_alone() -> None:
    before = list(warnings.filters)
    examine(example("some digits missing"), None, True, False)
    assert warnings.filters == before


values = st.lists(st.integers(0, 999).map(float) | st.floats(0, 1e9, width=32), min_size=2, max_size=200)


@given(values)
def test_every_value_is_in_one_bar(numbers: list[float]) -> None:
    bars = histogram(numbers)
    assert sum(count for _, count in bars) == len(numbers)
    assert len({name for name, _ in bars}) == len(bars) <= tokenizer_file.MOST_BARS


def test_bars_start_at_round_numbers() -> None:
    assert histogram([float(n) for n in range(1000)])[:2] == [("0–", 50), ("50–", 50)]
    assert histogram([0.0, 0.0, 3.14]) == [("0", 2), ("3.14", 1)]
    spread = histogram([float(n) for n in range(30)] + [100_000.0])
    assert spread == [("0–", 10), ("10^1–", 20), ("10^2–", 0), ("10^3–", 0), ("10^4–", 0), ("10^5–", 1)]
