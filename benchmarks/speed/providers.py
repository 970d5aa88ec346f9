"""The table of providers: ours, other implementations, and lower bounds.

A provider builds a step from a `Case`. Another implementation's package is imported when its provider is
built.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

from .models import class_loss, ntloss_loss, ours_logits_loss, patch, stock_loss, training
from .peers import fla_cross_entropy, unsloth_cross_entropy
from .workloads import CONFIGS, IGNORED, NTL_WEIGHT, Case, Loss, Outcome, Step, Tensors

GPU = "a GPU"


@dataclass(frozen=True)
class Provider:
    name: str
    label: str
    family: str
    objective: str | None
    """The loss that it computes: "ce", "ce+ntl" or "ntl"; None for a bound, which computes no loss."""
    build: Callable[[Case], Step]
    needs: tuple[str, ...] = ()
    """What it needs: packages, "a GPU" or "torch 2.13"."""
    overwrites: bool = False
    """Whether it overwrites its input, which must then not be shared with others."""

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run here; None if it can."""
        for need in self.needs:
            if need == GPU:
                if device.type == "cpu":
                    return "needs a GPU"
            elif need == "torch 2.13":
                if not hasattr(F, "linear_cross_entropy"):
                    return f"needs torch 2.13; this is {torch.__version__}"
            elif (spec := importlib.util.find_spec(need)) is None or spec.origin is None:  # a folder without modules
                return f"package {need} is not installed"
        return None


def by_autograd(make: Callable[[Case], Loss]) -> Callable[[Case], Step]:
    """The step of a loss function: its value and the gradients of the leaves."""

    def build(case: Case) -> Step:
        loss_of = make(case)

        def step(index: int) -> Outcome:
            tensors = case.sets[index % len(case.sets)]
            loss = loss_of(tensors)
            return Outcome(loss.detach(), torch.autograd.grad(loss, tensors.leaves))

        return step

    return build


def compiled(make: Callable[[Case], Loss]) -> Callable[[Case], Loss]:
    """The same loss under torch.compile, specialised to its shapes."""
    return lambda case: torch.compile(make(case), dynamic=False)


# Losses of logits, or of hidden states where the workload has them


def ours(case: Case, **keywords: Any) -> Loss:
    loss = linear_cross_entropy_ntl if case.workload.hidden else cross_entropy_ntl
    config = CONFIGS.get(case.workload.loss, NTLConfig())
    return lambda t: loss(*t.leaves, t.labels, case.numbers, config=config, **keywords)


def ours_given(case: Case) -> Loss:
    """Ours with both denominators as tensors on the device, as in a Trainer."""
    counts = {"num_tokens": case.num_tokens, "num_numbers": case.num_numbers}
    return ours(case, **{name: torch.tensor(float(count), device=case.device) for name, count in counts.items()})


def ours_rows(case: Case) -> Loss:
    """Ours with a loss per row and an upstream gradient per row."""
    losses_of = ours(case, reduction="none")
    return lambda t: losses_of(t).sum()


class Computed(torch.autograd.Function):
    """Makes logits look computed by a model, without a copy: a leaf must not be overwritten."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return logits.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def ours_inplace(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(Computed.apply(t.logits), t.labels, case.numbers, inplace=True)


def ours_off(case: Case, make: Callable[[Case], Loss] = ours) -> Loss:
    """The same kernel without work for NTL: two number tokens that never occur as labels."""
    taken = set(case.sets[0].labels.tolist())
    free = [token for token in range(case.workload.vocab) if token not in taken][:2]
    numbers = NumberTokens.from_mapping({token: float(i) for i, token in enumerate(free)}, case.workload.vocab)
    return make(replace(case, numbers=numbers, workload=replace(case.workload, loss="")))


def torch_ce(case: Case) -> Loss:
    return lambda t: F.cross_entropy(t.logits, t.labels)


def torch_ce_float(case: Case) -> Loss:
    return lambda t: F.cross_entropy(t.logits.float(), t.labels)


def torch_ce_ntloss(case: Case) -> Loss:
    """Cross-entropy plus the package's loss, added as in its README: three-dimensional logits."""
    ntl = class_loss("ntloss", "NTLoss", case, reweigh=False)

    def loss_of(t: Tensors) -> Tensor:
        logits = t.logits  # for hidden states this is a matrix product; compute it once
        return F.cross_entropy(logits, t.labels) + NTL_WEIGHT * ntl(logits[None], t.labels[None])

    return loss_of


