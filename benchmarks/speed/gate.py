"""The correctness gate: compares a provider with the float64 reference before it is timed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ntl_kernels import NTLConfig, cross_entropy_ntl

from .models import batch_of, class_loss, make_model, shifted
from .workloads import CONFIGS, NTL_WEIGHT, Case, Outcome

BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""How many logits to process in float64 at a time."""
LIMITS = {"float32": (1e-4, 1e-3), "bfloat16": (2e-2, 5e-2)}
"""Largest allowed relative error of the loss, and of each gradient in the Frobenius norm.

The limits only check that the same thing is computed; they do not judge precision (the errors are in the results).
Plain PyTorch in bfloat16 rounds every log-probability, and the loss itself, to 8 bits.
"""


@dataclass(frozen=True)
class Errors:
    """Relative errors against float64."""

    loss: float
    gradient: float
    """The largest over the leaves of |gradient - truth| / |truth|, in the Frobenius norm."""

    def verdict(self, dtype: str) -> str | None:
        """A description of errors beyond the limits (or NaN); None if there are none."""
        loss, gradient = LIMITS[dtype]
        if self.loss <= loss and self.gradient <= gradient:
            return None
        return f"relative error {self.loss:.2g} of the loss, {self.gradient:.2g} of the gradient"


def compare(outcome: Outcome, truth: Outcome) -> Errors:
    """The errors of an outcome."""
    loss = (outcome.loss.double() - truth.loss).abs() / truth.loss.abs().clamp_min(1e-12)
    errors = [distance(got, true) for got, true in zip(outcome.gradients, truth.gradients, strict=True)]
    return Errors(loss.item(), max(errors))


def distance(got: Tensor, true: Tensor) -> float:
    """|got - true| / |true|; NaN if the shapes differ."""
    if got.shape != true.shape:
        return float("nan")
    return ((got.to(true.dtype) - true).norm() / true.norm().clamp_min(1e-30)).item()


def truth_of(case: Case, objective: str) -> Outcome:
    """The loss in float64 and its gradients (of the logits in float32, to save memory)."""
    if objective == "ntl":  # a class of the ntloss package
        kinds = {"NTLoss": "wasserstein", "NTLossDotProduct": "mse"}
        if case.workload.loss not in kinds:
            return number_level_truth(case)
        config = NTLConfig(kind=kinds[case.workload.loss], weight=1.0, reweigh=True)  # the classes' default
        return rows_truth(case, config, without_ce=True)
    config = replace(CONFIGS.get(case.workload.loss, NTLConfig()), weight=ntl_weight(objective))
    return model_truth(case, config) if case.workload.family == "step" else rows_truth(case, config)


def ntl_weight(objective: str) -> float:
    return {"ce": 0.0, "ce+ntl": NTL_WEIGHT}[objective]


def rows_truth(case: Case, config: NTLConfig, without_ce: bool = False) -> Outcome:
    """The truth of logits, or of hidden states and weight: some rows at a time, with the denominators of all rows."""
    tensors, workload = case.sets[0], case.workload
    total = torch.zeros((), dtype=torch.float64, device=case.device)
    gradients = [torch.zeros(leaf.shape, dtype=torch.float32, device=case.device) for leaf in tensors.leaves]
    by_row, *shared = (leaf.detach() for leaf in tensors.leaves)
    size = max(1, BLOCK_ELEMENTS[case.device.type] // workload.vocab)
    for block in (slice(start, start + size) for start in range(0, workload.rows, size)):
        leaves = [leaf.double().requires_grad_() for leaf in (by_row[block], *shared)]
        logits, labels = leaves[0] @ leaves[1].t() if shared else leaves[0], tensors.labels[block]
        loss = block_loss(case, logits, labels, config)
        if without_ce:
            loss = loss - block_loss(case, logits, labels, NTLConfig(weight=0.0))
        of_rows, *of_all = torch.autograd.grad(loss, leaves)
        gradients[0][block] = of_rows
        for sum_of_blocks, other in zip(gradients[1:], of_all, strict=True):
            sum_of_blocks += other
        total += loss.detach()
    return Outcome(total, tuple(gradients))


def block_loss(case: Case, logits: Tensor, labels: Tensor, config: NTLConfig) -> Tensor:
    counts = {"num_tokens": case.num_tokens, "num_numbers": case.num_numbers}
    return cross_entropy_ntl(logits, labels, case.numbers, config=config, backend="reference", **counts)


def number_level_truth(case: Case) -> Outcome:
    """The truth of the number-level loss, which the reference does not have: our class in float64."""
    logits = case.sets[0].logits.detach().double().requires_grad_()
    loss_of = class_loss("ntl_kernels.ntloss", case.workload.loss, case, reweigh=True)
    loss = loss_of(logits[None], case.sets[0].labels[None])
    (gradient,) = torch.autograd.grad(loss, logits)
    return Outcome(loss.detach(), (gradient,))


def model_truth(case: Case, config: NTLConfig) -> Outcome:
    """The loss and the parameters' gradients of the model in float64."""
    model = make_model(case).double()
    ids, labels = batch_of(case)
    logits = model(input_ids=ids).logits
    loss = cross_entropy_ntl(logits, shifted(labels), case.numbers, config=config, backend="reference")
    loss.backward()
    return Outcome(loss.detach(), tuple(parameter.grad for parameter in model.parameters()))
