"""Transformed logits x = softcap * tanh(logit_scale * z / softcap), and the normaliser of their softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...spec import LossSpec
from ..layout import loss_dtype
from .blocks import Block


def transform_logits(block: Block, spec: LossSpec) -> Tensor:
    """x [n, V] in the losses' dtype; the block's logits themselves if nothing changes."""
    is_same = spec.softcap is None and spec.logit_scale == 1
    if is_same and block.logits.dtype == loss_dtype(block.logits.dtype):
        return block.logits
    return transform_(block.buffer("x").copy_(block.logits), spec)


def transform_(x: Tensor, spec: LossSpec) -> Tensor:
    """Transform logits in place."""
    if spec.softcap is None:
        return x if spec.logit_scale == 1 else x.mul_(spec.logit_scale)
    return x.mul_(spec.logit_scale / spec.softcap).tanh_().mul_(spec.softcap)


def chain_(g: Tensor, x: Tensor, spec: LossSpec) -> Tensor:
    """Convert the gradient by x to that by the logits, in place."""
    if spec.softcap is not None:
        g.mul_(1 - (x / spec.softcap) ** 2)
    return g if spec.logit_scale == 1 else g.mul_(spec.logit_scale)


class Normaliser(NamedTuple):
    """The normaliser of n rows [n, V]: sum(exp(x)) is ``total * exp(peak)``. That product may overflow, and its
    logarithm may have too few digits for differences."""

    peak: Tensor  # [n, 1]: the largest x
    total: Tensor  # [n, 1]: sum(exp(x - peak)), from 1 to V

    @property
    def lse(self) -> Tensor:
        """[n, 1]: the logsumexp of x. Do not use it for differences, which are taken relative to the peak."""
        return self.peak + self.total.log()

    def probabilities(self, x: Tensor) -> Tensor:
        """exp(x - lse) of some columns x [n, k]."""
        return (x - self.peak).exp_().div_(self.total)


def anchor(peak: Tensor) -> Tensor:
    """The peak for subtraction: 0 instead of -inf, because -inf - -inf is NaN."""
    return peak.masked_fill(peak == -torch.inf, 0.0)


def normaliser_of(x: Tensor, peak: Tensor, buffer: Tensor) -> Normaliser:
    """The normaliser of x [n, V] with its peak [n, 1]. Writes exp(x - peak) to the buffer [n, V], which may be x."""
    return Normaliser(peak, torch.sub(x, anchor(peak), out=buffer).exp_().sum(-1, keepdim=True))


def normaliser_from(p: Tensor, peak: Tensor) -> Normaliser:
    """The normaliser of x [n, V] with its peak [n, 1], from the softmax p: the largest probability is 1 / total."""
    return Normaliser(peak, p.amax(-1, keepdim=True).reciprocal_())


def share_of(part: Normaliser, whole: Normaliser) -> Tensor:
    """The probability of a part of the columns, from the normalisers of the part and of the whole."""
    share = (part.peak - whole.peak).exp_().mul_(part.total).div_(whole.total)
    return rounded_up_(share).masked_fill_(part.total == 0, 0)


def rounded_up_(probability: Tensor) -> Tensor:
    """The probability, or the smallest normal number if it underflows: 0 is reserved for no probability at all."""
    return probability.clamp_min_(torch.finfo(probability.dtype).tiny)
