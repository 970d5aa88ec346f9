"""`Problem`: the checked arguments of one call besides the logits. `Forward`: the results of a forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from .config import SOFT
from .formulas import divide
from .spec import LossSpec
from .tokens import NumberTable

Rows: TypeAlias = Union[slice, Tensor]  # noqa: UP007 - evaluated, also by Python 3.10
"""Some rows: a slice, or int64 indices."""


class RowInputs(NamedTuple):
    """What every row brings besides its logits: tensors of one shape [B...] as the caller passed them, or [N].

    Whatever hands rows on (operators, chunks, saved tensors, the ranks' hash, DTensors) uses these fields, so that a
    new one needs no change there.
    """

    labels: Tensor
    """int64 or int32; for the backends contiguous."""
    token_weights: Tensor | None = None
    """w; for the backends in the losses' dtype, contiguous. None: 1."""
    number_weights: Tensor | None = None
    """u, likewise."""

    def weights(self) -> dict[str, Tensor]:
        """The weights that were given, by their names. (torch 2.8 can trace neither a property nor a slice of this.)"""
        _, *weights = self
        given = zip(RowInputs._fields[1:], weights)  # noqa: B905 - torch 2.8's compiler takes any `strict` for True
        return {name: weights for name, weights in given if weights is not None}

    def part(self, rows: Rows) -> RowInputs:
        """Some of N rows."""
        return RowInputs(*(None if each is None else each[rows] for each in self))  # type: ignore[arg-type]

    def flat(self, dtype: torch.dtype) -> RowInputs:
        """As [N], with weights in the losses' dtype."""
        labels, *weights = self
        if labels.ndim == 1 and labels.is_contiguous() and all(each is None for each in weights):
            return self
        return RowInputs(
            labels.reshape(-1).contiguous(),
            *(None if each is None else weights_of_rows(each, dtype) for each in weights),
        )


class Problem(NamedTuple):
    """What every row brings, the number tokens and the options of the loss. All tensors are on the logits' device.

    A row *counts* if its label is not ignored and its weight w is not 0. A *number row* is one that counts and whose
    label is a number token, unless its number weight u is 0.
    """

    rows: RowInputs
    num_tokens: Tensor | float | None
    """Denominator of ``sum(w CE)`` for reduction "mean"; a 0-d tensor of any dtype, or None for ``sum(w)``."""
    num_numbers: Tensor | float | None
    """Denominator of ``sum(w u NTL)`` unless NTL is a mean over tokens; None for ``sum(w u)`` over the number rows."""
    ntl_weight: Tensor | float
    """lambda; a 0-d tensor of any floating dtype is read on the device, so a schedule causes no recompilation."""
    table: NumberTable
    spec: LossSpec
    backend: str
    """"eager" or "triton"."""
    wants_parts: bool = True
    """Whether the caller needs more than the loss. If not, a backend may skip the parts, and leave 0 in fields other
    than those of CE, NTL and the normaliser."""

    @property
    def vocab_size(self) -> int:
        """V, even if the logits are only one rank's columns."""
        return self.table.lookup.shape[0]

    @property
    def lacks_denominators(self) -> bool:
        """Whether rows must be counted before any gradient can be computed."""
        return self.spec.reduction == "mean" and (self.num_tokens is None or self.ntl_denominator is None)

    def divisor_of_ntl(self, tokens: Any, numbers: Any) -> Any:
        """The denominator of ``sum(w u NTL)`` for reduction "mean", chosen from those of both terms."""
        return tokens if self.spec.mean_over == "tokens" else numbers

    @property
    def ntl_denominator(self) -> Tensor | float | None:
        """The denominator of NTL, if it was given."""
        return self.divisor_of_ntl(self.num_tokens, self.num_numbers)

    def changed(self, **fields: Any) -> Problem:
        """A copy with some fields replaced. (torch 2.8 and 2.9 cannot trace `_replace`.)"""
        given = dict(zip(Problem._fields, self))  # noqa: B905 - torch 2.8's compiler takes any `strict` for True
        return Problem(**{**given, **fields})

    def counted(self, tokens: Tensor | float, numbers: Tensor | float) -> Problem:
        """A copy with missing denominators filled in: the sum of w over all rows, and of w u over the number rows."""
        return self.changed(
            num_tokens=tokens if self.num_tokens is None else self.num_tokens,
            num_numbers=numbers if self.num_numbers is None else self.num_numbers,
        )

    def counted_by(self, parts: Tensor | None) -> Problem:
        """The same with the denominators among the parts of a forward pass, if any is missing."""
        if parts is None or not self.lacks_denominators:
            return self
        found = Parts(*parts.unbind())
        return self.counted(found.num_tokens, found.num_numbers)


def weights_of_rows(given: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights of any shape as [N] in the losses' dtype; NaN where that would silently make one 0."""
    given = given.reshape(-1)
    weights = given.to(dtype).contiguous()
    if given.dtype == torch.float64 != dtype:
        weights = weights.masked_fill((weights == 0) & (given != 0), torch.nan)
    return weights


def is_kept(labels: Tensor, ignore_index: int) -> Tensor:
    """bool, in the labels' shape: which labels are not ``ignore_index`` (any int64).

    The comparison is in int64; in int32, torch would wrap a larger ``ignore_index`` to another label.
    """
    return labels.long() != ignore_index


def as_number(given: Any) -> Any:
    """A scalar argument in the form that a problem stores."""
    if given is None or type(given) is float or torch.compiler.is_compiling():  # where a number may be symbolic
        return given
    return given.detach() if isinstance(given, Tensor) else float(given)


def as_tensor(scalar: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A scalar as a 0-d tensor, an operand of a graph: a new value needs no new graph.

    A number gets this dtype. It is filled in on the device: a copy from the host would wait for the device, and a CUDA
    graph cannot contain one.
    """
    if isinstance(scalar, Tensor):
        return scalar
    if torch.compiler.is_compiling():  # `full` would create one graph per value
        return torch.zeros((), dtype=dtype, device=device) + scalar
    return torch.full((), scalar, dtype=dtype, device=device)


class Parts(NamedTuple):
    """The fields of NTLOutput after the loss, reduced: each a 0-d tensor or a number."""

    cross_entropy: Any
    ntl: Any
    num_tokens: Any
    num_numbers: Any
    token_accuracy: Any
    number_mae: Any
    number_mass: Any


class RowResult(NamedTuple):
    """The results of one row, of a block of rows, or (``RowResult(*fields.unbind())``) of all rows.

    Their order is that of the rows of ``fields`` [NUM_FIELDS, N], also in the kernels. All are 0 for rows that do not
    count, and None where they are not computed.
    """

    cross_entropy: Any = None  # w * CE
    is_correct: Any = None  # 1 if the label's logit is the largest
    row_weight: Any = None  # w
    number_row_weight: Any = None  # w * u; 0 outside number rows
    peak: Any = None  # the largest transformed logit x, and
    total: Any = None  # the sum of exp(x - peak); both are the row's normaliser, in the backend's units
    ntl: Any = None  # w * u * NTL without lambda; it and all below are 0 outside number rows, and if all x_k are -inf
    absolute_error: Any = None  # |yhat - v_y|
    mass: Any = None  # probability on number tokens
    number_peak: Any = None  # the number tokens' normaliser, like ``peak`` and ``total``; this and the next two are for
    number_total: Any = None  # gradients that a later pass computes
    mean_dloss_dq: Any = None  # of L by q, without the factor f': L for "wasserstein", yhat - v_y for other kinds


class Statistics(NamedTuple):
    """What one rank knows about a row, from its columns of the transformed logits x, in the units of the backend. Their
    order is that of the rows of ``statistics`` [S, N + 1], whose last column has room for the :class:`Header`."""

    peak: Any  # the largest x
    total: Any  # the sum of exp(x - peak)
    label_logit: Any  # x of the label
    number_peak: Any  # the largest x of the number tokens; this and the next three on number rows only
    number_total: Any  # the sum of e_k = exp(x_k - number_peak) over the number tokens
    offset: Any  # the sum of e_k (v_k - v_y); differences, so that large values do not lose precision
    cost: Any  # the sum of e_k c_k; with soft labels, of t_k (log t_k + number_peak - x_k)
    logit_sum: Any = None  # the sum of x - peak, or of x without a peak; sent with label smoothing or soft labels only
    target: Any = None  # the sum of t_k over the rank's columns; sent with soft labels only


def sent_statistics(kind: str, label_smoothing: Any) -> tuple[str, ...]:
    """The names of the statistics that a rank sends."""
    if kind == SOFT:
        return Statistics._fields
    return Statistics._fields[: -1 if label_smoothing else -2]


class Header(NamedTuple):
    """The last column of ``statistics``, padded with 0: the rank's columns of the vocabulary and its arguments."""

    first: Any  # the first of its columns; this and the next three are integers below 2**24, exact in float32
    width: Any  # the number of its columns
    options_hash: Any  # of V, the number tokens, the options, the reduction and the backend
    rows_hash: Any  # of labels and weights; for rows that do not count, only of that fact
    num_tokens: Any  # this and the next: the given denominator, -1 for None
    num_numbers: Any
    ntl_weight: Any  # lambda


def reduced_terms(ce: Any, ntl: Any, tokens: Any, numbers: Any, problem: Problem) -> tuple[Any, Any]:
    """(CE, NTL) from the sums of both over all rows and the denominators of a mean."""
    if problem.spec.reduction == "mean":
        return divide(ce, tokens), divide(ntl, problem.divisor_of_ntl(tokens, numbers))
    return ce, ntl


def parts_of(sums: RowResult, counts: RowResult, tokens: Any, numbers: Any, problem: Problem) -> Parts:
    """The parts from the sums of the results of all rows, the numbers of rows where they are not 0, and the
    denominators of a mean."""
    ce, ntl = reduced_terms(sums.cross_entropy, sums.ntl, tokens, numbers, problem)
    return Parts(
        cross_entropy=ce,
        ntl=ntl,
        num_tokens=tokens,
        num_numbers=numbers,
        token_accuracy=divide(sums.is_correct, counts.row_weight),
        number_mae=divide(sums.absolute_error, counts.mass),
        number_mass=divide(sums.mass, counts.mass),
    )


NUM_PARTS = len(Parts._fields)
NUM_FIELDS = len(RowResult._fields)
AT = RowResult(*range(NUM_FIELDS))
"""The row of each result in ``fields``: to select a few costs less than ``unbind``."""


class Forward(NamedTuple):
    """What a forward pass returns, float32 (float64 for float64 logits)."""

    loss: Tensor  # 0-d, or [N] for reduction "none"
    parts: Tensor | None  # [NUM_PARTS]; None if they are not wanted and the backend skips them
    fields: Tensor  # [NUM_FIELDS, N]


def losses_of_rows(fields: Tensor, problem: Problem) -> Tensor:
    """w (CE + lambda u NTL) [N], the loss of reduction "none"."""
    return label_losses(fields, problem.spec) + problem.ntl_weight * fields[AT.ntl]


def label_losses(fields: Tensor, spec: LossSpec) -> Tensor:
    """[N]: w CE as it is in the loss, in number rows times ``label_share``."""
    ce, share = fields[AT.cross_entropy], spec.label_share
    if share == 1:
        return ce
    of_numbers = share * ce if share else torch.zeros_like(ce)  # 0 even if CE is infinite
    return torch.where(fields[AT.number_row_weight] != 0, of_numbers, ce)
