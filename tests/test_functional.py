"""`cross_entropy_ntl`: its results in plain cases; then random and hard inputs; then its guarantees to callers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, checks, cross_entropy_ntl, number_statistics

from .problems import TRUE_LOSSES, Answer, Problem, check, random_problem, solve
from .row_cases import InfiniteRows
from .wrong_numbers import LARGEST, every_wrong_argument

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)  # token 3 is the number 0, ..., 12 is 9
LOGITS, LABELS = torch.randn(4, 50), torch.tensor([4, 20, 7, 12])
VALUES = torch.tensor([1.0, 4.0, 9.0])
"""The values of the labels 4, 7 and 12 in LABELS; the second label, 20, is not a number."""
NUMBER_ROWS = [0, 2, 3]


@pytest.fixture(params=["eager", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The loss, against F.cross_entropy and the formulas of the paper


def parts_of(logits: Tensor, labels: Tensor, numbers: NumberTokens = DIGITS, **options: Any) -> NTLOutput:
    output = cross_entropy_ntl(logits, labels, numbers, return_parts=True, **options)
    assert isinstance(output, NTLOutput)
    return output


def number_probabilities() -> Tensor:
    """q: the softmax over the number tokens alone, of the rows whose label is a number."""
    return LOGITS[NUMBER_ROWS][:, 3:13].softmax(-1)


def distances() -> Tensor:
    """|v - v_y| of every number v from the label's, [3, 10]."""
    return (torch.arange(10.0) - VALUES[:, None]).abs()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_with_a_weight_of_zero_it_is_cross_entropy(reduction: str, backend: str) -> None:
    labels = torch.tensor([4, -100, 7, 49])
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    loss = cross_entropy_ntl(LOGITS, labels, DIGITS, config=NTLConfig(weight=0), backend=backend, **options)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, labels, **options))


def test_the_loss_is_cross_entropy_and_lambda_times_ntl(backend: str) -> None:
    """Cross-entropy is averaged over all tokens, NTL over the labels that are numbers."""
    output = parts_of(LOGITS, LABELS, config=NTLConfig(weight=0.3), backend=backend)
    ntl = (number_probabilities() * distances()).sum(-1)
    torch.testing.assert_close(output.cross_entropy, F.cross_entropy(LOGITS, LABELS))
    torch.testing.assert_close(output.ntl, ntl.mean())
    torch.testing.assert_close(output.loss, F.cross_entropy(LOGITS, LABELS) + 0.3 * ntl.mean())


def test_wasserstein_is_the_expected_distance_from_the_label(backend: str) -> None:
    ntl = parts_of(LOGITS, LABELS, reduction="none", backend=backend).ntl
    torch.testing.assert_close(ntl[NUMBER_ROWS], (number_probabilities() * distances()).sum(-1))
    assert ntl[1] == 0  # the label is not a number


@pytest.mark.parametrize("kind", TRUE_LOSSES)
def test_the_other_kinds_compare_the_expected_value_with_the_label(kind: str, backend: str) -> None:
    config = NTLConfig(kind=kind, huber_delta=0.5)
    expected_value = number_probabilities() @ torch.arange(10.0)
    ntl = parts_of(LOGITS, LABELS, config=config, reduction="none", backend=backend).ntl
    torch.testing.assert_close(ntl[NUMBER_ROWS], TRUE_LOSSES[kind](expected_value, VALUES, 0.5))


@pytest.mark.parametrize(("factor", "step"), [(3.0, 1.0), (9.0, 0.5)])
def test_squash_factor_sets_what_the_furthest_number_costs(factor: float, step: float, backend: str) -> None:
    """The nearest number costs 1, the furthest the factor; on a line between them, perhaps through 0."""
    costs = torch.where(distances() > 0, 1 + (factor - 1) * (distances() - 1) / (9 - 1), 0.0)
    numbers = NumberTokens.from_mapping({i + 3: step * i for i in range(10)}, 50)
    output = parts_of(LOGITS, LABELS, numbers=numbers, config=NTLConfig(squash_factor=factor), backend=backend)
    torch.testing.assert_close(output.ntl, (number_probabilities() * costs).sum(-1).mean())


