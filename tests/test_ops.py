"""The operators' schemas and fake implementations, and torch.compile through them."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from ntl_kernels import CrossEntropyNTLLoss, NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl, ops
from ntl_kernels.problem import NUM_FIELDS, Problem, RowInputs
from ntl_kernels.spec import spec_of
from ntl_kernels.steps import operands_of, problem_of

DIGITS = NumberTokens.from_mapping({i + 3: float(i) for i in range(10)}, 50)
GROUPED = NumberTokens.from_groups([{i + 3: float(i) for i in range(10)}, {0: 2.0, 15: 4.5, 16: 3.0}], 50)
LABELS = torch.randint(0, 20, (2, 3))


class Graphs(CompileCounterWithBackend):
    """An aot_eager backend that counts its graphs: a compiled function must not fall back to plain Python."""

    def __init__(self) -> None:
        torch.compiler.reset()  # a function that broke in one test would not be compiled in the next
        super().__init__("aot_eager")


def operands(
    labels: torch.Tensor, reduction: str, num_tokens: float | None = None, numbers: NumberTokens = GROUPED
) -> tuple[Any, ...]:
    rows, spec = RowInputs(labels, *torch.rand(2, *labels.shape)), spec_of(NTLConfig(), numbers, reduction=reduction)
    problem = Problem(rows, num_tokens, num_tokens, 0.3, numbers.table("cpu"), spec, "eager")
    return operands_of(problem, torch.float32)


@pytest.mark.parametrize(
    "config",
    [
        NTLConfig("huber", reweigh=True, mean_over="tokens", label_sigma=0.0, huber_delta=0.5),
        NTLConfig("soft_labels", mean_over="tokens", label_temperature=0.8, label_share=0.4),
    ],
)
def test_operands_carry_the_whole_problem(config: NTLConfig) -> None:
    """Every field but ``wants_parts``, each different from its default and from every other."""
    rows, table = RowInputs(LABELS, *torch.rand(2, *LABELS.shape)), GROUPED.table("cpu")
    options = {"label_smoothing": 0.1, "z_loss": 0.2, "softcap": 7.0, "logit_scale": 0.7, "reduction": "sum"}
    spec = spec_of(config, GROUPED, ignore_index=-7, has_cross_entropy=False, **options)
    problem = Problem(rows, torch.tensor(3.0), 2.0, 0.25, table, spec, "triton", wants_parts=False)
    back = problem_of(operands_of(problem, torch.float32))
    assert back.wants_parts
    for name in set(Problem._fields) - {"wants_parts"}:
        got, given = getattr(back, name), getattr(problem, name)
        assert got is given or got == given, name
    for absent in (None, torch.tensor(3.0)):
        assert problem_of(operands_of(problem._replace(num_numbers=absent), torch.float32)).num_numbers is absent


@pytest.mark.parametrize("name", ["losses and gradient", "losses", "losses of rows", "gradients"])
@pytest.mark.parametrize(("layout", "numbers"), [("contiguous", DIGITS), ("sliced", GROUPED)])
def test_opcheck(name: str, layout: str, numbers: NumberTokens) -> None:
    """torch's four standard tests, including the derivative."""
    given = partial(operands, LABELS, numbers=numbers)
    logits = torch.randn(2, 4, 50)[:, :-1] if layout == "sliced" else torch.randn(2, 3, 50)
    differentiable = logits.clone() if layout == "contiguous" else logits.detach()
    differentiable.requires_grad_()
    rest = None, None, 1, False, [name != "losses" and name != "losses of rows", False, False]
    arguments = {
        "losses and gradient": (differentiable, *rest, *given("mean")),
        "losses": (differentiable, *rest, *given("sum")),
        "losses of rows": (differentiable, *rest, *given("none")),
        "gradients": (torch.rand(NUM_FIELDS, 6), torch.rand(()), logits, *rest, *given("mean", 3.0)),
    }
    torch.library.opcheck(getattr(ops, name.split()[0]), arguments[name])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_opcheck_linear(reduction: str) -> None:
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((6, 8), (50, 8), (50,))]
    arguments = (*leaves, 4, True, [reduction == "mean"] * 3, *operands(LABELS.view(-1), reduction))
    torch.library.opcheck(ops.losses, arguments)
    given = torch.rand(NUM_FIELDS, 6), torch.rand(6), *(leaf.detach() for leaf in leaves)
    torch.library.opcheck(ops.gradients, (*given, 4, True, [True] * 3, *operands(LABELS.view(-1), "none")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("inplace", "numbers"), [(False, DIGITS), (True, GROUPED)])
def test_compile_without_graph_break(dtype: torch.dtype, reduction: str, inplace: bool, numbers: NumberTokens) -> None:
    def loss(logits: torch.Tensor) -> torch.Tensor:
        (logits,) = (2 * logits).split(2)
        result = cross_entropy_ntl(logits, LABELS, numbers, reduction=reduction, inplace=inplace)
        assert isinstance(result, torch.Tensor)
        return result.sum()

    logits = torch.randn(2, 3, 50, dtype=dtype, requires_grad=True)
    expected = loss(logits)
    graphs = Graphs()
    compiled = torch.compile(loss, backend=graphs, fullgraph=True)(logits)
    assert graphs.frame_count == 1
    torch.testing.assert_close(compiled, expected)
    (truth,), found = torch.autograd.grad(3 * expected, logits), torch.autograd.grad(3 * compiled, logits)
    if inplace and reduction == "mean":  # of a plain call, which has overwritten logits
        plain = 3 * loss(logits)
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(lambda: plain.backward(), backend="aot_eager")()
        found = (*found, logits.grad)
    for gradient in found:
        torch.testing.assert_close(gradient, truth, rtol=1e-3, atol=1e-6)


HIDDEN, WEIGHT, BIAS = torch.randn(2, 3, 8), torch.randn(50, 8), torch.randn(50)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_tokens": torch.tensor(9.0)},
        {"num_tokens": 9, "num_numbers": 2},
        {"token_weights": torch.rand(2, 3), "number_weights": torch.tensor([[0.0, 2.0, 0.5]] * 2)},
    ],
)
def test_a_mean_over_tokens_compiles(given: dict[str, Any]) -> None:
    config = NTLConfig(mean_over="tokens")

    def losses(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        options = {"config": config, **given}
        of_logits = cross_entropy_ntl(hidden @ weight.t(), LABELS, DIGITS, **options)
        of_hidden = linear_cross_entropy_ntl(hidden, weight, LABELS, GROUPED, bias=bias, chunk_size=2, **options)
        assert isinstance(of_logits, torch.Tensor) and isinstance(of_hidden, torch.Tensor)
        return torch.stack([of_logits, of_hidden])

    inputs = [each.clone().requires_grad_() for each in (HIDDEN, WEIGHT, BIAS)]
    expected, compiled = losses(*inputs), torch.compile(losses, backend=Graphs(), fullgraph=True)(*inputs)
    torch.testing.assert_close(compiled, expected)
    found, truth = (torch.autograd.grad(loss.sum(), inputs) for loss in (compiled, expected))
    torch.testing.assert_close(found, truth)


LOGITS = HIDDEN @ WEIGHT.t()
ROADS: dict[str, Any] = {
    "logits": partial(cross_entropy_ntl, LOGITS, LABELS, DIGITS),
    "hidden": partial(linear_cross_entropy_ntl, HIDDEN, WEIGHT, LABELS, DIGITS),
    "logits, none": partial(cross_entropy_ntl, LOGITS, LABELS, DIGITS, reduction="none"),
    "reference": partial(cross_entropy_ntl, LOGITS, LABELS, DIGITS, backend="reference"),
    "module": lambda **options: CrossEntropyNTLLoss(DIGITS, **options)(LOGITS, LABELS),
}
CONFIGURED: dict[str, dict[str, Any]] = {
    **{key: {} for key in ("weight", "squash_factor", "label_sigma")},
    "huber_delta": {"kind": "huber"},
    "label_temperature": {"kind": "soft_labels"},
    "label_share": {"kind": "soft_labels", "label_sigma": 2.0},
}
"""Option of NTLConfig -> what it needs besides."""
NUMBERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "label_smoothing": ((0.1, 0.2, 0.3), (-0.5, 1.5, torch.nan)),
    "z_loss": ((0.1, 0.2, 0.3), (-1.0, torch.inf)),
    "logit_scale": ((0.5, 0.6, 0.7), (-1.0, 0.0, 1e39)),
    "softcap": ((10.0, 11.0, 12.0), (0.0, -2.0)),
    "ignore_index": ((-100, 3, 5), (2**70,)),
    "weight": ((0.1, 0.2, 0.3), (-1.0, 1e38)),
    "squash_factor": ((2.0, 3.0, 4.0), (0.5,)),
    "label_sigma": ((0.5, 1.0, 2.0), (-1.0,)),
    "label_temperature": ((0.5, 1.0, 2.0), (-1.0,)),
    "label_share": ((0.5, 0.25, 0.75), (-0.5, 1.5)),
    "huber_delta": ((1.0, 2.0, 3.0), (-1.0, 1e39)),
    "num_tokens": ((5, 6, 7), (-3, -0.5, torch.inf)),
    "num_numbers": ((5.5, 6.5, 7.5), (-1, 1e-45)),
}
"""Option -> numbers that are right, and numbers that are wrong."""
QUICK = [("logits", "z_loss"), ("logits", "num_tokens"), ("hidden", "weight"), ("hidden", "num_numbers")]
"""The code paths and numbers of the tests that are not slow."""


