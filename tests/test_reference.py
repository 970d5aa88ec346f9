"""The reference against scipy, and its gradients against finite differences; `test_functional.py` has its formulas."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm, wasserstein_distance

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from .problems import random_problem

VALUES = [-2.0, 0.0, 0.5, 0.5, 3.0, 10.0]
NUMBERS = NumberTokens.from_mapping({2 * i + 1: value for i, value in enumerate(VALUES)}, 14)


@pytest.mark.parametrize("sigma", [0.0, 0.4, 2.0])
def test_wasserstein_is_scipys(sigma: float) -> None:
    """Of values at any distances, two of them equal."""
    logits, labels = torch.randn(60, 14, dtype=torch.float64) * 2, NUMBERS.ids[torch.randint(0, 6, (60,))]
    options = {"config": NTLConfig(label_sigma=sigma), "reduction": "none", "backend": "reference"}
    found = cross_entropy_ntl(logits, labels, NUMBERS, return_parts=True, **options).ntl
    for got, label, q in zip(found, labels.tolist(), logits[:, NUMBERS.ids].softmax(-1).numpy(), strict=True):
        value = NUMBERS.values[NUMBERS.ids.tolist().index(label)].item()
        target = norm.pdf(NUMBERS.values, loc=value, scale=sigma) if sigma else (NUMBERS.ids == label).numpy()
        expected = wasserstein_distance(NUMBERS.values, NUMBERS.values, q, target)
        assert got.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("first_seed", range(2000, 2060, 20))
def test_gradcheck(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        problem = random_problem(seed, (torch.float64,), vocab_sizes=(3, 11), shapes=((2,), (2, 2)))
        given = {"labels": problem.labels, "numbers": problem.numbers, **problem.options, "backend": "reference"}
        logits = problem.logits.clamp(-4, 4).clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, given=given: cross_entropy_ntl(x, **given), logits)