def peer(module: str, name: str, **options: Any) -> Callable[[Case], Loss]:
    """A function of another package."""

    def make(case: Case) -> Loss:
        loss = getattr(importlib.import_module(module), name)
        return lambda t: loss(*t.leaves, t.labels, ignore_index=IGNORED, **options)

    return make


def unsloth_ce(case: Case) -> Loss:
    loss = unsloth_cross_entropy()
    return lambda t: loss(t.logits[None], t.labels[None])


def fla_ce(case: Case) -> Loss:
    loss = fla_cross_entropy()
    return lambda t: loss(t.logits, t.labels)


def copy_step(case: Case) -> Step:
    """One read and one write of the logits: a lower bound."""
    target = torch.empty_like(case.sets[0].logits)

    def step(index: int) -> None:
        with torch.no_grad():
            target.copy_(case.sets[index % len(case.sets)].logits)

    return step


# Losses of hidden states only


def ours_of_logits(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(t.logits, t.labels, case.numbers, inplace=True)


def torch_fused(case: Case, **options: Any) -> Loss:
    """`torch.nn.functional.linear_cross_entropy` of torch 2.13, chunked with these options."""
    chosen = torch.nn.LinearCrossEntropyOptions(**options)
    return lambda t: F.linear_cross_entropy(*t.leaves, t.labels, options=chosen)


def matmuls_step(case: Case) -> Step:
    """Only the three matrix products for the logits and the two gradients: a lower bound."""

    def step(index: int) -> None:
        hidden, weight = case.sets[index % len(case.sets)].leaves
        with torch.no_grad():
            logits = hidden @ weight.t()
            logits @ weight
            logits.t() @ hidden

    return step


# The Number Token Loss alone


def ntl_alone(case: Case, module: str) -> Loss:
    loss = class_loss(module, case.workload.loss, case, reweigh=True)
    return lambda t: loss(t.logits[None], t.labels[None])


def of_loss(
    family: str, name: str, label: str, objective: str, make: Callable[[Case], Loss], *needs: str, **options: Any
) -> Provider:
    """The provider whose step is a loss and its gradients."""
    return Provider(name, label, family, objective, by_autograd(make), needs, **options)


CE, BOTH = "ce", "ce+ntl"
LIGER, CCE, QUACK, PACKAGE = "liger_kernel", "cut_cross_entropy", "quack", "ntloss"
ROWS = {"batch_chunk_size": 256, "chunking_method": None}
TORCH_FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "torch_fused": ("defaults", {}),
    "torch_fused_whole": ("one chunk", {"chunking_method": None}),
    "torch_fused_compact": ("256 rows, compact", {**ROWS, "acc_policy": "compact"}),
    "torch_fused_accurate": ("256 rows, accurate", {**ROWS, "acc_policy": "accurate"}),
}
"""Name -> label and `torch.nn.LinearCrossEntropyOptions`; comparisons use the best of them."""

