"""`cross_entropy_ntl` on the eager backend against the float64 reference, and its promises to callers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ntl_kernels import (
    CrossEntropyNTLLoss,
    NTLConfig,
    NTLOutput,
    NumberTokens,
    checks,
    cross_entropy_ntl,
    linear_cross_entropy_ntl,
)
from ntl_kernels.backends.eager import blocks

from .impossible_labels import (
    SMOOTHINGS,
    UNMEASURED_CONFIGS,
    check_impossible,
    check_unmeasured,
    impossible_problem,
    unmeasured_problem,
)
from .large_logits import (
    OFFSET_PROBLEMS,
    check_large,
    check_offsets,
    large_problem,
    masked_start_problem,
    offset_problem,
)
from .problems import Problem, check, random_problem, solve
from .wrong_numbers import LARGEST, every_unfit_weight, every_wrong_number, unfit, weights_with

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
SEEDS_PER_TEST = 50


@pytest.mark.parametrize("first_seed", range(0, 600, SEEDS_PER_TEST))
def test_eager_equals_the_reference(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16))
        check(solve(problem, "eager"), problem)


@pytest.mark.parametrize("first_seed", range(1000, 1150, SEEDS_PER_TEST))
def test_inplace_gives_the_same_gradient(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        problem = random_problem(seed, (torch.float32, torch.bfloat16, torch.float16))
        check(solve(problem, "eager", inplace=True), problem)


@pytest.mark.parametrize("vocab_size", [11, 1003, 50257])
@pytest.mark.parametrize("num_numbers", [2, 10, 1110])
def test_vocabularies_and_many_numbers(vocab_size: int, num_numbers: int) -> None:
    num_numbers = min(num_numbers, vocab_size - 1)
    numbers = NumberTokens.from_mapping({i: i / 7 - 3 for i in range(num_numbers)}, vocab_size)
    labels = torch.tensor([0, 1, vocab_size - 1, -100, num_numbers - 1])
    for kind, reweigh in product(("wasserstein", "huber"), (True, False)):
        options = {"config": NTLConfig(kind=kind, reweigh=reweigh), "reduction": "mean"}
        problem = Problem(torch.randn(5, vocab_size) * 3, labels, numbers, options, torch.tensor(1.0))
        check(solve(problem, "eager"), problem)


def test_blocks_of_rows_cover_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", 3 * 50 * 4)
    labels = torch.randint(0, 50, (7, 5))
    labels[2] = -100
    for reduction, upstream in (("mean", torch.tensor(1.0)), ("none", torch.randn(7, 5))):
        problem = Problem(torch.randn(7, 5, 50), labels, DIGITS, {"reduction": reduction}, upstream)
        check(solve(problem, "eager"), problem)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_equals_cross_entropy_when_the_weight_is_zero(reduction: str) -> None:
    logits, labels = torch.randn(9, 50), torch.randint(0, 50, (9,))
    labels[4] = -100
    loss = cross_entropy_ntl(
        logits, labels, DIGITS, config=NTLConfig(weight=0), reduction=reduction, label_smoothing=0.1
    )
    expected = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "labels",
    [torch.full((4,), -100), torch.full((4,), 40), torch.empty(0, dtype=torch.long)],
    ids=["all ignored", "no number", "empty"],
)
def test_batches_without_numbers_have_a_graph(labels: torch.Tensor, reduction: str) -> None:
    logits = torch.randn(len(labels), 50, requires_grad=True)
    loss = cross_entropy_ntl(logits, labels, DIGITS, reduction=reduction)
    loss.sum().backward()
    assert logits.grad is not None
    expected = torch.zeros_like(logits)
    if (labels == 40).any():
        expected = torch.autograd.grad(F.cross_entropy(logits, labels, reduction=reduction).sum(), logits)[0]
    torch.testing.assert_close(logits.grad, expected)
    assert loss.isfinite().all()


def test_empty_and_ignored_rows_never_read_their_logits() -> None:
    logits = torch.randn(3, 50)
    logits[1] = torch.nan
    logits.requires_grad_()
    loss = cross_entropy_ntl(logits, torch.tensor([4, -100, 20]), DIGITS)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None and logits.grad.isfinite().all() and (logits.grad[1] == 0).all()


def test_a_weight_of_zero_takes_a_row_out() -> None:
    logits = torch.randn(3, 50)
    logits[1] = torch.inf
    labels, weights = torch.tensor([4, 5, 20]), torch.tensor([1.0, 0.0, 2.0])
    for backend in ("eager", "reference"):
        output = cross_entropy_ntl(logits, labels, DIGITS, token_weights=weights, return_parts=True, backend=backend)
        assert isinstance(output, NTLOutput)
        assert output.loss.isfinite() and output.num_tokens == 3 and output.num_numbers == 1


def test_columns_of_minus_infinity() -> None:
    logits = torch.randn(4, 50)
    logits[:, 30:] = -torch.inf
    logits[:, 5] = -torch.inf  # a number token
    problem = Problem(logits, torch.tensor([3, 4, 20, 12]), DIGITS, {"reduction": "mean"}, torch.tensor(1.0))
    check(solve(problem, "eager"), problem)
    problem.options["softcap"] = 5.0
    check(solve(problem, "eager"), problem)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reweigh", [True, False])
def test_confident_rows_keep_their_small_gradient(reweigh: bool, dtype: torch.dtype) -> None:
    """Near p = 1 the label's gradient is p - 1: rounding p first would leave 0 (as fla does)."""
    logits = torch.zeros(2, 50)
    logits[0, 4], logits[1, 20] = 11.0, 11.0
    labels = torch.tensor([4, 20])
    options = {"reduction": "sum", "config": NTLConfig(reweigh=reweigh)}
    problem = Problem(logits.to(dtype), labels, DIGITS, options, torch.tensor(1.0))
    answer = solve(problem, "eager")
    if dtype == torch.float32 and not reweigh:  # p has a rounding, and plain PyTorch is exact by luck
        truth = solve(problem.in_dtype(torch.float64), "reference").gradient
        torch.testing.assert_close(answer.gradient.double(), truth, rtol=0, atol=2.0**-24)
    else:
        check(answer, problem)
    assert answer.gradient[1, 20] < -5e-4


