"""Steps of a loss: functions of tensors and a problem that a trace sees as operators.

A plain call runs the function; any other call runs it as an operator (namespace ``ntl_kernels``). Steps have no
derivatives of their own; the `autograd.Function` that calls them does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, get_type_hints

import torch
from torch import Tensor

from .backends import load_backend
from .backends.layout import loss_dtype
from .checks import checked_rows
from .problem import NUM_PARTS, Problem, RowInputs, as_tensor, losses_of_rows
from .spec import LossSpec, spec_of_fields
from .tokens import NumberTable
from .tracing import is_plain

SCHEMA_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    str: "str",
    bool: "bool",
    int: "SymInt",
    float: "float",
    float | None: "float?",
    Any: "float",
}


def schema_of(fields: type) -> str:
    """The fields of a class as arguments of an operator."""
    return ", ".join(f"{SCHEMA_TYPES[kind]} {name}" for name, kind in get_type_hints(fields).items())


SPEC_FIELDS = [field.name for field in dataclasses.fields(LossSpec)]
PROBLEM = (
    f"{schema_of(RowInputs)}, Tensor? num_tokens, Tensor? num_numbers, Tensor ntl_weight, {schema_of(NumberTable)}, "
    f"{schema_of(LossSpec)}, str backend"
)
"""A problem as arguments of an operator: the tensors, then the constants.

It has no ``wants_parts``: the results of an operator have fixed shapes, so it always computes the parts.
"""
NUM_OPERANDS = PROBLEM.count(",") + 1
NUM_TENSORS = PROBLEM.count("Tensor")


def operands_of(problem: Problem, dtype: torch.dtype) -> tuple[Any, ...]:
    """A problem as arguments of an operator; ``dtype`` is the dtype of its numbers."""
    numbers = problem.num_tokens, problem.num_numbers, problem.ntl_weight
    device = problem.rows.labels.device
    tensors = [None if number is None else as_tensor(number, dtype, device) for number in numbers]
    of_spec = [getattr(problem.spec, name) for name in SPEC_FIELDS]
    return *problem.rows, *tensors, *problem.table, *of_spec, problem.backend


def problem_of(operands: Sequence[Any], spec_of: Callable[..., LossSpec] = spec_of_fields) -> Problem:
    """The inverse, which raises for numbers that a trace could not check."""
    given = iter(operands)
    rows = RowInputs(*islice(given, len(RowInputs._fields)))
    num_tokens, num_numbers, ntl_weight = islice(given, 3)
    table = NumberTable(*islice(given, len(NumberTable._fields)))
    *of_spec, backend = given
    return Problem(rows, num_tokens, num_numbers, ntl_weight, table, spec_of(*of_spec), backend)


def fake_problem_of(operands: Sequence[Any]) -> Problem:
    """The same from tensors without values and perhaps symbolic numbers."""
    return problem_of(operands, LossSpec)


def split(arguments: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """(the first arguments, the operands) of an operator."""
    count = len(arguments) - NUM_OPERANDS
    return arguments[:count], arguments[count:]


def define(name: str, given: str, results: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function of tensors (``given``) and operands, which changes none of them, as an operator."""
    schema = f"({given}, {PROBLEM}) -> {results}"
    return torch.library.custom_op(f"ntl_kernels::{name}", mutates_args=(), schema=schema)


def step(given: str, results: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of the tensors and numbers ``given`` and, last, a problem callable in a trace.

    Args:
        given, results: their part of the operator's schema.
        fake: the results without values, from the same arguments.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*arguments: Any) -> Any:
            first, operands = split(arguments)
            problem = problem_of(operands)
            checked_rows(problem, loss_dtype(first[0].dtype))  # plain calls have done it
            return function(*first, problem)

        def compute_fake(*arguments: Any) -> Any:
            first, operands = split(arguments)
            return fake(*first, fake_problem_of(operands))

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
    return (losses_of_rows(fields, problem) if problem.spec.reduction == "none" else loss), parts
