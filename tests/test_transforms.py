"""Every public function under every transform of torch: equal to the reference, or an error that names a remedy.

`TABLE` holds the expected outcome of each pair. ``python -m tests.test_transforms`` writes the documentation's page
"Compatibility with torch" from it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ntl_kernels import (
    CrossEntropyNTLLoss,
    LinearCrossEntropyNTLLoss,
    NTLConfig,
    checks,
    cross_entropy_ntl,
    dispatch,
    linear_cross_entropy_ntl,
    ntloss,
    statistics,
)
from ntl_kernels.integrations.transformers import apply_ntl_to_model
from ntl_kernels.integrations.transformers.targets import NTLOptions, Targets, Window, loss_from_logits
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

from .copies import refused_copies
from .graphs import captured, warm_up
from .integrations.models import NUMBERS, VOCAB, make_model, make_targets
from .parallel.shards import group_of_one
from .test_ntloss import tokenizer_of, twice_mse
from .versions import needs

PAGE = Path(__file__).parent.parent / "docs" / "pages" / "scale.md"
BEGIN, END = "<!-- transforms:begin, written by python -m tests.test_transforms -->\n", "<!-- transforms:end -->"
BATCH, LENGTH, HIDDEN = 2, 9, 16
LENGTHS = (9, 4, 7, 12, 5)
"""Of the batches that one compiled or exported function sees."""


class Network(nn.Module):
    """A head and a loss on it."""

    def __init__(self, loss: Callable[..., Tensor], config: NTLConfig) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        nn.init.normal_(self.head.weight)
        self.loss, self.config = loss, config

    def forward(self, x: Tensor, labels: Tensor, count: Any = None, weight: float | Tensor | None = None) -> Tensor:
        """The loss of hidden states [B, T, H]; ``count`` is its denominator, ``weight`` a lambda for this call."""
        given: dict[str, Any] = {} if count is None else {"num_tokens": count, "num_numbers": 3}
        if weight is not None:
            given["config"] = NTLConfig(weight=weight)
        return self.loss(self.head, x, labels, **given)

    def truth(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same by the reference."""
        with by_the_reference():
            return self(*args, **kwargs)


class PatchedModel(nn.Module):
    """A Hugging Face model under `apply_ntl_to_model`, from its embeddings on."""

    def __init__(self, config: NTLConfig) -> None:
        super().__init__()
        self.config = config
        self.model = apply_ntl_to_model(
            make_model("llama", num_hidden_layers=1, attn_implementation="eager"), NUMBERS, config
        )

    def forward(self, x: Tensor, labels: Tensor, count: Any = None) -> Tensor:
        return self.model(**self.inputs(x), labels=labels, num_items_in_batch=count).loss

    def inputs(self, x: Tensor) -> dict[str, Any]:
        """With the mask that is added to the attention scores: transformers would derive it from values, which
        meta tensors lack, or (5.17) with a number that it copies to the device, which no CUDA graph may contain."""
        length = x.shape[-2]
        mask = x.new_full((length, length), torch.finfo(x.dtype).min).triu(1).expand(x.shape[0], 1, length, length)
        return {"inputs_embeds": x, "attention_mask": mask, "use_cache": False}

    def truth(self, x: Tensor, labels: Tensor, count: Any = None) -> Tensor:
        """By the reference on the logits of the model's own forward, which a call without labels runs."""
        logits = self.model(**self.inputs(x)).logits
        with by_the_reference():
            options = NTLOptions(NUMBERS, self.config)
            return loss_from_logits(logits, Targets(make_targets(self.model, labels)), Window(options, count)).loss


@contextmanager
def by_the_reference() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (checks, statistics, ntloss):
            stack.enter_context(mock.patch.object(module, "resolve_backend", return_value="reference"))
        yield


def logits_loss(head: nn.Module, x: Tensor, labels: Tensor, *, reduction: str, **given: Any) -> Tensor:
    return cross_entropy_ntl(head(x), labels, NUMBERS, reduction=reduction, **given)


