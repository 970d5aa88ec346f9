"""``number_weights`` of the usual cases: classes of equal weight, and NTL only on the number that counts.

All weights are floats in the labels' shape, so they can be multiplied. They belong to the labels as a batch has them,
before a causal model shifts both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .digit_runs import number_runs
from .tokens import NumberTokens
from .tokens.number_tokens import labels_of
from .tokens.values import check_integers, is_integral

__all__ = ["BalancedWeights", "WithNumberWeights", "last_number", "number_after"]


class BalancedWeights:
    """Weights with which every number token of the training labels has the same total weight, however rare it is.

    Of n labels that are numbers, with K different tokens, those with a token that occurs c times weigh n / (K c); their
    sum is n. All other labels weigh 1, also numbers that do not occur in training. Rare tokens get large weights, which
    ``clamp(max=10)`` limits.

    Args:
        batches: labels [B...], or mappings with "labels", such as the batches of a data loader.
        numbers: the number tokens.

    Raises:
        TypeError, ValueError: labels are not a tensor of integers, a batch has none, or no label is a number.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> balanced = BalancedWeights([torch.tensor([1, 1, 1, 2])], numbers)
        >>> balanced(torch.tensor([1, 2, 0, 7]))
        tensor([0.6667, 2.0000, 1.0000, 1.0000])

    Source: ``class_weight="balanced"`` of scikit-learn.
    """

    def __init__(self, batches: Iterable[Tensor | Mapping[str, Any]], numbers: NumberTokens) -> None:
        counts = torch.zeros(numbers.vocab_size, dtype=torch.int64, device="cpu")
        for batch in batches:
            labels = labels_of(batch)
            counts += labels[numbers.is_number(labels)].cpu().bincount(minlength=numbers.vocab_size)
        if not counts.any():
            raise ValueError(f"no label is a number token of {numbers!r}")
        occurs = counts > 0
        self.numbers = numbers
        self.weights = torch.where(occurs, counts.sum() / (occurs.sum() * counts), 1.0)

    def __call__(self, labels: Tensor) -> Tensor:
        """The weights of labels [B...], float32 [B...], on their device."""
        is_number = self.numbers.is_number(labels)
        weights = self.weights.to(labels.device)
        return torch.where(is_number, weights[torch.where(is_number, labels, 0).long()], 1.0)


def last_number(labels: Tensor, numbers: NumberTokens, joints: Sequence[int] = ()) -> Tensor:
    """1 on the tokens of the last number of every row, 0 elsewhere: only the final answer counts.

    A number is a run of adjacent number tokens, so " 7 8" counts as one number if the tokens include their spaces.

    Args:
        labels: [..., T] token ids, of one example per row; ignored labels (-100) are no numbers.
        numbers: the number tokens.
        joints: ids of tokens that continue a number between two number tokens, such as that of ".".

    Returns:
        float32 [..., T], on the labels' device.

    Raises:
        TypeError, ValueError: the labels are not a tensor of integers, or have no rows; joints are not token ids.

    Examples:
        >>> numbers = NumberTokens.from_mapping({digit: digit for digit in range(10)}, vocab_size=16)
        >>> last_number(torch.tensor([[2, 11, 4, 2, 11]]), numbers)
        tensor([[0., 0., 1., 1., 0.]])
    """
    is_number = are_numbers(labels, numbers)
    number = runs_of(labels, is_number, joints)
    return (is_number & (number == number[..., -1:])).float()


def number_after(
    labels: Tensor, marker: Sequence[int], numbers: NumberTokens, ids: Tensor | None = None, joints: Sequence[int] = ()
) -> Tensor:
    """1 on the tokens of the first number after the last occurrence of a marker in every row, 0 elsewhere.

    Rows without one get zeros. A tokenizer may split a marker differently within a text: take its ids from an example
    (see the page Number tokens), and check that some weights are not 0.

    Args:
        labels, numbers, joints: as for :func:`last_number`.
        marker: the token ids of the marker, such as those of "Score:" without a space at its end.
        ids: [..., T], default labels: where to find a marker that may be in an ignored prompt, such as ``input_ids``.

    Raises:
        TypeError, ValueError: as for :func:`last_number`; the marker is empty or has no token ids, or the ids are not
            integers of the labels' shape.

    Examples:
        >>> numbers = NumberTokens.from_mapping({digit: digit for digit in range(10)}, vocab_size=16)
        >>> number_after(torch.tensor([[3, 12, 11, 13, 7, 13, 10]]), [12, 11], numbers)
        tensor([[0., 0., 0., 0., 1., 0., 0.]])
    """
    marker = token_ids("marker", marker)
    if not marker:
        raise ValueError("marker must be the ids of at least one token")
    is_number = are_numbers(labels, numbers)
    ids = labels if ids is None else ids
    check_integers("ids", ids)
    if ids.shape != labels.shape:
        raise ValueError(f"ids must have the labels' shape {tuple(labels.shape)}; got {tuple(ids.shape)}")
    ends = torch.ones_like(ids, dtype=torch.bool)
    for place, token in enumerate(reversed(marker)):
        ends &= F.pad(ids == token, (place, 0))[..., : ids.shape[-1]]
    found = ends.cumsum(-1)
    is_number &= (found > 0) & (found == found[..., -1:]) & ~ends
    return (is_number & (runs_of(labels, is_number, joints) == 1)).float()


@dataclass(frozen=True)
class WithNumberWeights:
    """A data collator that adds the column ``number_weights`` to the batches of another one.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> collator = transformers.DefaultDataCollator()
        >>> collator = WithNumberWeights(collator, lambda batch: last_number(batch["labels"], numbers))
        >>> collator([{"labels": [2, 5, 1]}])["number_weights"]
        tensor([[0., 0., 1.]])
    """

    collator: Callable[[Any], Any]
    weigh: Callable[[Any], Tensor]
    """Returns the weights of a batch, in the shape of its labels."""

    def __call__(self, rows: Any) -> Any:
        batch = self.collator(rows)
        batch["number_weights"] = self.weigh(batch)
        return batch


def runs_of(labels: Tensor, is_number: Tensor, joints: Sequence[int]) -> Tensor:
    """int64 [..., T]: the index of each position's number in its row, see :class:`~ntl_kernels.digit_runs.Runs`."""
    is_joint = torch.zeros_like(is_number)
    for token in token_ids("joints", joints):
        is_joint |= labels == token
    return number_runs(is_number, is_joint).number


def are_numbers(labels: Tensor, numbers: NumberTokens) -> Tensor:
    """bool [..., T]: which labels are number tokens; raise for a single label."""
    is_number = numbers.is_number(labels)
    if labels.ndim == 0:
        raise ValueError("labels must be [..., T]; got a single label")
    return is_number


def token_ids(name: str, given: Sequence[int]) -> list[int]:
    """The ids of some tokens; raise unless they are integers."""
    try:
        ids = torch.tensor(list(given), device="cpu")
        is_right = ids.ndim == 1 and (is_integral(ids) or not len(ids))
    except (TypeError, ValueError, RuntimeError):  # such as texts, a single id, or one beyond int64
        is_right = False
    if not is_right:
        raise TypeError(f"{name} must be a sequence of token ids; got {given!r}")
    return [int(token) for token in ids]
