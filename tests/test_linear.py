"""`linear_cross_entropy_ntl` against the reference on full logits, and its memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl
from ntl_kernels.loss import CHUNK_MULTIPLE, default_chunk_size

from .heads import check_head, random_head, solve_head
from .problems import Answer, Problem, assert_as_good_as_plain
from .profiles import peak_of, products_of
from .row_cases import LargeRows
from .wrong_numbers import every_mixed_operand, every_wrong_argument

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
HIDDEN, WEIGHT, LABELS = torch.randn(4, 8), torch.randn(50, 8), torch.tensor([4, 20, 30, 5])


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_random_heads_equal_the_reference_on_full_logits(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        head = random_head(seed)
        check_head(solve_head(head, "eager", is_all=False), head)


class TestRowsOfHeads(LargeRows):
    """With the identity for a head, hidden states are the logits, and so are their gradients."""

    vocab_size = 2000

    def solve(self, problem: Problem) -> Answer:
        hidden = problem.logits.detach().requires_grad_()
        weight = torch.eye(hidden.shape[1], dtype=hidden.dtype)
        options = {**problem.options, "chunk_size": 4, "return_parts": True}
        output = linear_cross_entropy_ntl(hidden, weight, problem.labels, problem.numbers, **options)
        assert isinstance(output, NTLOutput)
        (gradient,) = torch.autograd.grad(output.loss, hidden, problem.upstream)
        return Answer(output, gradient)


BIASES: list[tuple[Tensor, dict[str, Any]]] = [
    (torch.tensor([20, 5, 49]), {"config": NTLConfig(weight=0.0), "label_smoothing": 0.5, "chunk_size": 2}),
    *((DIGITS.ids, {"config": NTLConfig(**given)}) for given in ({}, {"kind": "mse", "reweigh": True})),
    (DIGITS.ids, {"config": NTLConfig(label_sigma=1.0)}),
]
"""Columns that a bias of -inf takes out: those of labels, or all numbers, which then have no number loss."""


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("columns", "options"), BIASES)
def test_a_bias_of_minus_infinity_takes_columns_out(columns: Tensor, options: dict[str, Any], reduction: str) -> None:
    """Losses of their labels are infinite, and gradients finite: those of torch's cross-entropy."""
    bias = torch.randn(50).index_fill(0, columns, -torch.inf)
    leaves = HIDDEN.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    given = {"bias": bias, "reduction": reduction, "return_parts": True, **options}
    output = linear_cross_entropy_ntl(*leaves, LABELS, DIGITS, **given)
    smoothing = options.get("label_smoothing", 0.0)
    expected = F.cross_entropy(F.linear(*leaves, bias), LABELS, reduction=reduction, label_smoothing=smoothing)
    assert isinstance(output, NTLOutput) and expected.isinf().any()
    torch.testing.assert_close(output.loss, expected)
    assert output.num_numbers == 2 and (smoothing or not (output.ntl.any() or output.number_mae))
    got, want = (torch.autograd.grad(total.sum(), leaves) for total in (output.loss, expected))
    assert all(gradient.isfinite().all() for gradient in got)
    torch.testing.assert_close(got, want)


# Memory and work


def random_hidden() -> tuple[list[Tensor], Tensor]:
    """([hidden, weight, bias], labels), a third of the rows ignored."""
    labels = torch.randint(0, 50, (6, 9))
    labels[torch.rand(6, 9) < 0.3] = -100
    return [torch.randn(shape, requires_grad=True) for shape in ((6, 9, 8), (50, 8), (50,))], labels


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen_costs_no_product_and_loses_no_gradient(frozen: str) -> None:
    """Skipped rows are not computed."""
    (hidden, weight, bias), labels = random_hidden()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    given: dict[str, Any] = {"bias": bias, "chunk_size": 64}
    products = products_of(lambda: linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, **given).backward())
    of_logits, of_gradient = products
    assert of_logits == (int((labels != -100).sum()), 50)
    assert of_gradient in ([(50, 8), (8, 50)] if frozen == "hidden" else [(of_logits[0], 8)])
    reference = cross_entropy_ntl(F.linear(hidden, weight, bias), labels, DIGITS, backend="reference")
    trained = [weight if frozen == "hidden" else hidden, bias]
    torch.testing.assert_close([each.grad for each in trained], [*torch.autograd.grad(reference, trained)])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("skip_ignored", [True, False])