def test_half_precision_extremes() -> None:
    logits = torch.randn(6, 50) * 3
    logits[0, 4], logits[1, 7], logits[2, 30] = 6e4, -6e4, 6e4
    problem = Problem(
        logits.half(), torch.tensor([4, 7, 5, 20, 30, 12]), DIGITS, {"reduction": "mean"}, torch.tensor(1.0)
    )
    check(solve(problem, "eager"), problem)


def test_float16_survives_loss_scaling() -> None:
    """The upstream gradient is applied before rounding: a mean over many rows would underflow without it."""
    logits, labels = torch.randn(4096, 50).half(), torch.randint(0, 50, (4096,))
    problem = Problem(logits, labels, DIGITS, {"num_tokens": 10**6, "num_numbers": 10**6}, torch.tensor(65536.0))
    answer = solve(problem, "eager")
    check(answer, problem)
    assert (answer.gradient != 0).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_backward_is_right(reduction: str, dtype: torch.dtype) -> None:
    logits = torch.randn(5, 50, dtype=dtype, requires_grad=True)
    loss = cross_entropy_ntl(logits, torch.arange(5), DIGITS, reduction=reduction).sum()
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    kept = first.clone()
    (second,) = torch.autograd.grad(loss, logits, torch.tensor(3.0), retain_graph=True)
    (third,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    torch.testing.assert_close(second, 3 * kept, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(third, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_second_backward_after_inplace_raises(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 50, dtype=dtype, requires_grad=True)
    loss = cross_entropy_ntl(logits * 1, torch.arange(5), DIGITS, inplace=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace=True"):
        loss.backward()


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_a_common_offset_costs_no_digits(backend: str) -> None:
    for options in OFFSET_PROBLEMS:
        problem = offset_problem(*options)
        check_offsets(solve(problem, backend), problem)


def test_second_derivatives_raise() -> None:
    logits = torch.randn(5, 50, requires_grad=True)
    loss = cross_entropy_ntl(logits, torch.arange(5), DIGITS)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_written_without_gradient(inplace: bool, dtype: torch.dtype) -> None:
    logits, labels, weights = torch.randn(5, 50).to(dtype), torch.tensor([0, 4, -100, 5, 49]), torch.rand(5)
    copies = [t.clone() for t in (logits, labels, weights)]
    cross_entropy_ntl(logits, labels, DIGITS, token_weights=weights, inplace=inplace)
    with torch.no_grad():
        cross_entropy_ntl(logits.requires_grad_(), labels, DIGITS, token_weights=weights, inplace=inplace)
    for tensor, copy in zip((logits.detach(), labels, weights), copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0)


def test_default_never_writes_to_the_logits() -> None:
    logits = torch.randn(5, 50, requires_grad=True)
    copy = logits.detach().clone()
    cross_entropy_ntl(logits, torch.arange(5), DIGITS).backward()
    torch.testing.assert_close(logits.detach(), copy, rtol=0, atol=0)


def test_inplace_writes_the_gradient_into_the_logits() -> None:
    for reduction in ("mean", "none"):
        leaf = torch.randn(5, 50, requires_grad=True)
        logits = leaf * 1
        received: list[int] = []
        logits.register_hook(lambda gradient, received=received: received.append(gradient.data_ptr()))
        cross_entropy_ntl(logits, torch.arange(5), DIGITS, inplace=True, reduction=reduction).sum().backward()
        assert received == [logits.data_ptr()]


def test_every_element_of_the_gradient_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(torch.nan))
    for seed in range(40):
        problem = random_problem(seed, (torch.float32,))
        answer = solve(problem, "eager")
        assert answer.gradient.isfinite().all()
        assert answer.output.loss.isfinite().all()


def test_result_dtypes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        logits = torch.randn(3, 50, dtype=dtype, requires_grad=True)
        output = cross_entropy_ntl(logits, torch.arange(3), DIGITS, return_parts=True)
        assert isinstance(output, NTLOutput)
        expected = torch.float64 if dtype == torch.float64 else torch.float32
        assert {part.dtype for part in output} == {expected}
        assert not any(part.requires_grad for part in output[1:])
        output.loss.backward()
        assert logits.grad is not None and logits.grad.dtype == dtype


def test_explicit_denominators_make_accumulation_exact() -> None:
    logits, labels = torch.randn(12, 50, requires_grad=True), torch.randint(0, 20, (12,))
    whole = cross_entropy_ntl(logits, labels, DIGITS, return_parts=True)
    assert isinstance(whole, NTLOutput)
    (expected,) = torch.autograd.grad(whole.loss, logits)
    parts = [
        cross_entropy_ntl(x, y, DIGITS, num_tokens=whole.num_tokens, num_numbers=whole.num_numbers)
        for x, y in zip(logits.split(5), labels.split(5), strict=True)
    ]
    torch.testing.assert_close(sum(parts), whole.loss.detach(), check_dtype=False)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logits)[0], expected)


@pytest.mark.parametrize("kind", ["wasserstein", "mse"])
@pytest.mark.parametrize("reweigh", [True, False])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_token_counts_alone_make_a_mean_over_tokens_exact(backend: str, reweigh: bool, kind: str) -> None:
    """In any split, and whoever takes the mean: of losses over counts, or of losses per token."""
    config = NTLConfig(kind=kind, reweigh=reweigh, mean_over="tokens")
    logits, labels = torch.randn(24, 50, requires_grad=True), torch.randint(10, 50, (24,))
    labels[[0, 1, 7, 20]], labels[3:6] = torch.tensor([3, 9, 0, 4]), -100
    given: dict[str, Any] = {"config": config, "backend": backend}
    whole = cross_entropy_ntl(logits, labels, DIGITS, **given)
    (expected,) = torch.autograd.grad(whole, logits)
    count, limit = int((labels != -100).sum()), 1e-6 * expected.abs().max()
    for sizes in ([24], [1] * 24, [5, 1, 0, 7, 11], [20, 4]):
        parts = [
            cross_entropy_ntl(x, y, DIGITS, num_tokens=count, **given)
            for x, y in zip(logits.split(sizes), labels.split(sizes), strict=True)
        ]
        means = [
            cross_entropy_ntl(x, y, DIGITS, reduction="none", **given).sum() / count
            for x, y in zip(logits.split(sizes), labels.split(sizes), strict=True)
        ]
        for together in (sum(parts), sum(means)):
            torch.testing.assert_close(together, whole, rtol=1e-6, atol=0, check_dtype=False)
            (gradient,) = torch.autograd.grad(together, logits)
            assert (gradient - expected).abs().max() <= limit


def test_a_mean_over_tokens_takes_a_count_of_numbers_and_does_not_use_it() -> None:
    config, counts = NTLConfig(mean_over="tokens"), {"num_tokens": 7, "num_numbers": 2}
    loss = cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config, num_tokens=7)
    assert cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config, **counts) == loss
    assert cross_entropy_ntl(LOGITS, LABELS, DIGITS, **counts) != loss


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize(("given", "lacks"), [("num_tokens", "num_numbers"), ("num_numbers", "num_tokens")])
@pytest.mark.parametrize("count", [5, 2.5, torch.tensor(5), 0])
def test_one_denominator_alone_is_an_error(given: str, lacks: str, count: Any, backend: str) -> None:
    """It names both ways out."""
    message = f"got {given} without {lacks}.*Pass {lacks} as well.*NTLConfig\\(mean_over='tokens'\\)"
    with pytest.raises(ValueError, match=message):
        cross_entropy_ntl(LOGITS, LABELS, DIGITS, backend=backend, **{given: count})
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy_ntl(LOGITS, LOGITS.new_ones(50, 50), LABELS, DIGITS, backend=backend, **{given: count})
    with pytest.raises(ValueError, match=message):
        CrossEntropyNTLLoss(DIGITS, backend=backend)(LOGITS, LABELS, **{given: count})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing_inside(dtype: torch.dtype) -> None:
    logits, labels = torch.randn(8, 50), torch.randint(0, 20, (8,))
    for kind, reweigh in product(("wasserstein", "mse"), (True, False)):
        config = NTLConfig(kind=kind, reweigh=reweigh)
        expected = cross_entropy_ntl(logits, labels, DIGITS, config=config)
        with torch.autocast("cpu", dtype):
            for backend in ("eager", "reference"):
                got = cross_entropy_ntl(logits, labels, DIGITS, config=config, backend=backend)
                torch.testing.assert_close(got, expected)