def test_label_sigma_compares_with_a_gaussian_around_the_label(backend: str) -> None:
    """The Wasserstein distance of two distributions on 0, 1, ..., 9: the distance of their cumulative sums."""
    target = torch.softmax(-(distances() ** 2) / (2 * 1.5**2), -1)
    apart = (number_probabilities() - target).cumsum(-1).abs().sum(-1)
    output = parts_of(LOGITS, LABELS, config=NTLConfig(label_sigma=1.5), backend=backend)
    torch.testing.assert_close(output.ntl, apart.mean())


@pytest.mark.parametrize("count", [2, 37, 1024, 4096])
def test_soft_labels_are_cross_entropy_with_probabilities(count: int, backend: str) -> None:
    """Less their entropy: torch's cross-entropy with a target over the label's group, in two groups of numbers."""
    torch.manual_seed(count)
    places = torch.arange(count, dtype=torch.float64)
    bins = {7 + place: place / 4 for place in range(count)}
    numbers = NumberTokens.from_groups([bins, {0: 1.0, 1: 2.0}], count + 20)
    logits, labels = torch.randn(5, count + 20) * 3, torch.tensor([7, 6 + count, 7 + count // 2, 3, 8])
    logits[:4] += 1e4
    for name, share in (("label_sigma", 1.0), ("label_temperature", 0.0)):
        for mean_over in ("numbers", "tokens"):
            width = count / 4 / min(count, 40)
            config = NTLConfig("soft_labels", 0.7, mean_over=mean_over, label_share=share, **{name: width})
            x, y = (logits.double().requires_grad_() for _ in range(2))
            distances = (places - (labels[:, None] - 7)).abs() / 4 / width
            target = torch.zeros_like(x)
            target[:, 7:-13] = (-distances if share == 0 else -(distances**2) / 2).softmax(-1)
            target[3] = F.one_hot(labels[3], count + 20).double()
            entropy = -torch.xlogy(target, target).sum(-1)
            soft = F.cross_entropy(y, target, reduction="none") - entropy
            is_number, hard = labels != 3, F.cross_entropy(y, labels, reduction="none")
            denominator = 5 if mean_over == "tokens" else 4
            expected = torch.where(is_number, share * hard, hard).sum() / 5 + 0.7 * soft[is_number].sum() / denominator
            (gradient,) = torch.autograd.grad(expected, y)
            for given, precision in ((x, 1e-9), (logits.clone().requires_grad_(), 2e-6)):
                output = parts_of(given, labels, numbers=numbers, config=config, backend=backend)
                (found,) = torch.autograd.grad(output.loss, given)
                true = expected, soft[is_number].sum() / denominator, hard.mean(), gradient
                parts = output.loss, output.ntl, output.cross_entropy, found
                for part, right in zip(parts, true, strict=True):
                    torch.testing.assert_close(part.double(), right.detach(), rtol=precision, atol=precision)


@pytest.mark.parametrize("kind", ["wasserstein", *TRUE_LOSSES])
def test_reweigh_makes_words_cost_more_than_any_number(kind: str, backend: str) -> None:
    """Probability on tokens that are not numbers costs 1.01 times the largest loss."""
    mass = LOGITS[NUMBER_ROWS].softmax(-1)[:, 3:13].sum(-1)
    largest, loss = torch.tensor(9.0), (number_probabilities() * distances()).sum(-1)
    if kind != "wasserstein":
        expected_value = number_probabilities() @ torch.arange(10.0)
        largest = TRUE_LOSSES[kind](largest, torch.tensor(0.0), 2.5)
        loss = TRUE_LOSSES[kind](expected_value, VALUES, 2.5)
    output = parts_of(LOGITS, LABELS, config=NTLConfig(kind, reweigh=True, huber_delta=2.5), backend=backend)
    torch.testing.assert_close(output.ntl, (mass * loss + (1 - mass) * 1.01 * largest).mean())
    torch.testing.assert_close(output.number_mass, mass.mean())


def test_z_loss_softcap_and_logit_scale(backend: str) -> None:
    x = 5.0 * torch.tanh(0.7 * LOGITS / 5.0)
    options: dict[str, Any] = {"z_loss": 0.1, "softcap": 5.0, "logit_scale": 0.7, "config": NTLConfig(weight=0)}
    loss = cross_entropy_ntl(LOGITS, LABELS, DIGITS, backend=backend, **options)
    torch.testing.assert_close(loss, F.cross_entropy(x, LABELS) + 0.1 * (x.logsumexp(-1) ** 2).mean())


@pytest.mark.parametrize("mean_over", ["numbers", "tokens"])
def test_weights_and_denominators(mean_over: str, backend: str) -> None:
    """A weight multiplies a row; a mean divides by the sum of weights, or by the caller's counts."""
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0])
    given: dict[str, Any] = {"config": NTLConfig(mean_over=mean_over), "backend": backend}
    rows = parts_of(LOGITS, LABELS, reduction="none", **given)
    ce, ntl = (weights * rows.cross_entropy).sum(), (weights * rows.ntl).sum()
    mean = parts_of(LOGITS, LABELS, token_weights=weights, **given)
    assert (mean.num_tokens, mean.num_numbers) == (7, 5)
    torch.testing.assert_close(mean.loss, ce / 7 + 0.3 * ntl / {"numbers": 5, "tokens": 7}[mean_over])
    counted = parts_of(LOGITS, LABELS, token_weights=weights, num_tokens=10, num_numbers=20, **given)
    torch.testing.assert_close(counted.loss, ce / 10 + 0.3 * ntl / {"numbers": 20, "tokens": 10}[mean_over])
    total = parts_of(LOGITS, LABELS, token_weights=weights, reduction="sum", **given)
    torch.testing.assert_close(total.loss, ce + 0.3 * ntl)


