"""Random problems, and how results are judged.

Truth is the reference in float64. A result in lower precision passes when its error is within a small factor of what
the reference itself, plain PyTorch, loses on the same input in the same dtype.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NTLOutput, NumberTokens, cross_entropy_ntl
from ntl_kernels.config import KINDS

FACTOR = 4.0
"""How many times the error of plain PyTorch a result may have."""
SLACK = 4.0
"""Roundings, relative to the largest entry, that are always allowed: plain PyTorch may be exact by chance."""
TRUE_LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "mse": lambda value, target, _: F.mse_loss(value, target, reduction="none"),
    "mae": lambda value, target, _: F.l1_loss(value, target, reduction="none"),
    "huber": lambda value, target, delta: F.huber_loss(value, target, reduction="none", delta=delta),
}
"""The losses between expected values and labels' values, independent of the library."""


@dataclass
class Problem:
    """The arguments of one call, and an upstream gradient."""

    logits: Tensor
    labels: Tensor
    numbers: NumberTokens
    options: dict[str, Any]
    upstream: Tensor
    seed: int = 0

    def in_dtype(self, dtype: torch.dtype) -> Problem:
        return Problem(self.logits.to(dtype), self.labels, self.numbers, self.options, self.upstream, self.seed)


@dataclass
class Answer:
    output: NTLOutput
    gradient: Tensor
    entries: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.entries = {**self.output._asdict(), "gradient": self.gradient}


def moved(problem: Problem, device: str) -> Problem:
    """On a device, with the same strides, offsets and gaps (``Tensor.to`` would close the gaps)."""
    if problem.logits.device.type == device:
        return problem

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        everything = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(device)
        return everything.as_strided(value.shape, value.stride(), value.storage_offset())

    tensors = {name: move(getattr(problem, name)) for name in ("logits", "labels", "upstream")}
    return replace(problem, **tensors, options={name: move(value) for name, value in problem.options.items()})


