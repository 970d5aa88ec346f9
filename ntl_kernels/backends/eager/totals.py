"""Sums over all rows: denominators, the loss and its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from ...problem import Field, Problem
from ...reference import divide
from .labels import read_labels, weight_sums
from .scalars import as_scalar, gathered, listed


def count(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
    return gathered([*weight_sums(read_labels(problem, vocab_size, dtype))], dtype, problem.labels.device)


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    sums = listed(fields.sum(-1))
    ce, is_correct, tokens, _, _, ntl, absolute_error, mass, numbers = sums
    num_tokens = tokens if problem.num_tokens is None else as_scalar(problem.num_tokens)
    num_numbers = numbers if problem.num_numbers is None else as_scalar(problem.num_numbers)
    if problem.reduction == "mean":
        ce, ntl = divide(ce, num_tokens), divide(ntl, problem.divisor_of_ntl(num_tokens, num_numbers))
    loss = ce + as_scalar(problem.ntl_weight) * ntl
    if not isinstance(loss, Tensor):
        loss = fields.new_full((), loss)
    if not problem.wants_parts:
        return loss, fields.new_empty(0)
    counts = listed(fields.count_nonzero(-1))
    token_count, number_count = counts[Field.WEIGHT], counts[Field.MASS]
    accuracy = divide(is_correct, token_count)
    error, mass = divide(absolute_error, number_count), divide(mass, number_count)
    return loss, gathered([ce, ntl, num_tokens, num_numbers, accuracy, error, mass], fields.dtype, fields.device)