def test_no_tensor_of_all_logits_exists(reduction: str, skip_ignored: bool) -> None:
    """The logits of 64 rows and a few tensors of their size, of 2048."""
    hidden, weight = torch.randn(2048, 8, requires_grad=True), torch.randn(2000, 8, requires_grad=True)
    options: dict[str, Any] = {"reduction": reduction, "chunk_size": 64, "skip_ignored": skip_ignored}
    labels = torch.randint(-5, 2000, (2048,)).clamp_min(-1)
    numbers = NumberTokens.from_mapping({i: float(i) for i in range(10)}, 2000)

    def step() -> None:
        loss = linear_cross_entropy_ntl(hidden, weight, labels, numbers, ignore_index=-1, **options)
        torch.autograd.grad(loss.sum(), (hidden, weight))

    assert 1 < peak_of(step) / (64 * 2000 * 4) < 4


def test_default_chunks_fit_the_budget() -> None:
    assert default_chunk_size(5, WEIGHT) == 5 and default_chunk_size(0, WEIGHT) == 1
    for vocab_size, hidden_size in ((32000, 512), (128256, 4096), (262144, 2048)):
        weight = torch.empty(vocab_size, hidden_size, device="meta", dtype=torch.bfloat16)
        rows = default_chunk_size(10**6, weight)
        assert rows >= CHUNK_MULTIPLE and rows % CHUNK_MULTIPLE == 0
        assert rows * vocab_size * 2 <= max(2**28, 2 * vocab_size * hidden_size)


# Low precision


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_is_that_of_linear(reduction: str) -> None:
    leaves, labels = random_hidden()
    options: dict[str, Any] = {"bias": leaves[2], "reduction": reduction, "chunk_size": 16}
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy_ntl(*leaves[:2], labels, DIGITS, **options).sum()
        expected = cross_entropy_ntl(F.linear(*leaves), labels, DIGITS, reduction=reduction).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    gradients = (torch.autograd.grad(each, leaves) for each in (loss, expected))
    for got, want in zip(*gradients, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * want.abs().max().item())


@every_mixed_operand
def test_autocast_leaves_float64_as_it_is(wide: list[str], message: str) -> None:
    operands = {"hidden": HIDDEN, "weight": WEIGHT, "bias": torch.randn(50)}
    given = {name: tensor.double() if name in wide else tensor for name, tensor in operands.items()}
    for is_cast, cause in ((True, r" \(autocast does not cast float64\)$"), (False, "$")):
        with torch.autocast("cpu", torch.bfloat16, is_cast), pytest.raises(TypeError, match=message + cause):
            linear_cross_entropy_ntl(**given, labels=LABELS, numbers=DIGITS)
    with torch.autocast("cpu", torch.bfloat16):
        doubles = {name: tensor.double() for name, tensor in operands.items()}
        assert linear_cross_entropy_ntl(**doubles, labels=LABELS, numbers=DIGITS).dtype == torch.float64


def test_the_gradients_of_a_head_are_summed_in_float32() -> None:
    """256 chunks that each add 1/256 of their size to a bf16 sum would leave it too small."""
    hidden = torch.ones(512, 4, dtype=torch.bfloat16)
    weight, bias = (torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((50, 4), (50,)))
    linear_cross_entropy_ntl(hidden, weight, torch.full((512,), 20), DIGITS, bias=bias, chunk_size=2).backward()
    expected = torch.full((50,), 1 / 50)
    expected[20] -= 1
    assert weight.grad is not None and bias.grad is not None
    for found in (bias.grad, *weight.grad.t()):
        torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=0)
    hidden = torch.tensor([[60.0], [-60.0]]).half()  # whose chunks' products are beyond float16, and cancel
    weight = torch.zeros(50, 1, dtype=torch.float16, requires_grad=True)
    (2**13 * linear_cross_entropy_ntl(hidden, weight, torch.full((2,), 20), DIGITS, chunk_size=1)).backward()
    assert weight.grad is not None and (weight.grad == 0).all()


