"""`number_statistics` against the reference, forward and backward."""

from __future__ import annotations

import pytest
import torch

from ntl_kernels import NumberTokens, ops
from ntl_kernels.backends import NumberField
from ntl_kernels.ntloss import NTLossDotProduct
from ntl_kernels.statistics import number_statistics

from .large_logits import large_problem

NUMBERS = NumberTokens.from_mapping({3: -1.5, 4: 2.0, 9: 2.0, 10: 7.0}, 13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 2, 3), (0,)])
def test_equals_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = (torch.randn(*shape, 13) * 3).to(dtype).requires_grad_()
    got, want = number_statistics(logits, NUMBERS), number_statistics(logits, NUMBERS, backend="reference")
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype != torch.float64 else {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(tuple(got), tuple(want), **tolerance)
    assert got.mass.shape == shape
    upstreams = [torch.randn(shape, dtype=part.dtype) for part in want]
    rounding = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, tolerance["rtol"])
    torch.testing.assert_close(
        torch.autograd.grad(got, logits, upstreams),
        torch.autograd.grad(want, logits, upstreams),
        rtol=rounding,
        atol=rounding,
    )


def test_gradcheck() -> None:
    for backend in ("eager", "reference"):
        logits = torch.randn(4, 13, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, b=backend: tuple(number_statistics(x, NUMBERS, backend=b)), logits)


def test_a_row_that_nobody_asks_about_has_no_gradient() -> None:
    """Not even where it has no finite number logit, or none at all."""
    logits = torch.randn(3, 13)
    logits[1, NUMBERS.ids] = -torch.inf
    logits[2] = -torch.inf
    logits.requires_grad_()
    for index in (0, 1):
        gradient = torch.autograd.grad(number_statistics(logits, NUMBERS)[index][0], logits)[0]
        assert gradient[0].any() and not gradient[1:].any()


def test_strides_and_upstream_gradients_of_any_layout() -> None:
    base = torch.randn(13, 5, 4, requires_grad=True)
    upstream = torch.randn(4, 1).expand(4, 5).t()
    for logits in (base.permute(1, 2, 0), base[:, :, :1].expand(13, 5, 4).permute(1, 2, 0)):
        got, want = (
            torch.autograd.grad(number_statistics(logits, NUMBERS, backend=backend), base, (upstream, upstream))
            for backend in ("auto", "reference")
        )
        torch.testing.assert_close(got, want)


def test_backward_twice_is_right_and_a_second_derivative_refused() -> None:
    logits = torch.randn(4, 13, requires_grad=True)
    value = number_statistics(logits, NUMBERS).expected_value.sum()
    once, twice = (torch.autograd.grad(value, logits, torch.tensor(u), retain_graph=True)[0] for u in (1.0, 3.0))
    torch.testing.assert_close(twice, 3 * once)
    (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.sum().backward()


def test_one_result_alone_has_a_gradient() -> None:
    logits = torch.randn(4, 13, requires_grad=True)
    for index in (0, 1):
        got = torch.autograd.grad(number_statistics(logits, NUMBERS)[index].sum(), logits)[0]
        want = torch.autograd.grad(number_statistics(logits, NUMBERS, backend="reference")[index].sum(), logits)[0]
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, -1e7])
@pytest.mark.parametrize("function", ["eager", "reference", "ntloss"])
def test_the_gradient_of_large_values_keeps_its_digits(function: str, offset: float) -> None:
    """An offset of all values changes nothing; nor do values far away that have no probability."""
    numbers = NumberTokens.from_mapping({**{i: offset + i for i in range(10)}, 11: -3e7}, 13)
    logits = torch.randn(4, 13)
    logits[:, 11] = -torch.inf
    logits.requires_grad_()
    if function == "ntloss":
        loss = NTLossDotProduct(TenDigits(), vocab_size=13, reweigh=False, loss_function=first_of_two)
        loss.numbers = numbers
        expected_value = loss(logits[None], torch.zeros(1, 4, dtype=torch.int64), reduction="sum")
    else:
        expected_value = number_statistics(logits, numbers, backend=function).expected_value
    (gradient,) = torch.autograd.grad(expected_value.sum(), logits)
    q, steps = logits.detach().double()[:, :10].softmax(-1), torch.arange(10, dtype=torch.float64)
    truth = q * (steps - (q * steps).sum(-1, keepdim=True))
    torch.testing.assert_close(gradient[:, :10].double(), truth, rtol=1e-5, atol=1e-6)


def first_of_two(expected: torch.Tensor, values: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return expected + 0 * values


class TenDigits:
    def get_vocab(self) -> dict[str, int]:
        return {**{str(i): i for i in range(10)}, "a": 10, "b": 11, "c": 12}


def test_operators() -> None:
    logits, table = torch.randn(2, 3, 13, requires_grad=True), NUMBERS.table("cpu")
    torch.library.opcheck(ops.number_statistics, (logits, *table, "eager"))
    rows = torch.randn(len(NumberField), 6), torch.randn(2, 6)
    torch.library.opcheck(ops.number_statistics_gradients, (logits.detach(), *table, "eager", *rows))


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"logits.*int64"):
        number_statistics(torch.ones(2, 13, dtype=torch.long), NUMBERS)
    with pytest.raises(ValueError, match=r"13.*14"):
        number_statistics(torch.ones(2, 14), NUMBERS)


def test_large_logits_lose_no_digits() -> None:
    """Also where no number logit is finite: the mass is 0 then, and only the expected value NaN."""
    problem = large_problem(torch.float32, "none")
    logits = problem.logits.clone()
    logits[:4, problem.numbers.ids] = -torch.inf
    got = number_statistics(logits, problem.numbers)
    want = number_statistics(logits.double(), problem.numbers, backend="reference")
    torch.testing.assert_close(torch.stack(got).double(), torch.stack(want), rtol=2e-6, atol=2e-6, equal_nan=True)
