"""Error bounds of a correct kernel: its formulas (docs, Mathematics, sections 2 to 7) in the arithmetic of
:mod:`.rounding`, operation by operation.

Every element has its own bound, independent of the batch and of the largest entry, without tuned constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ntl_kernels import NTLConfig
from ntl_kernels.backends import triton
from ntl_kernels.formulas import LEAST_EXPONENT, cost_line
from ntl_kernels.spec import WORST_FACTOR, spec_of
from ntl_kernels.tokens import Group

from ..problems import Problem
from .rounding import APPROXIMATE, UNIT, Rounded, exact, product, rounded

TANH = 7e-7
"""The relative error of the kernels' tanh: 4e-7 of its polynomials, and rsqrt's."""
HARDWARE_TANH = 2.0**-10.987
"""That of the hardware's, as PTX guarantees it; nothing else is known about its value near 0."""
POLYNOMIAL = 3e-6
"""The relative error of powers by a polynomial."""
TRACE = 1.001e-37
"""The lower bound of a probability on numbers."""
TREE = 16
"""Additions from a thread's sum to that of all threads."""
TOTAL_THREADS = 1024
"""The same for the kernels over all rows."""


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
    number_weights: Tensor | None = None
    num_tokens: Any = None
    num_numbers: Any = None


@dataclass(frozen=True)
class Rows:
    """The rows of a problem, in order."""

    logits: Tensor
    labels: Tensor
    """0 where the row does not count."""
    weights: Tensor
    """0 where the row does not count."""
    number_weights: Tensor
    """The weight of NTL, w u."""
    target: Tensor
    """The value of a number label, NaN of others."""
    group: Group
    """The group of a number label, with fields [N, 1]; the first group for others."""
    upstream: Tensor
    """[N]: the upstream gradient of each row's loss."""
    options: Options

    @property
    def is_number(self) -> Tensor:
        return ~self.target.isnan() & (self.number_weights != 0)

    def denominators(self) -> tuple[Tensor, Tensor]:
        """The denominators of the tokens and of the number tokens."""
        options, one = self.options, torch.ones((), dtype=torch.float64)
        if options.reduction != "mean":
            return one, one
        given = options.num_tokens, options.num_numbers
        found = self.weights.sum(), self.number_weights[self.is_number].sum()
        tokens, numbers = (
            total if number is None else torch.as_tensor(number).double()
            for number, total in zip(given, found, strict=True)
        )
        return tokens, numbers

    def ntl_denominator(self) -> Tensor:
        """The denominator of NTL."""
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
    number_weights = weights
    if options.number_weights is not None:
        number_weights = weights * options.number_weights.reshape(-1).double()
    labels = torch.where(weights == 0, 0, labels)
    value = torch.full((problem.logits.shape[-1],), torch.nan, dtype=torch.float64)
    value[problem.numbers.ids.long()] = problem.numbers.values.double()
    upstream = problem.upstream.double().expand(problem.labels.shape).reshape(-1)
    every = torch.tensor([group for group in problem.numbers.groups for _ in range(group.size)])  # as float32 has it
    group = Group(*every[problem.numbers.lookup[labels].clamp_min(0), :, None].double().unbind(1))
    return Rows(logits, labels, weights, number_weights, value[labels], group, upstream, options)


@dataclass(frozen=True)
class Softmax:
    """The softmax of rows or of their number columns."""

    peak: Rounded
    """[N, 1]: the largest u."""
    powers: Rounded
    """[N, C]: exp(x - the largest x)."""
    total: Rounded
    """[N, 1]: their sum."""

    @property
    def p(self) -> Rounded:
        return self.powers / self.total


@dataclass(frozen=True)
class Number:
    """The Number Token Loss of rows whose label is a number; arbitrary for others."""

    loss: Rounded
    """[N, 1]: before reweighing."""
    slope: Rounded
    effects: Rounded
    """[N, K]"""
    q: Rounded
    mass: Rounded