HALF: dict[str, tuple[int, int | None, dict[str, Any]]] = {
    "digits": (1, None, {}),
    "few digits": (1, None, {"rows": 1024, "number_rows": 1}),
    "distances to 999": (99, None, {}),
    "one far number": (99, 76561, {}),
    "mse to 999": (99, None, {"config": NTLConfig(kind="mse")}),
    "few mse to 999": (99, None, {"config": NTLConfig(kind="mse"), "number_rows": 16}),
    "large lambda": (30, None, {"config": NTLConfig(weight=100.0)}),
    "lambda 0": (99, None, {"config": NTLConfig(kind="mse", weight=0.0)}),
    "sum of mse": (99, None, {"config": NTLConfig(kind="mse"), "reduction": "sum"}),
    "large weights": (99, None, {"token_weights": 1e5}),
    "small weights": (99, None, {"token_weights": 1e-5}),
    "large number weights": (9, None, {"number_weights": 1e5}),
    "large number weights, few tokens": (9, None, {"number_weights": 100, "num_tokens": 10**6, "num_numbers": 10**4}),
    "given denominators": (99, None, {"num_tokens": 10**6, "num_numbers": torch.tensor(5)}),
    "no tokens": (1, None, {"num_tokens": 0, "num_numbers": 64}),
    "mean over given tokens": (99, None, {"config": NTLConfig(mean_over="tokens"), "num_tokens": 10**6}),
    "softcap and scale": (99, None, {"softcap": 30.0, "logit_scale": 4.0}),
}
"""The distance of neighbouring numbers, the value of one more, and options: gradients of any orders of magnitude."""


@pytest.mark.parametrize("case", HALF)
def test_float16_keeps_the_range_of_full_logits(case: str) -> None:
    """At the largest loss scale that full logits in float16 allow, as a scaler finds it: finite, and row by row as
    near to the truth; also through the operators."""
    step, far, options = HALF[case]
    options = {**options, "config": replace(options.get("config", NTLConfig()), reweigh=len(case) % 2 == 0)}
    rows, number_rows = options.pop("rows", 256), options.pop("number_rows", 64)
    numbers = NumberTokens.from_mapping({i: step * i for i in range(10)} | ({10: far} if far else {}), 50)
    operands = [torch.randn(shape).half() for shape in ((rows, 12), (50, 12), (50,))]
    labels = torch.randint(11, 50, (rows,))
    labels[:number_rows], labels[-3:] = torch.randint(0, 10, (number_rows,)), -100
    for name in {"token_weights", "number_weights"} & options.keys():
        options[name] = torch.rand(rows) * options[name]
        options[name][-3:] = 3e38  # of ignored rows

    def gradients(dtype: torch.dtype, scale: float, is_full: bool, backend: str = "auto") -> list[Tensor]:
        leaves = [operand.to(dtype).requires_grad_() for operand in operands]
        if is_full:
            loss = cross_entropy_ntl(F.linear(*leaves), labels, numbers, backend=backend, **options)
        else:
            loss = linear_cross_entropy_ntl(*leaves[:2], labels, numbers, bias=leaves[2], chunk_size=100, **options)
        return [gradient.double() for gradient in torch.autograd.grad(loss * scale, leaves)]

    scale = 2.0**26
    plain = gradients(torch.float16, scale, True)
    while not all(gradient.isfinite().all() for gradient in plain):
        scale /= 4
        plain = gradients(torch.float16, scale, True)
    truth = gradients(torch.float64, scale, True, "reference")
    for hooks in (nullcontext(), torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept)):
        with hooks:
            found = gradients(torch.float16, scale, False)
        for got, p, t in zip(found, plain, truth, strict=True):
            lost, allowed = ((answer - t).norm(dim=-1) for answer in (got, p))
            # Rows of other tokens share a unit with number rows whose gradients are orders of magnitude larger.
            limit = 4 * allowed + t.norm(dim=-1) * 2.0**-8 + t.norm(dim=-1).max() * 2.0**-20
            assert (lost <= limit).all(), f"{(lost / limit).max():.3g} times what full logits lose, scale {scale:g}"