def random_numbers(rng: random.Random, vocab_size: int) -> NumberTokens:
    """1 to 4 groups of 1 to 300 number tokens anywhere in the vocabulary, mostly one group of up to 40: digits,
    fractions, negatives, duplicates. All values of a group may be equal, but for one group; groups have units."""
    pool: list[Callable[[int], float]] = [float, lambda i: round(rng.uniform(-5, 5), 2), lambda i: float(i // 2)]
    tokens, groups = rng.sample(range(vocab_size), vocab_size), []
    for number in range(rng.choice([1, 1, 1, 2, 3, 4])):
        least, most = (1, rng.choice([1, 4, 40, 300])) if number else (2, rng.choice([40, 40, 40, 300]))
        if len(tokens) < least:
            break
        chosen = [tokens.pop() for _ in range(rng.randint(least, min(most, len(tokens))))]
        value = rng.choice([*pool, lambda i: 3.0] if number else pool)
        groups.append({token: value(i) for i, token in enumerate(chosen)})
        if number == 0:
            groups[0] |= dict(zip(chosen, (-1.5, 2.0), strict=False))
    rng.shuffle(groups)
    units = [rng.choice([1.0, 10.0, 0.5]) for _ in groups] if len(groups) > 1 else [[1.0, 10.0][vocab_size % 2]]
    return NumberTokens(groups, vocab_size, units=units)


def largest_value(numbers: NumberTokens, are_units_undone: bool = True) -> float:
    """The largest absolute value; by default of the tokens' own values, as in ``number_mae``."""
    units = torch.tensor(
        [group.unit if are_units_undone else 1.0 for group in numbers.groups for _ in range(group.size)]
    )
    return (numbers.values.abs() * units).max().item()


def random_config(rng: random.Random) -> NTLConfig:
    kind = rng.choice(["wasserstein", "wasserstein", *KINDS])
    variant = rng.choice(["plain", "squashed", "smooth"]) if kind == "wasserstein" else "plain"
    weight, mean_over = rng.choice([0.0, 0.3, 2.0]), rng.choice(["numbers", "numbers", "tokens"])
    if kind == "soft_labels":
        width = {rng.choice(["label_sigma", "label_temperature"]): rng.choice([0.3, 1.3, 40.0])}
        return NTLConfig(kind, weight, mean_over=mean_over, label_share=rng.choice([1.0, 1.0, 0.3, 0.0]), **width)
    return NTLConfig(
        kind=kind,
        weight=weight,
        reweigh=rng.random() < 0.5,
        mean_over=mean_over,
        squash_factor=rng.choice([1.5, 9.0]) if variant == "squashed" else None,
        label_sigma=rng.choice([0.3, 1.3]) if variant == "smooth" else 0.0,
        huber_delta=rng.choice([0.5, 1.0, 3.0]),
    )


def random_labels(rng: random.Random, shape: tuple[int, ...], numbers: NumberTokens, ignore_index: int) -> Tensor:
    """Some numbers, some other tokens, some ignored; sometimes all of one kind."""
    number_share, ignored_share = rng.choice([0.0, 0.5, 1.0]), rng.choice([0.0, 0.2, 1.0])
    labels = torch.randint(0, numbers.vocab_size, shape)
    spans = torch.tensor([group[:2] for group in numbers.groups])[torch.randint(0, len(numbers.groups), shape)]
    number_labels = numbers.ids[(spans[..., 0] + torch.rand(shape) * spans[..., 1]).long()]
    labels = torch.where(torch.rand(shape) < number_share, number_labels, labels)
    labels = torch.where(torch.rand(shape) < ignored_share, ignore_index, labels)
    return labels.to(rng.choice([torch.int64, torch.int32]))


def masked(logits: Tensor, labels: Tensor, numbers: NumberTokens) -> Tensor:
    """With none, half or all number columns of each row and group at -inf, except those of labels."""
    shares = torch.tensor([0.0, 0.5, 1.0])[torch.randint(0, 3, (*labels.shape, len(numbers.groups)))]
    shares = shares.repeat_interleave(torch.tensor([group.size for group in numbers.groups]), -1)
    is_hidden = torch.zeros_like(logits, dtype=torch.bool)
    is_hidden[..., numbers.ids] = torch.rand(shares.shape) < shares
    is_hidden[..., labels.clamp_min(0)] = False
    return logits.masked_fill(is_hidden, -torch.inf)


def random_problem(
    seed: int,
    dtypes: tuple[torch.dtype, ...],
    vocab_sizes: tuple[int, ...] = (3, 11, 64, 1003),
    shapes: tuple[tuple[int, ...], ...] = ((), (7,), (3, 5), (2, 2, 3), (2, 1, 2, 2), (0,), (2, 0)),
) -> Problem:
    """Any shape, dtype, layout, kind and option, from one seed."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    numbers = random_numbers(rng, rng.choice(vocab_sizes))
    vocab_size, shape, dtype = numbers.vocab_size, rng.choice(shapes), rng.choice(dtypes)
    logits = (torch.randn(*shape, vocab_size) * rng.choice([0.5, 2.0, 8.0])).to(dtype)
    ignore_index = rng.choice([-100, -100, 1])
    reduction = rng.choice(["mean", "sum", "none"])
    options: dict[str, Any] = {
        "config": random_config(rng),
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": rng.choice([0.0, 0.0, 0.1, 1.0]),
        "z_loss": rng.choice([0.0, 1e-2]),
        "softcap": rng.choice([None, None, 3.0, 30.0]),
        "logit_scale": rng.choice([1.0, 1.0, 0.7]),
        "token_weights": rng.choice([None, torch.rand(shape) * (torch.rand(shape) < 0.8)]),
    }
    if reduction == "mean":
        options |= random_denominators(rng, options["config"])
    upstream = torch.randn(shape) if reduction == "none" else torch.tensor(rng.choice([1.0, 1.0, -2.5]))
    labels = random_labels(rng, shape, numbers, ignore_index)
    is_soft = options["config"].kind == "soft_labels"
    if rng.random() < 0.5 and options["label_smoothing"] == 0 and not is_soft:  # whose losses -inf makes infinite
        logits = masked(logits, labels, numbers)
    logits = random_layout(rng, logits)
    options["number_weights"] = rng.choice([None, 3 * torch.rand(shape) * (torch.rand(shape) < 0.7)])
    return Problem(logits, labels, numbers, options, upstream, seed)


def random_denominators(rng: random.Random, config: NTLConfig) -> dict[str, Any]:
    """Both or neither; one alone where NTL uses the denominator of cross-entropy."""
    given = {"num_tokens": rng.choice([7, torch.tensor(3.0), 0]), "num_numbers": rng.choice([5.5, torch.tensor(2), 0])}
    names = rng.choice([[], [], list(given), *([["num_tokens"]] if config.mean_over == "tokens" else [])])
    return {name: given[name] for name in names}


def random_layout(rng: random.Random, logits: Tensor) -> Tensor:
    """The same values in other strides."""
    layout = rng.choice(["contiguous", "contiguous", "sliced", "padded", "transposed", "expanded"])
    if layout == "sliced" and logits.ndim >= 2:  # every position but the last, as a causal shift leaves them
        return torch.cat([logits, logits[..., :1, :]], -2)[..., : logits.shape[-2], :]
    if layout == "padded":  # a vocabulary padded to more columns, and an odd offset
        return torch.nn.functional.pad(logits, (1, 4))[..., 1:-4]
    if layout == "transposed" and logits.ndim >= 2:
        return logits.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "expanded" and logits.ndim >= 2:
        return logits[..., :1, :].expand(logits.shape)
    return logits


def solve(problem: Problem, backend: str, inplace: bool = False) -> Answer:
    """The output and the logits' gradient."""
    logits = problem.logits.detach().requires_grad_()
    view = logits * 1 if inplace else logits
    options = {**problem.options, "backend": backend, "return_parts": True, **({"inplace": True} if inplace else {})}
    output = cross_entropy_ntl(view, problem.labels, problem.numbers, **options)
    assert isinstance(output, NTLOutput)
    (gradient,) = torch.autograd.grad(output.loss, logits, problem.upstream.to(output.loss.dtype))
    return Answer(output, gradient)


HARDWARE_TANH = 2.0**-10.98
"""The relative error of an NVIDIA GPU's tanh."""


def tanh_error(problem: Problem) -> float:
    """The relative error of a problem's tanh in compiled kernels."""
    softcap = problem.options.get("softcap")
    return HARDWARE_TANH if softcap and softcap <= 43 and problem.logits.element_size() == 2 else 0.0


def largest_capped_gradient(problem: Problem) -> float:
    """The largest entry of the gradient by the softcapped logits, times the logit scale."""
    scale, softcap = problem.options.get("logit_scale", 1.0), problem.options["softcap"]
    capped = replace(
        problem,
        logits=softcap * torch.tanh(scale * problem.logits.detach().double() / softcap),
        options={**problem.options, "softcap": None, "logit_scale": 1.0},
    )
    gradient = solve(capped, "reference").gradient
    return scale * gradient.abs().max().item() if gradient.numel() else 0.0


def check(answer: Answer, problem: Problem, extra: float = 0.0, tanh: float = 0.0) -> None:
    """Compare every entry of a result with the float64 reference.

    ``extra`` allows more roundings of its dtype, ``tanh`` is the relative error of the softcap's.
    """
    truth = solve(problem.in_dtype(torch.float64), "reference").entries
    plain = solve(problem, "reference").entries
    scale = max(1.0, problem.logits.abs().nan_to_num(posinf=1.0).max().item()) if problem.logits.numel() else 1.0
    for name, got in answer.entries.items():
        if name == "token_accuracy" and problem.options.get("softcap"):
            continue  # a softcap makes ties, and which logits tie depends on the precision
        # yhat - v_y may cancel to much less than the values it is made of; the CE of a confident row is the
        # logarithm of a sum near 1
        is_of_values = name in ("loss", "ntl", "number_mae")
        cancelled = largest_value(problem.numbers, name == "number_mae") if is_of_values else 0.0
        cancelled = max(cancelled, 1.0) if name in ("loss", "cross_entropy") else cancelled
        # A tanh's error moves the logits by the softcap's multiple of it, and its own derivative by twice as much.
        more = 2 * tanh * problem.options["softcap"] * max(cancelled, magnitude(truth[name])) if tanh else 0.0
        if tanh and name == "gradient":
            more += 2 * tanh * largest_capped_gradient(problem)
        assert_as_good_as_plain(got, plain[name], truth[name], (name, problem), extra, scale, cancelled, more)


def magnitude(values: Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0


def assert_as_good_as_plain(
    got: Tensor,
    plain: Tensor,
    truth: Tensor,
    what: object,
    extra: float = 0.0,
    scale: float = 1.0,
    cancelled: float = 0.0,
    more: float = 0.0,
) -> None:
    """Raise unless ``got`` is as close to the truth as plain PyTorch, up to FACTOR and some roundings.

    ``what`` is printed only on failure: formatting a problem takes longer than judging it.

    One more rounding is that of the float32 logits, as large as ``scale``, under the exponential; ``cancelled`` is
    the size of what the result is a difference of, and ``more`` is allowed besides.
    """
    assert got.shape == truth.shape, f"shape {tuple(got.shape)} of {what}, expected {tuple(truth.shape)}"
    if not truth.numel():
        return
    assert got.isfinite().all() or not truth.isfinite().all(), f"not finite: {what}"
    lost, allowed = (got.double() - truth).abs(), (plain.double() - truth).abs().max()
    largest = truth.abs().max()
    roundings = (SLACK + extra) * torch.finfo(got.dtype).eps + SLACK * torch.finfo(torch.float32).eps * scale
    limit = FACTOR * allowed + roundings * largest + SLACK * torch.finfo(torch.float32).eps * cancelled + more
    if got.dtype == torch.float64:  # here plain PyTorch is the truth
        limit = 1e-10 * largest.clamp_min(1.0)
    assert (lost <= limit).all(), f"{what}\nerror {lost.max():.3g}, plain PyTorch {allowed:.3g}, limit {limit:.3g}"
