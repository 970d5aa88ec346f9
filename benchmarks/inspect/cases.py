"""The cases to compile. A case is launched on tensors without memory; its launch is intercepted and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntl_kernels.backends.contract import num_statistics
from ntl_kernels.config import NTLConfig
from ntl_kernels.problem import NUM_FIELDS, Problem, RowInputs
from ntl_kernels.spec import spec_of
from ntl_kernels.tokens import Group, NumberTable, NumberTokens

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
VOCAB_SIZES = {"aligned": 128256, "unaligned": 50257, "short": 32000}
BATCH = 2**14
"""Rows: so many that the L2 cache of no GPU holds their gradient."""
ROWS = ("aligned", "unaligned")
"""The rows of every kernel; short rows use fewer threads and are otherwise like aligned ones."""
KEPT_VOCAB_SIZES = {"2k": 2000, "8k": 8000, "16k": 16000, "64k": 65521}
"""Together with the above, rows for each line of the table of kept rows (:mod:`ntl_kernels.backends.tiles`)."""
NUMBERS = (10, 1110)
MANY_NUMBERS = 4096
"""As many as take all threads of a program."""
REWEIGHED = NTLConfig(reweigh=True)
LOSSES: dict[str, dict[str, Any]] = {
    "default": {},
    "reweighed": {"config": REWEIGHED},
    "softcap": {"softcap": 30.0},
    "softcap-smoothing": {"softcap": 30.0, "label_smoothing": 0.1, "config": REWEIGHED},
    "label_sigma-smoothing": {"config": replace(REWEIGHED, label_sigma=1.0), "label_smoothing": 0.1},
    "huber": {"config": replace(REWEIGHED, kind="huber")},
    "soft_labels": {"config": NTLConfig("soft_labels", label_sigma=1.0)},
    "groups": {"config": replace(REWEIGHED, squash_factor=9.0), "width": 1000},  # those of Llama 3, by length
}
"""Options that compile to different kernels; combined with reweigh, which takes the most registers. ``width`` is the
size of the largest of several groups of number tokens."""


class Case(NamedTuple):
    """One thing to compile. ``kernel`` is a key of :data:`LAUNCHES`, ``loss`` one of :data:`LOSSES`."""

    kernel: str
    target: str
    dtype: str
    rows: str
    numbers: int
    loss: str = "default"

    def __str__(self) -> str:
        return f"{self.dtype}, {self.rows} rows, {self.numbers} numbers" + (f", {self.loss}" * (self.loss != "default"))


class Launch(NamedTuple):
    """The intercepted launch of a backend function."""

    kernel: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Recorder:
    """Replaces a kernel and records its launch."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: object) -> Any:
        return lambda *arguments, **keywords: self.launches.append(Launch(self.kernel, arguments, keywords))


class Arguments(NamedTuple):
    """The arguments of a case's launch: tensors on the device "meta", which have shapes but no memory."""

    logits: Tensor
    gradient: Tensor
    fields: Tensor
    mean: Problem
    per_row: Problem


def arguments_of(case: Case) -> Arguments:
    """The arguments to launch a case with."""
    vocab_size, k, options = (VOCAB_SIZES | KEPT_VOCAB_SIZES)[case.rows], case.numbers, dict(LOSSES[case.loss])
    logits = meta(1, BATCH, vocab_size, dtype=DTYPES[case.dtype])
    config, width = options.pop("config", NTLConfig()), options.pop("width", k)
    groups = [{0: 0.0, 1: 1.0}] if width == k else [{0: 0.0, 1: 1.0}, {2: 0.0}]
    of_tokens = None if width == k else meta(k, len(Group._fields))
    table = NumberTable(meta(k, dtype=torch.int32), meta(k), meta(vocab_size, dtype=torch.int32), of_tokens, width)
    of_mean, of_rows = (
        spec_of(config, NumberTokens.from_groups(groups, vocab_size), reduction=reduction, **options)
        for reduction in ("mean", "none")
    )
    rows = RowInputs(meta(BATCH, dtype=torch.int64), meta(BATCH))
    mean = Problem(rows, meta(), meta(), config.weight, table, of_mean, "triton")
    per_row = mean._replace(num_tokens=None, num_numbers=None, spec=of_rows)
    return Arguments(logits, torch.empty_like(logits), meta(NUM_FIELDS, BATCH), mean, per_row)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


