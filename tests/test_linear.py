"""`linear_cross_entropy_ntl` against the reference on full logits, and what it never allocates."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl, dispatch, linear_cross_entropy_ntl
from ntl_kernels.linear import CHUNK_MULTIPLE, default_chunk_size

from .large_logits import OFFSET_PROBLEMS, check_large, check_offsets, large_problem, offset_problem
from .problems import (
    Answer,
    Problem,
    assert_as_good_as_plain,
    random_config,
    random_denominators,
    random_labels,
    random_numbers,
)
from .wrong_numbers import every_mixed_operand, every_wrong_number

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
DTYPES = (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16)


def random_case(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    numbers = random_numbers(rng, rng.choice([11, 64, 103]), max_numbers=12)
    shape, hidden_size = rng.choice([(7,), (3, 5), (0,), (40,), (2, 2, 3)]), rng.choice([3, 8])
    dtype, reduction = rng.choice(DTYPES), rng.choice(["mean", "sum", "none"])
    options: dict[str, Any] = {
        "config": random_config(rng),
        "reduction": reduction,
        "label_smoothing": rng.choice([0.0, 0.1]),
        "z_loss": rng.choice([0.0, 1e-2]),
        "softcap": rng.choice([None, 5.0]),
        "logit_scale": rng.choice([1.0, 0.7]),
        "token_weights": rng.choice([None, torch.rand(shape) * (torch.rand(shape) < 0.8)]),
    }
    if reduction == "mean":
        options |= random_denominators(rng, options["config"])
    return {
        "tensors": [
            torch.randn(*shape, hidden_size).to(dtype),
            torch.randn(numbers.vocab_size, hidden_size).to(dtype),
            torch.randn(numbers.vocab_size).to(dtype) if rng.random() < 0.5 else None,
        ],
        "requires": [rng.random() < 0.8, rng.random() < 0.8, rng.random() < 0.8],
        "labels": random_labels(rng, shape, numbers, -100),
        "numbers": numbers,
        "options": options,
        "chunking": {"chunk_size": rng.choice([None, 1, 3, 16]), "skip_ignored": rng.random() < 0.5},
        "upstream": torch.randn(shape) if reduction == "none" else torch.tensor(rng.choice([1.0, -2.5])),
    }


def solve(case: dict[str, Any], dtype: torch.dtype | None, backend: str) -> list[torch.Tensor]:
    """The output's fields, then the gradients that are asked for."""
    tensors = [
        None if t is None else t.detach().to(dtype or t.dtype).requires_grad_(needed)
        for t, needed in zip(case["tensors"], case["requires"], strict=True)
    ]
    hidden, weight, bias = tensors
    chunking = case["chunking"] if backend != "reference" else {}
    output = linear_cross_entropy_ntl(
        hidden,
        weight,
        case["labels"],
        case["numbers"],
        bias=bias,
        return_parts=True,
        backend=backend,
        **chunking,
        **case["options"],
    )
    assert isinstance(output, NTLOutput)
    inputs = [t for t in tensors if t is not None and t.requires_grad]
    gradients = torch.autograd.grad(output.loss, inputs, case["upstream"].to(output.loss.dtype)) if inputs else ()
    return [*output, *gradients]


