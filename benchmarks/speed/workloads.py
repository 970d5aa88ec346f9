"""The table of workloads, the tensors of each, and the step that a provider runs on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens

FAMILIES = ("logits", "hidden", "ntl", "step")
"""The families that `run` measures; `host` and `counts` have one each."""
IGNORED = -100
FIRST_DIGIT = 15
"""Token id of the digit 0 with ten number tokens, as in GPT-2."""
DOT = 5
"""Token id of the decimal point."""
VOCAB_SIZES = (32000, 50257, 50304, 128256, 151936, 262144)
NTL_WEIGHT = 0.3
"""Lambda, the factor of NTL."""
LOGIT_DEVIATION = 3.0
"""Standard deviation of the random logits, large enough that no row is nearly uniform."""


@dataclass(frozen=True)
class Workload:
    """One problem size: N rows, V columns, K number tokens. The name determines all random values."""

    name: str
    family: str
    group: str
    """Workloads of a group share a table; each one of the group "main" has its own table."""
    rows: int
    vocab: int
    dtype: str = "float32"
    numbers: int = 10
    number_share: float = 0.2
    """Share of number tokens among the labels of the rows that count."""
    ignored_share: float = 0.0
    hidden: int = 0
    """H, for losses of hidden states and the family "step"."""
    loss: str = "NTLoss"
    """The loss class, for the family "ntl"; in the group "bins", a key of :data:`CONFIGS`."""
    threads: int | None = None
    """CPU threads; None for those of the run."""
    clock: str = "device"
    """"host": the time that the host needs to issue the work, which is what matters where launches dominate."""
    providers: tuple[str, ...] = ()
    """Names of the providers to measure; empty for all of the family."""
    also: tuple[str, ...] = ()
    """Other groups whose tables contain the same problem, which is measured only once."""
    beside_load: bool = False
    """Whether another process keeps all cores busy during the measurement."""

    @property
    def item_bytes(self) -> int:
        return getattr(torch, self.dtype).itemsize

    @property
    def logits_bytes(self) -> int:
        return self.rows * self.vocab * self.item_bytes


@dataclass
class Tensors:
    """One set of inputs."""

    labels: Tensor
    """int64 [N]."""
    leaves: tuple[Tensor, ...] = ()
    """The tensors that get gradients: logits [N, V], or hidden states [N, H] and weight [V, H]."""

    @property
    def logits(self) -> Tensor:
        """The leaf, or the product of hidden states and weight."""
        return self.leaves[0] if len(self.leaves) == 1 else F.linear(*self.leaves)

    def copy(self) -> Tensors:
        """A copy in new memory."""
        return Tensors(self.labels, tuple(leaf.detach().clone().requires_grad_() for leaf in self.leaves))


@dataclass
class Case:
    """A workload on a device, from which providers are built."""

    workload: Workload
    device: torch.device
    numbers: NumberTokens
    sets: list[Tensors]
    """Sets of tensors, used in turn. Together they exceed the L2 cache, so that no step finds its input there."""

    @property
    def num_tokens(self) -> int:
        return int((self.sets[0].labels != IGNORED).sum())

    @property
    def num_numbers(self) -> int:
        return int(torch.isin(self.sets[0].labels.cpu(), self.numbers.ids).sum())


class Outcome(NamedTuple):
    loss: Tensor
    gradients: tuple[Tensor, ...]
    """Gradients of the case's leaves (or the model's parameters), in their order."""


Step = Callable[[int], Any]
"""Takes the index of the tensors to use; returns an Outcome, or None for a bound."""
Loss = Callable[[Tensors], Tensor]


CONFIGS = {
    "wasserstein": NTLConfig(),
    "mse": NTLConfig(kind="mse"),
    "huber": NTLConfig(kind="huber"),
    "label_sigma": NTLConfig(label_sigma=8.0),
    "soft_labels": NTLConfig("soft_labels", label_sigma=8.0),
}
"""Name -> the loss of ordered tokens. NTL-MAE does what NTL-Huber does."""


def number_tokens(workload: Workload) -> NumberTokens:
    """K numbers from 0 to K - 1: adjacent ids for ten digits and for ordered tokens, the last of the vocabulary;
    otherwise spread over it."""
    count = workload.numbers
    ids: Any = range(FIRST_DIGIT, FIRST_DIGIT + count) if count == 10 else range(workload.vocab - count, workload.vocab)
    if count != 10 and workload.group != "bins":
        ids = [i * workload.vocab // count for i in range(count)]
    return NumberTokens.from_mapping(dict(zip(ids, map(float, range(count)), strict=True)), workload.vocab)


def make_case(workload: Workload, device: torch.device, sets: int = 1) -> Case:
    """The tensors of a workload, determined by its name."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(workload.name.encode()))
    numbers = number_tokens(workload)
    first = make_tensors(workload, numbers, device, generator)
    return Case(workload, device, numbers, [first, *(first.copy() for _ in range(sets - 1))])