def hidden_loss(head: Any, x: Tensor, labels: Tensor, *, reduction: str, **given: Any) -> Tensor:
    return linear_cross_entropy_ntl(x, head.weight, labels, NUMBERS, reduction=reduction, **given)


def shard_loss(head: nn.Module, x: Tensor, labels: Tensor, **given: Any) -> Tensor:
    return vocab_parallel_cross_entropy_ntl(head(x), labels, NUMBERS, group=dist.group.WORLD, vocab_start=0, **given)


def head_shard_loss(head: Any, x: Tensor, labels: Tensor, **given: Any) -> Tensor:
    return vocab_parallel_linear_cross_entropy_ntl(
        x, head.weight, labels, NUMBERS, group=dist.group.WORLD, vocab_start=0, **given
    )


def statistics_of(config: NTLConfig) -> Network:
    """With a separate table: torch remembers whether a compiled function saw a tensor's shape as dynamic."""
    numbers = copy.deepcopy(NUMBERS)
    return Network(lambda head, x, labels: torch.stack(tuple(statistics.number_statistics(head(x), numbers))), config)


def of_functions(loss: Callable[..., Tensor], reduction: str) -> Callable[[NTLConfig], Network]:
    return lambda config: Network(partial(loss, reduction=reduction, config=config), config)


def logits_module(config: NTLConfig) -> Network:
    loss_fn = CrossEntropyNTLLoss(NUMBERS, config)
    return Network(lambda head, x, labels, **given: loss_fn(head(x), labels, **given), config)


def hidden_module(config: NTLConfig) -> Network:
    loss_fn = LinearCrossEntropyNTLLoss(NUMBERS, config)
    return Network(lambda head, x, labels, **given: loss_fn(x, head.weight, labels, **given), config)


def drop_in(name: str, **options: Any) -> Callable[[NTLConfig], Network]:
    """With a tokenizer that has digits where `NUMBERS` has them."""
    words = [str(i - 10) if 10 <= i < 20 else "." if i == 20 else f"word{i}" for i in range(VOCAB)]
    loss_fn = getattr(ntloss, name)(tokenizer_of(words), VOCAB, **options)
    return lambda config: Network(lambda head, x, labels: loss_fn(head(x), labels), config)


class Subject(NamedTuple):
    """A public function in a network."""

    title: str
    make: Callable[[NTLConfig], Network | PatchedModel]
    kind: str


SUBJECTS = {
    "logits": Subject("`cross_entropy_ntl`", of_functions(logits_loss, "mean"), "function"),
    "logits-none": Subject('the same, `reduction="none"`', of_functions(logits_loss, "none"), "function of rows"),
    "linear": Subject("`linear_cross_entropy_ntl`", of_functions(hidden_loss, "mean"), "function"),
    "linear-none": Subject('the same, `reduction="none"`', of_functions(hidden_loss, "none"), "function of rows"),
    "statistics": Subject("`number_statistics`", statistics_of, "statistics"),
    "logits-module": Subject("`CrossEntropyNTLLoss`", logits_module, "module"),
    "linear-module": Subject("`LinearCrossEntropyNTLLoss`", hidden_module, "module"),
    "NTLoss": Subject("`ntloss.NTLoss`", drop_in("NTLoss"), "ntloss"),
    "DotProduct": Subject("`ntloss.NTLossDotProduct`", drop_in("NTLossDotProduct", loss_function=twice_mse), "ntloss"),
    "NumberLevel": Subject("`ntloss.NumberLevelLoss`", drop_in("NumberLevelLoss", float_level=True), "ntloss"),
    "model": Subject("patched model", PatchedModel, "model"),
    "shard": Subject("`vocab_parallel_cross_entropy_ntl`", of_functions(shard_loss, "mean"), "shard"),
    "head-shard": Subject("`vocab_parallel_linear_cross_entropy_ntl`", of_functions(head_shard_loss, "mean"), "shard"),
}
HOLD_NO_LOGITS = ("linear", "linear-none", "linear-module", "model", "head-shard")


