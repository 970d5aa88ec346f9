"""The modules are the functions with their options fixed, and train a model as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import (
    CrossEntropyNTLLoss,
    LinearCrossEntropyNTLLoss,
    NTLConfig,
    NumberTokens,
    cross_entropy_ntl,
    linear_cross_entropy_ntl,
)

from .wrong_numbers import OPTIONS

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
FIXED = {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 20.0, "logit_scale": 0.5, "ignore_index": 2}
every_module = pytest.mark.parametrize("module", [CrossEntropyNTLLoss, LinearCrossEntropyNTLLoss])


def test_logits_module_is_the_function() -> None:
    logits, labels, weights = torch.randn(3, 4, 50), torch.randint(0, 50, (3, 4)), torch.rand(3, 4)
    config, counts = NTLConfig(kind="mse"), {"num_tokens": 5, "num_numbers": torch.tensor(2.0)}
    module = CrossEntropyNTLLoss(DIGITS, config, inplace=True, return_parts=True, **FIXED)
    got = module(logits, labels, weights, **counts)
    options: dict[str, Any] = {"config": config, "token_weights": weights, "return_parts": True, **counts, **FIXED}
    torch.testing.assert_close(tuple(got), tuple(cross_entropy_ntl(logits, labels, DIGITS, **options)))


def test_linear_module_is_the_function() -> None:
    hidden, weight, bias = torch.randn(3, 4, 8), torch.randn(50, 8), torch.randn(50)
    labels = torch.randint(0, 50, (3, 4))
    module = LinearCrossEntropyNTLLoss(DIGITS, chunk_size=5, skip_ignored=False, reduction="none", **FIXED)
    expected = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, bias=bias, reduction="none", **FIXED)
    torch.testing.assert_close(module(hidden, weight, labels, bias), expected)


@every_module
@pytest.mark.parametrize(("options", "error", "message"), [wrong for wrong in OPTIONS if "backend" not in wrong[0]])
def test_options_are_checked_when_the_module_is_made(
    module: type[CrossEntropyNTLLoss], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        module(**{"numbers": DIGITS, **options})


@every_module
def test_what_a_module_does_not_know(module: type[CrossEntropyNTLLoss]) -> None:
    with pytest.raises(TypeError, match="smoothing"):
        module(DIGITS, smoothing=0.1)
    assert "wasserstein" in repr(module(DIGITS))


def losses_in_training(dtype: torch.dtype, loss: Callable[[Tensor, Tensor, Tensor], Tensor], flip: bool) -> Tensor:
    """[200]: the losses of a small model that learns to add digits, from its hidden states, its head and the labels."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 50, (200, 256, 3), generator=generator)
    is_sum = (tokens[..., :2] < 13).all(-1) | (tokens[..., 2] < 30)
    tokens[..., 2] = torch.where(is_sum, (tokens[..., 0] + tokens[..., 1]) % 10 + 3, tokens[..., 2])
    shapes = (50, 32), (64, 32), (50, 32)
    weights = [torch.randn(shape, generator=generator).div(shape[0] ** 0.5).to(dtype) for shape in shapes]
    embedding, layer, head = (weight.requires_grad_() for weight in weights)
    optimizer = torch.optim.SGD([embedding, layer, head], lr=0.3, momentum=0.9)  # not invariant to scale
    losses = []
    for batch in tokens.flip(1) if flip else tokens:
        hidden = (embedding[batch[:, :2]].flatten(1) @ layer).relu()
        found = loss(hidden, head, batch[:, 2])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        losses.append(found.item())
    return torch.tensor(losses)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_drifts_no_further_from_plain_pytorch_than_another_order_of_summation(dtype: torch.dtype) -> None:
    """In the mean over 200 steps: errors must not add up."""
    allowed, found = [], []
    for weight in (0.0, 0.3):
        config = NTLConfig(weight=weight)
        of_logits = CrossEntropyNTLLoss(DIGITS, config)
        of_hidden = LinearCrossEntropyNTLLoss(DIGITS, config, chunk_size=100)

        def plain(hidden: Tensor, head: Tensor, labels: Tensor, weight: float = weight) -> Tensor:
            logits = (hidden @ head.T).float()
            distances = (torch.arange(10) + 3 - labels[:, None]).abs()
            ntl = (logits[:, 3:13].softmax(-1) * distances).sum(-1)[DIGITS.is_number(labels)].mean()
            return F.cross_entropy(logits, labels) + weight * ntl

        def ours(hidden: Tensor, head: Tensor, labels: Tensor, loss: Any = of_logits) -> Tensor:
            return loss(hidden @ head.T, labels)

        expected, reordered = (losses_in_training(dtype, plain, flip) for flip in (False, True))
        assert expected[-50:].mean() < 0.8 * expected[:10].mean()
        allowed.append(4 * (reordered - expected).abs().mean())
        found += [(losses_in_training(dtype, loss, False) - expected).abs().mean() for loss in (ours, of_hidden)]
    assert max(found) <= max(allowed), (found, allowed)
