"""The reference against scipy, and its gradients against finite differences; `test_functional.py` has its formulas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import norm, wasserstein_distance

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl
from ntl_kernels.config import KINDS

from .problems import Answer, Problem, random_problem, solve

VALUES = [-2.0, 0.0, 0.5, 0.5, 3.0, 10.0]
NUMBERS = NumberTokens.from_mapping({2 * i + 1: value for i, value in enumerate(VALUES)}, 14)


@pytest.mark.parametrize("sigma", [0.0, 0.4, 2.0])
def test_wasserstein_is_scipys(sigma: float) -> None:
    """For values at any distances, two of them equal."""
    logits, labels = torch.randn(60, 14, dtype=torch.float64) * 2, NUMBERS.ids[torch.randint(0, 6, (60,))]
    options = {"config": NTLConfig(label_sigma=sigma), "reduction": "none", "backend": "reference"}
    found = cross_entropy_ntl(logits, labels, NUMBERS, return_parts=True, **options).ntl
    for got, label, q in zip(found, labels.tolist(), logits[:, NUMBERS.ids].softmax(-1).numpy(), strict=True):
        value = NUMBERS.values[NUMBERS.ids.tolist().index(label)].item()
        target = norm.pdf(NUMBERS.values, loc=value, scale=sigma) if sigma else (NUMBERS.ids == label).numpy()
        expected = wasserstein_distance(NUMBERS.values, NUMBERS.values, q, target)
        assert got.item() == pytest.approx(expected, abs=1e-9)


GROUPS: list[dict[int, float]] = [
    {1: -1.5, 4: 0.0, 9: 2.0, 13: 2.0},
    {0: 40.0, 7: 55.0, 8: 58.0, 11: 70.0},
    {5: 3.0},
    {2: 7.0, 10: 7.0},
]
UNITS = [1.0, 10.0, 0.5, 100.0]
CONFIGS = [
    *({"kind": kind} for kind in KINDS if kind != "soft_labels"),
    *({"kind": "soft_labels", name: 2.0} for name in ("label_sigma", "label_temperature")),
    *({"squash_factor": factor} for factor in (1.5, 9.0)),
    *({"label_sigma": sigma} for sigma in (1e-3, 0.4, 5.0)),
]


@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_a_label_is_compared_with_its_own_group(options: dict[str, Any], reweigh: bool) -> None:
    """As if the group were all number tokens; a group with a single value has no NTL."""
    is_soft = options.get("kind") == "soft_labels"
    config = NTLConfig(weight=0.7, reweigh=reweigh and not is_soft, **options)
    labels = torch.arange(14).repeat(3)
    logits, upstream = torch.randn(42, 14, dtype=torch.float64) * 2, torch.rand(42)

    def answer(labels: torch.Tensor, numbers: NumberTokens, config: NTLConfig = config) -> Answer:
        problem = Problem(logits, labels, numbers, {"config": config, "reduction": "none"}, upstream)
        return solve(problem, "reference")

    numbers = NumberTokens(GROUPS, 14, units=UNITS)
    whole = answer(labels, numbers)
    for group, unit in zip(GROUPS, UNITS, strict=True):
        rows = torch.isin(labels, torch.tensor([*group]))
        found = answer(torch.where(rows, labels, -100), numbers)
        assert torch.equal(found.gradient[rows], whole.gradient[rows])
        assert torch.equal(found.output.ntl[rows], whole.output.ntl[rows])
        if len(set(group.values())) == 1 and is_soft:
            continue  # its target is uniform, and no mapping may have equal values alone
        if len(set(group.values())) == 1:
            assert not found.output.ntl.any() and not found.output.number_mae.any()
            expected = answer(torch.where(rows, labels, -100), NUMBERS, NTLConfig(weight=0.0)).gradient
            torch.testing.assert_close(found.gradient, expected, rtol=1e-12, atol=1e-12)
            continue
        alone = answer(torch.where(rows, labels, -100), NumberTokens.from_mapping(group, 14))
        alone.entries["number_mae"] *= unit
        for name, expected in alone.entries.items():
            torch.testing.assert_close(found.entries[name], expected, rtol=1e-12, atol=1e-12, msg=name)


def test_random_problems_have_every_sort_of_group() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        problem = random_problem(seed, (torch.float32,))
        groups, ids = problem.numbers.groups, problem.numbers.ids
        labels = problem.labels[problem.labels != problem.options["ignore_index"]]
        index = problem.numbers.lookup[labels[problem.numbers.is_number(labels)].long()]
        of_labels = {group for group in groups if ((index >= group.start) & (index < group.start + group.size)).any()}
        impossible = [(problem.logits[..., ids[g.start :][: g.size]] == -torch.inf).all(-1).any() for g in groups]
        seen[f"{len(groups)} groups"] += 1
        seen["more than 100 tokens"] += any(group.size > 100 for group in groups)
        seen["alone"] += any(group.size == 1 for group in of_labels)
        seen["equal values"] += any(group.size > 1 and group.furthest == 0 for group in of_labels)
        seen["units"] += any(group.unit != 1 for group in of_labels)
        seen["-inf"] += bool(problem.logits.isinf().any())
        seen["another group at -inf"] += any(impossible)
    assert len(seen) == 10 and min(seen.values()) >= 10, seen


@pytest.mark.parametrize("first_seed", range(2000, 2060, 20))
def test_gradcheck(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        problem = random_problem(seed, (torch.float64,), vocab_sizes=(3, 11), shapes=((2,), (2, 2)))
        given = {"labels": problem.labels, "numbers": problem.numbers, **problem.options, "backend": "reference"}
        logits = problem.logits.clamp(-4, 4).clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, given=given: cross_entropy_ntl(x, **given), logits)