LOGITS, LABELS = torch.randn(4, 50), torch.arange(4)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("label", [-1, 50, 999, -101])
def test_labels_out_of_range(label: int, backend: str) -> None:
    with pytest.raises(IndexError, match=rf"\[0, 50\).*{label}"):
        cross_entropy_ntl(LOGITS, torch.tensor([1, label, 2, 3]), DIGITS, backend=backend)


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_weights_out_of_range(weight: float, backend: str, dtype: torch.dtype) -> None:
    weights = torch.tensor([1, weight, 1, 1], dtype=dtype)
    with pytest.raises(ValueError, match=f"token_weights must not be negative, infinite or NaN.*; got {weight}"):
        cross_entropy_ntl(LOGITS, LABELS, DIGITS, token_weights=weights, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every_unfit_weight
def test_weights_that_do_not_fit_are_named(
    weight: float, dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a row that is silently ignored."""
    options = weights_with(weight, backend=backend)
    hidden, head = torch.randn(4, 8, dtype=dtype), torch.randn(50, 8, dtype=dtype)
    for reduction, needs_gradient in (("mean", True), ("none", True), ("sum", False)):
        logits = LOGITS.to(dtype).requires_grad_(needs_gradient)
        given = {"reduction": reduction, **options}
        with pytest.raises(ValueError, match=unfit(weight)):
            cross_entropy_ntl(logits, LABELS, DIGITS, **given)
        with pytest.raises(ValueError, match=unfit(weight)):
            linear_cross_entropy_ntl(hidden.requires_grad_(needs_gradient), head, LABELS, DIGITS, **given)
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):  # a traced call
        if backend == "eager":
            with pytest.raises(ValueError, match="token_weights must .*; got (-?inf|nan)$"):
                cross_entropy_ntl(logits, LABELS, DIGITS, **options)
    monkeypatch.setattr(checks, "can_look", lambda _: False)  # as on a GPU
    losses = cross_entropy_ntl(logits, LABELS, DIGITS, reduction="none", **options)
    assert losses.isfinite().tolist() == [True, False, True, True]


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_weights_of_float64_logits_have_their_range(backend: str) -> None:
    logits, weights = LOGITS.double(), torch.tensor([1.0, 0.5, 0.0, 2.0], dtype=torch.float64)
    expected = cross_entropy_ntl(logits, LABELS, DIGITS, token_weights=weights)
    for scale in (1e300, 1e-60):
        loss = cross_entropy_ntl(logits, LABELS, DIGITS, token_weights=weights * scale, backend=backend)
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"logits": LOGITS.long()}, TypeError, "logits.*int64"),
        ({"logits": [1.0]}, TypeError, "logits.*list"),
        ({"logits": LOGITS[:3]}, ValueError, r"labels.*\(3,\).*\(4,\)"),
        ({"logits": torch.randn(4, 51)}, ValueError, "50.*51"),
        ({"logits": torch.tensor(1.0)}, ValueError, "0-d"),
        ({"labels": LABELS.float()}, TypeError, "labels.*float32"),
        ({"labels": LABELS.to("meta")}, ValueError, "labels.*cpu.*meta"),
        ({"numbers": {3: 0.0}}, TypeError, "NumberTokens.*dict"),
        ({"config": "mse"}, TypeError, "NTLConfig.*str"),
        ({"ignore_index": 1.0}, TypeError, "ignore_index.*1.0"),
        ({"ignore_index": True}, TypeError, "ignore_index.*True"),
        ({"reduction": "avg"}, ValueError, "reduction.*avg"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing.*1.5"),
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing.*-0.1"),
        ({"z_loss": float("nan")}, ValueError, "z_loss.*nan"),
        ({"softcap": 0.0}, ValueError, "softcap.*0"),
        ({"logit_scale": -1.0}, ValueError, "logit_scale.*-1"),
        ({"token_weights": torch.ones(3)}, ValueError, r"token_weights.*\(4,\).*\(3,\)"),
        ({"token_weights": [1.0] * 4}, TypeError, "token_weights.*list"),
        ({"token_weights": torch.ones(4, requires_grad=True)}, ValueError, "token_weights require grad"),
        ({"num_tokens": -1}, ValueError, "num_tokens.*-1"),
        ({"num_tokens": torch.tensor(-1.0), "num_numbers": 1}, ValueError, "num_tokens.*-1"),
        ({"num_numbers": "3"}, TypeError, "num_numbers.*3"),
        ({"num_tokens": torch.ones(2)}, ValueError, "num_tokens.*0-d"),
        ({"num_tokens": 3, "reduction": "sum"}, ValueError, "num_tokens.*sum"),
        ({"backend": "cuda"}, ValueError, "backend.*cuda"),
    ],
)
def test_bad_input_is_named(options: dict, error: type[Exception], message: str) -> None:
    arguments = {"logits": LOGITS, "labels": LABELS, "numbers": DIGITS, **options}
    with pytest.raises(error, match=message):
        cross_entropy_ntl(**arguments)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@every_wrong_number
def test_numbers_beyond_float32_are_named(
    options: dict[str, Any], error: type[Exception], message: str, backend: str
) -> None:
    """Alike for every dtype: float64 logits have the same limits."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        with pytest.raises(error, match=message):
            cross_entropy_ntl(LOGITS.to(dtype), LABELS, DIGITS, backend=backend, **options)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("options", LARGEST)
def test_numbers_at_the_limits_are_computed_with(options: dict[str, Any], backend: str) -> None:
    for dtype, reduction in ((torch.float32, "mean"), (torch.float64, "mean"), (torch.float16, "none")):
        if reduction != "mean" and "num_tokens" in options:
            continue
        logits = (LOGITS * 1e-3).to(dtype).requires_grad_()
        loss = cross_entropy_ntl(logits, LABELS, DIGITS, backend=backend, reduction=reduction, **options)
        (gradient,) = torch.autograd.grad(loss.sum() * 1e-38, logits)
        assert loss.isfinite().all() and gradient.isfinite().all()


IGNORE_INDICES = (-100, -1, 0, 4, 20, 2**31 - 1, 2**31, 2**32, 2**32 + 4, 2**53 + 1, 2**63 - 1, -(2**31), -(2**32) + 4)
IGNORE_INDICES += (-(2**63), np.int64(2**32), np.int32(-100))


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 1.0])])
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_ignore_index_is_no_other_label(reduction: str, backend: str, weights: torch.Tensor | None) -> None:
    """One that int32 does not hold would wrap around to a label there."""
    logits, labels = torch.randn(6, 50), torch.tensor([0, 4, 20, 49, 0, 4])
    for ignore_index, dtype in product(IGNORE_INDICES, (torch.int32, torch.int64)):
        keep = labels != int(ignore_index)
        found = []
        for rows, row_weights, given in (
            (labels.to(dtype), weights, {"ignore_index": ignore_index}),
            (labels, keep.float() if weights is None else keep * weights, {"ignore_index": -100}),
        ):
            leaf = logits.clone().requires_grad_()
            loss = cross_entropy_ntl(
                leaf, rows, DIGITS, reduction=reduction, backend=backend, token_weights=row_weights, **given
            )
            found.append((loss.detach(), *torch.autograd.grad(loss.sum(), leaf)))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("ignore_index", [2**32 - 1, 2**32 + 999, -(2**32) - 1])
