"""`number_statistics`: the expected value and the number mass of every row of logits, differentiable;
`number_answers`: the numbers that a distribution may be read as."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .backends import resolve_backend
from .backends.layout import loss_dtype
from .checks import check_numbers, check_tensor
from .config import check_number
from .tokens import NumberTokens
from .tracing import is_plain

BLOCK_BYTES = 2**23
"""Bytes of the rows that are reduced at a time, in the statistics' dtype."""


class NumberStatistics(NamedTuple):
    """Statistics of each row, float32 (float64 for float64 logits)."""

    expected_value: Tensor
    """[B...]: yhat = sum_k q_k v_k, with q the softmax over the number tokens alone; NaN if all of them are -inf. With
    G groups of number tokens [B..., G]: one per group."""
    mass: Tensor
    """[B...] or [B..., G], likewise: m, the probability on number tokens; 0 only if all of them are -inf."""


def number_statistics(logits: Tensor, numbers: NumberTokens, backend: str = "auto") -> NumberStatistics:
    """The expected value and the number mass of every row of logits. No labels are needed.

    It consists of torch operations on every device, so all derivatives and transforms of torch work.

    Args:
        logits: [B..., V] float32, bfloat16 or float16 (float64 not on Triton), any strides.
        numbers: the number tokens of a vocabulary of V tokens.
        backend: "auto", "triton", "eager" or "reference", as for the losses; all return the same result.

    Raises:
        TypeError, ValueError: the logits have an unsupported dtype or another vocabulary size.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> number_statistics(torch.zeros(8), numbers)
        NumberStatistics(expected_value=tensor(1.), mass=tensor(0.3750))

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083, equation of NTL-MSE.
    """
    check_tensor("logits", logits)
    resolve_backend(backend, logits)
    return NumberStatistics(*of_groups(logits, numbers, statistics_of))


class NumberAnswers(NamedTuple):
    """What the distribution of each row over the number tokens says, in their values; float32 (float64 for float64
    logits), NaN if all number tokens are -inf or one is NaN or inf. All but the quantiles are [B...], or [B..., G] with
    G groups."""

    most_likely: Tensor
    """The value of the number token with the largest logit: greedy decoding among the number tokens."""
    median: Tensor
    """The smallest value that at least half of the probability does not exceed: the smallest expected |error|."""
    mean: Tensor
    """The expected value: the smallest expected squared error."""
    quantiles: Tensor
    """[B..., L] or [B..., G, L]: the same as the median for each of L levels. With levels 0.05 and 0.95, 90 % of the
    probability lies between the two."""


@torch.no_grad()
def number_answers(logits: Tensor, numbers: NumberTokens, levels: Sequence[float] = (0.05, 0.95)) -> NumberAnswers:
    """Answers of one token, such as bins, boxes' coordinates or scores, from one pass: no sampling is needed.

    Args:
        logits: [B..., V] before the answer's token: float32, bfloat16, float16 or float64, any strides.
        numbers: number tokens of a vocabulary of V tokens. For other units than those of the training loss (the
            centres of logarithmic bins, in dollars), pass another mapping of the same ids.
        levels: probabilities between 0 and 1.

    Raises:
        TypeError, ValueError: the logits have an unsupported dtype or another vocabulary size, or a level is not
            between 0 and 1.

    Examples:
        >>> numbers = NumberTokens.from_mapping({0: 0.0, 1: 1.0, 2: 2.0}, vocab_size=8)
        >>> number_answers(torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]), numbers).median
        tensor(2.)
    """
    levels = tuple(levels)
    for level in levels:
        check_number("a level", level, minimum=0.0, maximum=1.0)

    def answers_of(rows: Tensor, ids: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        x = rows.index_select(-1, ids).to(loss_dtype(rows.dtype))
        values, at = values.to(x.dtype), x.new_tensor([0.5, *levels], dtype=torch.float64)
        share = x.double().softmax(-1)
        mean = (share * values).sum(-1).to(x.dtype)
        total = share.cumsum(-1)  # of which the last may round to another number than 1
        place = torch.searchsorted(total / total[:, -1:], at.expand(len(x), -1).contiguous()).clamp_max_(len(ids) - 1)
        has_number = ~total[:, -1:].isnan()
        found = torch.where(has_number, values[torch.cat([x.argmax(-1, keepdim=True), place], -1)], torch.nan)
        return found[:, 0], found[:, 1], mean, found[:, 2:]

    return NumberAnswers(*of_groups(logits, numbers, answers_of))


def of_groups(
    logits: Tensor, numbers: NumberTokens, reduce: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
) -> list[Tensor]:
    """What ``reduce`` finds, [n] or [n, L], from rows [n, V] of logits and the ids and values of a group: [B...] (with
    several groups [B..., G]), and L as the last dimension."""
    check_tensor("logits", logits)
    check_numbers(numbers, logits.shape)
    table = numbers.table(logits.device)
    rows = logits.reshape(-1, logits.shape[-1])
    per_block = max(1, BLOCK_BYTES // (loss_dtype(rows.dtype).itemsize * numbers.vocab_size))
    blocks = rows.split(per_block) if is_plain(logits) and rows.numel() else (rows,)
    spans = [slice(group.start, group.start + group.size) for group in numbers.groups]
    found = [[reduce(block, table.ids[span], table.values[span]) for span in spans] for block in blocks]
    shape = logits.shape[:-1] if len(spans) == 1 else (*logits.shape[:-1], len(spans))
    of_blocks = [[torch.stack(part, 1) for part in zip(*groups, strict=True)] for groups in found]
    wholes = [torch.cat(part) for part in zip(*of_blocks, strict=True)]
    return [whole.view((*shape, *whole.shape[2:])) for whole in wholes]


def statistics_of(rows: Tensor, ids: Tensor, values: Tensor) -> NumberStatistics:
    """The statistics [n] of rows [n, V] over number tokens [k]."""
    x = rows.to(loss_dtype(rows.dtype))  # once, so that the gradient is rounded once
    number_x, values = x.index_select(-1, ids), values.to(x.dtype)
    has_number = (number_x != -torch.inf).any(-1)
    q = torch.where(has_number.unsqueeze(-1), number_x, 0.0).softmax(-1)  # no gradient without a distribution
    centre = (q * values).sum(-1, keepdim=True).detach()  # relative to which large values do not lose precision
    expected_value = centre.squeeze(-1) + (q * (values - centre)).sum(-1)
    peak = x.detach().amax(-1, keepdim=True)  # relative to which large logits do not
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    total = (x - peak).exp().sum(-1).clamp_min(1.0)
    mass = (number_x - peak).exp().sum(-1) / total
    # A probability of exactly 0 is left to rows without a number logit.
    mass = torch.where(has_number, mass.clamp_min(torch.finfo(x.dtype).tiny), 0.0)
    return NumberStatistics(torch.where(has_number, expected_value, torch.nan), mass)
