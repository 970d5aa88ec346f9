"""The transform of logits z to x = softcap * tanh(logit_scale * z / softcap), and its chain rule."""

from __future__ import annotations

from torch import Tensor

from ...spec import LossSpec
from .blocks import Block


def transform_logits(block: Block, spec: LossSpec) -> Tensor:
    """x [n, V] in the losses' dtype; the block's logits themselves if nothing changes."""
    if spec.softcap is None and spec.logit_scale == 1:
        return block.as_loss_dtype()
    return transform_(block.buffer("x").copy_(block.logits), spec)


def transform_(x: Tensor, spec: LossSpec) -> Tensor:
    """Transform logits in place."""
    if spec.softcap is None:
        return x.mul_(spec.logit_scale)
    return x.mul_(spec.logit_scale / spec.softcap).tanh_().mul_(spec.softcap)


def chain_(g: Tensor, x: Tensor, spec: LossSpec) -> Tensor:
    """Convert the gradient by x to that by the logits, in place."""
    if spec.softcap is not None:
        g.mul_(softcap_grad(x / spec.softcap))
    return g if spec.logit_scale == 1 else g.mul_(spec.logit_scale)


def softcap_grad(u: Tensor) -> Tensor:
    """d tanh(t) / dt, given u = tanh(t)."""
    return 1 - u**2