# Errors


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden": HIDDEN.long()}, TypeError, "hidden.*int64"),
        ({"hidden": HIDDEN.tolist()}, TypeError, "hidden must be a float32.*got list"),
        ({"hidden": HIDDEN[:, :0], "weight": WEIGHT[:, :0]}, ValueError, r"H of at least 1; got \(4, 0\)"),
        ({"weight": WEIGHT.double()}, TypeError, "weight.*float32.*float64"),
        ({"weight": WEIGHT.long()}, TypeError, "weight must be a float32.*int64"),
        ({"weight": None}, TypeError, "weight must be a float32.*got NoneType"),
        ({"weight": torch.randn(50, 7)}, ValueError, r"the same H.*\(4, 8\).*\(50, 7\)"),
        ({"weight": WEIGHT[0]}, ValueError, "the same H"),
        ({"weight": torch.randn(51, 8)}, ValueError, "50.*51"),
        ({"weight": WEIGHT.to("meta")}, ValueError, "weight.*cpu.*meta"),
        ({"bias": torch.randn(49)}, ValueError, r"bias.*\(50,\).*\(49,\)"),
        ({"bias": torch.tensor(0.0)}, ValueError, "bias must have at least one dimension"),
        ({"bias": 0.0}, TypeError, "bias must be a float32.*got float"),
        ({"bias": torch.zeros(50, dtype=torch.int64)}, TypeError, "bias must be a float32.*int64"),
        ({"chunk_size": 0}, ValueError, "chunk_size.*0"),
        ({"chunk_size": True}, ValueError, "chunk_size.*True"),
    ],
)
def test_wrong_heads_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"hidden": HIDDEN, "weight": WEIGHT, "labels": LABELS, "numbers": DIGITS, **options}
    for backend in ("eager", "reference"):
        with pytest.raises(error, match=message):
            linear_cross_entropy_ntl(**given, backend=backend)


@every_wrong_argument
def test_wrong_arguments_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    for backend, dtype in product(("eager", "reference"), (torch.float32, torch.float16)):
        given = {"labels": LABELS, "numbers": DIGITS, "backend": backend, **options}
        with pytest.raises(error, match=message):
            linear_cross_entropy_ntl(HIDDEN.to(dtype), WEIGHT.to(dtype), **given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("chunk_size", [64, None])
def test_gpu_equals_the_reference_without_waiting(dtype: torch.dtype, reduction: str, chunk_size: int | None) -> None:
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 1003).to("cuda")
    tensors = [(torch.randn(*shape) * 0.5).to(dtype) for shape in ((200, 96), (1003, 96), (1003,))]
    labels = torch.where(torch.rand(200) < 0.3, -100, torch.randint(0, 30, (200,)))
    upstream = torch.rand(200) if reduction == "none" else torch.tensor(3.0)

    def run(inputs: list[Tensor], rows: list[Tensor], **options: Any) -> list[Tensor]:
        hidden, weight, bias = inputs
        loss = linear_cross_entropy_ntl(hidden, weight, rows[0], numbers, bias=bias, reduction=reduction, **options)
        return [loss.detach(), *torch.autograd.grad(loss, inputs, rows[1].to(loss.dtype))]

    on_gpu = [t.cuda().requires_grad_() for t in tensors], [labels.cuda(), upstream.cuda()]
    options: dict[str, Any] = {"num_tokens": 140, "num_numbers": 50.5} if reduction == "mean" and chunk_size else {}
    walk = {"chunk_size": chunk_size, "skip_ignored": False}
    run(*on_gpu, **options, **walk)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = run(*on_gpu, **options, **walk)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    rows = [labels, upstream]
    truth = run([t.double().requires_grad_() for t in tensors], rows, backend="reference", **options)
    plain = run([t.clone().requires_grad_() for t in tensors], rows, backend="reference", **options)
    for name, got, p, t in zip(("loss", "hidden", "weight", "bias"), result, plain, truth, strict=True):
        # Tensor cores and CPUs sum products in different orders.
        assert_as_good_as_plain(got.cpu(), p, t, name, extra=16.0, scale=100.0)
