"""Measure all providers on each workload and write the results.

On a CPU each workload runs in its own process: memory that an earlier workload left in the allocator would affect how
fresh the memory of the next one is.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ntl_kernels.loss import default_chunk_size

from .. import environment
from ..commands import InputError, meant, writable
from ..inspect.workers import in_processes
from . import gate, measure, neighbours, results, workloads
from .measure import Sampled
from .memory import BOTH, KEPT, PREPARING, faults, treated, ways
from .providers import Provider, providers_of
from .results import Record
from .workloads import Case, Outcome, Step, Workload

WARM_UP = 3
CPU_WARM_UP = 1
"""Warm-up steps. The gate has already run every step once, and a CPU needs no time to raise its clock."""
SETTLING, SETTLED_PAGES = 6, 256
"""Maximum rounds of steps until kept memory is large enough; it ends earlier when a round maps hardly any pages."""
NOT_TIMED = "none; everything is compiled"
"""What a run that only compiles returns."""
ATTEMPTS = 3
"""Attempts to measure a workload without disturbance by other processes."""
LEAST, MOST = 5, 100
"""Minimum and maximum number of samples of every provider."""


@dataclass(frozen=True)
class Settings:
    device: torch.device
    suite: str = "full"
    """"full", "gpu" or "quick"."""
    threads: int = 2
    seconds: float = 8.0
    """Seconds for the samples of a main workload or one under load, shared by its providers; other workloads get a
    fifth."""
    families: Sequence[str] = workloads.FAMILIES
    names: str = "*"
    """The workloads to run, as a shell pattern."""
    providers: str = "*"
    memory: str = BOTH
    """On a CPU: "fresh", "kept" or "both"."""
    dry: bool = False
    """Run every workload once at the smallest size: runs all the code, but measures nothing."""
    compile_only: bool = False
    """Compile the kernels that would be timed, into Triton's cache on disk, and end."""

    @property
    def is_whole(self) -> bool:
        """Whether the chosen families are measured completely."""
        return self.names == "*" and self.providers == "*" and self.memory == BOTH

    def chosen(self, table: Sequence[Workload]) -> list[Workload]:
        """The workloads that match the pattern; tiny in a dry run."""
        found = [workload for workload in table if fnmatch(workload.name, self.names)]
        if not found:
            raise InputError(f"no workload matches {self.names!r}{meant(self.names, (w.name for w in table))}")
        known = [p for workload in found for p in providers_of(workload.family, workload.providers)]
        if not self.providers_among(known):
            raise InputError(f"no provider matches {self.providers!r}{meant(self.providers, (p.name for p in known))}")
        return [workloads.shrink(workload) for workload in found] if self.dry else found

    def providers_among(self, providers: Sequence[Provider]) -> list[Provider]:
        """The providers that match the pattern."""
        return [provider for provider in providers if fnmatch(provider.name, self.providers)]

    def samples_of(self, workload: Workload) -> tuple[float, int, int]:
        """(seconds, minimum, maximum number) of the samples of a workload."""
        counts = (1, 1) if self.dry else (LEAST, MOST)
        return self.seconds if workload.group in ("main", "load") else self.seconds / 5, *counts


def suite_of(settings: Settings) -> list[Workload]:
    """The workloads of a run."""
    if settings.suite == "quick":
        table = workloads.quick_workloads()
    elif settings.suite == "gpu" or settings.device.type == "cuda":
        table = workloads.gpu_workloads(memory_bytes(settings.device))
    else:
        table = workloads.cpu_workloads()
    return settings.chosen([workload for workload in table if workload.family in settings.families])


