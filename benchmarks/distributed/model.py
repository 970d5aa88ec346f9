"""A small causal transformer, the same on one device and on many; only `spread` uses a mesh."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ntl_kernels import NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

LAYERS, WIDTH, HEAD_WIDTH = 2, 64, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, WIDTH], with the heads that this device has."""
        parts = (part(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for part in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Head(nn.Linear):
    """The output layer. With labels it returns the loss of hidden states without storing their logits."""

    def forward(
        self, hidden: Tensor, *, labels: Tensor | None = None, numbers: NumberTokens | None = None, **keywords: Any
    ) -> Tensor:
        """Logits, or the loss. (Torch's tensor parallelism passes on one positional argument and all keywords.)"""
        if labels is None:
            return super().forward(hidden)
        return linear_cross_entropy_ntl(hidden, self.weight, labels, numbers, **keywords)


class Model(nn.Module):
    def __init__(self, vocab_size: int, length: int, fused: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, WIDTH), nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head, self.fused = nn.LayerNorm(WIDTH), Head(WIDTH, vocab_size, bias=False), fused

    def forward(self, tokens: Tensor, labels: Tensor, numbers: NumberTokens, **keywords: Any) -> Tensor:
        """The loss, 0-d; the keywords are passed to the loss function."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        if self.fused:
            return self.head(x, labels=labels, numbers=numbers, **keywords)
        return cross_entropy_ntl(self.head(x), labels, numbers, **keywords)


def spread(model: Model, mesh: DeviceMesh) -> Model:
    """Split layers and vocabulary over "tp" of the mesh, and the remaining part of every weight over "dp"."""
    rowwise = RowwiseParallel()
    for layer in model.layers:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        parallelize_module(
            layer, mesh["tp"], {**plan, "attention.out": rowwise, "up": ColwiseParallel(), "down": rowwise}
        )
    # The head's output is not gathered: every device keeps its own columns of the logits. A loss that the head computes
    # itself is not sharded.
    head = ColwiseParallel(
        input_layouts=Replicate(), output_layouts=Replicate() if model.fused else Shard(-1), use_local_output=False
    )
    parallelize_module(model.head, mesh["tp"], head)
    for part in (*model.layers, model.head):
        fully_shard(part, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model