def make(subject: str, weight: float | Tensor = 0.3) -> Any:
    return SUBJECTS[subject].make(NTLConfig(weight=weight))


# What is compared


def sample(length: int = LENGTH, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states [B, T, H] and labels [B, T]: digits, points, words and ignored positions."""
    generator = torch.Generator().manual_seed(100 * length + seed)
    x = torch.randn(BATCH, length, HIDDEN, generator=generator)
    labels = torch.randint(8, 24, (BATCH, length), generator=generator)
    labels[0, :2], labels[1, 0] = torch.tensor([12, 15]), -100
    return x, labels


def total(output: Tensor) -> Tensor:
    """A number to which every entry of an output contributes differently."""
    return (output.flatten() * torch.linspace(0.5, 1.5, max(output.numel(), 1), device=output.device)).sum()


def derivatives(function: Any, network: nn.Module, x: Tensor, labels: Tensor, **given: Any) -> list[Tensor]:
    """The output, and the gradients of x and of the network's parameters."""
    x = x.clone().requires_grad_()
    output = function(x, labels, **given)
    total(output).backward()
    return [output.detach(), *taken_gradients(network, x)]


def taken_gradients(network: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradients of x and of the parameters (0 for None), which are cleared."""
    tensors = [x, *network.parameters()]
    gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return gradients


def assert_same(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    """Relative to the largest entry of each."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        error, largest = (one - other).abs().max(), other.abs().max()
        assert error <= tolerance * largest.clamp_min(1e-3), f"error {error} of {largest}"


def assert_right(network: Any, function: Any = None, tolerance: float = 1e-5, **given: Any) -> None:
    """Values and gradients are the reference's, for a batch of the usual length."""
    x, labels = sample()
    got = derivatives(network if function is None else function, network, x, labels, **given)
    assert_same(got, derivatives(network.truth, network, x, labels, **given), tolerance)


# The transforms


def compiled(
    network: Any,
    *,
    graphs: int,
    dynamic: bool | None = None,
    is_marked: bool = False,
    count: Callable[[int], Any] = lambda step: None,
    lengths: Sequence[int] = LENGTHS,
) -> None:
    """Several lengths, without a graph break and with no more graphs than this."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(network, backend=counter, fullgraph=True, dynamic=dynamic)

    def call(x: Tensor, labels: Tensor, **given: Any) -> Tensor:
        for tensor in (x, labels) if is_marked else ():
            torch._dynamo.mark_dynamic(tensor, 1)
        return function(x, labels, **given)

    for step, length in enumerate(lengths):
        given = {} if count(step) is None else {"count": count(step)}
        x, labels = sample(length)
        expected = derivatives(network.truth, network, x, labels, **given)
        assert_same(derivatives(call, network, x, labels, **given), expected)
    assert counter.frame_count <= graphs


def inductor(network: Any) -> None:
    torch.compiler.reset()
    assert_right(network, torch.compile(network, fullgraph=True))


def schedule(network: Any, make: Callable[[float], float | Tensor] | None = None, graphs: int = 1) -> None:
    """A hundred values of lambda, in which the loss is linear, each made for its call or written in place."""

    def call(function: Any, weight: float) -> Tensor:
        if make is not None:
            return function(*sample(), weight=make(weight))
        network.config.weight.fill_(weight)
        return function(*sample())

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(network, backend=counter, fullgraph=True)
    with torch.no_grad():
        at = [call(network.truth, weight) for weight in (0.0, 1.0)]
        for step in range(100):
            assert_same([call(function, step / 50)], [at[0] + step / 50 * (at[1] - at[0])])
    assert counter.frame_count <= graphs


def compiled_autograd(network: Any) -> None:
    torch.compiler.reset()
    x, labels = sample()
    x.requires_grad_()
    expected = derivatives(network.truth, network, x.detach(), labels)
    output = network(x, labels)
    loss = total(output)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: loss.backward(), backend="aot_eager")()
    assert_same([output.detach(), *taken_gradients(network, x)], expected)


def exported(network: Any, strict: bool, is_dynamic: bool) -> None:
    """The exported module has the values and gradients of the original, before and after a step of training."""
    torch.compiler.reset()
    length = torch.export.Dim("length", min=3, max=64)  # of 2, a shift leaves 1, on which torch specialises
    shapes = {"x": {1: length}, "labels": {1: length}, "count": None} if is_dynamic else None
    if is_dynamic and isinstance(network, Network):
        shapes = {**shapes, "weight": None}
    arguments = (*sample(), None, None)[: len(shapes)] if shapes else sample()
    found = torch.export.export(network, arguments, dynamic_shapes=shapes, strict=strict).module()
    rest = arguments[2:]
    names = [name for name, _ in network.named_parameters()]
    parameters = dict(found.named_parameters())
    module = nn.ParameterList([parameters[name] for name in names if name in parameters])
    for number in LENGTHS if is_dynamic else (LENGTH, LENGTH):
        x, labels = sample(number)
        got = derivatives(lambda a, b: found(a, b, *rest), module, x, labels)
        expected = derivatives(network.truth, network, x, labels)
        unused = [name not in parameters for name in names]
        kept = [g for g, is_unused in zip(expected[2:], unused, strict=True) if not is_unused]
        assert all((g == 0).all() for g, is_unused in zip(expected[2:], unused, strict=True) if is_unused)
        assert_same(got, [*expected[:2], *kept], 1e-4)
        with torch.no_grad():
            for parameter, gradient in zip(module, got[2:], strict=True):
                parameter -= 0.05 * gradient
            state = dict(network.named_parameters())
            for name, gradient in zip(names, expected[2:], strict=True):
                state[name] -= 0.05 * gradient if state[name] is not parameters.get(name) else 0.0


def checkpointed(network: Any, use_reentrant: bool) -> None:
    assert_right(network, partial(checkpoint, network, use_reentrant=use_reentrant))


def selectively_checkpointed(network: Any) -> None:
    """Our operators are saved, everything else is recomputed."""
    saved: list[str] = []

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if not str(operator).startswith("ntl_kernels."):
            return CheckpointPolicy.PREFER_RECOMPUTE
        saved.append(str(operator))
        return CheckpointPolicy.MUST_SAVE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    assert_right(network, partial(checkpoint, network, use_reentrant=False, context_fn=contexts))
    assert saved


def packed(network: Any, most: int) -> None:
    """Only the tensors of N x V elements that the backward pass needs are packed."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor.clone()

    def call(x: Tensor, labels: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.clone()):
            return network(x, labels)

    assert_right(network, call)
    assert sum(size >= BATCH * LENGTH * VOCAB for size in sizes) == most


def autocast(network: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_right(network, tolerance=0.03)


def func_grad(network: Any) -> None:
    """By the parameters and by the input."""
    x, labels = sample()
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    of_parameters, of_x = torch.func.grad(partial(functional_loss, network, labels=labels), argnums=(0, 1))(
        parameters, x
    )
    assert_same([of_x, *of_parameters.values()], derivatives(network.truth, network, x, labels)[1:])


def functional_loss(network: Any, parameters: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
    return total(functional_call(network, parameters, (x, labels)))


def jacobian(network: Any, transform: Callable[..., Any]) -> None:
    """A row of the identity, or a column, at a time."""
    x, labels = sample(4)
    expected = torch.autograd.functional.jacobian(lambda z: network.truth(z, labels), x)
    assert_same([transform(lambda z: network(z, labels))(x)], [expected])


def vectorized(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Many upstream gradients at once (``is_grads_batched=True``)."""
    return lambda x: torch.autograd.functional.jacobian(function, x, vectorize=True)


def along_duals(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """One column after another, each from a dual tensor."""

    def columns(x: Tensor) -> Tensor:
        found = []
        for unit in torch.eye(x.numel()).view(-1, *x.shape):
            with forward_ad.dual_level():
                found.append(forward_ad.unpack_dual(function(forward_ad.make_dual(x, unit))).tangent)
        return torch.stack(found, -1).view(*found[0].shape, *x.shape)

    return columns


def per_sample_gradients(network: Any) -> None:
    """vmap(grad) by the parameters."""
    xs, labels = (torch.stack(each) for each in zip(*(sample(seed=seed) for seed in range(3)), strict=True))
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}
    gradient = torch.func.grad(partial(functional_loss, network))
    found = torch.func.vmap(gradient, in_dims=(None, 0, 0))(parameters, xs, labels)
    expected = [derivatives(network.truth, network, *each)[2:] for each in zip(xs, labels, strict=True)]
    assert_same(list(found.values()), [torch.stack(each) for each in zip(*expected, strict=True)])


def double_backward(network: Any) -> None:
    """The first derivative is correct. So is the second, if it does not raise."""
    x, labels = sample()
    found = []
    for function in (network.truth, network):
        h = x.clone().requires_grad_()
        found += torch.autograd.grad(total(function(h * h, labels)), h, create_graph=True)
        found += torch.autograd.grad(found[-1].square().sum(), h)
        if function == network.truth:
            first = torch.autograd.grad(total(network(h * h, labels)), h)
            assert_same(first, found[:1])
    assert_same(found[2:], found[:2])


def second_of_grad(network: Any) -> None:
    """`torch.func.grad` of `torch.func.grad`, whether gradients are enabled outside or not."""
    x, labels = sample(4)
    derivative = grad(lambda z: grad(lambda y: total(network(y, labels)))(z).sum())
    with torch.no_grad():
        found = derivative(x)
    expected = torch.autograd.functional.hessian(lambda z: total(network.truth(z, labels)), x).sum((0, 1, 2))
    assert_same([found], [expected])


def by_upstream(network: Any) -> None:
    """The derivative of a gradient by the upstream one, as in the double backward trick."""
    x, labels = sample()
    tangent = torch.randn_like(x)
    pushed = torch.autograd.functional.jvp(lambda z: network(z, labels), x, tangent)[1]
    assert_same([pushed], [torch.autograd.functional.jvp(lambda z: network.truth(z, labels), x, tangent)[1]], 1e-4)


def deterministic(network: Any) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert_right(network)
    finally:
        torch.use_deterministic_algorithms(False)


def inference(network: Any) -> None:
    """Also with the mode on from the first call on, and plain training afterwards."""
    x, labels = sample()
    with torch.inference_mode():
        assert_same([network(x, labels)], [network.truth(x, labels)])
    assert_right(network)


def fake(network: Any) -> None:
    """Shapes and dtypes of loss and gradients."""
    x, labels = sample()
    expected = derivatives(network.truth, network, x, labels)
    with FakeTensorMode() as mode:
        state = {name: mode.from_tensor(part) for name, part in network.state_dict(keep_vars=True).items()}
        state |= {name: mode.from_tensor(part) for name, part in network.named_buffers()}
        x, labels = mode.from_tensor(x).requires_grad_(), mode.from_tensor(labels)
        output = functional_call(network, state, (x, labels))
        total(output).backward()
        assert_alike([output, x.grad], expected[:2])


def meta(network: Any) -> None:
    """The same on meta tensors."""
    x, labels = sample()
    expected = derivatives(network.truth, network, x, labels)
    network = network.to("meta")
    x, labels = x.to("meta").requires_grad_(), labels.to("meta")
    output = network(x, labels)
    total(output).backward()
    assert output.is_meta
    assert_alike([output, x.grad], expected[:2])


def assert_alike(got: Sequence[Any], expected: Sequence[Tensor]) -> None:
    assert [(one.shape, one.dtype) for one in got] == [(one.shape, one.dtype) for one in expected]


def cuda_graph(network: Any) -> None:
    """A captured step follows new data, and lambda where it is a tensor."""
    network = network.to("cuda")
    x, labels = (tensor.cuda() for tensor in sample())
    x.requires_grad_()

    def step() -> Tensor:
        output = network(x, labels)
        total(output).backward()
        return output

    def step_and_forget() -> None:
        step()
        taken_gradients(network, x)

    with mock.patch.object(dispatch, "is_capturing", return_value=True):  # the code path of a capture
        warm_up(step_and_forget)
    with captured(step) as (graph, output):
        check_replays(network, graph, output, x, labels)


def check_replays(network: Any, graph: torch.cuda.CUDAGraph, output: Tensor, x: Tensor, labels: Tensor) -> None:
    """Compare the captured output and the gradient of x with the reference, on new data each time."""
    for seed in range(3):
        new_x, new_labels = sample(seed=seed)
        with torch.no_grad():
            x.copy_(new_x)
            labels.copy_(new_labels)
            if isinstance(network.config.weight, Tensor):
                network.config.weight.fill_(seed)
        for tensor in (x, *network.parameters()):
            if tensor.grad is not None:
                tensor.grad.zero_()
        graph.replay()
        found = [output.clone(), x.grad.clone()]
        kept = [tensor.grad for tensor in (x, *network.parameters())]
        taken_gradients(network, x)
        expected = derivatives(network.truth, network, x.detach(), labels)
        assert_same(found, expected[:2], 1e-4)
        for tensor, gradient in zip((x, *network.parameters()), kept, strict=True):
            tensor.grad = gradient


# The table


class Outcome(NamedTuple):
    """Of a cell that is not green."""

    sentence: str
    message: str | None
    """The error message; None if there is nothing to try."""


NO_SECOND = Outcome(
    'an error: there are only first derivatives; `backend="reference"` has second ones',
    r"ntl_kernels have no second derivatives.*Use backend='reference'",
)
UNSUPPORTED = Outcome(
    'an error; `backend="reference"` supports it',
    r"ntl_kernels do not support .*Use backend='reference'",
)
NO_SECOND_OF_SHARDS = Outcome("an error: there are only first derivatives", r"no second derivatives")
AUTOGRAD_ALONE = Outcome(
    "an error: collectives have no such transform; use autograd",
    r"losses of a sharded vocabulary do not support .*use autograd",
)
NO_EXPORT = Outcome("no gradient of the exported loss", None)
NO_DENOMINATOR = Outcome("takes no denominator", None)
NO_OPERATOR = Outcome("uses no operator of this library", None)
NO_LAMBDA = Outcome("takes no lambda, or only that of its configuration, changed in place", None)
UNTRIED = Outcome("not run: the test needs a GPU (an emulator runs the kernels that it captures)", None)


class Transform(NamedTuple):
    title: str
    check: Callable[[Any], None]
    outcomes: dict[str, Outcome] = {}  # noqa: RUF012 - never changed
    """By subject; the default is green."""


def everyone(outcome: Outcome) -> dict[str, Outcome]:
    return dict.fromkeys(SUBJECTS, outcome)


def losses(outcome: Outcome, of_shards: Outcome) -> dict[str, Outcome]:
    return dict.fromkeys(LOSSES, outcome) | dict.fromkeys(SHARDED, of_shards)


def kinds(outcome: Outcome, *names: str) -> dict[str, Outcome]:
    return {name: outcome for name, subject in SUBJECTS.items() if subject.kind in names}


NO_KERNELS = ("statistics", "DotProduct", "NumberLevel")
"""Torch operations alone, which have every transform."""
SHARDED = ("shard", "head-shard")
LOSSES = [name for name in SUBJECTS if name not in (*NO_KERNELS, *SHARDED)]
NO_BATCHES, FIRST_ALONE = losses(UNSUPPORTED, AUTOGRAD_ALONE), losses(NO_SECOND, NO_SECOND_OF_SHARDS)
IN_PLACE_ALONE = kinds(NO_LAMBDA, "statistics", "ntloss", "module", "model")
COUNTS: dict[str, Callable[[int], float | Tensor]] = {
    "int": lambda step: 5 + step,
    "float": lambda step: 5.5 + step,
    "tensor": lambda step: torch.tensor(5.5 + step),
}

TABLE = {
    "plain": Transform("plain call", assert_right),
    "static": Transform(
        "`torch.compile(dynamic=False)`, one graph per length",
        partial(compiled, dynamic=False, graphs=2, lengths=LENGTHS[:2]),
    ),
    "automatic": Transform("`torch.compile`, two graphs for five lengths", partial(compiled, graphs=2)),
    "dynamic": Transform("`torch.compile(dynamic=True)`", partial(compiled, dynamic=True, graphs=2)),
    "marked": Transform("`mark_dynamic`, one graph", partial(compiled, is_marked=True, graphs=1)),
    "inductor": Transform("`torch.compile` with Inductor", inductor),
    **{
        name: Transform(
            f"compiled, the denominator is a new {name} in each call",
            partial(compiled, graphs=2, count=count),
            kinds(NO_DENOMINATOR, "function of rows", "statistics", "ntloss"),
        )
        for name, count in COUNTS.items()
    },
    "schedule": Transform(
        "compiled, lambda is a tensor changed in place: one graph for 100 values",
        schedule,
        kinds(NO_LAMBDA, "statistics", "ntloss"),
    ),
    "lambdas": Transform(
        "compiled, lambda is a new tensor in each call: one graph for 100 values",
        partial(schedule, make=torch.tensor),
        IN_PLACE_ALONE,
    ),
    "floats": Transform(
        "compiled, lambda is a new float in each call: two graphs",
        partial(schedule, make=float, graphs=2),
        IN_PLACE_ALONE,
    ),
    "compiled-autograd": Transform("compiled autograd of a plain call", compiled_autograd),
    **{
        f"export{'-strict' * strict}{'-dynamic' * is_dynamic}": Transform(
            f"`torch.export{'(strict=True)' * strict}`{' with dynamic shapes' * is_dynamic}, then trained",
            partial(exported, strict=strict, is_dynamic=is_dynamic),
            dict.fromkeys(SHARDED, NO_EXPORT),
        )
        for is_dynamic, strict in product((False, True), repeat=2)
    },
    "checkpoint": Transform("`checkpoint(use_reentrant=False)`", partial(checkpointed, use_reentrant=False)),
    "reentrant": Transform("`checkpoint(use_reentrant=True)`", partial(checkpointed, use_reentrant=True)),
    "selective": Transform(
        "selective checkpointing that saves the operators of this library",
        selectively_checkpointed,
        dict.fromkeys(NO_KERNELS, NO_OPERATOR),
    ),
    "hooks": Transform("saved-tensor hooks", packed),
    "autocast": Transform("autocast", autocast),
    "grad": Transform("`torch.func.grad`", func_grad, dict.fromkeys(SHARDED, AUTOGRAD_ALONE)),
    "vmap": Transform("`vmap(grad)`, per-sample gradients", per_sample_gradients, NO_BATCHES),
    "jacrev": Transform("`jacrev`", partial(jacobian, transform=torch.func.jacrev), NO_BATCHES),
    "jacfwd": Transform("`jvp`, `jacfwd`", partial(jacobian, transform=torch.func.jacfwd), NO_BATCHES),
    "dual": Transform("dual tensors", partial(jacobian, transform=along_duals), NO_BATCHES),
    "vectorized": Transform(
        "`is_grads_batched=True`, `jacobian(vectorize=True)`", partial(jacobian, transform=vectorized), NO_BATCHES
    ),
    "double": Transform("second derivative by `create_graph=True`", double_backward, FIRST_ALONE),
    "grad-grad": Transform("`torch.func.grad` twice", second_of_grad, losses(NO_SECOND, AUTOGRAD_ALONE)),
    "upstream": Transform(
        "derivative of the gradient with respect to the upstream gradient, `autograd.functional.jvp`",
        by_upstream,
        FIRST_ALONE,
    ),
    "deterministic": Transform("deterministic algorithms", deterministic),
    "inference": Transform("inference mode", inference),
    "fake": Transform("fake tensors", fake),
    "meta": Transform("meta tensors", meta),
    "cuda-graph": Transform("capture in a CUDA graph", cuda_graph, everyone(UNTRIED)),
}
HOLD_NO_TABLES = [name for name, subject in SUBJECTS.items() if subject.kind in ("module", "ntloss")]


COMPILED = list(TABLE)[list(TABLE).index("static") : list(TABLE).index("checkpoint")]
"""Rows whose cells take seconds."""
QUICK = {row: ("logits", "linear", "NTLoss", "linear-none", "logits-none")[i % 5] for i, row in enumerate(COMPILED)}
"""The subject of each of these rows that is not slow."""
QUICK["export"] = "linear"  # whose hidden states are exported without requiring a gradient, and then need one


def marks_of(transform: str, subject: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] if subject != QUICK.get(transform, subject) else []
    if transform == "cuda-graph":
        marks.append(pytest.mark.gpu)
    if transform.startswith("export-strict") and subject not in HOLD_NO_TABLES:
        marks.append(needs("torch", 2, 10, to="export tensors that no module holds with strict=True"))
    return marks


CELLS = [
    pytest.param(transform, subject, marks=marks_of(transform, subject))
    for transform, row in TABLE.items()
    for subject in SUBJECTS
    if row.outcomes.get(subject) not in (NO_DENOMINATOR, NO_LAMBDA, NO_OPERATOR, NO_EXPORT)
]


@pytest.fixture(autouse=True)
def _group(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process group of one rank for the losses of shards."""
    given = getattr(request.node, "callspec", None)
    parameters = given.params if given is not None else {}
    backend = "nccl" if parameters.get("transform") == "cuda-graph" else "gloo"
    with group_of_one(backend) if parameters.get("subject") in SHARDED else nullcontext():
        yield


@pytest.mark.parametrize(("transform", "subject"), CELLS)
def test_cell(transform: str, subject: str) -> None:
    row = TABLE[transform]
    lambda_ = torch.tensor(0.3, device="cuda" if transform == "cuda-graph" else "cpu")
    network = make(subject, lambda_ if transform in ("schedule", "cuda-graph") else 0.3)
    check = partial(row.check, most=int(subject not in HOLD_NO_LOGITS)) if transform == "hooks" else row.check
    outcome = row.outcomes.get(subject)
    if outcome in (None, UNTRIED):
        check(network)
        return
    with pytest.raises(RuntimeError, match=outcome.message):
        check(network)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_is_copied_to_a_device(subject: str) -> None:
    """A requirement of captures, tested without a GPU."""
    network = make(subject, torch.tensor(0.3, device="meta")).to("meta")
    x, labels = (tensor.to("meta") for tensor in sample())
    x.requires_grad_()
    total(network(x, labels)).backward()  # copies the tables
    with refused_copies():
        total(network(x, labels)).backward()


# The section of the page

INTRODUCTION = """\
The tests run every public function and module, and a patched model, under {count} transforms of torch. Value and
gradient equal those of `backend="reference"`, with these exceptions. None returns a wrong result. `number_statistics`,
`ntloss.NTLossDotProduct` and `ntloss.NumberLevelLoss` consist of torch operations and have every transform.

{table}

Without exception: {others}.
"""


def exception(row: Transform, names: Iterable[str]) -> Outcome | None:
    """What a transform does instead, the same in all of these; None if it works in all that have what it needs."""
    found = {row.outcomes.get(name) for name in names} - {NO_DENOMINATOR, NO_OPERATOR, NO_LAMBDA}
    (only,) = found or {None}
    return only


def section() -> str:
    """The documentation's section: a row for each transform with an exception, and a list of the others."""
    found = {row.title: [exception(row, names) for names in (LOSSES, SHARDED)] for row in TABLE.values()}
    rows = [["transform", "losses", "losses of a sharded vocabulary"], ["---"] * 3]
    for title, exceptions in found.items():
        if any(exceptions):
            rows.append([title, *(each.sentence if each else "as the reference" for each in exceptions)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    others = "; ".join(title for title, exceptions in found.items() if not any(exceptions))
    return INTRODUCTION.format(count=len(TABLE), table=table, others=others)


def page() -> str:
    """The page with the section of now."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + begin + section() + end + after


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.test_transforms"
    assert section().count("| an error") > 10


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
