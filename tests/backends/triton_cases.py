"""Tests of the Triton backend on any device: run by `interpreted.py` on a CPU and by `test_triton.py` on a GPU."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import (
    NTLConfig,
    NTLOutput,
    NumberTokens,
    backends,
    cross_entropy_ntl,
    dispatch,
    linear_cross_entropy_ntl,
)
from ntl_kernels.backends import eager
from ntl_kernels.backends.layout import gradient_like, is_phase_equal
from ntl_kernels.problem import NUM_FIELDS, RowInputs, RowResult
from ntl_kernels.problem import Problem as Contract
from ntl_kernels.spec import spec_of

from ..parallel.shards import checked, reduced_by
from ..problems import (
    Answer,
    Problem,
    assert_as_good_as_plain,
    check,
    moved,
    random_numbers,
    random_problem,
    solve,
    tanh_error,
)
from ..row_cases import InfiniteRows

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class TritonCases(InfiniteRows):
    """Tests for the device of the subclass."""

    is_compiled = True
    """For an NVIDIA GPU, whose tanh a softcap uses."""

    def tanh_error(self, problem: Problem) -> float:
        return tanh_error(problem) if self.is_compiled else 0.0

    def solve(self, problem: Problem) -> Answer:
        return solve(problem, "triton")

    def check(self, answer: Answer, problem: Problem) -> None:
        check(answer, problem, tanh=self.tanh_error(problem))

    @pytest.mark.parametrize("first_seed", range(0, 500, 50))
    def test_equals_the_reference(self, first_seed: int) -> None:
        for seed in range(first_seed, first_seed + 50, self.every):
            problem = moved(random_problem(seed, DTYPES), self.device)
            self.check(solve(problem, "triton", inplace=seed % 3 == 0), problem)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("vocab_size", [2, 5, 2500, 4099, 17011])
    def test_rows_of_any_length(self, vocab_size: int, dtype: torch.dtype) -> None:
        """From less than a vector to several groups of vectors, every kind of edge and remainder."""
        rng = random.Random(vocab_size)
        for config in (NTLConfig(reweigh=True), NTLConfig(kind="mse", reweigh=False)):
            numbers = random_numbers(rng, vocab_size)
            labels = torch.cat([numbers.ids[[0, -1]], torch.tensor([vocab_size - 1, -100])])
            options = {"config": config, "label_smoothing": 0.1, "z_loss": 0.01, "reduction": "mean"}
            logits = torch.randn(2, 3, vocab_size)[:, :-1].to(dtype)
            problem = Problem(logits, labels.view(2, 2), numbers, options, torch.tensor(1.5))
            problem = moved(problem, self.device)
            self.check(solve(problem, "triton"), problem)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_every_row_is_written_and_nothing_else(self, reduction: str, dtype: torch.dtype) -> None:
        """Rows that start anywhere, in a buffer whose gaps must stay as they are; written over NaN."""
        for seed in range(20):
            rng = random.Random(seed)
            numbers = random_numbers(rng, rng.choice([3, 11, 50, 131]))
            logits = strided_rows(rng, 2, 3, numbers.vocab_size, dtype, self.device)
            gradient_buffer, gradient = guarded_like(logits, self.device)
            labels = torch.tensor([[*numbers.ids[[0, -1]].tolist(), -100], [0, numbers.vocab_size - 1, -100]])
            problem = Problem(logits, labels, numbers, {"reduction": reduction}, torch.ones(2, 3))
            fields = run_contract(moved(problem, self.device), gradient)
            assert not fields.isnan().any() and not gradient.isnan().any()
            expected = solve(moved(summed(problem), self.device).in_dtype(torch.float64), "reference").gradient
            plain = solve(moved(summed(problem), self.device), "reference").gradient
            assert_as_good_as_plain(gradient, plain, expected, f"gradient, seed {seed}")
            written = torch.zeros_like(gradient_buffer, dtype=torch.bool)
            written.as_strided(gradient.shape, gradient.stride(), gradient.storage_offset()).fill_(True)
            assert gradient_buffer[~written].isnan().all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_bad_labels_and_weights_give_nan(self, dtype: torch.dtype) -> None:
        """Without out-of-bounds access, and in their own rows only."""
        labels = torch.tensor([[50, -1, 10**12, 4, 5, 20, 60, -100]])
        weights = torch.tensor([[1.0, 1.0, 1.0, -0.5, torch.nan, 1.0, 0.0, 1.0]])
        bad = torch.tensor([True] * 5 + [False] * 3, device=self.device)
        for reduction in ("mean", "none"):
            options = {"token_weights": weights, "reduction": reduction}
            problem = moved(
                Problem(torch.randn(1, 8, 50).to(dtype), labels, DIGITS, options, torch.ones(8)), self.device
            )
            gradient = gradient_like(problem.logits)
            fields = run_contract(problem, gradient)
            assert torch.equal(RowResult(*fields).cross_entropy.isnan(), bad)
            assert torch.equal(gradient[0].isnan().all(-1), bad) and torch.equal(gradient[0].isnan().any(-1), bad)
            assert (gradient[0, 6:] == 0).all()

    @pytest.mark.parametrize(("reduction", "has_ce"), [("mean", True), ("sum", True), ("none", True), ("none", False)])
    def test_the_reference_gives_the_same_nan(
        self, reduction: str, has_ce: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where labels and weights are not checked first, as on a GPU."""
        monkeypatch.setattr(backends, "HOST_DEVICES", ())
        monkeypatch.delenv("NTL_KERNELS_VALIDATE", raising=False)
        labels = torch.tensor([50, -1, 10**12, 4, 5, 20, 60, -100, 4], device=self.device)
        weights = torch.tensor([1.0, 1.0, 1.0, -0.5, torch.nan, 1.0, 0.0, 1.0, 2.0], device=self.device)
        spec = spec_of(NTLConfig(reweigh=True), DIGITS, reduction=reduction, has_cross_entropy=has_ce)
        answers = []
        for backend in ("triton", "reference"):
            logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)).to(self.device).requires_grad_()
            table = DIGITS.table(self.device)
            contract = Contract(RowInputs(labels, weights), None, None, 0.3, table, spec, backend)
            result = dispatch.loss_of_logits(logits, contract)
            result.loss.backward(torch.ones_like(result.loss))
            answers.append((result.loss.detach(), result.parts[:4], logits.grad))
        torch.testing.assert_close(*answers, equal_nan=True)
        loss, _, gradient = answers[1]
        if reduction == "mean":  # then its denominators are also NaN
            assert loss.isnan() and torch.equal(gradient.isnan().all(-1), (labels != -100) & (weights != 0))
        else:
            assert gradient.isnan().any(-1).tolist() == gradient.isnan().all(-1).tolist() == [True] * 5 + [False] * 4
            assert loss.isnan().tolist() == (True if reduction == "sum" else [True] * 5 + [False] * 4)

    def test_the_largest_factors_of_logits(self) -> None:
        """float32 also holds them times log2(e); larger ones raise."""
        labels = torch.tensor([4, 20, 30, 5])
        for options in ({"softcap": 2.3e38, "logit_scale": 1e3}, {"softcap": 8e37}, {"logit_scale": 2.3e38}):
            logits = torch.randn(4, 50) * (1e-3 if "softcap" in options else 1e-38)
            given = {"reduction": "sum", "config": NTLConfig(weight=0.0), **options}
            problem = moved(Problem(logits, labels, DIGITS, given, torch.tensor(1e-38)), self.device)
            answer, expected = solve(problem, "triton"), solve(problem.in_dtype(torch.float64), "reference")
            assert answer.gradient.isfinite().all() and answer.gradient.any()
            torch.testing.assert_close(answer.output.loss.double(), expected.output.loss, rtol=1e-5, atol=1e-5)
        for options in ({"softcap": 3e38}, {"logit_scale": 3e38}):
            with pytest.raises(ValueError, match=r"at most 2\.35866e\+38"):
                solve(moved(Problem(logits, labels, DIGITS, options, torch.tensor(1.0)), self.device), "triton")

    def test_counts_and_finish_equal_eager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By one program and by several."""
        from ntl_kernels.backends import triton

        for seed in range(12):
            monkeypatch.setattr(triton, "MOST_ROWS_OF_A_PROGRAM", seed % 2 * 2**16)
            problem = moved(random_problem(seed, (torch.float32,), shapes=((3, 5), (1, 0), (1, 5001))), self.device)
            given = random.Random(seed).choice(
                [(None, None), (3.0, None), (torch.tensor(2.0, device=self.device), 0.0), (0, None)]
            )
            contract = contract_of(problem)._replace(num_tokens=given[0], num_numbers=given[1])
            counts = (b.count(contract, problem.logits.shape[-1], torch.float32) for b in (triton, eager))
            torch.testing.assert_close(*counts)
            fields = torch.rand(NUM_FIELDS, contract.rows.labels.numel(), device=self.device)
            for field in (RowResult(*fields).row_weight, RowResult(*fields).number_row_weight):
                field.round_()  # 0 or 1, as they are where no weights are given
            for reduction in ("mean", "sum", "none"):
                got, expected = (b.finish(fields, reduced_by(contract, reduction)) for b in (triton, eager))
                torch.testing.assert_close(got, expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_scaling(self, dtype: torch.dtype) -> None:
        from ntl_kernels.backends import triton

        for seed in range(8):
            rng = random.Random(seed)
            gradient = strided_rows(rng, 3, 2, rng.choice([2, 11, 50, 1003, 9000]), dtype, self.device)
            expected = (gradient.float() * 2.5).to(dtype)
            before = gradient.clone()
            triton.scale_(gradient, torch.tensor(1.0, device=self.device))
            assert torch.equal(gradient, before)
            triton.scale_(gradient, torch.tensor(2.5, device=self.device))
            torch.testing.assert_close(gradient, expected, rtol=torch.finfo(dtype).eps, atol=0)
        for upstream in (torch.float32, torch.bfloat16, torch.float64):  # beyond half precision: formed in float32
            for scale in (2.0**-20, 2.0**20):
                gradient = (torch.randn(1, 3, 50) / scale**0.5).to(dtype).to(self.device)
                expected = (gradient.float() * scale).to(dtype)
                triton.scale_(gradient, torch.tensor(scale, dtype=upstream, device=self.device))
                assert torch.equal(gradient, expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_columns_of_minus_infinity(self, dtype: torch.dtype) -> None:
        """In long rows, most threads see nothing else."""
        for vocab_size, softcap in ((50, None), (50, 5.0), (5003, None)):
            logits = torch.randn(4, vocab_size)
            logits[:, 30:] = -torch.inf
            logits[:, 5] = -torch.inf  # a number token
            logits[0, :3] = -torch.inf
            numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, vocab_size)
            options, labels = {"reduction": "mean", "softcap": softcap}, torch.tensor([3, 4, 20, 12])
            problem = moved(Problem(logits.to(dtype), labels, numbers, options, torch.tensor(1.0)), self.device)
            answer = solve(problem, "triton")
            assert answer.gradient.isfinite().all()
            self.check(answer, problem)

    def test_float16_survives_loss_scaling(self) -> None:
        """The upstream gradient is applied before rounding: a mean over many rows would underflow without it."""
        logits, labels = torch.randn(40, 50).half(), torch.randint(0, 50, (40,))
        options = {"reduction": "mean", "num_tokens": 10**6, "num_numbers": 10**6}
        problem = moved(Problem(logits, labels, DIGITS, options, torch.tensor(65536.0)), self.device)
        answer = solve(problem, "triton")
        self.check(answer, problem)
        assert (answer.gradient != 0).float().mean() > 0.99

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_second_backward_is_right(self, reduction: str, dtype: torch.dtype) -> None:
        logits = torch.randn(5, 50, dtype=dtype, device=self.device, requires_grad=True)
        labels = torch.arange(5, device=self.device)
        loss = cross_entropy_ntl(logits, labels, DIGITS, reduction=reduction, backend="triton").sum()
        (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
        kept = first.clone()
        three = torch.tensor(3.0, device=self.device)
        (second,) = torch.autograd.grad(loss, logits, three, retain_graph=True)
        (third,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(first, kept, rtol=0, atol=0)
        torch.testing.assert_close(second, 3 * kept, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        torch.testing.assert_close(third, kept, rtol=0, atol=0)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize(
        "labels",
        [torch.full((4,), -100), torch.full((4,), 40), torch.empty(0, dtype=torch.long)],
        ids=["all ignored", "no number", "empty"],
    )
    def test_batches_without_numbers_have_a_graph(self, labels: Tensor, reduction: str) -> None:
        upstream = torch.ones_like(labels, dtype=torch.float32) if reduction == "none" else torch.tensor(1.0)
        problem = Problem(torch.randn(len(labels), 50), labels, DIGITS, {"reduction": reduction}, upstream)
        problem = moved(problem, self.device)
        answer = solve(problem, "triton")
        self.check(answer, problem)
        if not (labels == 40).any():
            assert (answer.gradient == 0).all() and (answer.output.loss == 0).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rows_that_do_not_count_are_not_read(self, dtype: torch.dtype) -> None:
        logits = torch.randn(3, 50).to(dtype)
        logits[1] = torch.nan
        weights = torch.tensor([1.0, 0.0, 2.0])
        for labels, options in (([4, -100, 20], {}), ([4, 5, 20], {"token_weights": weights})):
            options = {**options, "reduction": "mean"}
            problem = Problem(logits, torch.tensor(labels), DIGITS, options, torch.tensor(1.0))
            problem = moved(problem, self.device)
            answer = solve(problem, "triton")
            self.check(answer, problem)
            assert answer.output.loss.isfinite() and (answer.gradient[1] == 0).all()

    def test_nothing_is_written_without_gradient(self) -> None:
        logits = torch.randn(5, 50, device=self.device)
        labels, copy = torch.tensor([0, 4, -100, 5, 49], device=self.device), logits.clone()
        cross_entropy_ntl(logits, labels, DIGITS, inplace=True, backend="triton")
        with torch.no_grad():
            cross_entropy_ntl(logits.requires_grad_(), labels, DIGITS, inplace=True, backend="triton")
        torch.testing.assert_close(logits.detach(), copy, rtol=0, atol=0)

    @pytest.mark.parametrize("operand", ["logits", "slice", "in place", "hidden"])
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_operands_with_the_negative_bit(self, reduction: str, operand: str) -> None:
        """Their memory holds the opposite values."""
        expected = solve_seen(lambda tensor: tensor, operand, reduction, self.device)
        found = solve_seen(lambda tensor: torch._neg_view(-tensor), operand, reduction, self.device)
        torch.testing.assert_close(found, expected)  # a copy may be aligned differently, and summed in another order


def solve_seen(see: Callable[[Tensor], Tensor], operand: str, reduction: str, device: str) -> list[Tensor]:
    """Results and gradient of a loss with all tensors passed through ``see``."""
    torch.manual_seed(0)
    leaf, head = torch.randn(2, 3, 50).to(device).requires_grad_(), torch.randn(50, 50).to(device)
    labels = torch.tensor([[4, 20, -100], [5, 12, 3]], device=device)
    weights = torch.tensor([[1.5, 0.0, 2.0], [0.5, 1.0, 3.0]], device=device)
    upstream, num_tokens, num_numbers, ntl_weight = torch.tensor([1.5, 3.0, 2.0, 0.7], device=device)
    logits = see(leaf * 1)
    if operand == "slice":
        logits, labels, weights = logits[:, :-1], labels[:, :-1].contiguous(), weights[:, :-1]
    options: dict[str, Any] = {"config": NTLConfig(weight=see(ntl_weight)), "reduction": reduction, "backend": "triton"}
    if reduction == "mean":
        options |= {"num_tokens": see(num_tokens), "num_numbers": see(num_numbers)}
    if operand == "in place":  # of rows without weights, whose labels are used unchanged
        logits, labels, weights = logits.flatten(0, 1), labels.flatten(), weights.flatten()
        output = cross_entropy_ntl(logits, see(labels), DIGITS, inplace=True, return_parts=True, **options)
    else:
        options |= {"token_weights": see(weights), "number_weights": see(2 * weights), "return_parts": True}
        if operand == "hidden":
            bias = see(head[0].contiguous())
            output = linear_cross_entropy_ntl(logits, see(head), see(labels), DIGITS, bias=bias, **options)
        else:
            output = cross_entropy_ntl(logits, see(labels), DIGITS, **options)
    assert isinstance(output, NTLOutput)
    upstream = see(weights if reduction == "none" else upstream)
    return [*(part.detach() for part in output), *torch.autograd.grad(output.loss, leaf, upstream)]


def summed(problem: Problem) -> Problem:
    """The same rows under reduction "sum"."""
    options = {**problem.options, "reduction": "sum"}
    return dataclasses.replace(problem, options=options, upstream=torch.tensor(1.0))


def strided_rows(rng: random.Random, b: int, t: int, v: int, dtype: torch.dtype, device: str) -> Tensor:
    """Random [b, t, v] at an offset and strides of no particular divisibility."""
    row = v + rng.randint(0, 9)
    block = t * row + rng.randint(0, 9)
    offset = rng.randint(0, 9)
    buffer = torch.randn(offset + b * block).to(dtype).to(device)
    return buffer.as_strided((b, t, v), (block, row, 1), offset)


def guarded_like(logits: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """(buffer, rows): NaN everywhere, rows that a kernel may write with NaN on either side of each."""
    b, t, v = logits.shape
    vector = 16 // logits.element_size()
    block, row = (stride + vector * 2 for stride in logits.stride()[:2])
    block += t * 2 * vector
    offset = logits.storage_offset() + 2 * vector
    buffer = torch.full((offset + b * block + 64,), torch.nan, dtype=logits.dtype, device=device)
    rows = buffer.as_strided((b, t, v), (block, row, 1), offset)
    assert is_phase_equal(logits, rows)
    return buffer, rows


def contract_of(problem: Problem) -> Contract:
    """The arguments of the backends' functions besides the logits, for reduction "sum"."""
    return reduced_by(checked(problem, "triton")._replace(num_tokens=None, num_numbers=None), "sum")


def run_contract(problem: Problem, gradient: Tensor) -> Tensor:
    """Fill ``gradient``: in one pass, or in two for reduction "none". Returns the fields."""
    from ntl_kernels.backends import triton

    contract, logits = contract_of(problem), problem.logits
    one_pass = problem.options["reduction"] != "none"
    fields = torch.full((NUM_FIELDS, contract.rows.labels.numel()), torch.nan, device=logits.device)
    triton.row_losses(logits, contract, fields, gradient if one_pass else None)
    if not one_pass:
        upstream = torch.ones(contract.rows.labels.numel(), device=gradient.device)
        per_row = reduced_by(contract, "none")
        triton.row_gradients(logits, per_row, None, fields, None, upstream, gradient)
    return fields
