"""What each fused cross-entropy makes a GPU do, counted by execution on the tests' emulated GPU. Nothing is timed."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from ..commands import InputError
from . import gate, workloads
from .executed import emulated_gpu, executing
from .host import count_waits
from .measure import trace_of
from .providers import CE, Provider, providers_of
from .results import COUNTS, Record
from .run import Settings, cpu_threads, quiet, write_records
from .workloads import Case, Outcome, Workload

FLOAT32_STEPS = 128
"""Allowed error of a float32 result in units of its precision. An exponent of 60 alone has an error of 60 units."""


class WrongResult(ArithmeticError):
    """A loss or a gradient that rounding does not explain."""


def counts(settings: Settings, folder: Path) -> Path:
    """Count, write the results to ``folder/<device>/counts.json`` and return that folder."""
    from tests.emulator.needs import missing

    if reason := missing():
        raise InputError(reason)
    chosen = settings.chosen(workloads.counted_workloads())
    return write_records(chosen, settings, folder, counted, COUNTS)[0]


def counted(workload: Workload, settings: Settings) -> list[Record]:
    """The record of a workload."""
    providers = settings.providers_among(providers_of("counts", workload.providers))
    case = workloads.make_case(workload, torch.device("cpu"), sets=2)
    with quiet(), cpu_threads(settings.threads):
        entries = {provider.name: entry_of(provider, case) for provider in providers}
    known = {**asdict(workload), "logits_bytes": workload.logits_bytes, "memory": None, "others_share": None}
    return [known | {"providers": entries}]


def entry_of(provider: Provider, case: Case) -> dict[str, Any]:
    """What one step executes, or why the provider is missing.

    Raises:
        WrongResult: the step computes something else.
    """
    reason = provider.missing(case.device)
    if reason is not None:
        return {"status": "missing", "reason": reason}
    truth = truth_of(case, provider.objective)
    step = provider.build(replace(case, sets=[tensors.copy() for tensors in case.sets]))
    with emulated_gpu() as gpu:
        step(0)  # fills caches
        with executing(gpu) as kernels:
            outcome = step(1)
        with mock.patch.object(gpu, "is_executing", False):  # the emulator itself uses torch operators
            events = trace_of(step, case.device)
    check(outcome, truth, case.workload, provider.label)
    errors = gate.compare(outcome, truth)
    return {
        "status": "counted",
        "loss_error": errors.loss,
        "gradient_error": errors.gradient,
        "operators": count_computing(events),
        "host_waits": count_waits(events),
        "kernels": [kernel._asdict() for kernel in kernels],
    }


def truth_of(case: Case, objective: str | None) -> Outcome:
    """In float64: `F.cross_entropy` and its gradient; with NTL, our reference."""
    if objective != CE:
        return gate.truth_of(case, str(objective))
    logits = case.sets[0].logits.detach().double().requires_grad_()
    loss = F.cross_entropy(logits, case.sets[0].labels)
    return Outcome(loss.detach(), torch.autograd.grad(loss, logits))


def check(outcome: Outcome, truth: Outcome, workload: Workload, label: str) -> None:
    """Raise :class:`WrongResult` unless rounding explains the errors of the loss and of each logit's gradient.

    The dtype's precision allows for two roundings. What is added to a row's largest gradient is for the label and for
    number tokens, where terms cancel.
    """
    single = torch.finfo(torch.float32).eps
    allowed = torch.finfo(getattr(torch, workload.dtype)).eps + FLOAT32_STEPS * single
    (gradient,), (true,) = outcome.gradients, truth.gradients
    bound = allowed * true.abs() + 4 * single * true.abs().amax(-1, keepdim=True)
    for name, got, expected, error in (
        ("loss", outcome.loss, truth.loss, allowed * truth.loss.abs()),
        ("gradient", gradient, true, bound),
    ):
        share = ((got.double() - expected).abs() / error).max().item()
        if not share <= 1.0:  # NaN, too
            raise WrongResult(
                f"{label}, {workload.name}: the error of the {name} is {share:.3g} times what rounding allows"
            )


def count_computing(events: list[dict[str, Any]]) -> int:
    """How many torch operators would start a kernel or a copy on a GPU."""
    operators = [event for event in events if event.get("cat") == "cpu_op" and computes(event["name"])]
    operators.sort(key=lambda event: (event["ts"], -event["dur"]))
    end, count = float("-inf"), 0
    for event in operators:
        if event["ts"] >= end:
            end, count = event["ts"] + event["dur"], count + 1
    return count


def computes(name: str) -> bool:
    """Whether a torch operator has code of its own for a device, and neither makes a view nor only allocates memory."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
    if packet is None or "empty" in name:
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return name == "aten::copy_" or any(
        torch._C._dispatch_has_kernel(overload.name())
        and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU")
        and not is_view(overload)
        for overload in overloads
    )


def is_view(overload: Any) -> bool:
    """Whether the result shares the memory of an argument that is not written."""
    aliases = [result.alias_info for result in overload._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
