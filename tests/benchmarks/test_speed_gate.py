"""The gate: the truth is correct, and results that differ from it do not pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks.speed import gate
from benchmarks.speed.models import batch_of, shifted
from benchmarks.speed.workloads import IGNORED, Outcome
from ntl_kernels import NTLConfig, cross_entropy_ntl

from .speed_cases import case


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BLOCK_ELEMENTS", {"cpu": 96 * 5})  # 12 rows do not divide into blocks of 5


@pytest.mark.parametrize("ignored", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("objective", ["ce", "ce+ntl"])
def test_truth_in_blocks_is_that_of_all_rows(objective: str, ignored: float) -> None:
    problem = case(ignored_share=ignored)
    logits = problem.sets[0].logits.detach().double().requires_grad_()
    config = NTLConfig(weight=gate.ntl_weight(objective))
    loss = cross_entropy_ntl(logits, problem.sets[0].labels, problem.numbers, config=config, backend="reference")
    (gradient,) = torch.autograd.grad(loss, logits)
    truth = gate.truth_of(problem, objective)
    assert truth.loss.item() == pytest.approx(loss.item())
    torch.testing.assert_close(truth.gradients[0], gradient.float(), rtol=1e-5, atol=1e-8)


def test_truth_of_hidden_states() -> None:
    problem = case(family="hidden", hidden=8)
    tensors = problem.sets[0]
    hidden, weight = (leaf.detach().double().requires_grad_() for leaf in tensors.leaves)
    loss = F.cross_entropy(hidden @ weight.t(), tensors.labels)
    truth = gate.truth_of(problem, "ce")
    assert truth.loss.item() == pytest.approx(loss.item())
    for got, expected in zip(truth.gradients, torch.autograd.grad(loss, (hidden, weight)), strict=True):
        torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-7)


def test_truth_of_a_model_is_its_stock_loss() -> None:
    transformers = pytest.importorskip("transformers")
    problem = case(family="step", rows=16, hidden=8, dtype="float32")
    truth = gate.truth_of(problem, "ce")
    from benchmarks.speed.models import make_model

    model = make_model(problem).double()
    assert isinstance(model, transformers.PreTrainedModel)
    ids, labels = batch_of(problem)
    loss = model(input_ids=ids, labels=labels).loss
    assert truth.loss.item() == pytest.approx(loss.item(), rel=1e-6)  # the stock loss is computed in float32


def test_labels_shift_by_one() -> None:
    assert shifted(torch.tensor([[1, 2, 3]])).tolist() == [[2, 3, IGNORED]]


def test_number_level_truth_of_one_number() -> None:
    """The label 42 where the model is sure of 7 and then of 2: |72 - 42| / (72 + 42)."""
    problem = case(family="ntl", loss="NumberLevelLoss", rows=2, vocab=40)
    digit = problem.numbers.ids.tolist()
    problem.sets[0].labels.copy_(torch.tensor([digit[4], digit[2]]))
    with torch.no_grad():
        logits = problem.sets[0].logits.fill_(-50.0)
        logits[0, digit[7]] = logits[1, digit[2]] = 50.0
    assert gate.truth_of(problem, "ntl").loss.item() == pytest.approx(30 / 114)


def test_ntl_truth_is_the_loss_without_cross_entropy() -> None:
    problem = case(family="ntl")
    tensors = problem.sets[0]
    config = NTLConfig(weight=1.0, reweigh=True)
    parts = cross_entropy_ntl(
        tensors.logits.double(), tensors.labels, problem.numbers, config=config, return_parts=True, backend="reference"
    )
    assert gate.truth_of(problem, "ntl").loss.item() == pytest.approx(parts.ntl.item())


def test_gate_passes_the_right_and_stops_the_wrong() -> None:
    problem = case()
    truth = gate.truth_of(problem, "ce")
    right = Outcome(truth.loss.float(), truth.gradients)
    assert gate.compare(right, truth).verdict("float32") is None
    for wrong in (
        Outcome(truth.loss * 1.01, truth.gradients),
        Outcome(truth.loss, (truth.gradients[0] * 1.01,)),
        Outcome(truth.loss, (truth.gradients[0][:-1],)),
        Outcome(truth.loss * float("nan"), truth.gradients),
        Outcome(truth.loss, (truth.gradients[0] * float("nan"),)),
    ):
        verdict = gate.compare(wrong, truth).verdict("float32")
        assert verdict is not None and "relative error" in verdict


def test_a_gradient_too_few_is_an_error() -> None:
    truth = gate.truth_of(case(), "ce")
    with pytest.raises(ValueError):
        gate.compare(Outcome(truth.loss, ()), truth)