def test_number_weights_are_weights_of_ntl_alone(backend: str) -> None:
    weights, number_weights = torch.tensor([1.0, 2.0, 0.5, 4.0]), torch.tensor([3.0, 9.0, 2.0, 0.5])
    given: dict[str, Any] = {"token_weights": weights, "backend": backend}
    plain = parts_of(LOGITS, LABELS, **given, reduction="none")
    ce, ntl = plain.cross_entropy, plain.ntl * number_weights
    mean = parts_of(LOGITS, LABELS, **given, number_weights=number_weights)
    assert (mean.num_tokens, mean.num_numbers) == (7.5, 6)  # 3 * 1 + 2 * 0.5 + 0.5 * 4
    torch.testing.assert_close(mean.loss, ce.sum() / 7.5 + 0.3 * ntl.sum() / 6)
    torch.testing.assert_close(DIGITS.count(LABELS, weights * number_weights), mean.num_numbers)
    over_tokens = NTLConfig(mean_over="tokens")
    mean = parts_of(LOGITS, LABELS, **given, number_weights=number_weights, config=over_tokens)
    torch.testing.assert_close(mean.loss, (ce + 0.3 * ntl).sum() / 7.5)
    total = parts_of(LOGITS, LABELS, **given, number_weights=number_weights, reduction="sum")
    torch.testing.assert_close(total.loss, (ce + 0.3 * ntl).sum())
    rows = parts_of(LOGITS, LABELS, **given, number_weights=number_weights, reduction="none")
    torch.testing.assert_close(rows.loss, ce + 0.3 * ntl)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_number_weight_of_zero_makes_a_digit_a_category(reduction: str, backend: str) -> None:
    """As if its token were not a number: the same loss, metrics and gradient as without that row's NTL."""
    is_score = torch.tensor([0.0, 1.0, 1.0, 0.0])
    logits = LOGITS.clone().requires_grad_()
    output = parts_of(logits, LABELS, number_weights=is_score, reduction=reduction, backend=backend)
    assert output.num_numbers == 1
    alone = parts_of(LOGITS[2:3], LABELS[2:3], backend=backend)
    torch.testing.assert_close(output.number_mae, alone.number_mae)
    torch.testing.assert_close(output.number_mass, alone.number_mass)
    torch.testing.assert_close(output.ntl.sum(), alone.ntl)
    (gradient,) = torch.autograd.grad(output.loss.sum(), logits)
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, LABELS, reduction=reduction).sum(), logits)
    torch.testing.assert_close(gradient[[0, 1, 3]], plain[[0, 1, 3]])
    nothing = parts_of(LOGITS, LABELS, number_weights=torch.zeros(4), reduction=reduction, backend=backend)
    assert nothing.num_numbers == nothing.number_mae == nothing.number_mass == 0
    torch.testing.assert_close(nothing.loss, F.cross_entropy(LOGITS, LABELS, reduction=reduction))