def memory_bytes(device: torch.device) -> int:
    """The memory of a GPU; a made-up size for a dry run of its suite without one."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 2**37


def run(settings: Settings, folder: Path) -> Path:
    """Measure the chosen workloads, write them to ``folder/<device>`` and return that folder.

    Results of a whole suite replace the files of its families; results of some workloads replace only those workloads.
    """
    return write_records(suite_of(settings), settings, folder, apart)[0]


def write_records(
    chosen: Sequence[Workload],
    settings: Settings,
    folder: Path,
    measured: Callable[[Workload, Settings], list[Record]],
    file: str | None = None,
    fresh: bool = False,
) -> tuple[Path, list[Record]]:
    """Measure the workloads one after another and write their records; return (``folder/<device>``, all records).

    The records go into one ``file``, or one per family. If all is measured or with ``fresh``, other records in these
    files are dropped in the end.
    """
    fresh = fresh or settings.is_whole
    described = environment.describe("speed", settings.device, settings.threads)
    target = writable(folder / environment.slug(described["device"]), "cannot write results to {folder}")
    results.load(target, [file or workload.family for workload in chosen])  # refused before the work, not after it
    records: list[Record] = []
    written: dict[str, list[Record]] = defaultdict(list)
    for number, workload in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {workload.name}", flush=True)
        for record in measured(workload, settings):
            records.append(record | {"environment": described})
            print(*summary(record), sep="\n", flush=True)
            written[file or workload.family].append(records[-1])
            results.add(target, file or workload.family, records[-1:])
    if fresh:
        for name, of_name in written.items():
            results.add(target, name, of_name, whole=True)
    return target, records


def apart(workload: Workload, settings: Settings) -> list[Record]:
    """The records of one workload; on a CPU measured in a separate process."""
    if settings.device.type != "cpu" or settings.dry:
        return run_workload(workload, settings)
    (records,) = in_processes(partial(run_workload, settings=settings), [workload], 1)
    return records


def run_workload(
    workload: Workload, settings: Settings, providers: Sequence[Provider] | None = None, observed: bool = True
) -> list[Record]:
    """A record per way of memory: sizes and, for each provider, samples, peak memory and counts, or why there are none.

    ``providers`` defaults to those of the workload. Peak memory and counts only if they are to be ``observed``.
    """
    chosen = providers_of(workload.family, workload.providers) if providers is None else providers
    chosen = settings.providers_among(chosen)
    device = settings.device
    chosen_ways = ways(device, settings.memory)
    found = []
    with quiet(), cpu_threads(workload.threads or settings.threads), compiler_settings():
        with treated(PREPARING if any(chosen_ways) else None):
            sets = measure.rotating_sets(device, workload.logits_bytes, measure.cache_bytes(device))
            case = workloads.make_case(workload, device, 1 if workload.family in ("step", "hidden") else sets)
            warm_up = 0 if settings.dry else CPU_WARM_UP if device.type == "cpu" else WARM_UP
            entries, steps = prepare(case, chosen, warm_up)
            for name, step in steps.items() if observed else ():
                entries[name] |= measure.observe(step, device)
        for way in chosen_ways:
            with treated(way), neighbours.all_cores_busy() if workload.beside_load else nullcontext():
                if way == KEPT:
                    settle(steps)
                timed, share = undisturbed(steps, workload, settings)
            provided = {name: entry | timed.get(name, {}) for name, entry in entries.items()}
            known = {**asdict(workload), **sizes(case), "memory": way, "others_share": share}
            found.append({**known, "providers": provided})
    return found


def settle(steps: Mapping[str, Step]) -> None:
    """Run all steps until the heap is large enough for them."""
    for _ in range(SETTLING):
        before = faults()
        for step in steps.values():
            step(0)
        if faults() - before < SETTLED_PAGES:
            return


def undisturbed(
    steps: Mapping[str, Step], workload: Workload, settings: Settings
) -> tuple[dict[str, dict[str, Any]], float | None]:
    """Time the steps, again if other processes disturbed it; return (an entry per step, the share of other processes).

    If all attempts were disturbed, the least disturbed one counts. The share is None in a dry run and on a GPU, which
    has its own clock.
    """
    clock = measure.make_clock(settings.device, workload.clock)
    is_watched = settings.device.type == "cpu" and not settings.dry
    taken: list[tuple[float | None, dict[str, Sampled]]] = []
    for _ in range(ATTEMPTS):
        before = neighbours.read() if is_watched else None
        timed = measure.time_alternately(steps, clock, *settings.samples_of(workload))
        taken.append((neighbours.others_share(before, neighbours.read()) if before else None, timed))
        if not neighbours.disturbs(taken[-1][0]):
            break
    share, timed = min(taken, key=lambda pair: pair[0] or 0.0)
    entries = {name: timed_entry(sampled) for name, sampled in timed.items()}
    return entries, None if share is None else round(share, 4)


def timed_entry(sampled: Sampled) -> dict[str, Any]:
    """The recorded times of a provider: seconds per step, and the number of repeats per sample."""
    return {
        "status": "timed",
        "repeats": sampled.repeats,
        "samples_s": [float(f"{seconds:.5g}") for seconds in sampled.seconds],
        "faults": round(sampled.faults),
    }


def prepare(case: Case, providers: Sequence[Provider], warm_up: int) -> tuple[dict[str, Any], dict[str, Step]]:
    """Build every provider, check it and warm it up; return (an entry for each, the steps that passed)."""
    entries: dict[str, Any] = {}
    steps: dict[str, Step] = {}
    truths: dict[str, Outcome] = {}
    for provider in providers:
        reason = provider.missing(case.device)
        if reason is not None:
            entries[provider.name] = {"status": "missing", "reason": reason}
            continue
        if provider.objective is not None and provider.objective not in truths:
            truths[provider.objective] = gate.truth_of(case, provider.objective)
        try:
            given = replace(case, sets=[tensors.copy() for tensors in case.sets]) if provider.overwrites else case
            step = provider.build(given)
            entries[provider.name] = check(step, provider, case, truths)
            for index in range(warm_up):
                step(index)
        except Exception as error:  # report a failing provider and continue with the others
            first_line = str(error).strip().partition("\n")[0]
            entries[provider.name] = {"status": "failed", "reason": f"{type(error).__name__}: {first_line}"[:200]}
            continue
        if entries[provider.name]["status"] == "passed":
            steps[provider.name] = step
    return entries, steps


def check(step: Step, provider: Provider, case: Case, truths: dict[str, Outcome]) -> dict[str, Any]:
    """Run once and compare with the truth. A bound has nothing to compare."""
    outcome = step(0)
    if provider.objective is None:
        return {"status": "passed"}
    errors = gate.compare(outcome, truths[provider.objective])
    verdict = errors.verdict(case.workload.dtype)
    found = {"loss_error": errors.loss, "gradient_error": errors.gradient}
    return {"status": "passed", **found} if verdict is None else {"status": "wrong", "reason": verdict, **found}


def sizes(case: Case) -> dict[str, int]:
    """Sizes in bytes with which memory is compared."""
    workload, tensors = case.workload, case.sets[0]
    known = {"logits_bytes": workload.logits_bytes, "gradient_bytes": sum(leaf.nbytes for leaf in tensors.leaves)}
    if workload.family == "hidden":
        # The logits that our fused linear loss stores at a time, and an accumulator.
        chunk = default_chunk_size(workload.rows, tensors.leaves[1]) * workload.vocab * workload.item_bytes
        known["allowance_bytes"] = chunk + 4 * workload.vocab * workload.hidden
    return known


@contextmanager
def cpu_threads(threads: int) -> Iterator[None]:
    """Set the number of CPU threads; afterwards drop everything that was compiled or allocated."""
    try:
        with measure.torch_threads(threads):
            yield
    finally:
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def compiler_settings() -> AbstractContextManager[None]:
    """The best settings of torch.compile; without them it splits the `ntloss` classes and their backward pass fails."""
    import torch._dynamo  # takes seconds

    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress messages of other packages and the compiler."""
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def summary(record: Record) -> Iterator[str]:
    """A progress line per provider."""
    if record["memory"]:
        yield f"  {record['memory']} memory"
    if neighbours.disturbs(record["others_share"]):
        yield f"  DISTURBED: other processes used {record['others_share']:.0%} of the CPU time"
    for name, entry in record["providers"].items():
        if entry["status"] == "timed":
            low, median, high = results.percentiles(entry["samples_s"])
            yield f"    {name:26} {median * 1e3:9.3f} ms  [{low * 1e3:.3f}, {high * 1e3:.3f}]"
        else:
            yield f"    {name:26} {': '.join(filter(None, (entry['status'], entry.get('reason'))))}"