@pytest.mark.parametrize("first_seed", range(0, 500, 50))
def test_equals_the_reference_on_full_logits(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        case = random_case(seed)
        truth, plain = solve(case, torch.float64, "reference"), solve(case, None, "reference")
        names = [*NTLOutput._fields, *(f"gradient {i}" for i in range(3))]
        dtype = case["tensors"][0].dtype
        for name, got, p, t in zip(names, solve(case, None, "eager"), plain, truth, strict=False):
            if name == "token_accuracy" and dtype != torch.float64:
                continue  # low-precision products tie or swap the largest logits
            # The gradient of the logits is rounded to their dtype before the product, as in plain PyTorch; how
            # these roundings add up differs.
            extra = 20.0 * (t.abs().max().item() if t.numel() else 0.0) if dtype != torch.float64 else 0.0
            assert_as_good_as_plain(got, p, t, f"{name}, seed {seed}", extra=8.0, scale=40.0, cancelled=extra)


@pytest.fixture
def _transparent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let dispatch modes see what a plain call does: under a mode a call is one operator."""
    monkeypatch.setattr(dispatch, "is_plain", lambda *_: True)


def random_hidden(requires_grad: bool = True) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden, weight = torch.randn(6, 9, 8, requires_grad=requires_grad), torch.randn(50, 8, requires_grad=requires_grad)
    labels = torch.randint(0, 50, (6, 9))
    labels[torch.rand(6, 9) < 0.3] = -100
    return hidden, weight, labels


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
@pytest.mark.usefixtures("_transparent")
def test_what_is_frozen_costs_no_product_and_loses_no_gradient(frozen: str) -> None:
    hidden, weight, labels = random_hidden()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    with CountProducts() as products:
        loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, chunk_size=64)
        loss.backward()
    assert products.count == 2  # the logits, and one gradient
    reference = cross_entropy_ntl(F.linear(hidden, weight), labels, DIGITS, backend="reference")
    trained = weight if frozen == "hidden" else hidden
    assert trained.grad is not None
    torch.testing.assert_close(trained.grad, torch.autograd.grad(reference, trained)[0])


@pytest.mark.usefixtures("_transparent")
def test_skipped_rows_are_not_computed() -> None:
    hidden, weight, labels = random_hidden()
    with CountProducts() as products:
        linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, chunk_size=9)
    assert products.rows == int((labels != -100).sum())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_second_backward_is_right(reduction: str, dtype: torch.dtype) -> None:
    hidden, weight, labels = random_hidden()
    hidden, weight = (t.detach().to(dtype).requires_grad_() for t in (hidden, weight))
    loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, reduction=reduction, chunk_size=16).sum()
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(loss, (hidden, weight), torch.tensor(3.0))
    torch.testing.assert_close(list(first), kept, rtol=0, atol=0)
    torch.testing.assert_close(list(second), [3 * gradient for gradient in kept], rtol=5e-3, atol=1e-3)


def test_second_derivatives_raise() -> None:
    hidden, weight, labels = random_hidden()
    loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS)
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


def test_callers_tensors_are_not_changed() -> None:
    hidden, weight, labels = random_hidden()
    copies = [t.detach().clone() for t in (hidden, weight, labels)]
    linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, chunk_size=16).backward()
    for tensor, copy in zip((hidden, weight, labels), copies, strict=True):
        torch.testing.assert_close(tensor.detach(), copy, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_is_that_of_linear(reduction: str) -> None:
    hidden, weight, labels = random_hidden()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, reduction=reduction, chunk_size=16).sum()
        expected = cross_entropy_ntl(F.linear(hidden, weight), labels, DIGITS, reduction=reduction).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    for got, want in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.02 * want.abs().max().item())


@pytest.mark.parametrize("backend", ["eager", "reference"])
@every_mixed_operand
def test_autocast_leaves_float64_as_it_is(wide: list[str], message: str, backend: str) -> None:
    operands = {"hidden": HIDDEN, "weight": WEIGHT, "bias": torch.randn(50)}
    given = {name: tensor.double() if name in wide else tensor for name, tensor in operands.items()}
    for is_cast, cause in ((True, r" \(autocast does not cast float64\)$"), (False, "$")):
        with torch.autocast("cpu", torch.bfloat16, is_cast), pytest.raises(TypeError, match=message + cause):
            linear_cross_entropy_ntl(**given, labels=LABELS, numbers=DIGITS, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        doubles = {name: tensor.double() for name, tensor in operands.items()}
        loss = linear_cross_entropy_ntl(**doubles, labels=LABELS, numbers=DIGITS, backend=backend)
    assert loss.dtype == torch.float64


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("skip_ignored", [True, False])
@pytest.mark.usefixtures("_transparent")
def test_no_tensor_of_all_logits_exists(reduction: str, skip_ignored: bool) -> None:
    hidden, weight, labels = random_hidden()
    with LargestTensor() as largest:
        loss = linear_cross_entropy_ntl(
            hidden, weight, labels, DIGITS, reduction=reduction, chunk_size=16, skip_ignored=skip_ignored
        )
        loss.sum().backward()
    assert largest.elements == max(16 * 50, weight.numel(), hidden.numel())


def test_weight_gradient_of_many_chunks_is_summed_in_float32() -> None:
    """256 chunks that each add 1/256 of their size to a bf16 sum would leave it too small."""
    hidden = torch.ones(512, 4, dtype=torch.bfloat16)
    weight = torch.zeros(50, 4, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.full((512,), 20)
    linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, chunk_size=2).backward()
    expected = torch.full((50, 4), 1 / 50)
    expected[20] -= 1
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad.float(), expected, rtol=2**-8, atol=0)


def test_float16_survives_loss_scaling() -> None:
    hidden, weight = torch.randn(512, 8).half(), torch.randn(50, 8).half().requires_grad_()
    hidden.requires_grad_()
    labels = torch.randint(0, 50, (512,))
    scale = 65536.0
    loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, num_tokens=10**6, num_numbers=10**6)
    got = torch.autograd.grad(loss * scale, (hidden, weight))
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    truth = linear_cross_entropy_ntl(*exact, labels, DIGITS, num_tokens=10**6, num_numbers=10**6, backend="reference")
    for g, t in zip(got, torch.autograd.grad(truth * scale, exact), strict=True):
        torch.testing.assert_close(g.double(), t, rtol=0.02, atol=0.01 * t.abs().max().item())


HALF = {
    "digits": (1, None, {}),
    "few digits": (1, None, {"rows": 1024, "number_rows": 1}),
    "distances to 999": (99, None, {}),
    "one far number": (99, 76561, {}),
    "mse to 999": (99, None, {"config": NTLConfig(kind="mse")}),
    "few mse to 999": (99, None, {"config": NTLConfig(kind="mse"), "number_rows": 16}),
    "large lambda": (30, None, {"config": NTLConfig(weight=100.0)}),
    "lambda 0": (99, None, {"config": NTLConfig(kind="mse", weight=0.0)}),
    "sum": (99, None, {"reduction": "sum"}),
    "sum of mse": (99, None, {"config": NTLConfig(kind="mse"), "reduction": "sum"}),
    "large weights": (99, None, {"token_weights": 1e5}),
    "small weights": (99, None, {"token_weights": 1e-5}),
    "given denominators": (99, None, {"num_tokens": 10**6, "num_numbers": torch.tensor(5)}),
    "no tokens": (1, None, {"num_tokens": 0, "num_numbers": 64}),
    "mean over tokens": (99, None, {"config": NTLConfig(mean_over="tokens")}),
    "mean over given tokens": (99, None, {"config": NTLConfig(mean_over="tokens"), "num_tokens": 10**6}),
    "softcap and scale": (99, None, {"softcap": 30.0, "logit_scale": 4.0}),
}
"""The distance of neighbouring numbers, the value of one more, and options: gradients of any orders of magnitude."""


@pytest.mark.parametrize("reweigh", [True, False])
@pytest.mark.parametrize(("step", "far", "options"), HALF.values(), ids=list(HALF))
def test_float16_keeps_the_range_of_full_logits(
    step: int, far: int | None, options: dict[str, Any], reweigh: bool
) -> None:
    """At the largest loss scale that full logits in float16 survive, as a scaler finds it: finite, and row by row as
    near to the truth; also through the operators."""
    torch.manual_seed(0)
    options = {**options, "config": replace(options.get("config", NTLConfig()), reweigh=reweigh)}
    rows, number_rows = options.pop("rows", 256), options.pop("number_rows", 64)
    numbers = NumberTokens.from_mapping({i: step * i for i in range(10)} | ({10: far} if far else {}), 50)
    hidden, weight = torch.randn(rows, 12).half(), torch.randn(50, 12).half()
    labels = torch.randint(11, 50, (rows,))
    labels[:number_rows], labels[-3:] = torch.randint(0, 10, (number_rows,)), -100
    if "token_weights" in options:
        options["token_weights"] = torch.rand(rows) * options["token_weights"]

    def gradients(dtype: torch.dtype, scale: float, is_full: bool, backend: str = "auto") -> list[torch.Tensor]:
        leaves = [hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()]
        if is_full:
            loss = cross_entropy_ntl(F.linear(*leaves), labels, numbers, backend=backend, **options)
        else:
            loss = linear_cross_entropy_ntl(*leaves, labels, numbers, chunk_size=100, **options)
        return [gradient.double() for gradient in torch.autograd.grad(loss * scale, leaves)]

    scale = 2.0**26
    plain = gradients(torch.float16, scale, True)
    while not all(gradient.isfinite().all() for gradient in plain):
        scale /= 4
        plain = gradients(torch.float16, scale, True)
    truth = gradients(torch.float64, scale, True, "reference")
    for hooks in (
        nullcontext(),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        with hooks:
            found = gradients(torch.float16, scale, False)
        for got, p, t in zip(found, plain, truth, strict=True):
            lost, allowed = ((answer - t).norm(dim=-1) for answer in (got, p))
            # Rows of other tokens share their unit with number rows whose gradients are orders of magnitude larger.
            limit = 4 * allowed + t.norm(dim=-1) * 2.0**-8 + t.norm(dim=-1).max() * 2.0**-20
            assert (lost <= limit).all(), f"{(lost / limit).max():.3g} times what full logits lose, scale {scale:g}"


def test_default_chunks_fit_the_budget() -> None:
    weight = torch.empty(32000, 512, device="meta")
    assert default_chunk_size(10**6, weight) % CHUNK_MULTIPLE == 0
    assert default_chunk_size(5, weight) == 5
    assert default_chunk_size(0, weight) == 1
    for vocab_size, hidden_size in ((32000, 512), (128256, 4096), (262144, 2048)):
        weight = torch.empty(vocab_size, hidden_size, device="meta", dtype=torch.bfloat16)
        rows = default_chunk_size(10**6, weight)
        assert rows >= CHUNK_MULTIPLE
        assert rows * vocab_size * 2 <= max(2**28, 2 * vocab_size * hidden_size)


HIDDEN, WEIGHT, LABELS = torch.randn(4, 8), torch.randn(50, 8), torch.arange(4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden": HIDDEN.long()}, TypeError, "hidden.*int64"),
        ({"weight": WEIGHT.double()}, TypeError, "weight.*float32.*float64"),
        ({"weight": torch.randn(50, 7)}, ValueError, r"the same H.*\(4, 8\).*\(50, 7\)"),
        ({"weight": WEIGHT[0]}, ValueError, "the same H"),
        ({"weight": WEIGHT.to("meta")}, ValueError, "weight.*cpu.*meta"),
        ({"bias": torch.randn(49)}, ValueError, r"bias.*\(50,\).*\(49,\)"),
        ({"weight": torch.randn(51, 8)}, ValueError, "50.*51"),
        ({"labels": LABELS[:3]}, ValueError, r"\(4,\).*\(3,\)"),
        ({"labels": torch.tensor([1, 2, 3, 999])}, IndexError, "999"),
        ({"chunk_size": 0}, ValueError, "chunk_size.*0"),
        ({"num_tokens": torch.tensor(-1.0), "num_numbers": 1}, ValueError, "num_tokens.*-1"),
        ({"reduction": "avg"}, ValueError, "avg"),
        ({"bias": [0.0] * 50}, TypeError, "bias must be a float32.*got list"),
        ({"bias": 0.0}, TypeError, "bias must be a float32.*got float"),
        ({"bias": torch.zeros(50, dtype=torch.int64)}, TypeError, "bias must be a float32.*int64"),
        ({"bias": torch.tensor(0.0)}, ValueError, "bias must have at least one dimension"),
        ({"weight": WEIGHT.tolist()}, TypeError, "weight must be a float32.*got list"),
        ({"weight": None}, TypeError, "weight must be a float32.*got NoneType"),
        ({"weight": WEIGHT.long()}, TypeError, "weight must be a float32.*int64"),
        ({"hidden": HIDDEN.tolist()}, TypeError, "hidden must be a float32.*got list"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"hidden": HIDDEN, "weight": WEIGHT, "labels": LABELS, "numbers": DIGITS, **options}
    with pytest.raises(error, match=message):
        linear_cross_entropy_ntl(**arguments)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@every_wrong_number
def test_numbers_beyond_float32_are_named(
    options: dict[str, Any], error: type[Exception], message: str, backend: str
) -> None:
    for dtype in (torch.float32, torch.float16, torch.float64):
        with pytest.raises(error, match=message):
            linear_cross_entropy_ntl(HIDDEN.to(dtype), WEIGHT.to(dtype), LABELS, DIGITS, backend=backend, **options)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("bias", [None, torch.randn(50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_hidden_states_without_features_are_refused(
    dtype: torch.dtype, bias: torch.Tensor | None, backend: str
) -> None:
    hidden, weight = torch.empty(4, 0, dtype=dtype), torch.empty(50, 0, dtype=dtype)
    bias = None if bias is None else bias.to(dtype)
    with pytest.raises(ValueError, match=r"H of at least 1; got \(4, 0\)"):
        linear_cross_entropy_ntl(hidden, weight, LABELS, DIGITS, bias=bias, backend=backend)


@pytest.mark.parametrize("skip_ignored", [True, False])
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_ignore_index_is_no_other_label(reduction: str, chunk_size: int | None, skip_ignored: bool) -> None:
    """One that int32 does not hold would wrap around to a label there, and its rows would be left out."""
    labels, weights = torch.tensor([0, 4, 20, 49, 0, 4]), torch.tensor([1.0, 1.0, 2.0, 0.5, 1.0, 0.0])
    hidden, head = torch.randn(6, 8), torch.randn(50, 8)
    for ignore_index in (-100, 4, 2**31, 2**32, 2**32 + 4, -(2**32) + 20, 2**53 + 1, 2**63 - 1, -(2**63)):
        keep = labels != ignore_index
        found = []
        for dtype, row_weights, index in (
            (torch.int32, weights, ignore_index),
            (torch.int64, weights, ignore_index),
            (torch.int64, weights * keep, -100),
        ):
            leaves = hidden.clone().requires_grad_(), head.clone().requires_grad_()
            loss = linear_cross_entropy_ntl(
                *leaves,
                labels.to(dtype),
                DIGITS,
                ignore_index=index,
                token_weights=row_weights,
                reduction=reduction,
                chunk_size=chunk_size,
                skip_ignored=skip_ignored,
            )
            found.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaves)))
        torch.testing.assert_close(found[0], found[2])
        torch.testing.assert_close(found[1], found[2])


@pytest.mark.parametrize("label_smoothing", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_impossible_labels_have_the_loss_that_torch_gives_them(reduction: str, label_smoothing: float) -> None:
    """A bias of -inf takes columns out, among them a label's."""
    bias, labels = torch.randn(50), torch.tensor([4, 20, 30, 5])
    bias[[20, 5, 49]] = -torch.inf
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    loss = linear_cross_entropy_ntl(
        hidden, weight, labels, DIGITS, bias=bias, config=NTLConfig(weight=0.0), chunk_size=2, **options
    )
    expected = F.cross_entropy(F.linear(hidden, weight, bias), labels, **options)
    assert expected.isinf().any()
    torch.testing.assert_close(loss, expected)
    got, want = (torch.autograd.grad(total.sum(), (hidden, weight)) for total in (loss, expected))
    assert all(gradient.isfinite().all() for gradient in got)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("mask", [-1e4, -1e9])
def test_label_smoothing_of_a_vocabulary_that_starts_with_a_mask(mask: float) -> None:
    """A bias that takes 64 columns out costs no more digits than in F.cross_entropy."""
    hidden, weight, bias = torch.randn(4, 8), torch.randn(2000, 8), torch.zeros(2000)
    bias[:64], labels = mask, torch.tensor([70, 80, 1999, 90])
    losses = [
        F.cross_entropy(F.linear(*(part.to(dtype) for part in (hidden, weight, bias))), labels, label_smoothing=0.1)
        for dtype in (torch.float64, torch.float32)
    ]
    numbers = NumberTokens.from_mapping({70 + i: float(i) for i in range(10)}, 2000)
    options = {"bias": bias, "label_smoothing": 0.1, "config": NTLConfig(weight=0.0), "chunk_size": 2}
    got = linear_cross_entropy_ntl(hidden, weight, labels, numbers, **options)
    allowed = 4 * (losses[1].double() - losses[0]).abs() + 4 * torch.finfo(torch.float32).eps * losses[0]
    assert (got.double() - losses[0]).abs() <= allowed


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_number_tokens_without_probability_have_no_number_loss(reduction: str) -> None:
    """With infinite losses and finite gradients, those of cross-entropy alone."""
    bias, labels = torch.randn(50), torch.tensor([4, 20, 30, 5])
    bias[DIGITS.ids] = -torch.inf
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    for config in (NTLConfig(), NTLConfig(kind="mse", reweigh=True), NTLConfig(label_sigma=1.0)):
        output = linear_cross_entropy_ntl(
            hidden, weight, labels, DIGITS, bias=bias, config=config, reduction=reduction, return_parts=True
        )
        expected = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction=reduction)
        torch.testing.assert_close(output.loss, expected)
        assert not output.ntl.any() and output.number_mae == 0 and output.num_numbers == 2
        got, want = (torch.autograd.grad(total.sum(), (hidden, weight)) for total in (output.loss, expected))
        assert all(gradient.isfinite().all() for gradient in got)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("changed", ["labels", "token_weights", "hidden", "weight"])
