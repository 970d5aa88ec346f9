"""`number_statistics`: the expected value and the number mass of every row of logits, differentiable."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from . import ops
from .autograd import ExpectedValueAndMass
from .backends import resolve_backend
from .backends.layout import loss_dtype, rows_of
from .checks import check_numbers, check_tensor
from .tokens import NumberTable, NumberTokens
from .tracing import is_plain


class NumberStatistics(NamedTuple):
    """Statistics of each row, float32 (float64 for float64 logits)."""

    expected_value: Tensor
    """[...]: yhat = sum_k q_k v_k, with q the softmax over the number tokens alone."""
    mass: Tensor
    """[...]: m, the probability on number tokens."""


def number_statistics(logits: Tensor, numbers: NumberTokens, backend: str = "auto") -> NumberStatistics:
    """The expected value and the number mass of every row of logits. Needs no labels and is differentiable.

    Args:
        logits: [..., V] float32, bfloat16 or float16 (float64 not on Triton), any strides.
        numbers: the number tokens of a vocabulary of V tokens.
        backend: "auto", "triton", "eager" or "reference".

    Raises:
        TypeError, ValueError: the logits have an unsupported dtype or another vocabulary size.

    Source: Zausinger et al., *Regress, Don't Guess*, ICML 2025, arXiv 2411.02083, equation of NTL-MSE.
    """
    check_tensor("logits", logits)
    check_numbers(numbers, logits.shape[-1])
    backend = resolve_backend(backend, logits)
    table = numbers.table(logits.device)
    if backend == "reference":
        return reference_statistics(logits, table)
    rows = rows_of(logits)
    if is_plain(logits):
        parts = ExpectedValueAndMass.apply(rows, table, backend)
    else:
        parts = ops.call(ops.Statistics, ops.number_statistics, rows, *table, backend)[:2]
    return NumberStatistics(*(part.view(logits.shape[:-1]) for part in parts))


def reference_statistics(logits: Tensor, table: NumberTable) -> NumberStatistics:
    """The same in plain PyTorch, differentiated by autograd."""
    x = logits.to(loss_dtype(logits.dtype))
    ids = table.ids.long()
    q, values = x[..., ids].softmax(-1), table.values.to(x.dtype)
    centre = (q * values).sum(-1, keepdim=True).detach()  # relative to which large values do not lose precision
    expected_value = centre.squeeze(-1) + (q * (values - centre)).sum(-1)
    return NumberStatistics(expected_value, x.softmax(-1)[..., ids].sum(-1))
