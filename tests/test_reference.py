"""The reference against independent libraries, and against itself by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm, wasserstein_distance

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.config import KINDS

from .problems import TRUE_LOSSES, random_problem

VALUES = [-2.0, 0.0, 0.5, 0.5, 3.0, 10.0]
NUMBERS = NumberTokens.from_mapping({2 * i + 1: value for i, value in enumerate(VALUES)}, 14)
ALONE = {"backend": "reference", "return_parts": True}


def number_loss(logits: torch.Tensor, labels: torch.Tensor, config: NTLConfig) -> torch.Tensor:
    output = cross_entropy_ntl(logits, labels, NUMBERS, config=config, reduction="none", **ALONE)
    assert isinstance(output, NTLOutput)
    return output.ntl


def number_probabilities(logits: torch.Tensor) -> np.ndarray:
    return logits[:, NUMBERS.ids].softmax(-1).numpy()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(60, 14, dtype=torch.float64) * 2, NUMBERS.ids[torch.randint(0, 6, (60,))]


def test_wasserstein_is_scipys(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels = batch
    got = number_loss(logits, labels, NTLConfig(reweigh=False))
    index = NUMBERS.lookup[labels]
    for row, q in enumerate(number_probabilities(logits)):
        label_value = NUMBERS.values[index[row]].item()
        expected = wasserstein_distance(NUMBERS.values.numpy(), [label_value], q)
        assert got[row].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("sigma", [0.4, 2.0])
def test_smooth_wasserstein_is_scipys(batch: tuple[torch.Tensor, torch.Tensor], sigma: float) -> None:
    logits, labels = batch
    got = number_loss(logits, labels, NTLConfig(reweigh=False, label_sigma=sigma))
    values = NUMBERS.values.double().numpy()
    for row, q in enumerate(number_probabilities(logits)):
        target = norm.pdf(values, loc=values[NUMBERS.lookup[labels[row]]], scale=sigma)
        expected = wasserstein_distance(values, values, q, target)
        assert got[row].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("reweigh", [True, False])
def test_a_narrow_gaussian_is_the_one_hot_target(reweigh: bool) -> None:
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 12)
    logits, labels = torch.randn(20, 12, dtype=torch.float64), torch.randint(0, 10, (20,))
    configs = [NTLConfig(label_sigma=sigma, reweigh=reweigh) for sigma in (0.0, 1e-3)]
    losses = [cross_entropy_ntl(logits, labels, numbers, config=config, backend="reference") for config in configs]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "wasserstein"])
def test_expected_value_losses(batch: tuple[torch.Tensor, torch.Tensor], kind: str) -> None:
    logits, labels = batch
    expected_value = torch.from_numpy(number_probabilities(logits)) @ NUMBERS.values.double()
    target = NUMBERS.values.double()[NUMBERS.lookup[labels]]
    got = number_loss(logits, labels, NTLConfig(kind=kind, reweigh=False))
    torch.testing.assert_close(got, TRUE_LOSSES[kind](expected_value, target, NTLConfig.huber_delta))


def test_reweighing_interpolates_to_the_worst_loss() -> None:
    logits = torch.full((2, 14), -50.0, dtype=torch.float64)
    logits[0, 1], logits[1, 0] = 50.0, 50.0  # all on the number -2, all on a token that is no number
    got = number_loss(logits, torch.tensor([11, 11]), NTLConfig(reweigh=True))
    torch.testing.assert_close(got, torch.tensor([12.0, 1.01 * 12.0], dtype=torch.float64))


def test_by_default_words_cost_no_distance() -> None:
    """The paper's loss is one of the distribution on the number tokens alone."""
    logits, labels = torch.zeros(1, 14, dtype=torch.float64), torch.tensor([11])
    more = logits.clone()
    more[0, 0] = 50.0  # a token that is no number
    losses = [
        number_loss(x, labels, config) for x in (logits, more) for config in (NTLConfig(), NTLConfig(reweigh=False))
    ]
    torch.testing.assert_close(torch.cat(losses), losses[0].expand(4))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_cross_entropy_is_torchs(reduction: str, eps: float) -> None:
    logits, labels = torch.randn(3, 8, 14, dtype=torch.float64), torch.randint(0, 14, (3, 8))
    labels[0, 2] = -100
    output = cross_entropy_ntl(logits, labels, NUMBERS, reduction=reduction, label_smoothing=eps, **ALONE)
    assert isinstance(output, NTLOutput)
    expected = F.cross_entropy(logits.transpose(1, 2), labels, reduction=reduction, label_smoothing=eps)
    torch.testing.assert_close(output.cross_entropy, expected)