class Bounds:
    """The bounds of all rows of a problem that count."""

    def __init__(self, problem: Problem, ranks: int = 1) -> None:
        self.problem, self.rows, self.ranks = problem, rows_of(problem), ranks
        self.options, self.config = self.rows.options, self.rows.options.config
        count, columns = self.rows.logits.shape
        self.ids = problem.numbers.ids.long()
        tile, _ = triton.tile_of(problem.logits.detach().reshape(1, count, columns), None) if count else (None, None)
        self.additions = columns / (tile.threads if tile else 1) + TREE + ranks
        group, places = self.rows.group, torch.arange(len(self.ids))
        self.is_own = (places >= group.start) & (places < group.start + group.size)
        self.is_grouped = len(problem.numbers.groups) > 1
        self.number_additions = max(group.size for group in problem.numbers.groups) / 32 + TREE + ranks
        self.u, self.outer = self.transformed()
        self.row = self.softmax(self.u, self.additions)
        if self.is_fast:
            self.row = replace(self.row, total=self.row.total.with_error(POLYNOMIAL * self.row.total.value))
        self.log_total = self.row.total.log2() * rounded(math.log(2))
        self.lse = self.row.peak * self.outer + self.log_total
        self.number = self.number_terms()

    def transformed(self) -> tuple[Rounded, Rounded]:
        """(u, outer) with x = outer * u."""
        z, options = self.rows.logits, self.options
        if options.softcap is None:
            return exact(z), rounded(options.logit_scale)
        inner = z * (options.logit_scale / options.softcap)
        u = torch.tanh(inner)
        steepness = product(1 - u * u, inner.abs()).nan_to_num(posinf=0.0)
        tanh = HARDWARE_TANH if self.is_fast else TANH
        return Rounded(u, tanh * u.abs() + 2 * UNIT * steepness), rounded(options.softcap)

    @property
    def is_fast(self) -> bool:
        """Whether a softcap uses the hardware's tanh, and powers a polynomial."""
        is_narrow = self.problem.logits.element_size() == 2
        return self.options.softcap is not None and is_narrow and self.options.softcap <= triton.HIGHEST_FAST_SOFTCAP

    def softmax(self, u: Rounded, additions: float) -> Softmax:
        peak = Rounded(*(part.gather(-1, u.value.argmax(-1, keepdim=True)) for part in (u.value, u.error)))
        shift = torch.where(peak.value.isinf(), 0.0, peak.value)
        distance = (u - Rounded(shift, peak.error)) * (self.outer * rounded(math.log2(math.e)))
        powers = distance.exp2()
        return Softmax(peak, powers, powers.sum(additions))

    def label_column(self, columns: Rounded) -> Rounded:
        """[N, 1]: the label's column."""
        at = self.rows.labels[:, None]
        return Rounded(columns.value.gather(-1, at), columns.error.gather(-1, at))

    def cross_entropy(self) -> Rounded:
        """[N, 1]"""
        options = self.options
        loss = (self.row.peak - self.label_column(self.u)) * self.outer + self.log_total
        if options.label_smoothing:
            distance = (self.row.peak - self.u).sum(self.additions) / exact(self.u.value.shape[-1])
            smooth = distance * self.outer + self.log_total
            loss = loss * rounded(1 - options.label_smoothing) + smooth * rounded(options.label_smoothing)
        return loss + self.lse * self.lse * rounded(options.z_loss) if options.z_loss else loss

    def number_terms(self) -> Number:
        config, values = self.config, self.problem.numbers.values.double()
        target = self.rows.target.nan_to_num(nan=float(values[0]))[:, None]
        u = self.u[:, self.ids].where(self.is_own, exact(-torch.inf))
        numbers = self.softmax(u, self.number_additions)
        q, offsets = numbers.p, rounded(values - target)
        gap = (numbers.peak - self.row.peak) * (self.outer * rounded(math.log2(math.e)))
        mass = numbers.total * gap.exp2() / self.row.total
        mass = mass.with_error(TRACE)  # added, so that 0 is reserved for no probability at all
        slope = exact(torch.ones_like(target))
        if config.kind == "wasserstein" and config.label_sigma > 0:
            loss, effects = self.cumulative(q, offsets, values)
        elif config.kind == "soft_labels":
            loss, effects = self.soft(u, offsets)
        elif config.kind == "wasserstein":
            offset, line = self.cost_line()
            cost = offsets.abs() * line + offset
            effects = cost.where(offsets.value != 0, exact(torch.zeros_like(offsets.value)))
            loss = (q * effects).sum(self.number_additions)
        else:
            effects = offsets
            error = (q * offsets).sum(self.number_additions)
            slope, loss = self.value_terms(error)
        return Number(loss, slope, effects, q, mass)

    def soft(self, u: Rounded, offsets: Rounded) -> tuple[Rounded, Rounded]:
        """(L, the target)"""
        config = self.config
        if config.label_temperature:
            exponents = -(offsets.abs() / rounded(config.label_temperature))
        else:
            steps = offsets / rounded(config.label_sigma)
            exponents = steps * steps * exact(-0.5)
        powers = (exponents * rounded(math.log2(math.e))).exp2()
        powers = powers.where(self.is_own & (exponents.value >= LEAST_EXPONENT), exact(0.0))
        total = powers.sum(self.number_additions)
        target, has_target = powers / total, powers.value > 0
        logs = exponents - total.log2() * rounded(math.log(2)) + (self.row.peak - u) * self.outer
        terms = (target * logs).where(has_target, exact(0.0))
        return terms.sum(self.number_additions) + self.log_total, target

    def cumulative(self, q: Rounded, offsets: Rounded, values: Tensor) -> tuple[Rounded, Rounded]:
        """(L, effects) with ``label_sigma``."""
        steps = offsets / rounded(self.config.label_sigma)
        powers = (steps * steps * rounded(-0.5 * math.log2(math.e))).exp2().where(self.is_own, exact(0.0))
        difference = (q - powers / powers.sum(self.number_additions)).running_sum(self.number_additions)
        has_next = self.is_own & torch.nn.functional.pad(self.is_own, (0, 1))[:, 1:]
        gaps = rounded(torch.cat([values.diff(), values.new_zeros(1)])).where(has_next, exact(0.0))
        effects = (difference.sign() * gaps).running_sum_from_the_end(self.number_additions)
        return (difference.abs() * gaps).sum(self.number_additions), effects

    def value_terms(self, error: Rounded) -> tuple[Rounded, Rounded]:
        """(f', f) of the expected-value losses."""
        size, delta = error.abs(), rounded(self.config.huber_delta)
        if self.config.kind == "mse":
            return error * exact(2.0), error * error
        if self.config.kind == "mae":
            return error.sign(), size
        near, far = size * size * exact(0.5), (size - delta * exact(0.5)) * delta
        slope = error.clamp(-self.config.huber_delta, self.config.huber_delta)
        return slope, near.where(size.value < self.config.huber_delta, far)

    def cost_line(self) -> tuple[Rounded, Rounded]:
        """(offset, slope) of the cost of a distance."""
        factor, nearest, furthest = self.config.squash_factor, *map(exact, self.rows.group[-2:])
        if factor is None or not self.is_grouped:
            offset, slope = map(rounded, cost_line(factor, *self.problem.numbers.groups[0][-2:]))
            return offset, slope
        slope = rounded(factor - 1) / (furthest - nearest)
        slope = slope.where(furthest.value > nearest.value, exact(0.0))
        return exact(1.0) - slope * nearest, slope

    @property
    def worst(self) -> Rounded:
        """1.01 * L_max"""
        if not self.is_grouped:
            return rounded(spec_of(self.config, self.problem.numbers).worst_loss)
        furthest = exact(self.rows.group.furthest)
        if self.config.kind == "wasserstein":
            offset, slope = self.cost_line()
            largest = (offset + slope * furthest).where(furthest.value > 0, exact(0.0))
        else:
            _, largest = self.value_terms(furthest)
        return rounded(WORST_FACTOR) * largest

    def number_loss(self) -> Rounded:
        """[N, 1]"""
        number = self.number
        if not self.config.reweigh:
            return number.loss
        return self.worst + number.mass * (number.loss - self.worst)

    def shares(self) -> tuple[Rounded, Rounded]:
        """(a, b) [N, 1]: the weights of CE and NTL of a row, times the upstream gradient."""
        (tokens, _), divisor = self.rows.denominators(), self.rows.ntl_denominator()
        terms = (self.rows.weights, tokens), (self.rows.number_weights * float(self.config.weight), divisor)
        found = []
        for weight, denominator in terms:
            share = torch.where(denominator == 0, 0.0, (weight * self.rows.upstream)[:, None] / denominator)
            found.append(Rounded(share, (2 * APPROXIMATE + self.total_error) * share.abs()))
        return found[0], found[1]

    @property
    def total_error(self) -> float:
        """The relative error of a sum of weights over all rows."""
        return (len(self.rows.labels) / TOTAL_THREADS + TREE) * UNIT

    def gradient(self) -> Rounded:
        """[N, V], before it is rounded to the logits' dtype; 0 in rows that do not count."""
        options, number, p = self.options, self.number, self.row.p
        a, b = self.shares()
        scale = rounded(options.logit_scale)
        a, b = (a * rounded(self.config.label_share)).where(self.rows.is_number[:, None], a) * scale, b * scale
        slope = a + a * self.lse * rounded(2 * options.z_loss) if options.z_loss else a
        pull = -a * rounded(options.label_smoothing) / exact(p.value.shape[-1])
        own = -a * rounded(1 - options.label_smoothing)
        is_number = self.rows.is_number[:, None]
        nothing = exact(torch.zeros_like(a.value))
        excess, number_slope = nothing, b * number.slope
        if self.config.reweigh:
            excess = (b * number.mass * (self.worst - number.loss)).where(is_number, nothing)
            number_slope = number_slope * number.mass
        if self.config.kind == "soft_labels":
            excess, number_pull = b.where(is_number, nothing), -b * number.effects
        else:
            mean_effect = (number.q * number.effects).sum(self.number_additions)
            number_pull = number.q * (number_slope * (number.effects - mean_effect) - excess)
        slope = slope + excess
        pulls = Rounded(*(part.expand(p.value.shape).clone() for part in (pull.value, pull.error)))
        columns = torch.zeros_like(p.value, dtype=torch.bool)
        columns.scatter_(1, self.rows.labels[:, None], True)
        pulls = (pulls + own).where(columns, pulls)
        at = is_number.expand(-1, len(self.ids))
        added = (pulls[:, self.ids] + number_pull).where(at, pulls[:, self.ids])
        pulls.value[:, self.ids], pulls.error[:, self.ids] = added.value, added.error
        gradient = slope * p + pulls
        if options.softcap is not None:
            gradient = gradient * (exact(1.0) - self.u * self.u)
        return gradient.where(self.rows.weights[:, None] != 0, exact(torch.zeros_like(p.value)))

    def parts(self) -> dict[str, Rounded]:
        """The fields of NTLOutput but the accuracy: 0-d, or [N] for losses of reduction "none"."""
        rows, reduction = self.rows, self.options.reduction
        weight, is_number = rows.weights[:, None], rows.is_number[:, None]
        nothing = exact(torch.zeros_like(weight))
        ce = (self.cross_entropy() * exact(weight)).where(weight != 0, nothing)
        ntl = (self.number_loss() * rounded(rows.number_weights[:, None])).where(is_number, nothing)
        of_labels = (ce * rounded(self.config.label_share)).where(is_number, ce)
        tokens, numbers = rows.denominators()
        if reduction != "none":
            ce, of_labels = self.over_rows(ce, tokens), self.over_rows(of_labels, tokens)
            ntl = self.over_rows(ntl, rows.ntl_denominator())
        values = self.problem.numbers.values.double()
        target = rows.target.nan_to_num(nan=float(values[0]))[:, None]
        error = (self.number.q * rounded(values - target)).sum(self.number_additions).abs() * exact(rows.group.unit)
        found = {
            "loss": of_labels + ntl * rounded(float(self.config.weight)),
            "cross_entropy": ce,
            "ntl": ntl,
            "num_tokens": self.counted(tokens, rows.weights),
            "num_numbers": self.counted(numbers, torch.where(rows.is_number, rows.number_weights, 0.0)),
            "number_mae": self.over_rows(error.where(is_number, nothing), is_number.sum().double()),
            "number_mass": self.over_rows(self.number.mass.where(is_number, nothing), is_number.sum().double()),
        }
        return {name: Rounded(part.value.squeeze(-1), part.error.squeeze(-1)) for name, part in found.items()}

    def over_rows(self, values: Rounded, denominator: Tensor) -> Rounded:
        """sum / denominator [1], 0 for a denominator of 0."""
        total = values.transposed().sum(self.total_error / UNIT)
        if denominator == 0:
            return exact(torch.zeros(1))
        return (total / Rounded(denominator, self.total_error * denominator.abs()))[0]

    def counted(self, found: Tensor, weights: Tensor) -> Rounded:
        """A denominator [1]: as given, or the sum of the weights."""
        if self.options.reduction != "mean":
            found = weights.sum()
        return Rounded(found[None], self.total_error * found.abs()[None])