def test_the_gradient_is_autograds_of_the_formula(backend: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    loss = cross_entropy_ntl(logits, LABELS, DIGITS, config=NTLConfig(weight=0.3), backend=backend)
    q = logits[NUMBER_ROWS][:, 3:13].softmax(-1)
    formula = F.cross_entropy(logits, LABELS) + 0.3 * (q * distances()).sum(-1).mean()
    torch.testing.assert_close(*(torch.autograd.grad(each, logits)[0] for each in (loss, formula)))


def test_parts_say_what_is_predicted(backend: str) -> None:
    """Labels 1, a word and 6: the first two are predicted correctly, the third as 8 or a word, whatever rows weigh."""
    logits = torch.full((3, 50), -50.0)
    logits[0, 4] = logits[1, 30] = logits[2, 11] = logits[2, 40] = 50.0
    weights = {"token_weights": torch.tensor([0.5, 0.25, 0.1]), "number_weights": torch.tensor([0.2, 0.3, 0.4])}
    for given in ({}, weights, {**weights, "num_tokens": 10, "num_numbers": 0.1}):
        output = parts_of(logits, torch.tensor([4, 30, 9]), backend=backend, **given)
        assert output.token_accuracy.item() == pytest.approx(2 / 3)
        assert output.number_mae.item() == pytest.approx((0 + 2) / 2)
        assert output.number_mass.item() == pytest.approx((1 + 0.5) / 2)


# Any input, against the float64 reference


@pytest.mark.parametrize("first_seed", range(0, 600, 100))
def test_random_problems_equal_the_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16))
        check(solve(problem, "eager", inplace=seed % 4 == 0), problem)


