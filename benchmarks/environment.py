"""The environment of a result: machine, versions, commit and command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
MACHINE_PATH = re.compile(r"""(?:^|(?<=[\s"'`=,(\[{]))(?:/|~/|\.\./)(?=[\w.])[^\s"'`,)\]}]+""")
"""A path from the root, a home directory or above the project, alone, as a value or in brackets."""
PACKAGES = (
    *("torch", "triton", "numpy", "transformers", "ntloss", "liger-kernel", "cut-cross-entropy", "quack-kernels"),
    *("unsloth", "flash-linear-attention"),
)


def describe(
    program: str, device: torch.device, threads: int | None = None, command: str | None = None
) -> dict[str, Any]:
    """Everything that is needed to repeat a measurement of ``benchmarks.<program>``.

    ``threads`` defaults to torch's setting and ``command`` to that of this process. In a copy of the project, which may
    have no git or an older one, the environment variable COMMIT provides the commit.
    """
    copied = os.environ.get("COMMIT")
    measured = "ntl_kernels", f"benchmarks/{program}"
    return {
        "device": device_name(device),
        "kind": "gpu" if device.type == "cuda" else "cpu",
        "hardware": gpu_hardware(device) if device.type == "cuda" else cpu_hardware(),
        "threads": threads or torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {package: version_of(package) for package in PACKAGES},
        "commit": copied or git("rev-parse", "HEAD") or "unknown",
        "changed_files": [] if copied else git("status", "--porcelain", "--", *measured).splitlines(),
        "command": without_paths(command or " ".join([f"python -m benchmarks.{program}", *sys.argv[1:]])),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def without_paths(value: Any) -> Any:
    """The value without machine-specific folders in its strings: paths in the project become relative to its root,
    others are replaced by :func:`portable`.
    """
    if isinstance(value, dict):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_paths(each) for each in value]
    return MACHINE_PATH.sub(lambda found: portable(Path(found[0])), value) if isinstance(value, str) else value


def portable(path: Path) -> str:
    """A path in the form used in results. Outside the project, a file (with a suffix) becomes ``DATA/NAME`` and a
    folder ``DATA``.
    """
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return f"DATA/{path.name}" if path.suffix else "DATA"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return lscpu().get("Model name") or platform.processor() or platform.machine()


def slug(name: str) -> str:
    """The folder name of a device."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def gpu_hardware(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "runtime": torch.version.cuda or torch.version.hip,
    }


def cpu_hardware() -> dict[str, Any]:
    fields = {"l1d": "L1d cache", "l2": "L2 cache", "l3": "L3 cache", "family": "CPU family", "model": "Model"}
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "vector": torch.backends.cpu.get_cpu_capability(),
        **{name: lscpu().get(field) for name, field in fields.items()},
    }


@cache
def lscpu() -> dict[str, str]:
    """The output of lscpu, by field."""
    lines = output_of("lscpu", LC_ALL="C").splitlines()
    return {field.strip(): value.strip() for field, _, value in (line.partition(":") for line in lines)}


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git(*arguments: str) -> str:
    """The output of a git command in this checkout; empty outside a checkout."""
    return output_of("git", *arguments).strip()


def output_of(*command: str, **environment: str) -> str:
    """The output of a command run in the project's folder; empty if the command is missing or fails."""
    try:
        settings = {**os.environ, **environment}
        return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
