"""The table of providers: ours, the peers, and the bounds that nothing can beat.

A provider builds a step (see `steps`) from a `Case`. A peer's package is imported when its provider is built.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntl_kernels import NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

from .models import ntloss_loss, ours_logits_loss, patch, stock_loss, training
from .peers import NTL_WEIGHT, class_loss, package_loss
from .steps import Loss, Step, by_autograd, compiled
from .workloads import IGNORED, Case, Tensors

GPU = "a GPU"


@dataclass(frozen=True)
class Provider:
    name: str
    label: str
    family: str
    objective: str | None
    """What the loss is: "ce", "ce+ntl" or "ntl"; None for a bound, which has none."""
    build: Callable[[Case], Step]
    needs: tuple[str, ...] = ()
    """Packages to import, "a GPU" and "torch 2.13"."""
    overwrites: bool = False
    """Whether it overwrites its input, and so must not share it with others."""

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run here, if so."""
        for need in self.needs:
            if need == GPU:
                if device.type == "cpu":
                    return "needs a GPU"
            elif need == "torch 2.13":
                if not hasattr(F, "linear_cross_entropy"):
                    return f"needs torch 2.13; this is {torch.__version__}"
            elif importlib.util.find_spec(need) is None:
                return f"package {need} is not installed"
        return None


# Losses of logits


def ours(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(t.logits, t.labels, case.numbers)


def given(case: Case) -> dict[str, Tensor]:
    """Both denominators as tensors on the device, as a Trainer has them."""
    counts = {"num_tokens": case.num_tokens, "num_numbers": case.num_numbers}
    return {name: torch.tensor(float(count), device=case.device) for name, count in counts.items()}


def ours_given(case: Case) -> Loss:
    counts = given(case)
    return lambda t: cross_entropy_ntl(t.logits, t.labels, case.numbers, **counts)


def ours_rows(case: Case) -> Loss:
    """A loss per row, and an upstream gradient per row."""
    return lambda t: cross_entropy_ntl(t.logits, t.labels, case.numbers, reduction="none").sum()


class Computed(torch.autograd.Function):
    """Logits as if a model had computed them: no leaf, which must not be overwritten, and no copy."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return logits.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def ours_inplace(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(Computed.apply(t.logits), t.labels, case.numbers, inplace=True)


def ours_off(case: Case) -> Loss:
    """The same kernel with nothing to do for NTL: two number tokens that no label is."""
    taken = set(case.sets[0].labels.tolist())
    free = [token for token in range(case.workload.vocab) if token not in taken][:2]
    numbers = NumberTokens.from_mapping({token: float(i) for i, token in enumerate(free)}, case.workload.vocab)
    return lambda t: cross_entropy_ntl(t.logits, t.labels, numbers)


def ours_reference(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(t.logits, t.labels, case.numbers, backend="reference")


def torch_ce(case: Case) -> Loss:
    return lambda t: F.cross_entropy(t.logits, t.labels)


def torch_ce_float(case: Case) -> Loss:
    return lambda t: F.cross_entropy(t.logits.float(), t.labels)


def torch_ce_ntloss(case: Case) -> Loss:
    """As the package's README adds the loss: three-dimensional logits, NTL beside cross-entropy."""
    ntl = package_loss(case, "NTLoss")
    return lambda t: F.cross_entropy(t.logits, t.labels) + NTL_WEIGHT * ntl(t.logits[None], t.labels[None])


def liger_ce(case: Case) -> Loss:
    from liger_kernel.transformers.functional import liger_cross_entropy

    return lambda t: liger_cross_entropy(t.logits, t.labels, ignore_index=IGNORED)


def quack_ce(case: Case) -> Loss:
    from quack.cross_entropy import cross_entropy

    return lambda t: cross_entropy(t.logits, t.labels, ignore_index=IGNORED, reduction="mean")


def copy_step(case: Case) -> Step:
    """One read and one write of the logits: the floor."""
    target = torch.empty_like(case.sets[0].logits)

    def step(index: int) -> None:
        with torch.no_grad():
            target.copy_(case.sets[index % len(case.sets)].logits)

    return step


# Losses of hidden states


def ours_linear(case: Case) -> Loss:
    return lambda t: linear_cross_entropy_ntl(t.hidden, t.weight, t.labels, case.numbers)


def ours_linear_given(case: Case) -> Loss:
    counts = given(case)
    return lambda t: linear_cross_entropy_ntl(t.hidden, t.weight, t.labels, case.numbers, **counts)


def ours_linear_all_rows(case: Case) -> Loss:
    """Ignored rows are computed, too, so that nothing waits for the device to find the others."""
    return lambda t: linear_cross_entropy_ntl(t.hidden, t.weight, t.labels, case.numbers, skip_ignored=False)


def ours_of_logits(case: Case) -> Loss:
    return lambda t: cross_entropy_ntl(F.linear(t.hidden, t.weight), t.labels, case.numbers, inplace=True)


def torch_linear(case: Case) -> Loss:
    return lambda t: F.cross_entropy(F.linear(t.hidden, t.weight), t.labels)


def torch_linear_ntloss(case: Case) -> Loss:
    ntl = package_loss(case, "NTLoss")

    def loss_of(t: Tensors) -> Tensor:
        logits = F.linear(t.hidden, t.weight)
        return F.cross_entropy(logits, t.labels) + NTL_WEIGHT * ntl(logits[None], t.labels[None])

    return loss_of


def torch_fused(**options: Any) -> Callable[[Case], Loss]:
    """`torch.nn.functional.linear_cross_entropy` of torch 2.13, chunked with these options."""

    def make(case: Case) -> Loss:
        chosen = torch.nn.LinearCrossEntropyOptions(**options)
        return lambda t: F.linear_cross_entropy(t.hidden, t.weight, t.labels, options=chosen)

    return make


def liger_linear(case: Case) -> Loss:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return lambda t: liger_fused_linear_cross_entropy(t.hidden, t.weight, t.labels, ignore_index=IGNORED)


def cce_linear(**options: Any) -> Callable[[Case], Loss]:
    """As it comes, it leaves out blocks of the logits' gradient whose entries are all small."""

    def make(case: Case) -> Loss:
        from cut_cross_entropy import linear_cross_entropy

        return lambda t: linear_cross_entropy(t.hidden, t.weight, t.labels, ignore_index=IGNORED, **options)

    return make


def quack_linear(case: Case) -> Loss:
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    return lambda t: chunked_linear_cross_entropy(t.hidden, t.weight, t.labels, ignore_index=IGNORED)


def matmuls_step(case: Case) -> Step:
    """The three products that logits and the two gradients need, and nothing else: the floor."""

    def step(index: int) -> None:
        t = case.sets[index % len(case.sets)]
        with torch.no_grad():
            logits = t.hidden @ t.weight.t()
            logits @ t.weight
            logits.t() @ t.hidden

    return step


# The Number Token Loss alone


def package_ntl(case: Case) -> Loss:
    loss = package_loss(case, case.workload.loss)
    return lambda t: loss(t.logits[None], t.labels[None])


def ours_ntl(case: Case) -> Loss:
    from ntl_kernels import ntloss

    loss = class_loss(ntloss, case.workload.loss, case)
    return lambda t: loss(t.logits[None], t.labels[None])


LIGER, CCE, QUACK = ("liger_kernel", GPU), ("cut_cross_entropy", GPU), ("quack", GPU)
PACKAGE, FUSED = ("ntloss",), ("torch 2.13",)

TORCH_FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "torch_fused": ("defaults", {}),
    "torch_fused_whole": ("one chunk", {"chunking_method": None}),
    "torch_fused_compact": (
        "256 rows, compact",
        {"batch_chunk_size": 256, "chunking_method": None, "acc_policy": "compact"},
    ),
    "torch_fused_accurate": (
        "256 rows, accurate",
        {"batch_chunk_size": 256, "chunking_method": None, "acc_policy": "accurate"},
    ),
}
"""Name -> label and `torch.nn.LinearCrossEntropyOptions`: comparisons take the best of them."""

