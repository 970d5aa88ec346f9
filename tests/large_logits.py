"""Rows of large logits, where a logsumexp in a single float32 loses its digits, compared with F.cross_entropy.

A common offset changes no probability, nor does a mask by large finite numbers. So the loss must be as good as that
of F.cross_entropy in float32, which subtracts a row's largest logit before anything else.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens

from .problems import FACTOR, SLACK, Answer, Problem, solve

VOCAB_SIZE = 203
NUMBERS = NumberTokens.from_mapping({3 * i: float(i) for i in range(10)}, VOCAB_SIZE)
KEPT = 40
"""Columns that a mask keeps, among them the number tokens."""
OFFSETS = (0.0, 100.0, -1e3, 1e4, 6e4, -6e4, 1e6)
LEVELS = (1e9, -1e10, 1e10, -1e30, 1e30, 3e38, -torch.inf)
"""The value of all columns of a row; -inf stands for the lowest finite number."""
MASKS = (-1e4, -1e9, -2e9, -1e10, -1e20, -1e30, -torch.inf)
"""What a mask writes, likewise."""
LEADS = (5.0, 20.0, 40.0, 66.0)
"""By how much the label's logit exceeds the others."""


def large_rows(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(logits [N, V], labels [N], half of them numbers)."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(VOCAB_SIZE, generator=generator, dtype=torch.float64) * 2
    columns = torch.arange(VOCAB_SIZE)
    rows = [noise + offset for offset in OFFSETS]
    rows += [torch.full((VOCAB_SIZE,), level, dtype=torch.float64) for level in LEVELS]
    rows += [torch.where(columns < KEPT, noise, mask) for mask in MASKS]
    labels = [(6, 30)[i % 2] for i in range(len(rows) + 2 * len(LEADS))]
    for height in LEADS:
        for offset in (0.0, 1e4):
            rows.append(torch.where(columns == labels[len(rows)], height + offset, offset))
    limits = torch.finfo(dtype)
    return torch.stack(rows).clamp(limits.min, limits.max).to(dtype), torch.tensor(labels)


def large_problem(
    dtype: torch.dtype,
    reduction: str,
    weight: float = 0.0,
    label_smoothing: float = 0.0,
    reweigh: bool = True,
    **options: Any,
) -> Problem:
    """With label smoothing of common offsets only: it makes masked columns cost as much as their size."""
    logits, labels = large_rows(dtype)
    if label_smoothing:
        options["label_smoothing"] = label_smoothing
        logits, labels = logits[: len(OFFSETS)], labels[: len(OFFSETS)]
    options |= {"reduction": reduction, "config": NTLConfig(weight=weight, reweigh=reweigh)}
    upstream = torch.linspace(0.5, 1.5, len(labels)) if reduction == "none" else torch.tensor(1.0)
    return Problem(logits, labels, NUMBERS, options, upstream)


def masked_start_problem(vocab_size: int, first: int = 0) -> Problem:
    """Label smoothing of rows whose columns from ``first`` on have a mask by a large finite number: one, 64 or half."""
    generator = torch.Generator().manual_seed(0)
    noise, columns = torch.randn(vocab_size, generator=generator) * 2, torch.arange(vocab_size)
    rows = [
        torch.where((columns >= first) & (columns < first + width), mask, noise)
        for width in (1, 64, vocab_size // 2)
        for mask in (-1e4, -1e6, -1e9, -2e9)
    ]
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, vocab_size)
    options = {"reduction": "none", "label_smoothing": 0.1, "config": NTLConfig(weight=0.0)}
    labels = torch.full((len(rows),), vocab_size - 1 if first == 0 else 0)
    return Problem(torch.stack(rows), labels, numbers, options, torch.ones(len(rows)))


def cross_entropy_and_gradient(problem: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Those of F.cross_entropy, computed in a dtype."""
    logits = problem.logits.detach().to(dtype).requires_grad_()
    scale, softcap = problem.options.get("logit_scale", 1.0), problem.options.get("softcap")
    x = scale * logits
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    keywords = {key: problem.options[key] for key in ("reduction", "label_smoothing") if key in problem.options}
    loss = F.cross_entropy(x, problem.labels, **keywords)
    (gradient,) = torch.autograd.grad(loss, logits, problem.upstream.to(dtype))
    return loss.detach(), gradient


def check_large(answer: Answer, problem: Problem, tanh: float = 0.0) -> None:
    """Require errors of a problem without NTL to be at most those of F.cross_entropy in float32, and some roundings.

    ``tanh`` is the relative error of the softcap's.
    """
    truth, plain = (cross_entropy_and_gradient(problem, dtype) for dtype in (torch.float64, torch.float32))
    loss, single = answer.output.loss.detach(), SLACK * torch.finfo(torch.float32).eps
    assert loss.isfinite().all() and answer.gradient.isfinite().all()
    assert problem.options["reduction"] != "none" or (loss >= 0).all(), "a negative cross-entropy"
    size = max(1.0, problem.options.get("softcap") or 0.0)  # a tanh's rounding becomes one of the softcap's size
    limit = FACTOR * (plain[0].double() - truth[0]).abs() + single * truth[0].abs().clamp_min(size)
    limit = limit + len(problem.labels) * 2 * tanh * size
    assert_within(loss, truth[0], limit, f"loss of {problem.options}")

    limits = FACTOR * (plain[1].double() - truth[1]).abs().amax(-1, keepdim=True)
    limits = limits + single * truth[1].abs().amax(-1, keepdim=True).clamp_min(1e-6)
    weight = problem.upstream / len(problem.labels) if problem.options["reduction"] == "mean" else problem.upstream
    # At the label it is p - 1; the derivative of a softcap, 1 - tanh², also cancels.
    is_cancelled = F.one_hot(problem.labels, problem.logits.shape[-1]) + bool(problem.options.get("softcap"))
    limits = limits + 2 * single * weight.double().view(-1, 1) * is_cancelled
    limits = limits + 2 * tanh * (size + 1) * weight.double().view(-1, 1)
    rounding = torch.finfo(answer.gradient.dtype)
    limits = limits + rounding.eps * truth[1].abs() + rounding.smallest_normal
    assert_within(answer.gradient, truth[1], limits, f"gradient of {problem.options}")


def offset_problem(reduction: str, weight: float = 0.0, label_smoothing: float = 0.0, reweigh: bool = True) -> Problem:
    """Random rows in float32, each with an offset that does not change the softmax, and labels of both kinds."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3 * len(OFFSETS), VOCAB_SIZE, generator=generator) * 2
    logits = rows + torch.tensor(OFFSETS).repeat(3)[:, None]
    labels = torch.randint(0, 30, (len(logits),), generator=generator)
    config = NTLConfig(weight=weight, reweigh=reweigh)
    options: dict[str, Any] = {"reduction": reduction, "config": config, "label_smoothing": label_smoothing}
    upstream = torch.ones(len(labels)) if reduction == "none" else torch.tensor(1.0)
    return Problem(logits, labels, NUMBERS, options, upstream)


OFFSET_PROBLEMS = [
    (reduction, *options)
    for reduction in ("mean", "sum", "none")
    for options in ((0.0, 0.0), (0.0, 0.1), (0.3, 0.0, True), (0.3, 0.0, False))
]


def check_offsets(answer: Answer, problem: Problem) -> None:
    """Absolute limits: 1e-5 of a row's loss (of losses above 1, relative), and 1e-6 of a row's gradient."""
    truth = solve(problem.in_dtype(torch.float64), "reference")
    rows = len(problem.labels) if problem.options["reduction"] == "sum" else 1
    loss = truth.output.loss.detach()
    lost = (answer.output.loss.detach().double() - loss).abs()
    assert (lost <= 1e-5 * loss.abs().clamp_min(rows)).all(), f"the loss is off by {lost.max():.3g}"
    effect = 1 + problem.options["config"].weight * NUMBERS.groups[0].furthest
    lost = (answer.gradient.double() - truth.gradient).abs().max()
    assert lost <= 1e-6 * effect, f"the gradient is off by {lost:.3g}"


def assert_within(got: Tensor, truth: Tensor, limit: Tensor, what: str) -> None:
    share = ((got.double() - truth).abs() / limit).max().item()
    assert share <= 1, f"the {what}: {share:.3g} times what F.cross_entropy may lose"
