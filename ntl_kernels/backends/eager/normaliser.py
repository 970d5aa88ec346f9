"""The normaliser of a softmax: the largest column, and the sum of the columns' powers relative to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import Rows, chosen


class Normaliser(NamedTuple):
    """Of n rows [n, V]: sum(exp(x)) is ``total * exp(peak)``, which may be beyond the dtype, and its logarithm beyond
    the digits that a difference to it needs."""

    peak: Tensor
    """[n, 1]: the largest x."""
    total: Tensor
    """[n, 1]: sum(exp(x - peak)), from 1 to V."""

    @property
    def lse(self) -> Tensor:
        """[n, 1]: the logsumexp of x. Not for differences: those are taken to the peak."""
        return self.peak + self.total.log()


def normaliser_of_rows(normalisers: Tensor, rows: Rows) -> Normaliser:
    """Of some of the rows of normalisers [2, N]."""
    return Normaliser(*(chosen(part, rows).unsqueeze(-1) for part in normalisers.unbind()))


def anchor(peak: Tensor) -> Tensor:
    """The peak as something to subtract: 0 in place of -inf, since -inf - -inf is NaN."""
    return peak.masked_fill(peak == -torch.inf, 0.0)


def normaliser_of(x: Tensor, peak: Tensor, buffer: Tensor) -> Normaliser:
    """Of x [n, V] with its peak [n, 1]; its powers, p up to the total, go into the buffer [n, V], which may be x."""
    return Normaliser(peak, torch.sub(x, anchor(peak), out=buffer).exp_().sum(-1, keepdim=True))


def softmax_and_normaliser(x: Tensor, peak: Tensor, out: Tensor) -> tuple[Tensor, Normaliser]:
    """(p [n, V], in ``out``, the normaliser) of x [n, V] with its peak [n, 1].

    The largest probability is 1 / total, so the total needs no pass of its own over x.
    """
    p = torch.softmax(x, -1, out=out)
    return p, Normaliser(peak, p.amax(-1, keepdim=True).reciprocal_())


def share_of(part: Normaliser, whole: Normaliser) -> Tensor:
    """The part's probability in the whole, from two normalisers."""
    return (part.peak - whole.peak).exp_().mul_(part.total).div_(whole.total)