def test_z_loss_scale_and_softcap() -> None:
    logits, labels = torch.randn(8, 14, dtype=torch.float64) * 9, torch.zeros(8, dtype=torch.long)
    x = 5.0 * torch.tanh(0.7 * logits / 5.0)
    got = cross_entropy_ntl(logits, labels, NUMBERS, z_loss=0.1, softcap=5.0, logit_scale=0.7, backend="reference")
    torch.testing.assert_close(got, F.cross_entropy(x, labels) + 0.1 * (x.logsumexp(-1) ** 2).mean())


def test_weights_and_denominators() -> None:
    logits, labels = torch.randn(4, 14, dtype=torch.float64), torch.tensor([1, 3, 0, -100])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rows = cross_entropy_ntl(logits, labels, NUMBERS, reduction="none", **ALONE)
    mean = cross_entropy_ntl(logits, labels, NUMBERS, token_weights=weights, **ALONE)
    fixed = cross_entropy_ntl(logits, labels, NUMBERS, token_weights=weights, num_tokens=10, num_numbers=0, **ALONE)
    total = cross_entropy_ntl(logits, labels, NUMBERS, token_weights=weights, reduction="sum", **ALONE)
    assert isinstance(rows, NTLOutput) and isinstance(mean, NTLOutput)
    assert isinstance(fixed, NTLOutput) and isinstance(total, NTLOutput)
    ce, ntl = (weights * rows.cross_entropy).sum(), (weights * rows.ntl).sum()
    assert (mean.num_tokens, mean.num_numbers) == (6, 3)
    torch.testing.assert_close(mean.loss, ce / 6 + 0.3 * ntl / 3)
    torch.testing.assert_close(fixed.loss, ce / 10)
    torch.testing.assert_close(total.loss, ce + 0.3 * ntl)


@pytest.mark.parametrize("given", [{}, {"num_tokens": 10}, {"num_tokens": 10, "num_numbers": 7}])
def test_a_mean_over_tokens(given: dict[str, int]) -> None:
    logits, labels = torch.randn(4, 14, dtype=torch.float64), torch.tensor([1, 3, 0, -100])
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rows = cross_entropy_ntl(logits, labels, NUMBERS, reduction="none", token_weights=weights, **ALONE)
    options = {**ALONE, "config": NTLConfig(mean_over="tokens"), **given}
    mean = cross_entropy_ntl(logits, labels, NUMBERS, token_weights=weights, **options)
    assert isinstance(rows, NTLOutput) and isinstance(mean, NTLOutput)
    tokens = given.get("num_tokens", 6)
    assert (mean.num_tokens, mean.num_numbers) == (tokens, given.get("num_numbers", 3))
    torch.testing.assert_close(mean.loss, (rows.cross_entropy + 0.3 * rows.ntl).sum() / tokens)
    torch.testing.assert_close(mean.ntl, rows.ntl.sum() / tokens)


def test_parts_describe_the_rows() -> None:
    logits = torch.full((3, 14), -50.0, dtype=torch.float64)
    logits[0, 1], logits[1, 11], logits[2, 4] = 50.0, 50.0, 50.0
    output = cross_entropy_ntl(logits, torch.tensor([1, 9, 4]), NUMBERS, **ALONE)
    assert isinstance(output, NTLOutput)
    assert output.token_accuracy.item() == pytest.approx(2 / 3)
    assert output.number_mae.item() == pytest.approx((0 + 7) / 2)
    assert output.number_mass.item() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(60))
def test_gradcheck(seed: int) -> None:
    """Autograd's gradient of the reference against finite differences."""
    problem = random_problem(2000 + seed, (torch.float64,), vocab_sizes=(3, 11), shapes=((2,), (2, 2)))
    problem.logits = problem.logits.clamp(-4, 4)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        result = cross_entropy_ntl(logits, problem.labels, problem.numbers, **problem.options, backend="reference")
        assert isinstance(result, torch.Tensor)
        return result

    assert torch.autograd.gradcheck(loss, problem.logits.clone().requires_grad_())
