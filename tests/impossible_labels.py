"""Rows in which a label, a column of the smoothed target, or every number token is at -inf."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from ntl_kernels import NTLConfig, NumberTokens
from ntl_kernels.config import KINDS

from .problems import Answer, Problem, solve

SMOOTHINGS = (0.0, 0.1, 0.5, 0.9, 1.0)
"""At 1.0 torch itself multiplies the label's infinite loss by 0, which is NaN; the gradient stays finite."""


def impossible_problem(dtype: torch.dtype, reduction: str, label_smoothing: float, vocab_size: int = 203) -> Problem:
    """A label of -inf, another column of -inf, both, neither, half of all columns, a number label in all that are."""
    torch.manual_seed(0)
    logits = (torch.randn(6, vocab_size) * 3).to(dtype)
    labels = torch.tensor([50, 51, 52, 53, 54, 7])
    logits[0, 50] = logits[1, 3] = logits[2, 52] = logits[2, 9] = -torch.inf
    logits[4, vocab_size // 2 :] = logits[5, :10] = -torch.inf
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, vocab_size)
    upstream = torch.linspace(0.5, 2.0, 6) if reduction == "none" else torch.tensor(1.5)
    options = {"config": NTLConfig(weight=0.0), "reduction": reduction, "label_smoothing": label_smoothing}
    return Problem(logits, labels, numbers, options, upstream)


def check_impossible(answer: Answer, problem: Problem) -> None:
    """Compare loss and gradient with those of torch's cross-entropy, including infinity and NaN."""
    dtype = torch.float64 if problem.logits.dtype == torch.float64 else torch.float32
    logits = problem.logits.detach().to(dtype).requires_grad_()
    options = {name: problem.options[name] for name in ("reduction", "label_smoothing")}
    loss = F.cross_entropy(logits, problem.labels, **options)
    (gradient,) = torch.autograd.grad(loss, logits, problem.upstream.to(loss))
    assert loss.isinf().any() or loss.isnan().any()
    assert gradient.isfinite().all()
    for got in (answer.output.loss, answer.output.cross_entropy):
        torch.testing.assert_close(got.view_as(loss), loss, equal_nan=True, rtol=1e-5, atol=1e-5)
    rounding = max(1e-6, 2 * torch.finfo(problem.logits.dtype).eps)
    torch.testing.assert_close(answer.gradient.to(dtype).view_as(gradient), gradient, rtol=rounding, atol=rounding)


UNMEASURED_CONFIGS = [
    *(NTLConfig(kind, 2.0, reweigh) for kind in KINDS if kind != "soft_labels" for reweigh in (False, True)),
    NTLConfig(weight=0.0, mean_over="tokens"),
    NTLConfig(label_sigma=1.3),
    NTLConfig(label_sigma=1.3, reweigh=True),
    NTLConfig(squash_factor=3.0, reweigh=True),
]


def unmeasured_problem(dtype: torch.dtype, reduction: str, config: NTLConfig, are_grouped: bool = False) -> Problem:
    """In rows 0 and 3, whose labels are numbers, all number tokens of their group are at -inf; in row 4, half."""
    torch.manual_seed(0)
    logits, labels = (torch.randn(7, 203) * 3).to(dtype), torch.tensor([7, 5, 52, 99, 3, -100, 12])
    digits: dict[int, float] = {i + 3: i - 4.5 for i in range(10)}
    groups = [{99: 20.0, 150: 21.0}, digits] if are_grouped else [{**digits, 99: 20.0}]
    numbers = NumberTokens.from_groups(groups, 203)
    for row in (0, 3):
        logits[row, next([*group] for group in groups if int(labels[row]) in group)] = -torch.inf
    logits[4, 8:13] = -torch.inf
    logits[6, numbers.ids] -= 300  # a probability that underflows in float32, but still a distribution
    options = {"config": config, "reduction": reduction, "token_weights": torch.linspace(0.5, 2.0, 7)}
    upstream = torch.linspace(0.5, 2.0, 7) if reduction == "none" else torch.tensor(1.5)
    return Problem(logits, labels, numbers, options, upstream)