def make_tensors(
    workload: Workload, numbers: NumberTokens, device: torch.device, generator: torch.Generator
) -> Tensors:
    """Random logits (or random hidden states and a weight whose product has the same distribution) and labels."""
    dtype = getattr(torch, workload.dtype)
    options = {"device": device, "dtype": dtype, "generator": generator}
    labels = make_labels(workload, numbers, torch.Generator().manual_seed(generator.initial_seed())).to(device)
    if workload.family == "step":
        return Tensors(labels)
    if workload.hidden:
        hidden = torch.randn(workload.rows, workload.hidden, **options)
        weight = torch.randn(workload.vocab, workload.hidden, **options).mul_(LOGIT_DEVIATION / workload.hidden**0.5)
        return Tensors(labels, (hidden.requires_grad_(), weight.requires_grad_()))
    logits = torch.randn(workload.rows, workload.vocab, **options).mul_(LOGIT_DEVIATION)
    return Tensors(labels, (logits.requires_grad_(),))


def make_labels(workload: Workload, numbers: NumberTokens, generator: torch.Generator) -> Tensor:
    """int64 [N]: exactly the given shares, at random positions."""
    count = workload.rows
    is_other = torch.ones(workload.vocab, dtype=torch.bool)
    is_other[numbers.ids] = False
    others = is_other.nonzero().squeeze(-1)
    labels = others[torch.randint(len(others), (count,), generator=generator)]
    order = torch.randperm(count, generator=generator)
    ignored = round(count * workload.ignored_share)
    chosen = order[ignored : ignored + round((count - ignored) * workload.number_share)]
    labels[order[:ignored]] = IGNORED
    labels[chosen] = numbers.ids[torch.randint(len(numbers), (len(chosen),), generator=generator)]
    return labels


def ordered_tokens(
    family: str, rows: int, vocabs: tuple[int, ...], dtype: str, providers: tuple[str, ...]
) -> list[Workload]:
    """Every label is one of K tokens with adjacent ids."""
    return [
        Workload(f"bins-{vocab}-{k}-{loss}", family, "bins", rows, vocab, dtype, k, 1.0, loss=loss, providers=providers)
        for vocab in vocabs
        for k in (10, 256, 1024, 4096)
        for loss in CONFIGS
    ]


def without_repeats(table: list[Workload]) -> list[Workload]:
    """Each problem once, at its first place, with the groups of its repetitions added."""
    found: dict[Workload, Workload] = {}
    for workload in table:
        problem = replace(workload, name="", group="", providers=(), also=())
        first = found.get(problem)
        found[problem] = replace(first, also=(*first.also, workload.group)) if first else workload
    return list(found.values())