LAUNCHES: dict[str, Any] = {
    "losses_and_gradients": lambda b, a: b.row_losses(a.logits, a.mean, a.fields, a.gradient),
    "losses": lambda b, a: b.launch_row_losses(a.logits, a.per_row, a.fields, a.fields[0], None),
    "gradients": lambda b, a: b.row_gradients(a.logits, a.per_row, None, a.fields, None, a.fields[1], a.gradient),
    "scale": lambda b, a: b.scale_(a.gradient, meta()),
    "count": lambda b, a: b.count(a.mean, a.logits.shape[-1], torch.float32),
    "sum": lambda b, a: b.sums_of_programs(a.fields, b.TOTAL_PROGRAMS),
    "finish": lambda b, a: b.finish(a.fields, a.per_row),
    "shard_statistics": lambda b, a: shards().shard_statistics(a.logits, a.mean, 0),
    "shard_gradients": lambda b, a: b.row_gradients(a.logits, a.mean, 0, a.fields, every_number(a), meta(), a.gradient),
    "merge_shards": lambda b, a: shards().merge_shards(meta(8, num_statistics(a.mean.spec), 65), None, a.mean),
}
"""Kernel -> function that launches it with backend b and arguments a."""
READ_ONLY = ("losses", "shard_statistics")
"""Kernels that read rows but write none."""
LOSS_KERNELS = ("losses_and_gradients", "losses", "gradients", "shard_statistics", "shard_gradients")
"""Kernels that depend on the options of the loss."""
ROW_KERNELS = (*LOSS_KERNELS, "scale")
"""Kernels that read or write rows."""


def shards() -> Any:
    """The backend of shards."""
    from ntl_kernels.backends import triton_shards

    return triton_shards


def every_number(arguments: Arguments) -> Tensor | None:
    """The logits of all number tokens of all ranks, for a cumulative loss."""
    is_smooth = arguments.mean.spec.is_cumulative
    return meta(BATCH, arguments.mean.table.ids.numel()) if is_smooth else None


def all_cases() -> list[Case]:
    """Every kernel for every target, with aligned and unaligned rows, both dtypes, and few and many numbers."""
    cases = []
    for target in TARGETS:
        for kernel in LAUNCHES:
            if kernel not in ROW_KERNELS:
                cases.append(Case(kernel, target, "fp32", "aligned", 10))
                continue
            numbers = NUMBERS if kernel != "scale" else NUMBERS[:1]
            cases += [Case(kernel, target, dtype, rows, k) for dtype in DTYPES for rows in ROWS for k in numbers]
            if kernel in LOSS_KERNELS:
                cases += [Case(kernel, target, d, "unaligned", 1110, loss) for d in DTYPES for loss in LOSSES][1:]
            if kernel == "losses_and_gradients":
                cases += [Case(kernel, target, d, rows, 10) for d in DTYPES for rows in ("short", *KEPT_VOCAB_SIZES)]
                many = [Case(kernel, target, d, rows, MANY_NUMBERS) for d in DTYPES for rows in ("short", "unaligned")]
                cases += [case._replace(loss=loss) for case in many for loss in LOSSES]
    return list(dict.fromkeys(cases))


def record(case: Case) -> Launch:
    """The launch of the backend for a case on its target."""
    from ntl_kernels.backends import triton as backend

    modules = (backend, shards())
    kernels = [(m, name, kernel) for m in modules for name, kernel in vars(m).items() if name.endswith("_kernel")]
    launches: list[Launch] = []
    major = int(case.target.removeprefix("sm_")) // 10 if platform_of(case.target) == "cuda" else 0
    platform, major_of = backend.PLATFORM, backend.major_of
    try:
        backend.PLATFORM = platform_of(case.target)
        setattr(backend, "major_of", lambda device: major)  # noqa: B010 (for mypy)
        for module, name, kernel in kernels:
            setattr(module, name, Recorder(kernel, launches))
        LAUNCHES[case.kernel](backend, arguments_of(case))
    finally:
        backend.PLATFORM = platform
        setattr(backend, "major_of", major_of)  # noqa: B010
        for module, name, kernel in kernels:
            setattr(module, name, kernel)
    (launch,) = launches
    return launch


def platform_of(target: str) -> str:
    return "hip" if target.startswith("gfx") else "cuda"


def compile_launch(launch: Launch, target: str) -> Any:
    """Compile a launch ahead of time for a target such as "sm_90" or "gfx942"."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ntl_kernels.backends.tiles import LANES

    if not hasattr(launch.kernel, "cache_key"):
        raise RuntimeError("kernels cannot be compiled with TRITON_INTERPRET=1 in the environment")
    names = launch.kernel.arg_names
    options = {name: value for name, value in launch.keywords.items() if name not in names}
    values = dict(zip(names, launch.arguments, strict=False)) | {
        name: value for name, value in launch.keywords.items() if name in names
    }
    constants: dict[tuple[int, ...], Any] = {}
    signature = {
        name: "constexpr" if name.isupper() else signature_of(values[name], (i,), constants)
        for i, name in enumerate(names)
    }
    constants |= {(i,): values[name] for i, name in enumerate(names) if name.isupper()}
    source = ASTSource(launch.kernel, signature, constexprs=constants)
    platform = platform_of(target)
    architecture = target if platform == "hip" else int(target.removeprefix("sm_"))
    return triton.compile(source, target=GPUTarget(platform, architecture, LANES[platform]), options=options)


TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}


def signature_of(value: Any, path: tuple[int, ...], constants: dict[tuple[int, ...], Any]) -> Any:
    """Triton's name for the type of an argument; None becomes a constant at its path."""
    if isinstance(value, tuple):
        parts = [signature_of(part, (*path, i), constants) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if value is None:
        constants[path] = None
        return "constexpr"
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"