def check_unmeasured(answer: Answer, problem: Problem) -> None:
    """Compare rows 0 and 3 with cross-entropy alone, the others with the reference, with denominators of all rows."""
    options, rest = problem.options, torch.tensor([1, 2, 4, 5, 6], device=problem.labels.device)
    weights, is_number = options["token_weights"], problem.numbers.is_number(problem.labels)
    given = {"token_weights": weights[rest]}
    if options["reduction"] == "mean":
        given |= {"num_tokens": weights[problem.labels >= 0].sum(), "num_numbers": weights[is_number].sum()}
    upstream = problem.upstream[rest] if options["reduction"] == "none" else problem.upstream
    others = replace(problem, logits=problem.logits[rest], labels=problem.labels[rest], upstream=upstream)
    truth = solve(replace(others, options={**options, **given}).in_dtype(torch.float64), "reference")

    logits = problem.logits.detach().double().requires_grad_()
    loss = F.cross_entropy(logits, problem.labels, reduction="none")
    (gradient,) = torch.autograd.grad(loss, logits, weights * problem.upstream / given.get("num_tokens", 1.0))
    gradient[rest] = truth.gradient
    single, rounding = torch.finfo(torch.float32).eps, torch.finfo(problem.logits.dtype).eps
    limit = 2 * rounding * gradient.abs() + 40 * single * gradient.abs().max()
    assert ((answer.gradient.double() - gradient).abs() <= limit).all(), problem
    ntl = answer.output.ntl[rest] if options["reduction"] == "none" else answer.output.ntl
    for got, want in (
        (ntl, truth.output.ntl),
        (answer.output.ntl.sum(), truth.output.ntl.sum()),
        (answer.output.number_mae, truth.output.number_mae),
        (answer.output.number_mass, truth.output.number_mass),
        (answer.output.num_numbers, weights[is_number].sum()),
    ):
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-5, atol=1e-6)
    assert torch.equal(
        answer.output.loss.isinf(), loss.isinf() if loss.ndim == answer.output.loss.ndim else loss.sum().isinf()
    )


def soft_problem(dtype: torch.dtype, reduction: str, label_share: float) -> Problem:
    """Number labels whose target has probability on columns of -inf, on finite columns alone, or on none that is."""
    torch.manual_seed(0)
    logits, labels = (torch.randn(6, 203) * 3).to(dtype), torch.tensor([7, 5, 52, 30, -100, 12])
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(40)}, 203)
    logits[0, 8] = logits[1, 20:] = logits[2, 3:43] = -torch.inf  # row 1: more than 12 away, where the target is 0
    logits[3, 3:43] = -torch.inf
    config = NTLConfig("soft_labels", 0.7, label_sigma=1.0, label_share=label_share)
    upstream = torch.linspace(0.5, 2.0, 6) if reduction == "none" else torch.tensor(1.5)
    return Problem(logits, labels, numbers, {"config": config, "reduction": reduction}, upstream)


def check_soft(answer: Answer, problem: Problem) -> None:
    """Compare with torch's cross-entropy and a target of probabilities, whose loss is infinite where a column with
    probability is at -inf, and whose gradient is finite."""
    x, labels, config = problem.logits.detach().double().requires_grad_(), problem.labels, problem.options["config"]
    reduction, is_number = problem.options["reduction"], problem.numbers.is_number(labels)
    values = torch.arange(40.0, dtype=torch.float64, device=x.device)
    target = (-((values - (labels[is_number, None] - 3)) ** 2) / 2).softmax(-1)
    target = torch.where(target < 1e-30, 0.0, target)
    log_p = x[is_number].log_softmax(-1)[:, 3:43]
    soft = torch.xlogy(target, target).sum(-1) - torch.where(target > 0, target * log_p, 0.0).sum(-1)
    share = torch.where(is_number, config.label_share, 1.0)
    ce = torch.where(share == 0, 0.0, share * F.cross_entropy(x, labels, reduction="none"))
    ntl = torch.zeros_like(ce).index_put((is_number.nonzero().squeeze(-1),), soft)
    if reduction == "mean":
        ce, ntl = ce / (labels >= 0).sum(), ntl / is_number.sum()
    loss = ce + config.weight * ntl
    loss = loss if reduction == "none" else loss.sum()
    (gradient,) = torch.autograd.grad(loss, x, problem.upstream.to(loss))
    assert loss.isinf().any() and gradient.isfinite().all()
    torch.testing.assert_close(answer.output.loss.double().view_as(loss), loss, rtol=1e-5, atol=1e-5)
    rounding = max(1e-6, 2 * torch.finfo(problem.logits.dtype).eps)
    torch.testing.assert_close(answer.gradient.double().view_as(gradient), gradient, rtol=rounding, atol=rounding)
