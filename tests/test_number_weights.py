"""`number_weights` of the usual cases: against plain loops, scikit-learn, and conversations of a chat template."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from tokenizers import AddedToken
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast

from ntl_kernels import NumberTokens
from ntl_kernels.number_weights import BalancedWeights, WithNumberWeights, last_number, number_after

from .test_tokens import byte_level, byte_level_with_digit_groups, sentencepiece_digits

DIGITS = NumberTokens.from_mapping({digit: digit for digit in range(4)}, vocab_size=8)
POINT, COMMA = 4, 5


def numbers_of(labels: list[int], start: int, joints: tuple[int, ...]) -> list[list[int]]:
    """The places of the digits of each number from a place on."""
    found: list[list[int]] = []
    for place in range(start, len(labels)):
        if not 0 <= labels[place] < 4:
            continue
        gap = labels[found[-1][-1] + 1 : place] if found else [None]
        continues = not gap or (len(gap) == 1 and gap[0] in joints)
        found[-1].append(place) if continues else found.append([place])
    return found


def ones_at(places: list[int], length: int) -> list[float]:
    return [float(place in places) for place in range(length)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("joints", [(), (POINT,), (POINT, COMMA)])
@pytest.mark.parametrize("length", [0, 1, 2, 12, 40])
def test_numbers_are_those_of_a_loop(length: int, joints: tuple[int, ...], dtype: torch.dtype) -> None:
    """For rows of digits, joints, others and ignored labels, and markers that repeat, overlap and contain digits."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(8, (3, 40, length), dtype=dtype, generator=generator)
    labels = torch.where(torch.rand(ids.shape, generator=generator) < 0.2, -100, ids)
    rows = labels.flatten(0, 1).tolist()
    last = [ones_at((numbers_of(row, 0, joints) or [[]])[-1], length) for row in rows]
    found = last_number(labels, DIGITS, joints)
    assert found.dtype == torch.float32 and found.flatten(0, 1).tolist() == last
    for marker in ([6], [6, 7], [6, 6], [7, 2], [POINT], [1, 2, 3, 1, 2]):
        for given in (labels, ids):
            expected = []
            for row, searched in zip(rows, given.flatten(0, 1).tolist(), strict=True):
                ends = [end for end in range(len(marker), length + 1) if searched[end - len(marker) : end] == marker]
                after = numbers_of(row, ends[-1], joints) if ends else []
                expected.append(ones_at(after[0] if after else [], length))
            found = number_after(labels, marker, DIGITS, None if given is labels else given, joints)
            assert found.flatten(0, 1).tolist() == expected, (marker, given is labels)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.5, 0.05, 0.2, 0.0, 0.1, 0.1, 0.05])
    labels = shares.expand(5, -1).multinomial(40, replacement=True, generator=generator)
    labels = torch.where(labels == 6, -100, labels)
    is_number = DIGITS.is_number(labels)
    kinds, flat = np.array([0, 1, 2]), labels[is_number].numpy()
    expected = dict(zip(kinds, compute_class_weight("balanced", classes=kinds, y=flat), strict=True))
    balanced = BalancedWeights(iter([labels[:2], {"labels": labels[2:].int()}]), DIGITS)
    found = pickle.loads(pickle.dumps(balanced))(labels)
    assert found[is_number].tolist() == pytest.approx([expected[label] for label in flat])
    assert found[is_number].sum().item() == pytest.approx(len(flat)) and (found[~is_number] == 1).all()
    assert balanced(torch.tensor([3, 3])).tolist() == [1, 1]  # which does not occur
    totals = [found[labels == kind].sum().item() for kind in kinds]
    assert totals == pytest.approx([len(flat) / 3] * 3)


TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{% else %}{{ message.content }}<|end|>
{% endif %}{% endfor %}"""


def chat_tokenizer(make: Any) -> Any:
    raw = make()
    raw.add_special_tokens([AddedToken(f"<|{name}|>") for name in ("system", "user", "assistant", "end", "pad")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def row_of(tokenizer: Any, question: str, answer: str) -> dict[str, list[int]]:
    """A conversation whose labels are the answer's tokens alone."""
    options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    encoded = tokenizer.apply_chat_template(conversation(question, answer), **options)
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    return {"input_ids": encoded["input_ids"], "labels": [token if own else -100 for token, own in pairs]}


