"""What each fused cross-entropy makes a GPU do, counted by execution on the tests' emulated GPU, and its report.

Nothing is timed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import starmap
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.nn.functional as F

from ..commands import InputError
from ..inspect.counts import WARP
from ..inspect.machine_code import read_nvidia
from ..table import Table
from . import gate, workloads
from .host import count_waits
from .measure import trace_of
from .providers import CE, Provider, providers_of
from .results import COUNTS, Record, Records, with_status
from .run import Settings, cpu_threads, quiet, write_records
from .tables import label, not_timed, source_of
from .workloads import Case, Outcome, Workload

if TYPE_CHECKING:
    from tests.emulator.driver import Launched
    from tests.emulator.emulator import Emulator

ACCESS = re.compile(r"(ld|st)\.global\S*?(?:\.v(?P<count>[248]))?\.b(?P<bits>\d+)")
SPECIAL = re.compile(r"(ex2|lg2|rcp|rsqrt|sqrt|tanh|sin|cos|div)\.\S*f32")
"""Instructions for special functions; a division takes the reciprocal."""
FLOAT32_STEPS = 128
"""Allowed error of a float32 result in units of its precision. An exponent of 60 alone has an error of 60 units."""
HEADLINE = "counts-50257-bf16"
"""The workload of the README's line: rows of this V are not whole vectors, so they start anywhere."""
PEERS = {"liger-kernel": "Liger", "unsloth": "Unsloth", "flash-linear-attention": "flash-linear-attention"}
WIDTHS = (16, 8, 4, 2)
"""Bytes per lane of an access, the widest first."""
HEADER = [
    *("V", "dtype", "", "bytes read", "bytes written"),
    *(f"{kind} of {' / '.join(map(str, WIDTHS))} bytes" for kind in ("loads", "stores")),
    *("instructions per 16 bytes", "special functions per logit", "barriers", "registers", "spills"),
    *("launches", "torch operators", "waits"),
]
TEXT = (
    "**These are counts, not times.** Triton compiles the kernels of every package for a Hopper GPU, and an emulator "
    "(`tests/emulator`) executes their PTX, forward and backward. How fast that is on a GPU also depends on latencies, "
    "caches, clocks and on how many programs run at a time, none of which is counted. Every loss and every gradient "
    "was right: compared with `F.cross_entropy` in float64, or, for ours, which also computes NTL, with our reference."
)
COLUMNS_TEXT = (
    "Per row, over the kernels with at least a program per row: bytes read from and written to global memory, in "
    "brackets as a multiple of the row's logits; loads and stores by width, in which neighbouring lanes at the same "
    "place count once; PTX instructions of a lane per 16 bytes of logits; exponentials, divisions and other special "
    "functions per logit. Barriers (per program), registers (per thread) and instructions that spill are of each of "
    "these kernels, in the order of their launches. Triton launches, torch operators that start a kernel or a copy, "
    "and waits for the device are of the whole call."
)


BINS_TEXT = (
    "What NTL adds where every label is one of K ordered tokens with adjacent ids, bf16: bytes that the rows' kernels "
    "read and write / PTX instructions, relative to the same kernels where no label is a number. The bytes include the "
    "tables of ids and values, which all rows share and which a GPU reads from its caches. Beside 4,096 tokens, "
    "registers keep 64 KB of a long row, not 128: with V = 128,256 and without `label_sigma`, half of the difference "
    "is what is read again, which the L2 cache has room for, and most of the rest are the tables."
)


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


def entry_of(provider: Provider, case: Case) -> Record:
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
        "kernels": kernels,
    }


@contextmanager
def emulated_gpu() -> Iterator[Emulator]:
    """The emulated GPU. Kernels of other packages may read and write all elements of their tensors."""
    from tests.emulated import gpu
    from tests.emulator.memory import Roles

    with gpu.emulated_gpu() as here:
        roles_of = here.roles_of

        def roles_of_any(asked: Any) -> Roles:
            is_ours = asked.kernel in gpu.ROLES
            return roles_of(asked) if is_ours else Roles(frozenset(), updates=frozenset(asked.arguments))

        with mock.patch.multiple(here, roles_of=roles_of_any, schedule=0, noise=0):
            yield here


@contextmanager
def executing(gpu: Emulator) -> Iterator[list[Record]]:
    """Count what is launched meanwhile; the list gets its kernels at the end, in the order of their first launches."""
    gpu.launched.clear()
    for kernel in gpu.driver.kernels.values():
        for counter in (kernel.executed, kernel.lanes, kernel.accesses):
            counter[:] = 0
    found: list[Record] = []
    yield found
    of_kernels: dict[int, list[Launched]] = {}
    for launched in gpu.launched:
        of_kernels.setdefault(id(launched.kernel), []).append(launched)
    found.extend(executed_by(launches) for launches in of_kernels.values())