@pytest.mark.parametrize("case", ["none", "second backward"])
def test_what_changed_since_the_forward_pass_is_noticed(changed: str, case: str) -> None:
    hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    given = {"hidden": hidden * 1, "weight": weight * 1, "labels": torch.arange(6), "token_weights": torch.rand(6)}
    loss = linear_cross_entropy_ntl(**given, numbers=DIGITS, reduction="none" if case == "none" else "mean")
    if case == "second backward":
        loss.backward(retain_graph=True)
    given[changed].detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_meta_tensors(reduction: str) -> None:
    """What a model's loss looks like before it has memory: shapes and dtypes alone."""
    hidden, weight = torch.randn(6, 8, device="meta"), torch.randn(50, 8, device="meta")
    labels = torch.arange(6).to("meta")
    loss = linear_cross_entropy_ntl(hidden, weight, labels, DIGITS, reduction=reduction)
    assert loss.is_meta and loss.dtype == torch.float32 and loss.shape == (() if reduction == "mean" else (6,))


class CountProducts(TorchDispatchMode):
    """Counts matrix products and the rows of those that make logits."""

    def __enter__(self) -> CountProducts:
        self.count = self.rows = 0
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.count += 1
            self.rows += result.shape[0] if result.shape[-1] == 50 else 0
        return result


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements that any operation returned."""

    def __enter__(self) -> LargestTensor:
        self.elements = 0
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("chunk_size", [64, None])
def test_gpu_equals_the_reference_without_waiting(dtype: torch.dtype, reduction: str, chunk_size: int | None) -> None:
    numbers = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 1003).to("cuda")
    tensors = [(torch.randn(*shape) * 0.5).to(dtype) for shape in ((200, 96), (1003, 96), (1003,))]
    labels = torch.where(torch.rand(200) < 0.3, -100, torch.randint(0, 30, (200,)))
    upstream = torch.rand(200) if reduction == "none" else torch.tensor(3.0)

    def run(inputs: list[torch.Tensor], rows: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_large_logits_lose_no_more_than_torch(reduction: str, dtype: torch.dtype) -> None:
    problem = large_problem(dtype, reduction)
    check_large(solve_as_hidden(problem), problem)


def test_a_common_offset_costs_no_digits() -> None:
    for options in OFFSET_PROBLEMS:
        problem = offset_problem(*options)
        check_offsets(solve_as_hidden(problem), problem)


def solve_as_hidden(problem: Problem) -> Answer:
    """With the identity for a head, hidden states are the logits, and so are their gradients."""
    hidden = problem.logits.detach().requires_grad_()
    weight = torch.eye(hidden.shape[1], dtype=hidden.dtype)
    output = linear_cross_entropy_ntl(
        hidden, weight, problem.labels, problem.numbers, chunk_size=16, return_parts=True, **problem.options
    )
    assert isinstance(output, NTLOutput)
    (gradient,) = torch.autograd.grad(output.loss, hidden, problem.upstream)
    return Answer(output, gradient)
