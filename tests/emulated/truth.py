"""What a loss and its gradient are: written here with ``F.cross_entropy`` and autograd in float64, apart from the
project's reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig

from ..problems import TRUE_LOSSES, Problem


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


def transformed(logits: Tensor, options: Options) -> Tensor:
    """x of logits z."""
    if options.softcap is None:
        return options.logit_scale * logits
    return options.softcap * torch.tanh(options.logit_scale / options.softcap * logits)


def independent_losses(rows: Rows, problem: Problem) -> tuple[Tensor, Tensor]:
    """(CE, NTL) [N] of each row, unweighed, differentiable; NTL is 0 off the number rows."""
    options, config = rows.options, rows.options.config
    x = transformed(rows.logits, options)
    ce = F.cross_entropy(x, rows.labels, reduction="none", label_smoothing=options.label_smoothing)
    if options.z_loss:
        ce = ce + options.z_loss * x.logsumexp(-1) ** 2
    ids, values = problem.numbers.ids.long(), problem.numbers.values.double()
    target = rows.target.nan_to_num(nan=float(values[0]))[:, None]
    q, distance = x[:, ids].softmax(-1), (values - target).abs()
    spread = float(values.max() - values.min())
    error = (q * (values - target)).sum(-1)
    if config.kind == "wasserstein" and config.label_sigma > 0:
        goal = (-0.5 * (distance / config.label_sigma) ** 2).softmax(-1)
        ntl = (((q - goal).cumsum(-1)[:, :-1]).abs() * values.diff()).sum(-1)
        worst = spread
    elif config.kind == "wasserstein":
        cost, worst = distance, spread
        if config.squash_factor is not None:
            pairs = (values[:, None] - values).abs()
            nearest = float(pairs[pairs > 0].min())
            slope = (config.squash_factor - 1) / (spread - nearest) if spread > nearest else 0.0
            cost = torch.where(distance > 0, 1 + slope * (distance - nearest), 0.0)
            worst = 1 + slope * (spread - nearest)
        ntl = (q * cost).sum(-1)
    else:
        ntl, worst = (
            TRUE_LOSSES[config.kind](e, torch.zeros_like(e), config.huber_delta)
            for e in (error, error.new_tensor(spread))
        )
    if config.reweigh:
        mass = x.softmax(-1)[:, ids].sum(-1)
        ntl = mass * ntl + 1.01 * worst * (1 - mass)
    return ce, torch.where(rows.is_number, ntl, 0.0)


def independent_gradient(problem: Problem) -> Tensor:
    """The gradient of the weighed and reduced losses, by autograd."""
    rows = rows_of(problem)
    rows = replace(rows, logits=rows.logits.requires_grad_())
    ce, ntl = independent_losses(rows, problem)
    (tokens, _), divisor = rows.denominators(), rows.ntl_denominator()
    weight = rows.weights * rows.upstream
    ce_share = torch.where(tokens == 0, 0.0, weight / tokens)
    ntl_share = torch.where(divisor == 0, 0.0, weight * float(rows.options.config.weight) / divisor)
    total = (torch.where(weight != 0, ce_share * ce, 0.0) + torch.where(rows.is_number, ntl_share * ntl, 0.0)).sum()
    (gradient,) = torch.autograd.grad(total, rows.logits)
    return gradient.view(problem.logits.shape)