def fitting_rows(vocab: int, dtype: str, logits_bytes: int) -> int:
    """N, such that the logits have about this size."""
    return max(64, logits_bytes // (vocab * getattr(torch, dtype).itemsize) // 64 * 64)


SHORT = {"float32": "fp32", "bfloat16": "bf16"}
DTYPES = tuple(SHORT)
BOUNDS = ("copy", "ours", "ours_off", "torch_ce")
GPU_PEERS = ("liger_ce", "quack_ce")


def logits(name: str, group: str, rows: int, vocab: int, dtype: str = "float32", **options: Any) -> Workload:
    """A workload of logits, named ``name`` plus the dtype."""
    return Workload(f"{name}-{SHORT[dtype]}", "logits", group, rows, vocab, dtype, **options)


def vocabulary_sweep(logits_bytes: int, providers: tuple[str, ...], dtypes: tuple[str, ...]) -> list[Workload]:
    """All vocabularies, with logits of about the same size."""
    return [
        logits(f"vocab-{vocab}", f"vocabulary-{SHORT[dtype]}", rows, vocab, dtype, providers=providers)
        for dtype in dtypes
        for vocab in VOCAB_SIZES
        for rows in [fitting_rows(vocab, dtype, logits_bytes)]
    ]


def label_sweep(rows: int, vocab: int, dtype: str, providers: tuple[str, ...]) -> list[Workload]:
    """Few and many number tokens, on no, some and all rows; and ignored rows."""
    base = Workload("", "logits", "labels", rows, vocab, dtype, providers=providers)
    shares = [
        replace(base, name=f"numbers-{count}-share-{100 * share:.0f}", numbers=count, number_share=share)
        for count in (10, 1110)
        for share in (0.0, 0.2, 1.0)
    ]
    return shares + [replace(base, name=f"ignored-{100 * share:.0f}", ignored_share=share) for share in (0.5, 0.9)]


def ntl_alone(rows: int, vocab: int, dtypes: tuple[str, ...]) -> list[Workload]:
    return [
        Workload(f"ntl-{loss}-{SHORT[dtype]}", "ntl", "ntl", rows, vocab, dtype, loss=loss)
        for dtype in dtypes
        for loss in ("NTLoss", "NTLossDotProduct", "NumberLevelLoss")
    ]


def cpu_workloads() -> list[Workload]:
    """The full suite of a CPU."""
    few = ("ours", "torch_ce")
    sizes = [("float32", rows) for rows in (1, 4, 64, 4096)] + [("bfloat16", rows) for rows in (1, 4, 64, 8192)]
    hidden = Workload("hidden-fp32", "hidden", "main", 1024, 32000, hidden=512)
    matmuls_and_ours = ("matmuls", "ours", "torch_linear")  # the others take minutes
    table = [
        *(logits("logits", "main", 1024, 32000, dtype, also=("threads",)) for dtype in DTYPES),
        *(logits("load", "load", 1024, 32000, dtype, beside_load=True, providers=few) for dtype in DTYPES),
        Workload("launch", "logits", "launch", 16, 32000, clock="host", providers=(*few, "torch_ce_compiled")),
        hidden,
        replace(hidden, name="hidden-fp32-ignored-50", group="hidden", ignored_share=0.5, providers=matmuls_and_ours),
        replace(hidden, name="hidden-bf16", group="hidden", dtype="bfloat16", providers=matmuls_and_ours),
        *ntl_alone(1024, 32000, DTYPES),
        Workload("step-fp32", "step", "step", 512, 32000, hidden=256),
        *vocabulary_sweep(2**26, BOUNDS, DTYPES),
        *label_sweep(1024, 32000, "float32", ("ours", "ours_off", "torch_ce")),
        *ordered_tokens("logits", 1024, (32000,), "float32", ("ours", "ours_off", "torch_ce")),
        *(logits(f"rows-{rows}", "rows", rows, 32000, dtype, providers=few) for dtype, rows in sizes),
        *(logits("threads-1", "threads", 1024, 32000, d, threads=1, providers=("copy", *few)) for d in DTYPES),
    ]
    return without_repeats(table)


def quick_workloads() -> list[Workload]:
    """Every family once, at a small size."""
    variants = ("torch_ce_float", "torch_ce_ntloss", "torch_ce_compiled")
    return [
        *(logits("logits", "main", 256, 32000, d, providers=(*BOUNDS, *variants, *GPU_PEERS)) for d in DTYPES),
        Workload("launch", "logits", "launch", 16, 32000, clock="host", providers=("ours", "torch_ce")),
        Workload("hidden-fp32", "hidden", "main", 256, 8000, hidden=256),
        *ntl_alone(256, 8000, ("float32",)),
        Workload("step-fp32", "step", "step", 256, 8000, hidden=128),
    ]


def gpu_workloads(memory_bytes: int) -> list[Workload]:
    """The full suite of a GPU with this much memory: logits of up to 2 GiB, at most 1/64 of the memory."""
    vocab, bf16 = 128256, "bfloat16"
    logits_bytes = min(2**31, memory_bytes // 64)
    dtypes, peers = DTYPES[::-1], (*BOUNDS, *GPU_PEERS)
    launched = ("ours", "torch_ce", "torch_ce_compiled", *GPU_PEERS)
    rows, huge = fitting_rows(vocab, bf16, logits_bytes), 2**31 // vocab // 64 * 64 + 128
    hidden = Workload("hidden-bf16", "hidden", "main", rows, vocab, bf16, hidden=4096)
    workloads = [
        *(logits("logits", "main", fitting_rows(vocab, dtype, logits_bytes), vocab, dtype) for dtype in dtypes),
        Workload("launch", "logits", "launch", 16, 32000, bf16, clock="host", providers=launched),
        hidden,
        replace(hidden, name="hidden-bf16-ignored-50", group="hidden", ignored_share=0.5),
        replace(hidden, name="hidden-bf16-32000", group="hidden", vocab=32000),
        *ntl_alone(rows, vocab, (bf16,)),
        Workload("step-bf16", "step", "step", max(256, rows // 256 * 256), vocab, bf16, hidden=1024),
        *vocabulary_sweep(logits_bytes, (*peers, "torch_ce_ntloss"), dtypes),
        *label_sweep(rows, vocab, bf16, peers),
        *ordered_tokens("logits", rows, (vocab,), bf16, ("ours", "ours_off", "torch_ce")),
    ]
    if memory_bytes >= 64 * 2**30:
        workloads.append(Workload("rows-beyond-2-31", "logits", "rows", huge, vocab, bf16, providers=BOUNDS))
    return without_repeats(workloads)


def host_workloads() -> list[Workload]:
    """Problems so small that only host time matters; kernels are not run."""
    logits = ("torch_ce", "ours", "ours_given", "ours_rows", "liger_ce", "torch_ce_ntloss")
    hidden = ("torch_linear", "ours_linear", "ours_linear_given", "liger_linear", "torch_linear_ntloss")
    problem = Workload("host-logits", "host", "host", 4, 64, providers=logits)
    return [problem, replace(problem, name="host-hidden", hidden=32, providers=hidden)]


def eager_workloads() -> list[Workload]:
    """Small problems on one CPU thread: from sizes where calls cost more than arithmetic to sizes where they do not."""
    sizes = ((4, 64), (16, 1000), (256, 1000), (16, 32000), (64, 32000), (16, 128256))
    both = ("ours", "torch_ce")
    return [
        logits(f"eager-{rows}x{vocab}", "eager", rows, vocab, dtype, threads=1, providers=both)
        for dtype in DTYPES
        for rows, vocab in sizes
    ]


def counted_workloads() -> list[Workload]:
    """Few rows, since the counts of a row do not depend on their number; half of the labels are numbers."""
    return [
        Workload(f"counts-{vocab}-{SHORT[dtype]}", "counts", "counts", 8, vocab, dtype, number_share=0.5, threads=1)
        for dtype in DTYPES[::-1]
        for vocab in (32000, 50257, 128256)
    ] + [
        replace(
            workload, threads=1, providers=("ours_given", "ours_off") if workload.numbers == 10 else ("ours_given",)
        )
        for workload in ordered_tokens("counts", 2, (32000, 128256, 262144), "bfloat16", ())
    ]


def shrink(workload: Workload) -> Workload:
    """The same workload at a tiny size, for a dry run."""
    vocab = min(workload.vocab, 2048 + workload.vocab % 64)
    return replace(
        workload,
        rows=min(workload.rows, 24),
        vocab=vocab,
        numbers=min(workload.numbers, vocab // 2) if workload.group == "bins" else workload.numbers,
        hidden=min(workload.hidden, 32),
    )