def ids_of(part: str, text: str, tokenizer: Any) -> list[int]:
    """The tokens of a part of a text as it is split there."""
    start = text.rindex(part)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    places = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [token for token, (first, end) in places if first < start + len(part) and end > start]


@pytest.mark.parametrize("make", [byte_level, byte_level_with_digit_groups, sentencepiece_digits])
def test_only_the_score_of_a_conversation_counts(make: Any) -> None:
    """Whether the marker is in the answer or ends the question, which is no label; with other numbers everywhere."""
    tokenizer = chat_tokenizer(make)
    numbers = NumberTokens.from_tokenizer(tokenizer, digits_only=False, space_prefixed=True)
    conversations = [
        ("add 2 to 5, Score: 0 to 9", "the answer is 4, 1 costs 2.\nScore: 7 of 9"),
        ("the answer 10?", "Score: 1, or 2?\nScore: 3"),
        ("is 5 the answer? Score:", "8"),
        ("is 5 the answer?", "the answer is 4"),
    ]
    collator = DataCollatorForSeq2Seq(tokenizer, padding=True)
    example = tokenizer.apply_chat_template(conversation(*conversations[0]), tokenize=False)
    marker = ids_of("Score:", example, tokenizer)

    def weigh(batch: Any) -> torch.Tensor:
        return number_after(batch["labels"], marker, numbers, batch["input_ids"])

    batch = WithNumberWeights(collator, weigh)([row_of(tokenizer, *each) for each in conversations])
    assert batch["number_weights"].shape == batch["labels"].shape

    def chosen(weights: torch.Tensor) -> list[str]:
        return [tokenizer.decode(ids[kept]).strip() for ids, kept in zip(batch["input_ids"], weights == 1, strict=True)]

    assert chosen(batch["number_weights"]) == ["7", "3", "8", ""]
    assert chosen(number_after(batch["labels"], marker, numbers)) == ["7", "3", "", ""]  # the third is in the question
    assert chosen(last_number(batch["labels"], numbers)) == ["9", "3", "8", "4"]


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda ids: last_number(ids.float(), DIGITS), TypeError, "labels must be a tensor of integers"),
        (lambda ids: last_number(ids[0, 0], DIGITS), ValueError, r"labels must be \[..., T\]; got a single label"),
        (lambda ids: number_after(ids, [], DIGITS), ValueError, "marker must be the ids of at least one token"),
        (lambda ids: number_after(ids, [6], DIGITS, ids[:1]), ValueError, r"shape \(2, 3\); got \(1, 3\)"),
        (lambda ids: number_after(ids, [6], DIGITS, ids.tolist()), TypeError, "ids must be a tensor of .*; got list"),
        (lambda ids: number_after(ids, [6], DIGITS, ids.float()), TypeError, "ids must be .*; got torch.float32"),
        (lambda ids: number_after(ids.tolist(), [6], DIGITS), TypeError, "labels must be .*; got list"),
        (lambda x: number_after(x[0, 0], [6], DIGITS), ValueError, r"labels must be \[..., T\]; got a single label"),
        (lambda ids: last_number(ids, DIGITS, [True]), TypeError, r"joints must be .* token ids; got \[True\]"),
        (lambda ids: last_number(ids, DIGITS, "."), TypeError, "joints must be a sequence of token ids; got '.'"),
        (lambda ids: number_after(ids, ["8"], DIGITS), TypeError, r"marker must be .* token ids; got \['8'\]"),
        (lambda ids: number_after(ids, 12, DIGITS), TypeError, "marker must be .* token ids; got 12"),
        (lambda ids: number_after(ids, [6.0], DIGITS), TypeError, r"marker must be .* token ids; got \[6.0\]"),
        (lambda ids: number_after(ids, [2**64], DIGITS), TypeError, "marker must be .* token ids; got .18446744"),
        (lambda ids: BalancedWeights([{"input_ids": ids}], DIGITS), ValueError, "a batch has no labels; got the keys"),
        (lambda ids: BalancedWeights([ids], DIGITS), ValueError, "no label is a number token of NumberTokens"),
        (lambda ids: BalancedWeights([], DIGITS), ValueError, "no label is a number token of NumberTokens"),
    ],
)
def test_wrong_arguments_are_named(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(torch.full((2, 3), 6))