@pytest.mark.parametrize("first_seed", range(0, 120, 40))
def test_the_loss_alone_is_the_loss_with_its_parts(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that only the parts need are skipped if the parts are not required, but every element is written."""
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(torch.nan))
    for seed in range(first_seed, first_seed + 40):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.bfloat16, torch.float16))
        leaf = problem.logits.detach().requires_grad_()
        loss = cross_entropy_ntl(leaf, problem.labels, problem.numbers, **problem.options)
        (gradient,) = torch.autograd.grad(loss, leaf, problem.upstream.to(loss.dtype))
        answer = solve(problem, "eager")
        torch.testing.assert_close(loss.detach(), answer.output.loss.detach())
        torch.testing.assert_close(gradient, answer.gradient)


class TestRowsOfEager(InfiniteRows):
    def solve(self, problem: Problem) -> Answer:
        return solve(problem, "eager")


class TestRowsOfTheReference(InfiniteRows):
    def solve(self, problem: Problem) -> Answer:
        return solve(problem, "reference")


@pytest.mark.parametrize("vocab_size", [11, 1003, 50257])
def test_vocabularies_and_many_numbers(vocab_size: int) -> None:
    for i, count in enumerate((2, 10, min(1110, vocab_size - 1))):
        numbers = NumberTokens.from_mapping({token: token / 7 - 3 for token in range(count)}, vocab_size)
        labels = torch.tensor([0, 1, vocab_size - 1, -100, count - 1])
        config = NTLConfig(kind=("wasserstein", "huber", "mse")[i], reweigh=i != 1)
        problem = Problem(torch.randn(5, vocab_size) * 3, labels, numbers, {"config": config}, torch.tensor(1.0))
        problem.options["reduction"] = "mean"
        check(solve(problem, "eager"), problem)


def test_more_rows_than_are_computed_at_a_time() -> None:
    labels = torch.randint(0, 50, (2, 50_000))
    labels[1, 300:40_000] = -100
    for reduction, upstream in (("mean", torch.tensor(1.0)), ("none", torch.randn(2, 50_000))):
        problem = Problem(torch.randn(2, 50_000, 50), labels, DIGITS, {"reduction": reduction}, upstream)
        check(solve(problem, "eager"), problem)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_without_numbers_and_no_rows_at_all(reduction: str) -> None:
    for labels in (torch.full((4,), -100), torch.full((4,), 40), torch.empty(0, dtype=torch.long)):
        logits = torch.randn(len(labels), 50, requires_grad=True)
        loss = cross_entropy_ntl(logits, labels, DIGITS, reduction=reduction)
        expected = torch.zeros_like(logits)
        if (labels == 40).any():
            expected = torch.autograd.grad(F.cross_entropy(logits, labels, reduction=reduction).sum(), logits)[0]
        assert loss.isfinite().all()
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), logits)[0], expected)


def test_rows_that_do_not_count_are_not_read(backend: str) -> None:
    """Neither an ignored one nor one of weight 0."""
    logits, labels, weights = torch.randn(4, 50), torch.tensor([4, -100, 20, 5]), torch.tensor([1.0, 1.0, 2.0, 0.0])
    logits[1], logits[3] = torch.nan, torch.inf
    output = parts_of(logits.requires_grad_(), labels, token_weights=weights, backend=backend)
    assert output.loss.isfinite() and output.num_tokens == 3 and output.num_numbers == 1
    (gradient,) = torch.autograd.grad(output.loss, logits)
    if backend == "eager":  # the reference's is plain autograd's: 0 times NaN
        assert gradient.isfinite().all() and not gradient[[1, 3]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_confident_rows_keep_their_small_gradient(dtype: torch.dtype) -> None:
    """Near p = 1 the label's gradient is p - 1: rounding p first would leave 0 (as fla does)."""
    logits, labels = torch.zeros(2, 50), torch.tensor([4, 20])
    logits[0, 4] = logits[1, 20] = 11.0
    for reweigh in (True, False):
        options = {"reduction": "sum", "config": NTLConfig(reweigh=reweigh)}
        problem = Problem(logits.to(dtype), labels, DIGITS, options, torch.tensor(1.0))
        answer = solve(problem, "eager")
        if dtype == torch.float32 and not reweigh:  # p is rounded, and plain PyTorch is exact by chance
            truth = solve(problem.in_dtype(torch.float64), "reference").gradient
            torch.testing.assert_close(answer.gradient.double(), truth, rtol=0, atol=2.0**-24)
        else:
            check(answer, problem)
        assert answer.gradient[1, 20] < -5e-4


@pytest.mark.parametrize("label_sigma", [1e-10, 1e-300])
def test_a_narrow_target_is_the_one_hot_target(label_sigma: float, backend: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    for reweigh in (True, False):
        narrow, one_hot = (
            cross_entropy_ntl(logits, LABELS, DIGITS, config=config, backend=backend)
            for config in (NTLConfig(label_sigma=label_sigma, reweigh=reweigh), NTLConfig(reweigh=reweigh))
        )
        torch.testing.assert_close(narrow, one_hot)
        torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (narrow, one_hot)))


