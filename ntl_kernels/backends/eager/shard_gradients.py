"""The gradient of one rank's columns, from their logits and the merged statistics of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from ...problem import Problem
from ...reference import costs
from ...spec import LossSpec
from ..shards import Merge
from .blocks import Block
from .labels import Coefficients, Labels, coefficients, for_each_block, read_labels
from .losses import cross_entropy_pulls
from .normaliser import Normaliser, share_of
from .numbers import NumberTerms, cumulative_terms, drain_of, value_terms
from .scalars import Scalar
from .shards import OwnNumbers, own_column, own_numbers
from .softcap import chain_, transform_logits


def shard_gradients(
    logits: Tensor, problem: Problem, first: int, merge: Merge, upstream: Tensor, gradient: Tensor
) -> None:
    width, dtype = logits.shape[-1], merge.merged.dtype
    if width == 0:
        return
    labels = read_labels(problem, problem.vocab_size, dtype)
    shares = coefficients(labels, problem, upstream)
    own = own_numbers(problem.table, first, width, dtype)

    def work(block: Block, part: Labels) -> None:
        block.write(block_gradient(block, part, shares.part(block.rows), first, own, merge, problem))

    for_each_block(logits, labels, gradient, work)


def block_gradient(
    block: Block, labels: Labels, shares: Coefficients, first: int, own: OwnNumbers, merge: Merge, problem: Problem
) -> Tensor:
    """The gradient [n, W] of a block in which all rows count."""
    x, spec = transform_logits(block, problem.spec), problem.spec
    peak, total, *of_numbers = merge.merged[:, block.rows].unsqueeze(-1).unbind()
    normaliser = Normaliser(peak, total)
    a, b = (spread(share, peak) for share in shares)
    slope, pull, label = cross_entropy_pulls(a, normaliser, problem.vocab_size, spec)
    number_peak, number_total, effect = of_numbers
    rows, pulls = number_total.view(-1).nonzero().view(-1), None  # 0 where there is no NTL
    if rows.numel():
        whole = Normaliser(peak[rows], total[rows])
        number_peak, number_total, effect = (found[rows] for found in of_numbers)
        number_logits = None if merge.number_logits is None else merge.number_logits[block.rows][rows]
        terms = own_terms(effect, number_logits, labels.targets[rows], own, problem)
        number_x = x[rows[:, None], own.columns]
        pulls, drain = number_pulls(number_x, Normaliser(number_peak, number_total), whole, terms, spec)
        pulls.mul_(b[rows])
        if drain is not None:
            slope = slope.index_add(0, rows, drain * -b[rows])
    g = torch.sub(x, peak, out=block.target(x, keep=spec.softcap is not None)).exp_().mul_(slope / total)
    if spec.label_smoothing:
        g.add_(pull)
    if pulls is not None:
        g[rows[:, None], own.columns] += pulls
    column, is_own = own_column(labels.ids, first, x.shape[1])
    g.scatter_add_(-1, column, label * is_own.to(g.dtype))
    return chain_(g, x, spec)


def spread(share: Scalar, like: Tensor) -> Tensor:
    """A coefficient with one number per row, shaped like a tensor [n, 1]."""
    return share.expand_as(like) if isinstance(share, Tensor) else torch.full_like(like, share)


def number_pulls(
    x: Tensor, over_numbers: Normaliser, whole: Normaliser, terms: NumberTerms, spec: LossSpec
) -> tuple[Tensor, Tensor | None]:
    """(pulls [n, k], drain [n, 1]) of number rows with the rank's number logits x [n, k], as in
    :class:`NumberLoss`."""
    if not spec.reweigh:
        q = (x - over_numbers.peak).exp_().div_(over_numbers.total)
        return q * (terms.effects - terms.mean_effect), None
    p, mass = (x - whole.peak).exp_().div_(whole.total), share_of(over_numbers, whole)
    pulls = drain_of(terms.effects, p, spec, terms.remainder)
    return pulls, drain_of(terms.mean_effect, mass, spec, terms.remainder)


def own_terms(
    effect: Tensor, number_logits: Tensor | None, targets: Tensor, own: OwnNumbers, problem: Problem
) -> NumberTerms:
    """The terms of number rows, with the effects of the rank's own number tokens, from the merged statistics.

    ``number_logits`` [n, K] are only given with ``label_sigma``.
    """
    spec = problem.spec
    if number_logits is not None:
        terms = cumulative_terms(number_logits.softmax(-1), targets, problem.table, spec)
        return terms._replace(effects=terms.effects[:, own.places])
    if spec.kind == "wasserstein":
        return NumberTerms(costs(own.values, targets, spec), effect, effect)
    return value_terms(own.values, targets, effect, spec)
