"""The functions of the Triton backend themselves: memory that the public functions do not hand out, and launches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ntl_kernels import NTLConfig
from ntl_kernels.backends import Field, eager, normalisers_of
from ntl_kernels.backends import triton as backend
from ntl_kernels.backends.layout import gradient_like
from ntl_kernels.kernels.arguments import Labels, Matrix, Numbers, Tile
from ntl_kernels.kernels.losses import scale_kernel
from ntl_kernels.kernels.totals import count_kernel, finish_kernel
from ntl_kernels.problem import Problem as Contract
from ntl_kernels.spec import LossSpec
from ntl_kernels.tokens import NumberTable

from ..parallel.shards import checked
from .bounds import Bounds
from .gpu import DTYPES, GPU
from .judge import hold_gradient
from .problems import digits, problem_of, strided
from .rounding import APPROXIMATE

LAYOUTS = ("contiguous", "odd", "gaps", "aligned gaps")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_written_where_they_are_asked_for(layout: str, dtype: torch.dtype) -> None:
    """Into memory with gaps, from the forward pass and from the backward pass, and in place."""
    vocab_size = {"contiguous": 50, "odd": 131, "gaps": 1003, "aligned gaps": 11}[layout]
    config = NTLConfig(kind="huber" if layout == "gaps" else "wasserstein", reweigh=layout in ("odd", "gaps"))
    problem = problem_of(dtype, vocab_size, layout=layout, config=config, label_smoothing=0.1 * (layout == "odd"))
    contract = checked(problem, "triton")
    contract = contract.counted(*backend.count(contract, vocab_size, torch.float32).unbind())
    right = Bounds(problem).gradient()
    fields = torch.empty(len(Field), 6)

    def held(gradient: Tensor, factor: float = 1.0) -> None:
        hold_gradient(gradient, replace(right, value=right.value * factor, error=right.error * abs(factor)), problem)

    target = strided(torch.zeros(2, 3, vocab_size, dtype=dtype), layout)
    backend.row_losses(problem.logits, contract, fields, target)
    held(target)
    for upstream, is_in_place in ((1.0, False), (-2.0, True)):
        source = strided(problem.logits, layout)
        gradient = source if is_in_place else strided(torch.zeros(2, 3, vocab_size, dtype=dtype), layout)
        backend.row_gradients(source, contract, normalisers_of(fields), torch.tensor(upstream), gradient)
        held(gradient, upstream)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaling(layout: str, dtype: torch.dtype) -> None:
    """In float32, whatever the upstream gradient's dtype; untouched where that is 1."""
    gradient = strided(torch.randn(2, 3, 1003).to(dtype), layout)
    for upstream_dtype in (torch.float32, torch.float64, *DTYPES[1:]):
        factor = 1000.0 if upstream_dtype == torch.float16 else 1e6
        before = gradient.clone() * torch.tensor(2.0**-12, dtype=dtype)
        gradient.copy_(before)
        backend.scale_(gradient, torch.tensor(1.0, dtype=upstream_dtype))
        assert torch.equal(gradient, before)
        upstream = torch.tensor(factor, dtype=upstream_dtype)
        backend.scale_(gradient, upstream)
        assert torch.equal(gradient, (before.float() * upstream.float()).to(dtype))
        gradient.copy_(torch.randn(2, 3, 1003))


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_rows_far_apart(dtype: torch.dtype) -> None:
    """Offsets beyond 2**31 elements; memory that nobody touches costs nothing."""
    columns = 19
    for batch, length, block, row in (
        (2, 2, 2**31 + 8, 24),
        (3, 1, 2**30 + 8, 2**31 + 16),
        (1, 300, 0, 2**23 + 8),
        (2, 2, 2**20, 2**31 + 1),
    ):
        problem = problem_of(dtype, columns, shape=(batch, length), count=5, upstream=1.0)
        size = (batch - 1) * block + (length - 1) * row + columns
        far = torch.empty(size, dtype=dtype).as_strided((batch, length, columns), (block, row, 1))
        far.copy_(problem.logits)
        problem = replace(problem, logits=far, options={**problem.options, "num_tokens": 2.0, "num_numbers": 3.0})
        contract = checked(problem, "triton")
        target = torch.empty(size, dtype=dtype).as_strided(far.shape, far.stride())
        backend.row_losses(far, contract, torch.empty(len(Field), batch * length), target)
        hold_gradient(target, Bounds(problem).gradient(), problem)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "ids"), [(1, [0]), (9, [4]), (50, [2, 40])])