@pytest.mark.parametrize("options", LARGEST, ids=str)
def test_numbers_at_the_limits_are_computed_with(options: dict[str, Any], backend: str) -> None:
    labels = torch.tensor([4, 20, 30, 40])  # one number
    for dtype, reduction in ((torch.float32, "mean"), (torch.float64, "mean"), (torch.float16, "none")):
        if reduction == "mean" or "num_tokens" not in options:
            logits = (LOGITS * 1e-3).to(dtype).requires_grad_()
            loss = cross_entropy_ntl(logits, labels, DIGITS, backend=backend, reduction=reduction, **options)
            (gradient,) = torch.autograd.grad(loss.sum() * 1e-38, logits)
            assert loss.isfinite().all() and gradient.isfinite().all()


def test_a_sum_beyond_the_dtype_is_infinite_while_its_rows_are_not(backend: str) -> None:
    numbers = NumberTokens.from_mapping({3: 0.0, 4: 1e37}, 8)
    logits, labels = torch.eye(8)[3].mul(20).expand(33, 8), torch.full((33,), 4)
    for reduction in ("sum", "none"):
        loss = cross_entropy_ntl(
            logits, labels, numbers, config=NTLConfig(weight=3.0), backend=backend, reduction=reduction
        )
        assert (loss.isfinite() == (reduction == "none")).all()


# Guarantees to callers


@pytest.mark.parametrize("mean_over", ["numbers", "tokens"])
def test_a_batch_in_parts_is_the_whole_batch(mean_over: str, backend: str) -> None:
    """With the whole batch's counts, for any split. A mean over tokens needs no count of numbers."""
    logits, labels = torch.randn(24, 50, requires_grad=True), torch.randint(10, 50, (24,))
    labels[[0, 1, 7, 20]], labels[3:6] = torch.tensor([3, 9, 0, 4]), -100
    for config in (NTLConfig(mean_over=mean_over), NTLConfig(kind="mse", reweigh=True, mean_over=mean_over)):
        whole = parts_of(logits, labels, config=config, backend=backend)
        counts = {"num_tokens": whole.num_tokens, "num_numbers": whole.num_numbers}
        if mean_over == "tokens":
            counts = {"num_tokens": int(whole.num_tokens)}
        (expected,) = torch.autograd.grad(whole.loss, logits)
        for sizes in ([1] * 24, [5, 1, 0, 7, 11]):
            pieces = zip(logits.split(sizes), labels.split(sizes), strict=True)
            given: dict[str, Any] = {"config": config, "backend": backend, **counts}
            total = sum(cross_entropy_ntl(x, y, DIGITS, **given) for x, y in pieces)
            torch.testing.assert_close(total, whole.loss)
            torch.testing.assert_close(torch.autograd.grad(total, logits)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_result_dtypes(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 50, dtype=dtype, requires_grad=True)
    output = parts_of(logits, torch.arange(3))
    assert {part.dtype for part in output} == {torch.float64 if dtype == torch.float64 else torch.float32}
    assert not any(part.requires_grad for part in output[1:])
    output.loss.backward()
    assert logits.grad is not None and logits.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing_inside(dtype: torch.dtype, backend: str) -> None:
    for config in (NTLConfig(reweigh=True), NTLConfig(kind="mse")):
        expected = cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config)
        with torch.autocast("cpu", dtype):
            got = cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config, backend=backend)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.int64(3)])
def test_numpy_scalars_are_numbers(number: np.number, backend: str) -> None:
    def loss(given: Any) -> Tensor:
        names = ("num_tokens", "num_numbers", "z_loss", "softcap", "logit_scale")
        config = NTLConfig(weight=given, kind="huber", huber_delta=given)
        options = {**dict.fromkeys(names, given), "ignore_index": np.int64(-100), "backend": backend}
        return cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config, **options)

    torch.testing.assert_close(loss(number), loss(number.item()), rtol=0, atol=0)


# Errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"logits": LOGITS.long()}, TypeError, "logits.*int64"),
        ({"logits": [1.0]}, TypeError, "logits.*list"),
        ({"logits": LOGITS[:3]}, ValueError, r"labels.*\(3,\).*\(4,\)"),
        ({"logits": torch.randn(4, 51)}, ValueError, "50.*51"),
        ({"logits": torch.tensor(1.0)}, ValueError, "0-d"),
        ({"logits": torch.randn(4, 49, 51)}, ValueError, "vocabulary of 50 tokens; got 51 columns"),
    ],
)
def test_wrong_logits_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cross_entropy_ntl(**{"labels": LABELS, "numbers": DIGITS, **options})


