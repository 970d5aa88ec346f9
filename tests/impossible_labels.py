"""Rows in which a label, or what label smoothing gives a share of the target to, has a logit of -inf."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ntl_kernels import NTLConfig, NumberTokens

from .problems import Answer, Problem

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
    """Hold loss and gradient to those of torch's cross-entropy: infinite and NaN where they are."""
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