def test_few_columns_and_numbers(columns: int, ids: list[int], dtype: torch.dtype) -> None:
    """Fewer than `NumberTokens` allows: a vocabulary of one token, a single number."""
    lookup = torch.full((columns,), -1, dtype=torch.int32)
    lookup[ids] = torch.arange(len(ids), dtype=torch.int32)
    table = NumberTable(torch.tensor(ids, dtype=torch.int32), torch.arange(len(ids)) + 2.0, lookup)
    spec = LossSpec.resolve(NTLConfig(reweigh=True), digits(50, 10), label_smoothing=0.1)
    labels = torch.tensor([ids[0], columns - 1, -100, ids[-1]])
    logits = torch.randn(1, 4, columns).to(dtype)
    contract = Contract(labels, None, 2.0, 3.0, 0.3, table, spec, "mean", "triton")
    fields, gradient = torch.empty(len(Field), 4), gradient_like(logits)
    backend.row_losses(logits, contract, fields, gradient)
    exact, truth = torch.empty(len(Field), 4, dtype=torch.float64), torch.empty(1, 4, columns, dtype=torch.float64)
    eager.row_losses(logits.double(), contract._replace(backend="eager"), exact, truth)
    lost = 8 * APPROXIMATE * spec.worst_loss
    torch.testing.assert_close(fields.double(), exact, rtol=8 * APPROXIMATE, atol=lost)
    torch.testing.assert_close(gradient.double(), truth, rtol=torch.finfo(dtype).eps, atol=lost * 0.3 / 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("layout", "columns", "count"), [("contiguous", 1024, 10), ("gaps", 1003, 10), ("odd", 1301, 1110), ("gaps", 5, 2)]
)
def test_number_statistics(layout: str, columns: int, count: int, dtype: torch.dtype) -> None:
    """Expected value and mass of every row, and their gradient, through the public function's road."""
    from ntl_kernels import expectation

    problem = problem_of(dtype, columns, layout=layout, count=count, scale=2.0)
    table, ids, values = problem.numbers.table("cpu"), problem.numbers.ids.long(), problem.numbers.values.double()
    exact = problem.logits.double().requires_grad_()
    q = exact[..., ids].softmax(-1)
    expected_value, mass = (q * values).sum(-1).reshape(-1), exact.softmax(-1)[..., ids].sum(-1).reshape(-1)
    got_value, got_mass, statistics = expectation.forward(problem.logits, table, "triton")
    distance = (exact - exact.amax(-1, keepdim=True)).abs().max().item()
    relative = (3 * distance + columns / 32 + 40) * 2.0**-23
    torch.testing.assert_close(got_value.double(), expected_value.detach(), rtol=relative, atol=0)
    torch.testing.assert_close(got_mass.double(), mass.detach(), rtol=relative, atol=0)
    upstreams = torch.randn(2, 6)
    total = (upstreams[0].double() * expected_value).sum() + (upstreams[1].double() * mass).sum()
    (truth,) = torch.autograd.grad(total, exact)
    gradient = expectation.gradients(problem.logits, table, "triton", statistics, upstreams)
    # Every column has a share of the mass' gradient, the number columns one of the expected value's besides.
    size = (upstreams[1].abs().double() * mass).view(2, 3, 1) * exact.softmax(-1)
    value = (upstreams[0].abs().double() * expected_value).view(2, 3, 1) + (upstreams[1].abs() * mass).view(2, 3, 1)
    size[..., ids] += q * (value + upstreams[0].abs().double().view(2, 3, 1) * values)
    limit = relative * size.detach() + torch.finfo(dtype).eps * truth.abs() + torch.finfo(dtype).smallest_normal
    assert ((gradient.double() - truth).abs() <= limit).all()
    rows = strided(problem.logits, layout)
    backend.number_statistics_gradients(rows, table, statistics, upstreams, rows)
    assert torch.equal(rows, gradient)


def test_launches_that_change_from_call_to_call(gpu: GPU) -> None:
    """Other pointers, alignments, integers and widths: the variant must be Triton's, whatever was launched before."""
    rng, launch = random.Random(0), gpu.launcher
    gpu.emulator.is_executing = False

    def at(dtype: torch.dtype, offset: int) -> Tensor:
        return torch.zeros(64 + offset, dtype=dtype)[offset:]

    def scalar() -> Any:
        dtypes = (torch.int64, torch.float32, torch.float64, torch.bfloat16)
        return rng.choice([2.0, 0.0, float("inf"), at(torch.float32, 1)[0], torch.tensor(3, dtype=rng.choice(dtypes))])

    try:
        for _ in range(120):
            stride = rng.choice([1, 2, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16, 2**40])
            matrix = Matrix(at(rng.choice(DTYPES[:2]), rng.choice([0, 1, 8])), rng.choice([1, 15, 16]))
            sizes = stride, rng.choice([1, 2, 16]), rng.choice([1, 16, 17]), rng.choice([0, 1, 16, 1000])
            constants = {"TILE": Tile(32, 4, 1, 0, False, False)}
            launch(scale_kernel, rng.choice([1, 2, 1024]), (matrix, *sizes, torch.ones(())), constants, num_warps=1)
        for _ in range(100):
            fields, rows = at(torch.float32, rng.choice([0, 1])), rng.choice([0, 1, 8, 16, 17, 2**20])
            shares = rng.choice([None, scalar()]), rng.choice([None, scalar()]), scalar()
            results = at(torch.float32, rng.choice([0, 1]))[0], torch.zeros(7)
            constants = {"MEAN": rng.random() < 0.5, "OVER_TOKENS": rng.random() < 0.5, "BLOCK": 16}
            launch(finish_kernel, 1, (fields, rows, *shares, *results), constants, num_warps=1)
        numbers = Numbers(torch.zeros(16, dtype=torch.int32), torch.zeros(16), torch.zeros(64, dtype=torch.int32), 16)
        for _ in range(80):
            ids = at(rng.choice([torch.int64, torch.int32]), rng.choice([0, 1]))
            weights = rng.choice([None, at(torch.float32, 0), at(torch.float32, 3)])
            labels = Labels(ids, weights, rng.choice([-100, 0, 1, -1, 16, -(2**31), 2**31 - 1]))
            sizes = rng.choice([1, 64, 65]), rng.choice([1, 8, 16])
            launch(count_kernel, 1, (labels, numbers, *sizes, torch.zeros(2)), {"BLOCK": 16}, num_warps=1)
    finally:
        gpu.emulator.is_executing = True
    assert launch.compared >= 300