@pytest.mark.parametrize("shape", [(4, 50, 3), (4, 50, 3, 2)], ids=str)
def test_classes_in_dimension_1_are_told_to_move(shape: tuple[int, ...]) -> None:
    """The remedy gives the loss that ``F.cross_entropy`` gives without it."""
    logits, config = torch.randn(shape), NTLConfig(weight=0.0)
    labels = torch.randint(50, logits.select(1, 0).shape)
    said = re.escape(
        f"got {shape}, with the vocabulary in dimension 1 as for F.cross_entropy: pass logits.movedim(1, -1)"
    )
    with pytest.raises(ValueError, match=said):
        cross_entropy_ntl(logits, labels, DIGITS, config=config)
    with pytest.raises(ValueError, match=said):
        number_statistics(logits, DIGITS)
    loss = cross_entropy_ntl(logits.movedim(1, -1), labels, DIGITS, config=config)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels))


@every_wrong_argument
def test_wrong_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str, backend: str) -> None:
    """For every dtype: float64 logits have the same limits, except for weights."""
    given_weights = [options[name] for name in ("token_weights", "number_weights") if name in options]
    is_double = any(isinstance(weights, Tensor) and weights.dtype == torch.float64 for weights in given_weights)
    for dtype in (torch.float32, torch.bfloat16, torch.float16 if is_double else torch.float64):
        given = {"logits": LOGITS.to(dtype), "labels": LABELS, "numbers": DIGITS, "backend": backend, **options}
        with pytest.raises(error, match=message):
            cross_entropy_ntl(**given)


@pytest.mark.parametrize("name", ["token_weights", "number_weights"])
def test_a_weight_that_does_not_fit_is_never_ignored(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a traced call, and without checks, as on a GPU. With float64 logits it is a weight like any other."""
    labels = torch.tensor([4, 7, 9, -100])
    for weight in (1e300, 1e-60):
        weights = torch.tensor([1.0, weight, 0.0, 2.0], dtype=torch.float64)
        given: dict[str, Any] = {name: weights, "reduction": "none"}
        saved = torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept)
        with saved, pytest.raises(ValueError, match=f"{name} must"):
            cross_entropy_ntl(LOGITS.clone().requires_grad_(), labels, DIGITS, backend="eager", **given)
        losses = cross_entropy_ntl(LOGITS.double(), labels, DIGITS, backend=backend, **given)
        plain = parts_of(LOGITS.double(), labels, backend=backend, reduction="none")
        whole = plain.loss * weights if name == "token_weights" else plain.cross_entropy + 0.3 * weights * plain.ntl
        torch.testing.assert_close(losses, whole)
        with monkeypatch.context() as patched:
            patched.setattr(checks, "can_look", lambda _: False)
            losses = cross_entropy_ntl(LOGITS, labels, DIGITS, backend=backend, **given)
        assert losses.isfinite().tolist() == [True, False, True, True]


def test_values_too_far_apart_are_named(backend: str) -> None:
    numbers = NumberTokens.from_mapping({3: -3e30, 4: 3e30}, 50)
    assert cross_entropy_ntl(LOGITS, LABELS, numbers, backend=backend).isfinite()
    with pytest.raises(ValueError, match=r"6e\+30 apart.*beyond float32"):
        cross_entropy_ntl(LOGITS, LABELS, numbers, config=NTLConfig(kind="mse"), backend=backend)


def test_triton_without_a_gpu_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"TRITON_INTERPRET.*cpu"):
        cross_entropy_ntl(LOGITS, LABELS, DIGITS, backend="triton")
    with pytest.raises(TypeError, match="float64"):
        cross_entropy_ntl(LOGITS.double(), LABELS, DIGITS, backend="triton")