def test_a_label_out_of_range_is_no_wrapped_ignore_index(ignore_index: int, backend: str) -> None:
    wrapped = torch.tensor([ignore_index]).int()
    labels = torch.cat([torch.tensor([1, 2, 3], dtype=torch.int32), wrapped])
    with pytest.raises(IndexError, match=rf"ignore_index {ignore_index}; got {wrapped.item()}"):
        cross_entropy_ntl(LOGITS, labels, DIGITS, ignore_index=ignore_index, backend=backend)


def test_a_compiled_ignore_index_beyond_a_float_is_exact() -> None:
    """It crosses the operators' schema."""
    torch.compiler.reset()
    labels = torch.tensor([1, 2**53 + 1, 20, 3])
    compiled = torch.compile(
        lambda x, y: cross_entropy_ntl(x, y, DIGITS, ignore_index=2**53 + 1), backend="aot_eager", fullgraph=True
    )
    plain = cross_entropy_ntl(LOGITS, labels, DIGITS, ignore_index=2**53 + 1)
    torch.testing.assert_close(compiled(LOGITS, labels), plain)
    with pytest.raises(IndexError, match=f"{2**53}"):
        compiled(LOGITS, torch.tensor([1, 2**53, 20, 3]))


def test_triton_without_a_gpu_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"TRITON_INTERPRET.*cpu"):
        cross_entropy_ntl(LOGITS, LABELS, DIGITS, backend="triton")
    with pytest.raises(TypeError, match="float64"):
        cross_entropy_ntl(LOGITS.double(), LABELS, DIGITS, backend="triton")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_may_be_scaled_in_place(reduction: str) -> None:
    """As a Trainer does that averages over accumulation steps."""
    logits = torch.randn(5, 50, requires_grad=True)
    loss = cross_entropy_ntl(logits, torch.arange(5), DIGITS, reduction=reduction)
    (expected,) = torch.autograd.grad(2 * loss.sum(), logits, retain_graph=True)
    loss *= 2
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), logits)[0], expected)


