"""Steps of a loss: functions of tensors and a problem that a trace sees as operators.

A plain call runs the function; any other call runs it as an operator (namespace ``ntl_kernels``). Steps have no
derivatives of their own; the `autograd.Function` that calls them does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .backends import load_backend
from .backends.layout import loss_dtype
from .checks import checked_rows
from .problem import NUM_PARTS, Problem, as_tensor, losses_of_rows
from .spec import LossSpec
from .tokens import NumberTable
from .tracing import is_plain


class Operands(NamedTuple):
    """A problem as arguments of an operator: the tensors, then the constants.

    It has no ``wants_parts``: the results of an operator have fixed shapes, so it always computes the parts.
    """

    labels: Tensor
    token_weights: Tensor | None
    number_weights: Tensor | None
    num_tokens: Tensor | None
    num_numbers: Tensor | None
    ntl_weight: Tensor
    ids: Tensor
    values: Tensor
    lookup: Tensor
    groups: Tensor | None
    width: int
    spec: list[float]
    reduction: str
    backend: str

    @property
    def problem(self) -> Problem:
        return Problem(
            labels=self.labels,
            token_weights=self.token_weights,
            number_weights=self.number_weights,
            num_tokens=self.num_tokens,
            num_numbers=self.num_numbers,
            ntl_weight=self.ntl_weight,
            table=NumberTable(self.ids, self.values, self.lookup, self.groups, self.width),
            spec=LossSpec.unpack(self.spec),
            reduction=self.reduction,
            backend=self.backend,
        )

    @property
    def tensors(self) -> list[Tensor | None]:
        return [part for part in self if part is None or isinstance(part, Tensor)]

    @property
    def constants(self) -> tuple[Any, ...]:
        return self[len(self.tensors) :]


PROBLEM = (
    "Tensor labels, Tensor? token_weights, Tensor? number_weights, Tensor? num_tokens, Tensor? num_numbers, "
    "Tensor ntl_weight, Tensor ids, Tensor values, Tensor lookup, Tensor? groups, int width, "
    "float[] spec, str reduction, str backend"
)
"""The schema of :class:`Operands`."""


def operands_of(problem: Problem, dtype: torch.dtype) -> Operands:
    """A problem as operands; ``dtype`` is the dtype of its numbers."""
    numbers = (problem.num_tokens, problem.num_numbers, problem.ntl_weight)
    operands: list[Any] = [problem.labels, problem.token_weights, problem.number_weights]
    operands += [as_tensor(number, dtype, problem.labels.device) for number in numbers]
    operands += [*problem.table, problem.spec.pack(), problem.reduction, problem.backend]
    return Operands(*operands)


def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], Operands]:
    """(the first arguments, the operands) of an operator."""
    count = len(arguments) - len(Operands._fields)
    return arguments[:count], Operands(*arguments[count:])


def define(name: str, given: str, results: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of tensors (``given``) and operands, which changes none of them, as an operator."""
    schema = f"({given}, {PROBLEM}) -> {results}"
    return torch.library.custom_op(f"ntl_kernels::{name}", mutates_args=(), schema=schema)


def step(given: str, results: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of the tensors and numbers ``given`` and, last, a problem callable in a trace.

    Args:
        given, results: their part of the operator's schema.
        fake: the results without values, from the same arguments, with the problem as operands.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*arguments: Any) -> Any:
            first, operands = split(arguments)
            problem = operands.problem
            checked_rows(problem, problem.vocab_size, loss_dtype(first[0].dtype))  # plain calls have done it
            return function(*first, problem)

        def compute_fake(*arguments: Any) -> Any:
            first, operands = split(arguments)
            return fake(*first, operands)

        operator = define(function.__name__, given, results)(compute)
        operator.register_fake(compute_fake)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            *first, problem = arguments
            if is_plain(*(part for part in first if isinstance(part, Tensor))):
                return function(*arguments)
            return operator(*first, *operands_of(problem, loss_dtype(first[0].dtype)))

        return call

    return decorate


@step("Tensor like", "Tensor", lambda like, _: like.new_empty(2, dtype=loss_dtype(like.dtype)))
def count(like: Tensor, problem: Problem) -> Tensor:
    """[2]: the sums of w over the rows that count and over the number rows, in the losses' dtype of ``like``."""
    return load_backend(problem.backend).count(problem, problem.vocab_size, loss_dtype(like.dtype))


@step("Tensor fields", "(Tensor, Tensor)", lambda fields, _: (fields.new_empty(()), fields.new_empty(NUM_PARTS)))
def reduced(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """(loss 0-d, parts) of the fields of all rows."""
    loss, parts = load_backend(problem.backend).finish(fields, problem.changed(wants_parts=True))
    assert parts is not None
    return loss, parts


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """(loss, parts) of the fields of all rows; the loss of reduction "none" is [N]."""
    loss, parts = reduced(fields, problem)
    return (losses_of_rows(fields, problem) if problem.reduction == "none" else loss), parts