LOGITS = (
    Provider("copy", "copy", "logits", None, copy_step),
    Provider("ours", "ours", "logits", "ce+ntl", by_autograd(ours)),
    Provider("ours_inplace", "ours in place", "logits", "ce+ntl", by_autograd(ours_inplace), overwrites=True),
    Provider("ours_off", "ours, no label a number", "logits", "ce", by_autograd(ours_off)),
    Provider("ours_reference", "our reference, compiled", "logits", "ce+ntl", by_autograd(compiled(ours_reference))),
    Provider("torch_ce", "F.cross_entropy", "logits", "ce", by_autograd(torch_ce)),
    Provider("torch_ce_float", "F.cross_entropy(logits.float())", "logits", "ce", by_autograd(torch_ce_float)),
    Provider("torch_ce_compiled", "F.cross_entropy, compiled", "logits", "ce", by_autograd(compiled(torch_ce))),
    Provider(
        "torch_ce_ntloss",
        "F.cross_entropy + ntloss",
        "logits",
        "ce+ntl",
        by_autograd(torch_ce_ntloss),
        PACKAGE,
    ),
    Provider(
        "torch_ce_ntloss_compiled",
        "F.cross_entropy + ntloss, compiled",
        "logits",
        "ce+ntl",
        by_autograd(compiled(torch_ce_ntloss)),
        PACKAGE,
    ),
    Provider("liger_ce", "Liger", "logits", "ce", by_autograd(liger_ce), LIGER, overwrites=True),
    Provider("quack_ce", "quack", "logits", "ce", by_autograd(quack_ce), QUACK),
)
HIDDEN = (
    Provider("matmuls", "three matmuls", "hidden", None, matmuls_step),
    Provider("ours", "ours", "hidden", "ce+ntl", by_autograd(ours_linear)),
    Provider("ours_all_rows", "ours, skip_ignored=False", "hidden", "ce+ntl", by_autograd(ours_linear_all_rows)),
    Provider("ours_of_logits", "F.linear, then ours", "hidden", "ce+ntl", by_autograd(ours_of_logits)),
    Provider("torch_linear", "F.linear, F.cross_entropy", "hidden", "ce", by_autograd(torch_linear)),
    Provider(
        "torch_linear_compiled",
        "F.linear, F.cross_entropy, compiled",
        "hidden",
        "ce",
        by_autograd(compiled(torch_linear)),
    ),
    Provider(
        "torch_linear_ntloss",
        "F.linear, F.cross_entropy + ntloss",
        "hidden",
        "ce+ntl",
        by_autograd(torch_linear_ntloss),
        PACKAGE,
    ),
    *(
        Provider(name, f"F.linear_cross_entropy, {label}", "hidden", "ce", by_autograd(torch_fused(**options)), FUSED)
        for name, (label, options) in TORCH_FUSED.items()
    ),
    Provider("liger_linear", "Liger fused linear", "hidden", "ce", by_autograd(liger_linear), LIGER),
    Provider("cce_linear", "Apple CCE, without small gradients", "hidden", "ce", by_autograd(cce_linear()), CCE),
    Provider(
        "cce_linear_all",
        "Apple CCE, with all gradients",
        "hidden",
        "ce",
        by_autograd(cce_linear(filter_eps=None)),
        CCE,
    ),
    Provider("quack_linear", "quack linear", "hidden", "ce", by_autograd(quack_linear), QUACK),
)
NTL = (
    Provider("ours", "ntl_kernels.ntloss", "ntl", "ntl", by_autograd(ours_ntl)),
    Provider("ntloss", "ntloss package", "ntl", "ntl", by_autograd(package_ntl), PACKAGE),
)
STEP = (
    Provider("stock", "stock loss", "step", "ce", training(stock_loss)),
    Provider("stock_ntloss", "stock loss + ntloss", "step", "ce+ntl", training(ntloss_loss), PACKAGE),
    Provider("ours_logits", "ours, from logits", "step", "ce+ntl", training(ours_logits_loss)),
    Provider("ours", "ours, inside the head", "step", "ce+ntl", training(stock_loss, patch)),
)
HOST = (
    Provider("torch_ce", "F.cross_entropy", "host", "ce", by_autograd(torch_ce)),
    Provider("ours", "ours", "host", "ce+ntl", by_autograd(ours)),
    Provider("ours_given", "ours, both denominators given", "host", "ce+ntl", by_autograd(ours_given)),
    Provider("ours_rows", 'ours, reduction "none"', "host", "ce+ntl", by_autograd(ours_rows)),
    Provider("liger_ce", "Liger", "host", "ce", by_autograd(liger_ce), LIGER[:1]),
    Provider("torch_ce_ntloss", "F.cross_entropy + ntloss", "host", "ce+ntl", by_autograd(torch_ce_ntloss), PACKAGE),
    Provider("torch_linear", "F.linear, F.cross_entropy", "host", "ce", by_autograd(torch_linear)),
    Provider("ours_linear", "ours, from hidden states", "host", "ce+ntl", by_autograd(ours_linear)),
    Provider(
        "ours_linear_given",
        "ours, from hidden states, both denominators given",
        "host",
        "ce+ntl",
        by_autograd(ours_linear_given),
    ),
    Provider("liger_linear", "Liger fused linear", "host", "ce", by_autograd(liger_linear), LIGER[:1]),
    Provider(
        "torch_linear_ntloss",
        "F.linear, F.cross_entropy + ntloss",
        "host",
        "ce+ntl",
        by_autograd(torch_linear_ntloss),
        PACKAGE,
    ),
)
"""Where no kernel runs, so that a peer that needs a GPU needs none."""
PROVIDERS = (*LOGITS, *HIDDEN, *NTL, *STEP, *HOST)


def providers_of(family: str, names: tuple[str, ...] = ()) -> list[Provider]:
    """The providers of a family, or those of the names given, in the table's order.

    Raises:
        ValueError: the family has no provider of a name.
    """
    known = [provider for provider in PROVIDERS if provider.family == family]
    unknown = set(names) - {provider.name for provider in known}
    if unknown:
        raise ValueError(f"no provider {sorted(unknown)} in family {family!r}; it has {[p.name for p in known]}")
    return [provider for provider in known if not names or provider.name in names]
