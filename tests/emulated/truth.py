"""The rows and options of a problem in float64, apart from the project's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ntl_kernels import NTLConfig

from ..problems import Problem


@dataclass(frozen=True)
class Options:
    """The options of a problem, each with its default, in float64."""

    config: NTLConfig
    reduction: str = "mean"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0
    token_weights: Tensor | None = None
    num_tokens: Any = None
    num_numbers: Any = None


@dataclass(frozen=True)
class Rows:
    """The rows of a problem, one after the other."""

    logits: Tensor
    labels: Tensor
    """0 where the row does not count."""
    weights: Tensor
    """0 where the row does not count."""
    target: Tensor
    """The value of a number label, NaN of others."""
    upstream: Tensor
    """[N]: of each row's loss."""
    options: Options

    @property
    def is_number(self) -> Tensor:
        return ~self.target.isnan() & (self.weights != 0)

    def denominators(self) -> tuple[Tensor, Tensor]:
        """Those of the tokens and of the number tokens."""
        options, one = self.options, torch.ones((), dtype=torch.float64)
        if options.reduction != "mean":
            return one, one
        given = options.num_tokens, options.num_numbers
        found = self.weights.sum(), self.weights[self.is_number].sum()
        tokens, numbers = (
            total if number is None else torch.as_tensor(number).double()
            for number, total in zip(given, found, strict=True)
        )
        return tokens, numbers

    def ntl_denominator(self) -> Tensor:
        """What the sum of NTL is divided by."""
        tokens, numbers = self.denominators()
        return tokens if self.options.config.mean_over == "tokens" else numbers


def rows_of(problem: Problem) -> Rows:
    options = Options(**{"config": NTLConfig(), **problem.options})
    logits = problem.logits.detach().double().reshape(-1, problem.logits.shape[-1])
    labels = problem.labels.reshape(-1).long()
    weights = torch.ones(len(labels), dtype=torch.float64)
    if options.token_weights is not None:
        weights = options.token_weights.reshape(-1).double()
    weights = torch.where(labels == options.ignore_index, 0.0, weights)
    labels = torch.where(weights == 0, 0, labels)
    value = torch.full((problem.logits.shape[-1],), torch.nan, dtype=torch.float64)
    value[problem.numbers.ids.long()] = problem.numbers.values.double()
    upstream = problem.upstream.double().expand(problem.labels.shape).reshape(-1)
    return Rows(logits, labels, weights, value[labels], upstream, options)