def executed_by(launches: list[Launched]) -> Record:
    """What a kernel executed in these launches, which are all since its counters were set to zero."""
    kernel, programs = launches[0].kernel, sum(launched.programs for launched in launches)
    assert kernel.cubin is not None
    code = read_nvidia(SimpleNamespace(asm={"cubin": kernel.cubin.read_bytes()}))
    found: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter()}
    special = barriers = 0
    for line, warps, lanes, places in zip(kernel.lines, kernel.executed, kernel.lanes, kernel.accesses, strict=True):
        name = next(part for part in line.split() if part[0] != "@")
        if access := ACCESS.fullmatch(name):
            found[access[1]][int(access["count"] or 1) * int(access["bits"]) // 8] += int(places)
        elif SPECIAL.fullmatch(name):
            special += int(lanes)
        elif name == "bar.sync":
            barriers += int(warps)
    loads, stores = ({str(width): n for width, n in sorted(each.items())[::-1] if n} for each in found.values())
    return {
        "kernel": kernel.name,
        "launches": len(launches),
        "programs": programs,
        "threads": kernel.threads,
        "registers": code["registers"],
        "spills": code["spills"],
        "instructions": int(kernel.executed.sum()),  # of warps, in the PTX
        "loads": loads,  # width in bytes -> accesses; neighbouring lanes at the same place access it once
        "stores": stores,
        "special": special,  # of lanes
        "barriers": barriers * WARP / kernel.threads / programs,
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


def counts_text(records: Records) -> str:
    """The table of what providers execute, with its explanation and source; empty if nothing was counted."""
    plain = [record for record in records.values() if record["group"] != "bins"]
    found = [(record, name) for record in plain for name in with_status(record, "counted")]
    if not found:
        return ""
    missing = not_timed(records)
    newest = max((record["environment"] for record in records.values()), key=lambda environment: environment["date"])
    versions = newest["versions"]
    packages = [f"{name} {versions[package]}" for package, name in PEERS.items() if versions[package]]
    parts = [TEXT, COLUMNS_TEXT, Table(HEADER, starmap(counts_row, found)).markdown()]
    parts += [f"Not counted:\n\n{missing}"] if missing else []
    parts += filter(None, [bins_text(records)])
    return "\n\n".join([*parts, ", ".join([source_of(newest), *packages]) + "."])


def bins_text(records: Records) -> str:
    """What NTL adds to a row whose label is one of K ordered tokens; empty if that was not counted."""
    found = [record for record in records.values() if record["group"] == "bins"]
    if not found:
        return ""
    losses = list(dict.fromkeys(record["loss"] for record in found))
    totals = {
        (record["vocab"], record["numbers"], record["loss"], name): totals_of(record, entry)
        for record in found
        for name, entry in with_status(record, "counted").items()
    }
    cells = {
        (vocab, count, loss): " / ".join(
            f"{more / less - 1:+.1%}" for more, less in zip(with_ntl, totals[vocab, 10, loss, "ours_off"], strict=True)
        )
        for (vocab, count, loss, name), with_ntl in totals.items()
        if name == "ours_given" and (vocab, 10, loss, "ours_off") in totals
    }
    lines = [
        [f"{vocab:,}", f"{count:,}", *(cells.get((vocab, count, loss), "") for loss in losses)]
        for vocab, count in dict.fromkeys((record["vocab"], record["numbers"]) for record in found)
    ]
    return "\n\n".join([BINS_TEXT, Table(["V", "K", *losses], lines).markdown()])


def totals_of(record: Record, entry: Record) -> tuple[float, float]:
    """Bytes that the kernels of rows move, and instructions that they execute, for a row."""
    moved = sum(bytes_of(accesses(record, entry, kind)) for kind in ("loads", "stores"))
    return moved, sum(kernel["instructions"] for kernel in row_kernels(record, entry)) / record["rows"]


def counts_row(record: Record, name: str) -> list[str]:
    entry = record["providers"][name]
    kernels = row_kernels(record, entry)
    logits = record["rows"] * record["vocab"]
    found = [accesses(record, entry, kind) for kind in ("loads", "stores")]
    vectors = record["logits_bytes"] / WIDTHS[0]
    return [
        str(record["vocab"]),
        record["dtype"],
        label(record, name),
        *(f"{size:,.0f} ({size * record['rows'] / record['logits_bytes']:.2f})" for size in map(bytes_of, found)),
        *(" / ".join(f"{each.get(width, 0):,.0f}" for width in WIDTHS) for each in found),
        f"{sum(kernel['instructions'] for kernel in kernels) * WARP / vectors:.0f}",
        f"{sum(kernel['special'] for kernel in kernels) / logits:.2f}",
        *(" + ".join(f"{kernel[field]:g}" for kernel in kernels) for field in ("barriers", "registers", "spills")),
        str(sum(kernel["launches"] for kernel in entry["kernels"])),
        str(entry["operators"]),
        str(entry["host_waits"]),
    ]


def row_kernels(record: Record, entry: Record) -> list[Record]:
    """The kernels with at least a program per row."""
    return [kernel for kernel in entry["kernels"] if kernel["programs"] >= record["rows"]]


def accesses(record: Record, entry: Record, kind: str) -> dict[int, float]:
    """Width in bytes -> accesses per row, by the kernels of rows. ``kind`` is "loads" or "stores"."""
    found: Counter[str] = Counter()
    for kernel in row_kernels(record, entry):
        found.update(kernel[kind])
    return {int(width): count / record["rows"] for width, count in found.items()}


def bytes_of(found: dict[int, float]) -> float:
    """Bytes that accesses move."""
    return sum(width * count for width, count in found.items())


def headline(records: Records) -> str:
    """The README's line: ours beside Liger; empty unless both were counted."""
    record = records.get(HEADLINE)
    entries = with_status(record, "counted") if record else {}
    if not record or not {"ours_given", "liger_ce"} <= set(entries):
        return ""
    ours, liger = (moved(record, entries[name]) for name in ("ours_given", "liger_ce"))
    return (
        f"Memory accesses per row of V = {record['vocab']}, {record['dtype']}, counted on an emulated GPU, forward + "
        f"backward (counts, not times): ours, with NTL, {ours}; Liger, without, {liger}."
    )


def moved(record: Record, entry: Record) -> str:
    """Bytes and accesses of a row, in words."""
    loads, stores = (accesses(record, entry, kind) for kind in ("loads", "stores"))
    count = sum(loads.values()) + sum(stores.values())
    return f"reads {bytes_of(loads):,.0f} bytes and writes {bytes_of(stores):,.0f} in {count:,.0f} accesses"
