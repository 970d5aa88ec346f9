"""The modules are the functions with their options fixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
