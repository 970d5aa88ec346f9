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

from .wrong_numbers import DENOMINATORS, OPTIONS

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
FIXED = {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 20.0, "logit_scale": 0.5, "ignore_index": 2}


def test_logits_module_is_the_function() -> None:
    logits, labels, weights = torch.randn(3, 4, 50), torch.randint(0, 50, (3, 4)), torch.rand(3, 4)
    module = CrossEntropyNTLLoss(DIGITS, NTLConfig(kind="mse"), inplace=True, return_parts=True, **FIXED)
    got = module(logits, labels, weights, num_tokens=5, num_numbers=torch.tensor(2.0))
    expected = cross_entropy_ntl(
        logits,
        labels,
        DIGITS,
        config=NTLConfig(kind="mse"),
        token_weights=weights,
        num_tokens=5,
        num_numbers=2,
        return_parts=True,
        **FIXED,
    )
    torch.testing.assert_close(tuple(got), tuple(expected))


def test_linear_module_is_the_function() -> None:
    hidden, weight, bias, labels = (
        torch.randn(3, 4, 8),
        torch.randn(50, 8),
        torch.randn(50),
        torch.randint(0, 50, (3, 4)),
    )
    module = LinearCrossEntropyNTLLoss(DIGITS, chunk_size=5, skip_ignored=False, reduction="none", **FIXED)
    got = module(hidden, weight, labels, bias)
    expected = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, bias=bias, reduction="none", **FIXED)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("module", [CrossEntropyNTLLoss, LinearCrossEntropyNTLLoss])
def test_options_are_checked_when_the_module_is_made(module: type[CrossEntropyNTLLoss]) -> None:
    with pytest.raises(ValueError, match="reduction.*avg"):
        module(DIGITS, reduction="avg")
    with pytest.raises(TypeError, match="NumberTokens.*dict"):
        module({1: 2.0})
    with pytest.raises(TypeError, match="smoothing"):
        module(DIGITS, smoothing=0.1)
    assert "wasserstein" in repr(module(DIGITS))


@pytest.mark.parametrize("module", [CrossEntropyNTLLoss, LinearCrossEntropyNTLLoss])
@pytest.mark.parametrize(("options", "error", "message"), OPTIONS)
def test_numbers_beyond_float32_are_named_when_the_module_is_made(
    module: type[CrossEntropyNTLLoss], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        module(DIGITS, **options)


@pytest.mark.parametrize(("options", "error", "message"), DENOMINATORS)
def test_numbers_beyond_float32_are_named_when_the_module_is_called(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = {"config": options["config"]} if "config" in options else {}
    rows = {name: value for name, value in options.items() if name != "config"}
    with pytest.raises(error, match=message):
        CrossEntropyNTLLoss(DIGITS, **config)(torch.randn(4, 50), torch.arange(4), **rows)
    with pytest.raises(error, match=message):
        LinearCrossEntropyNTLLoss(DIGITS, **config)(torch.randn(4, 8), torch.randn(50, 8), torch.arange(4), **rows)
