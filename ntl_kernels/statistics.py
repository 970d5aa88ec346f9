"""`number_statistics`: the expected value and the number mass of every row of logits, differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .backends import resolve_backend
from .backends.layout import loss_dtype
from .checks import check_numbers, check_tensor
from .tokens import NumberTokens
from .tracing import is_plain

BLOCK_BYTES = 2**23
"""Bytes of the rows that are reduced at a time, in the statistics' dtype."""


class NumberStatistics(NamedTuple):
    """Statistics of each row, float32 (float64 for float64 logits)."""

    expected_value: Tensor
    """[...]: yhat = sum_k q_k v_k, with q the softmax over the number tokens alone; NaN if all of them are -inf."""
    mass: Tensor
    """[...]: m, the probability on number tokens."""


def number_statistics(logits: Tensor, numbers: NumberTokens, backend: str = "auto") -> NumberStatistics:
    """The expected value and the number mass of every row of logits. Needs no labels.

    It consists of torch operations on every device, so it has all derivatives and transforms of torch.

    Args:
        logits: [..., V] float32, bfloat16 or float16 (float64 not on Triton), any strides.
        numbers: the number tokens of a vocabulary of V tokens.
        backend: "auto", "triton", "eager" or "reference", as for the losses; all compute the same.

    Raises:
        TypeError, ValueError: the logits have an unsupported dtype or another vocabulary size.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083, equation of NTL-MSE.
    """
    check_tensor("logits", logits)
    check_numbers(numbers, logits.shape[-1])
    resolve_backend(backend, logits)
    table, dtype = numbers.table(logits.device), loss_dtype(logits.dtype)
    number_logits, values = logits.index_select(-1, table.ids).to(dtype), table.values.to(dtype)
    has_number = (number_logits != -torch.inf).any(-1)
    # Rows without a distribution get no gradient.
    q = torch.where(has_number.unsqueeze(-1), number_logits, 0.0).softmax(-1)
    centre = (q * values).sum(-1, keepdim=True).detach()  # relative to which large values do not lose precision
    expected_value = centre.squeeze(-1) + (q * (values - centre)).sum(-1)
    peak, total = normaliser(logits)
    mass = (number_logits - peak.unsqueeze(-1)).exp().sum(-1) / total
    return NumberStatistics(torch.where(has_number, expected_value, torch.nan), mass)


def normaliser(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(the largest of each row of logits [..., V], the sum of powers relative to it), both [...].

    A large logsumexp would have too few digits for differences. Rows of -inf have 0 and 1: they get no gradient.
    """
    rows, dtype = logits.reshape(-1, logits.shape[-1]), loss_dtype(logits.dtype)
    step = max(1, BLOCK_BYTES // (dtype.itemsize * rows.shape[1])) if is_plain(logits) else rows.shape[0]
    peaks, totals = [], []
    for block in rows.split(step) if rows.shape[0] > step else (rows,):
        x = block.to(dtype)
        peak = x.detach().amax(-1)
        peaks.append(peak.masked_fill(peak == -torch.inf, 0.0))
        totals.append((x - peaks[-1].unsqueeze(-1)).exp().sum(-1).clamp_min(1.0))
    return torch.cat(peaks).view(logits.shape[:-1]), torch.cat(totals).view(logits.shape[:-1])
