"""The functions of the Triton backend: memory that the public functions do not return, and launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.inspect.cases import Case, all_cases, compile_launch, record
from ntl_kernels import NTLConfig
from ntl_kernels.backends import eager
from ntl_kernels.backends import triton as backend
from ntl_kernels.backends.layout import gradient_like
from ntl_kernels.formulas import divide
from ntl_kernels.problem import AT, NUM_FIELDS, Parts, RowInputs, RowResult, label_losses
from ntl_kernels.problem import Problem as Contract
from ntl_kernels.spec import spec_of
from ntl_kernels.tokens import NumberTable

from ..emulator.ptx import Kernel
from ..parallel.shards import checked
from .bounds import Bounds
from .conftest import some
from .gpu import DTYPES
from .judge import hold_gradient
from .problems import digits, problem_of, strided
from .rounding import APPROXIMATE

LAYOUTS = ("contiguous", "odd", "gaps", "aligned gaps")


@pytest.mark.parametrize(("dtype", "layout"), some(3, DTYPES, LAYOUTS))
def test_gradients_are_written_where_they_are_asked_for(layout: str, dtype: torch.dtype) -> None:
    """Into memory with gaps, from the forward pass and from the backward pass, and in place."""
    vocab_size = {"contiguous": 50, "odd": 131, "gaps": 1003, "aligned gaps": 11}[layout]
    config = NTLConfig(kind="huber" if layout == "gaps" else "wasserstein", reweigh=layout in ("odd", "gaps"))
    problem = problem_of(dtype, vocab_size, layout=layout, config=config, label_smoothing=0.1 * (layout == "odd"))
    contract = checked(problem, "triton")
    contract = contract.counted(*backend.count(contract, vocab_size, torch.float32).unbind())
    right = Bounds(problem).gradient()
    fields = torch.empty(NUM_FIELDS, 6)

    def held(gradient: Tensor, factor: float = 1.0) -> None:
        hold_gradient(gradient, replace(right, value=right.value * factor, error=right.error * abs(factor)), problem)

    target = strided(torch.zeros(2, 3, vocab_size, dtype=dtype), layout)
    backend.row_losses(problem.logits, contract, fields, target)
    held(target)
    for upstream, is_in_place in ((1.0, False), (-2.0, True)):
        source = strided(problem.logits, layout)
        gradient = source if is_in_place else strided(torch.zeros(2, 3, vocab_size, dtype=dtype), layout)
        backend.row_gradients(source, contract, None, fields, None, torch.tensor(upstream), gradient)
        held(gradient, upstream)


@pytest.mark.parametrize(("dtype", "layout"), some(3, DTYPES, LAYOUTS))
def test_scaling(layout: str, dtype: torch.dtype) -> None:
    """In float32 for any dtype of the upstream gradient; no memory is accessed where it is 1."""
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


@pytest.mark.parametrize("rows", [1, 9001, backend.MOST_ROWS_OF_A_PROGRAM + 1, 600_000])
def test_sums_over_rows(rows: int) -> None:
    """By a single program and by several, of which some have no rows and others several blocks of them."""
    torch.manual_seed(0)
    problem = problem_of(torch.float32, 50, shape=(1, rows), weights=True, number_weights=True)
    contract = checked(problem, "triton")
    labels, weights, number_weights = contract.rows
    is_counted = labels >= 0
    assert weights is not None and number_weights is not None
    is_number = is_counted & torch.isin(labels, problem.numbers.ids.long())
    counted = backend.count(contract, 50, torch.float32)
    torch.testing.assert_close(
        counted, torch.stack([weights[is_counted].sum(), (weights * number_weights)[is_number].sum()])
    )
    fields = torch.rand(NUM_FIELDS, rows) * (torch.rand(NUM_FIELDS, rows) < 0.7)
    loss, parts = backend.finish(fields, contract._replace(ntl_weight=torch.tensor(0.7)))
    total, counts = RowResult(*fields.sum(1)), RowResult(*(fields != 0).sum(1))
    expected = Parts(
        cross_entropy=divide(total.cross_entropy, total.row_weight),
        ntl=divide(total.ntl, total.number_row_weight),
        num_tokens=total.row_weight,
        num_numbers=total.number_row_weight,
        token_accuracy=divide(total.is_correct, counts.row_weight),
        number_mae=divide(total.absolute_error, counts.mass),
        number_mass=divide(total.mass, counts.mass),
    )
    torch.testing.assert_close(loss, expected.cross_entropy + 0.7 * expected.ntl)
    torch.testing.assert_close(parts, torch.stack(expected))
    for share in (0.0, 0.25):  # of cross-entropy in number rows, which is reported without it
        spec = replace(contract.spec, kind="soft_labels", label_share=share)
        loss, shared = backend.finish(fields, contract._replace(ntl_weight=torch.tensor(0.7), spec=spec))
        of_labels = divide(label_losses(fields, spec).sum(), total.row_weight)
        torch.testing.assert_close(loss, of_labels + 0.7 * expected.ntl)
        torch.testing.assert_close(shared, parts)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_rows_far_apart(dtype: torch.dtype) -> None:
    """Offsets beyond 2**31 elements; untouched memory costs nothing."""
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
        backend.row_losses(far, contract, torch.empty(NUM_FIELDS, batch * length), target)
        hold_gradient(target, Bounds(problem).gradient(), problem)


@pytest.mark.parametrize(("dtype", "columns"), some(2, DTYPES, [1, 9, 50]))
def test_few_columns_and_numbers(columns: int, dtype: torch.dtype) -> None:
    """Fewer than `NumberTokens` allows: a vocabulary of one token, a single number."""
    ids = {1: [0], 9: [4], 50: [2, 40]}[columns]
    lookup = torch.full((columns,), -1, dtype=torch.int32)
    lookup[ids] = torch.arange(len(ids), dtype=torch.int32)
    table = NumberTable(torch.tensor(ids, dtype=torch.int32), torch.arange(len(ids)) + 2.0, lookup, None, len(ids))
    spec = spec_of(NTLConfig(reweigh=True), digits(50, 10), label_smoothing=0.1)
    labels = torch.tensor([ids[0], columns - 1, -100, ids[-1]])
    logits = torch.randn(1, 4, columns).to(dtype)
    contract = Contract(RowInputs(labels), 2.0, 3.0, 0.3, table, spec, "triton")
    fields, gradient = torch.empty(NUM_FIELDS, 4), gradient_like(logits)
    backend.row_losses(logits, contract, fields, gradient)
    exact, truth = torch.empty(NUM_FIELDS, 4, dtype=torch.float64), torch.empty(1, 4, columns, dtype=torch.float64)
    eager.row_losses(logits.double(), contract._replace(backend="eager"), exact, truth)
    lost = 8 * APPROXIMATE * spec.worst_loss
    shown = slice(AT.number_peak)  # eager leaves out what only a later gradient needs
    torch.testing.assert_close(fields.double()[shown], exact[shown], rtol=8 * APPROXIMATE, atol=lost)
    torch.testing.assert_close(gradient.double(), truth, rtol=torch.finfo(dtype).eps, atol=lost * 0.3 / 3)


CASES = [Case("losses_and_gradients", "sm_90", "bf16", "2k", 66, "reweighed")]  # one warp, each lane several numbers
CASES += {(case.kernel, case.loss, case.dtype): case for case in all_cases() if case.target == "sm_90"}.values()


@pytest.mark.parametrize(("case", "is_aligned"), some(9, CASES, [True, False]), ids=str)
def test_every_instruction_is_known(case: Case, is_aligned: bool) -> None:
    """Of kernels for tensors at multiples of 16 bytes and for any, whose elements Triton distributes differently."""
    launch = record(case)
    if is_aligned:
        compiled = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.keywords)
    else:
        compiled = compile_launch(launch, case.target)
    Kernel(launch.kernel.__name__, compiled.asm["ptx"])  # or UnknownPTX, which lists them