@pytest.mark.parametrize("changed", ["labels", "token_weights", "num_tokens"])
@pytest.mark.parametrize("case", ["none", "float16", "second backward"])
def test_what_changed_since_the_forward_pass_is_noticed(changed: str, case: str) -> None:
    """Wherever the backward pass reads it: a buffer that is filled again too early gives no wrong gradient."""
    if changed == "num_tokens" and case == "none":
        return  # divides nothing
    logits = torch.randn(5, 50, dtype=torch.float16 if case == "float16" else torch.float32, requires_grad=True)
    given: dict[str, Any] = {"labels": torch.arange(5), "token_weights": torch.rand(5)}
    if case != "none":
        given |= {"num_tokens": torch.tensor(3.0), "num_numbers": 2}
    loss = cross_entropy_ntl(logits, numbers=DIGITS, reduction="none" if case == "none" else "mean", **given)
    if case == "second backward":
        loss.backward(retain_graph=True)
    given[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.sum().backward()


@pytest.mark.parametrize("make_view", [lambda leaf: leaf, lambda leaf: leaf[1:], lambda leaf: leaf.view(5, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inplace_refuses_a_leaf(make_view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    """A parameter would be overwritten by its own gradient; what was computed from it may be."""
    leaf = torch.randn(5, 50, dtype=dtype, requires_grad=True)
    kept, labels = leaf.detach().clone(), torch.arange(len(make_view(leaf)))
    with pytest.raises(RuntimeError, match="inplace=True would overwrite a leaf"):
        cross_entropy_ntl(make_view(leaf), labels, DIGITS, inplace=True)
    torch.testing.assert_close(leaf.detach(), kept, rtol=0, atol=0)
    gradients = [
        torch.autograd.grad(cross_entropy_ntl(make_view(leaf) * 1, labels, DIGITS, inplace=inplace), leaf)[0]
        for inplace in (False, True)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(leaf.detach(), kept, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.int64(3)])
def test_numpy_scalars_are_numbers(backend: str, number: np.number) -> None:
    def loss(given: Any) -> torch.Tensor:
        names = ("num_tokens", "num_numbers", "z_loss", "softcap", "logit_scale")
        config = NTLConfig(weight=given, kind="huber", huber_delta=given)
        options = {**dict.fromkeys(names, given), "ignore_index": np.int64(-100), "backend": backend}
        return cross_entropy_ntl(LOGITS, LABELS, DIGITS, config=config, **options)

    torch.testing.assert_close(loss(number), loss(number.item()), rtol=0, atol=0)


HUGE_ROWS = {
    "spread": torch.linspace(-1e20, 1e20, 50)[torch.randperm(50)],
    "level": torch.full((50,), torch.finfo(torch.float32).min),
    "shared": torch.where(torch.arange(50) < 10, 1.9e19, 0.0),
    "excluded": torch.where(torch.arange(50) == 7, -3e38, 0.0),
}
"""Finite logits the square of whose logsumexp, which a z-loss of 0 does not need, is beyond float32."""


@pytest.mark.parametrize("row", HUGE_ROWS)
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_finite_logits_have_a_finite_loss(row: str, backend: str, reduction: str) -> None:
    logits, label = HUGE_ROWS[row][None].clone().requires_grad_(), torch.tensor([7])
    for config in (NTLConfig(reweigh=True), NTLConfig(), NTLConfig(weight=0.0)):  # the last is held to torch
        loss = cross_entropy_ntl(logits, label, DIGITS, config=config, reduction=reduction, backend=backend)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all() and gradient.isfinite().all()
    truth = F.cross_entropy(logits, label, reduction=reduction)
    # The loss is a difference of numbers as large as the logits, and has their roundings.
    rounding = torch.finfo(torch.float32).eps * logits.detach().abs().max().item()
    torch.testing.assert_close(loss, truth, rtol=1e-6, atol=rounding)
    if backend == "eager" and reduction == "mean":  # its softmax is torch's, however large the logits are
        torch.testing.assert_close(gradient, torch.autograd.grad(truth, logits)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_large_logits_lose_no_more_than_torch(reduction: str, backend: str, dtype: torch.dtype) -> None:
    """Common offsets, masks of every size, rows of one level, confident rows."""
    for options in ({}, {"logit_scale": 0.7}, {"softcap": 30.0}, {"label_smoothing": 0.5}):
        problem = large_problem(dtype, reduction, **options)
        check_large(solve(problem, backend), problem)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_impossible_labels_have_the_loss_that_torch_gives_them(
    reduction: str, backend: str, dtype: torch.dtype
) -> None:
    for label_smoothing in SMOOTHINGS:
        problem = impossible_problem(dtype, reduction, label_smoothing)
        check_impossible(solve(problem, backend), problem)


@pytest.mark.parametrize("vocab_size", [203, 32_000])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_label_smoothing_of_rows_that_start_with_a_mask(backend: str, vocab_size: int) -> None:
    problem = masked_start_problem(vocab_size)
    check_large(solve(problem, backend), problem)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_number_tokens_without_probability_have_no_number_loss(
    reduction: str, backend: str, dtype: torch.dtype
) -> None:
    for config in UNMEASURED_CONFIGS:
        problem = unmeasured_problem(dtype, reduction, config)
        check_unmeasured(solve(problem, backend), problem)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("reweigh", [True, False])
def test_the_number_loss_of_large_logits(reweigh: bool, reduction: str, dtype: torch.dtype) -> None:
    problem = large_problem(dtype, reduction, weight=0.3, reweigh=reweigh)
    answer, truth = solve(problem, "eager"), solve(problem.in_dtype(torch.float64), "reference")
    torch.testing.assert_close(answer.output.loss.double(), truth.output.loss, rtol=2e-6, atol=2e-6)
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(answer.gradient.double(), truth.gradient, rtol=rounding, atol=2e-6)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("label_sigma", [1e-10, 1e-22, 1e-30, 1e-300])
@pytest.mark.parametrize("reweigh", [True, False])
def test_a_narrow_target_is_the_one_hot_target(reweigh: bool, backend: str, label_sigma: float) -> None:
    def solved(config: NTLConfig) -> list[torch.Tensor]:
        logits = LOGITS.clone().requires_grad_()
        loss = cross_entropy_ntl(logits, LABELS, DIGITS, config=config, backend=backend)
        return [loss.detach(), *torch.autograd.grad(loss, logits)]

    narrow = NTLConfig(label_sigma=label_sigma, reweigh=reweigh)
    torch.testing.assert_close(solved(narrow), solved(NTLConfig(reweigh=reweigh)))


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_values_too_far_apart_are_named(backend: str) -> None:
    numbers = NumberTokens.from_mapping({3: -3e30, 4: 3e30}, 50)
    assert cross_entropy_ntl(LOGITS, LABELS, numbers, backend=backend).isfinite()
    with pytest.raises(ValueError, match=r"6e\+30 apart.*beyond float32"):
        cross_entropy_ntl(LOGITS, LABELS, numbers, config=NTLConfig(kind="mse"), backend=backend)


@pytest.mark.parametrize("first_seed", range(0, 120, 40))
def test_the_loss_alone_is_the_loss_with_its_parts(first_seed: int) -> None:
    """What only the parts show is left out where nobody asked for it."""
    for seed in range(first_seed, first_seed + 40):
        problem = random_problem(seed, (torch.float64, torch.float32, torch.bfloat16, torch.float16))
        leaf = problem.logits.detach().requires_grad_()
        loss = cross_entropy_ntl(leaf, problem.labels, problem.numbers, **problem.options)
        assert isinstance(loss, torch.Tensor)
        answer = solve(problem, "eager")
        torch.testing.assert_close(loss.detach(), answer.output.loss.detach())
        (gradient,) = torch.autograd.grad(loss, leaf, problem.upstream.to(loss.dtype))
        torch.testing.assert_close(gradient, answer.gradient)