liger_ce = peer("liger_kernel.transformers.functional", "liger_cross_entropy")
quack_ce = peer("quack.cross_entropy", "cross_entropy", reduction="mean")
liger_linear = peer("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
cce_linear = peer("cut_cross_entropy", "linear_cross_entropy")
"""By default it skips blocks of the logits' gradient whose entries are all small."""
cce_linear_all = peer("cut_cross_entropy", "linear_cross_entropy", filter_eps=None)
quack_linear = peer("quack.linear_cross_entropy", "chunked_linear_cross_entropy")

logits = partial(of_loss, "logits")
LOGITS = (
    Provider("copy", "copy", "logits", None, copy_step),
    logits("ours", "ours", BOTH, ours),
    logits("ours_inplace", "ours in place", BOTH, ours_inplace, overwrites=True),
    logits("ours_off", "ours, no label a number", CE, ours_off),
    logits("ours_reference", "our reference, compiled", BOTH, compiled(partial(ours, backend="reference"))),
    logits("torch_ce", "F.cross_entropy", CE, torch_ce),
    logits("torch_ce_float", "F.cross_entropy(logits.float())", CE, torch_ce_float),
    logits("torch_ce_compiled", "F.cross_entropy, compiled", CE, compiled(torch_ce)),
    logits("torch_ce_ntloss", "F.cross_entropy + ntloss", BOTH, torch_ce_ntloss, PACKAGE),
    logits("torch_ce_ntloss_compiled", "F.cross_entropy + ntloss, compiled", BOTH, compiled(torch_ce_ntloss), PACKAGE),
    logits("liger_ce", "Liger", CE, liger_ce, LIGER, GPU, overwrites=True),
    logits("quack_ce", "quack", CE, quack_ce, QUACK, GPU),
)
hidden = partial(of_loss, "hidden")
HIDDEN = (
    Provider("matmuls", "three matmuls", "hidden", None, matmuls_step),
    hidden("ours", "ours", BOTH, ours),
    # Ignored rows are also computed, so nothing waits for the device.
    hidden("ours_all_rows", "ours, skip_ignored=False", BOTH, partial(ours, skip_ignored=False)),
    hidden("ours_of_logits", "F.linear, then ours", BOTH, ours_of_logits),
    hidden("torch_linear", "F.linear, F.cross_entropy", CE, torch_ce),
    hidden("torch_linear_compiled", "F.linear, F.cross_entropy, compiled", CE, compiled(torch_ce)),
    hidden("torch_linear_ntloss", "F.linear, F.cross_entropy + ntloss", BOTH, torch_ce_ntloss, PACKAGE),
    *(
        hidden(name, f"F.linear_cross_entropy, {label}", CE, partial(torch_fused, **options), "torch 2.13")
        for name, (label, options) in TORCH_FUSED.items()
    ),
    hidden("liger_linear", "Liger fused linear", CE, liger_linear, LIGER, GPU),
    hidden("cce_linear", "Apple CCE, without small gradients", CE, cce_linear, CCE, GPU),
    hidden("cce_linear_all", "Apple CCE, with all gradients", CE, cce_linear_all, CCE, GPU),
    hidden("quack_linear", "quack linear", CE, quack_linear, QUACK, GPU),
)
NTL = (
    of_loss("ntl", "ours", "ntl_kernels.ntloss", "ntl", partial(ntl_alone, module="ntl_kernels.ntloss")),
    of_loss("ntl", "ntloss", "ntloss package", "ntl", partial(ntl_alone, module="ntloss"), PACKAGE),
)
STEP = (
    Provider("stock", "stock loss", "step", CE, training(stock_loss)),
    Provider("stock_ntloss", "stock loss + ntloss", "step", BOTH, training(ntloss_loss), (PACKAGE,)),
    Provider("ours_logits", "ours, from logits", "step", BOTH, training(ours_logits_loss)),
    Provider("ours", "ours, inside the head", "step", BOTH, training(stock_loss, patch)),
)
host = partial(of_loss, "host")
HOST = (
    host("torch_ce", "F.cross_entropy", CE, torch_ce),
    host("ours", "ours", BOTH, ours),
    host("ours_given", "ours, both denominators given", BOTH, ours_given),
    host("ours_rows", 'ours, reduction "none"', BOTH, ours_rows),
    host("liger_ce", "Liger", CE, liger_ce, LIGER),
    host("torch_ce_ntloss", "F.cross_entropy + ntloss", BOTH, torch_ce_ntloss, PACKAGE),
    host("torch_linear", "F.linear, F.cross_entropy", CE, torch_ce),
    host("ours_linear", "ours, from hidden states", BOTH, ours),
    host("ours_linear_given", "ours, from hidden states, both denominators given", BOTH, ours_given),
    host("liger_linear", "Liger fused linear", CE, liger_linear, LIGER),
    host("torch_linear_ntloss", "F.linear, F.cross_entropy + ntloss", BOTH, torch_ce_ntloss, PACKAGE),
)
"""Host time without running kernels, so that implementations for GPUs need no GPU."""
counted = partial(of_loss, "counts")
COUNTED = (
    counted("ours_given", "ours, both denominators given", BOTH, ours_given),
    counted("ours", "ours", BOTH, ours),
    counted("ours_off", "ours, no label a number", CE, partial(ours_off, make=ours_given)),
    counted("liger_ce", "Liger", CE, liger_ce, LIGER),
    counted("unsloth_ce", "Unsloth", CE, unsloth_ce, "unsloth"),
    counted("fla_ce", "flash-linear-attention", CE, fla_ce, "fla"),
)
"""Executed on an emulated GPU."""
PROVIDERS = (*LOGITS, *HIDDEN, *NTL, *STEP, *HOST, *COUNTED)


def providers_of(family: str, names: tuple[str, ...] = ()) -> list[Provider]:
    """The providers of a family, or those with the given names, in the table's order."""
    known = [provider for provider in PROVIDERS if provider.family == family]
    unknown = set(names) - {provider.name for provider in known}
    if unknown:
        raise ValueError(f"no provider {sorted(unknown)} in family {family!r}; it has {[p.name for p in known]}")
    return [provider for provider in known if not names or provider.name in names]
