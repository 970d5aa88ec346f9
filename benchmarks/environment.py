"""What a result depends on besides the code: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
MACHINE_PATH = re.compile(r"""(?:^|(?<=[\s"'`=,(\[{]))(?:/|~/|\.\./)(?=[\w.])[^\s"'`,)\]}]+""")
"""A path from the root, from somebody's home or from above the project, alone, as a value or in brackets."""
PACKAGES = ("torch", "triton", "numpy", "transformers", "ntloss", "liger-kernel", "cut-cross-entropy", "quack-kernels")


def describe(program: str, device: torch.device, threads: int, commit: str | None = None) -> dict[str, Any]:
    """Everything a reader needs to repeat a measurement of ``benchmarks.<program>``.

    A copy of the project without git is told its commit, by ``commit`` or by COMMIT in the environment.
    """
    return {
        "device": device_name(device),
        "kind": "gpu" if device.type == "cuda" else "cpu",
        "hardware": gpu_hardware(device) if device.type == "cuda" else cpu_hardware(),
        "threads": threads,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {package: version_of(package) for package in PACKAGES},
        "commit": commit or git("rev-parse", "HEAD") or os.environ.get("COMMIT") or "unknown",
        "changed_files": changed_files("ntl_kernels", f"benchmarks/{program}"),
        "command": without_paths(" ".join([f"python -m benchmarks.{program}", *sys.argv[1:]])),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def without_paths(text: str) -> str:
    """The text without a machine's folders: paths of the project from its root, others as :func:`portable` has them."""
    return MACHINE_PATH.sub(lambda found: portable(Path(found.group())), text)


def portable(path: Path) -> str:
    """A path as it may stand in a result: outside the project ``DATA/NAME`` for a file, which has an ending, ``DATA``
    for a folder.
    """
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return f"DATA/{path.name}" if path.suffix else "DATA"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_info("Model name") or platform.processor() or platform.machine()


def slug(name: str) -> str:
    """A folder's name for a device."""
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
        **{name: cpu_info(field) for name, field in fields.items()},
    }


def cache_bytes(device: torch.device) -> int:
    """The L2 cache of a GPU; 0 where it does not matter."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def memory_bytes(device: torch.device) -> int:
    """All memory of a GPU; what a dry run of its suite pretends to have elsewhere."""
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 2**37


def cpu_info(field: str) -> str | None:
    """A field of lscpu."""
    try:
        output = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    except OSError:
        return None
    found = re.search(rf"^{re.escape(field)}:\s*(.+)$", output, re.MULTILINE)
    return found.group(1) if found else None


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def changed_files(*folders: str) -> list[str]:
    """What is not committed of the folders that a result depends on."""
    return (git("status", "--porcelain", "--", *folders) or "").splitlines()


def git(*arguments: str) -> str | None:
    """What git says about this checkout, if it is one."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