def given(name: str, value: Any) -> dict[str, Any]:
    """An option as a function accepts it."""
    if name in ("num_tokens", "num_numbers"):
        return {"num_tokens": 5, "num_numbers": 3, name: value}
    if name not in CONFIGURED:
        return {name: value}
    return {"config": NTLConfig(**CONFIGURED[name], **{name: value})}


@pytest.mark.parametrize(
    ("road", "fullgraph"),
    [("logits", False), *(pytest.param(*each, marks=pytest.mark.slow) for each in product(ROADS, [True, False]))],
)
def test_constants_are_checked_under_compile_too(road: str, fullgraph: bool) -> None:
    """One after another, as in a process: at a graph break, the code that runs on its own has seen other numbers."""
    graphs = Graphs()
    pairs = [(name, value) for name, (_, wrong) in NUMBERS.items() for value in wrong]
    for name, value in [pair for pair in pairs if road in ("logits", "hidden") or "num_" not in pair[0]]:
        if fullgraph:
            torch.compiler.reset()
        compiled = torch.compile(
            lambda n=name, v=value: ROADS[road](**given(n, v)), backend=graphs, fullgraph=fullgraph
        )
        with pytest.raises(Exception if fullgraph else ValueError, match=None if fullgraph else name):
            compiled()
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "road", "dynamic"),
    [
        pytest.param(name, road, dynamic, marks=[] if (road, name) in QUICK else pytest.mark.slow)
        for name in NUMBERS
        for road, dynamic in (("logits", None), ("hidden", True))
    ],
)
def test_numbers_that_change_are_checked_too(name: str, road: str, dynamic: bool | None) -> None:
    """Those that a trace treats as symbolic are checked by the operators."""
    compiled = torch.compile(
        lambda value: ROADS[road](**given(name, value)), backend=Graphs(), fullgraph=True, dynamic=dynamic
    )
    right, wrong = NUMBERS[name]
    for value in right:
        torch.testing.assert_close(compiled(value), ROADS[road](**given(name, value)))
    for value in wrong:
        with pytest.raises(Exception):  # noqa: B017 - dynamo wraps some, and all that matters is that no loss comes
            compiled(value)


def test_labels_are_checked_under_compile_too() -> None:
    graphs = Graphs()
    compiled = torch.compile(lambda x, y: cross_entropy_ntl(x, y, DIGITS), backend=graphs, fullgraph=True)
    compiled(torch.randn(2, 50), torch.tensor([1, 2]))
    assert graphs.frame_count == 1
    with pytest.raises(IndexError, match="999"):
        compiled(torch.randn(2, 50), torch.tensor([1, 999]))
