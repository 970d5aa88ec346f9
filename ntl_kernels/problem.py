"""`Problem`: what one call computes with besides the logits, checked and handed on whole; and what comes of it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .spec import LossSpec
from .tokens import NumberTable


class Problem(NamedTuple):
    """The rows' labels and weights, the numbers, and the loss. All tensors are on the logits' device.

    A row counts if its label is not ignored and its weight is not 0.
    """

    labels: Tensor
    """int64 or int32 [...] as the caller gave them; to the backends [N], contiguous, in the order of the rows."""
    token_weights: Tensor | None
    """Of the labels' shape; to the backends in the losses' dtype, contiguous. None means 1."""
    num_tokens: Tensor | float | None
    """Divides ``sum(w CE)`` of reduction "mean"; a 0-d tensor of any dtype, or None for ``sum(w)``."""
    num_numbers: Tensor | float | None
    """Divides ``sum(w NTL)`` unless that is a mean over tokens; None means ``sum(w)`` over the number rows."""
    ntl_weight: Tensor | float
    """lambda; a 0-d tensor of any floating dtype is read where it is needed, so that a schedule recompiles nothing."""
    table: NumberTable
    spec: LossSpec
    reduction: str
    """"mean", "sum" or "none"."""
    backend: str
    """"eager" or "triton"."""
    wants_parts: bool = True
    """Whether more than the loss is shown. If not, a backend may leave out the parts, and 0 in fields (all but those of
    CE, NTL and the normaliser) that nothing else needs."""

    @property
    def vocab_size(self) -> int:
        """V, also where logits are one rank's columns."""
        return self.table.lookup.shape[0]

    @property
    def lacks_denominators(self) -> bool:
        """Whether rows must be counted before the gradient of any of them is known."""
        return self.reduction == "mean" and (self.num_tokens is None or self.ntl_denominator is None)

    def divisor_of_ntl(self, tokens: Any, numbers: Any) -> Any:
        """What divides ``sum(w NTL)`` of reduction "mean", of the denominators of both terms."""
        return tokens if self.spec.mean_over == "tokens" else numbers

    @property
    def ntl_denominator(self) -> Tensor | float | None:
        """The same of those that are known."""
        return self.divisor_of_ntl(self.num_tokens, self.num_numbers)

    def changed(self, **fields: Any) -> Problem:
        """With other values of some fields. (`_replace`, which torch 2.8 and 2.9 cannot trace.)"""
        given = dict(zip(Problem._fields, self))  # noqa: B905 - any `strict` is True to torch 2.8's compiler
        return Problem(**{**given, **fields})

    def of_rows(self, dtype: torch.dtype) -> Problem:
        """With labels and weights row by row, and the weights in the losses' dtype."""
        labels, weights = self.labels, self.token_weights
        if weights is None and labels.ndim == 1 and labels.is_contiguous():  # as they are
            return self
        return self.changed(
            labels=labels.reshape(-1).contiguous(),
            token_weights=None if weights is None else weights.reshape(-1).to(dtype).contiguous(),
        )

    def counted(self, tokens: Tensor | float, numbers: Tensor | float) -> Problem:
        """With the denominators that were not given replaced by the sums of w over all and over number rows."""
        return self.changed(
            num_tokens=tokens if self.num_tokens is None else self.num_tokens,
            num_numbers=numbers if self.num_numbers is None else self.num_numbers,
        )


def is_kept(labels: Tensor, ignore_index: int) -> Tensor:
    """bool, of the labels' shape: which of them are not ``ignore_index``, any int64.

    Compared in int64: torch would wrap one that int32 does not hold to another label.
    """
    return labels.long() != ignore_index


def as_number(given: Any) -> Any:
    """A scalar argument as a problem holds it."""
    if given is None or type(given) is float or torch.compiler.is_compiling():  # where a number may be symbolic
        return given
    return given.detach() if isinstance(given, Tensor) else float(given)


def as_tensor(scalar: Tensor | float | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """A scalar as a 0-d tensor, which a graph takes as an operand: a new value is no new graph."""
    return scalar if scalar is None or isinstance(scalar, Tensor) else filled(scalar, dtype, device)


def in_dtype(scalar: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A scalar as a 0-d tensor of a dtype."""
    return scalar.to(dtype) if isinstance(scalar, Tensor) else filled(scalar, dtype, device)


def filled(number: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a 0-d tensor that is filled on its device: a copy from the host would wait for the device, and no
    CUDA graph may contain one."""
    if torch.compiler.is_compiling():  # `full` would make a graph for each float
        return torch.zeros((), dtype=dtype, device=device) + number
    return torch.full((), number, dtype=dtype, device=device)


NUM_PARTS = 7
"""The fields of NTLOutput after the loss."""


class Field(IntEnum):
    """The rows of the ``fields`` tensor [len(Field), N]: what one row leaves behind. 0 for rows that do not count."""

    CROSS_ENTROPY = 0  # w * CE
    IS_CORRECT = 1  # 1 if the label's logit is the largest
    WEIGHT = 2  # w
    PEAK = 3  # the largest transformed logit x, and
    TOTAL = 4  # the sum of exp(x - PEAK): the row's normaliser, in units of the backend
    NTL = 5  # w * NTL, without lambda; 0 off the number rows, as are all that follow
    ABSOLUTE_ERROR = 6  # |yhat - v_y|
    MASS = 7  # probability on number tokens
    NUMBER_WEIGHT = 8  # w


class Forward(NamedTuple):
    """What a forward pass returns, float32 (float64 for float64 logits)."""

    loss: Tensor
    """0-d, or [N] for reduction "none"."""
    parts: Tensor
    """[7]: the fields of NTLOutput after the loss, reduced; [0] from a backend that leaves out what is not wanted."""
    fields: Tensor
    """[len(Field), N]"""


def normalisers_of(fields: Tensor) -> Tensor:
    """[2, N]: PEAK and TOTAL, all that the gradient of a row needs besides its logits.

    Two numbers, since the logsumexp in one would keep no more digits than the logits' size leaves it.
    """
    return fields[Field.PEAK : Field.TOTAL + 1]


def losses_of_rows(fields: Tensor, problem: Problem) -> Tensor:
    """w (CE + lambda NTL) [N], the loss of reduction "none"."""
    return fields[Field.CROSS_ENTROPY] + problem.ntl_weight * fields[Field.NTL]
