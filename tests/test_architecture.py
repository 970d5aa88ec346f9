"""Imports and calls run one way: down the layers that pyproject.toml lists for import-linter."""

from __future__ import annotations

import inspect
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from importlinter import api
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

import ntl_kernels
from ntl_kernels import NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl
from ntl_kernels.parallel import vocab_parallel_cross_entropy_ntl, vocab_parallel_linear_cross_entropy_ntl

PACKAGE = Path(ntl_kernels.__file__).parent
ROOT = PACKAGE.parent
NUMBERS = NumberTokens.from_mapping({1: 1.0, 2: 2.0}, 5)
LABELS = torch.tensor([1, 2, 0])


def contracts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    return [contract for contract in found if contract["type"] == "layers"]


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("tracing.py", "from . import ops"),
        ("dispatch.py", "def late() -> None:\n    from .parallel import tensors"),
        ("parallel/steps.py", "from .logits import Split"),
        ("backends/launch.py", "def late() -> None:\n    from .triton import LANES"),
        ("kernels/walk.py", "from .losses import row_losses_kernel"),
    ],
)
def test_an_upward_import_is_found(importer: str, statement: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in (PACKAGE.name, "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    assert linted(tmp_path).returncode == 0
    with (tmp_path / PACKAGE.name / importer).open("a") as file:
        file.write(f"\n\n{statement}\n")
    done = linted(tmp_path)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout


def module_of(code: CodeType) -> str | None:
    """The package's module that code stands in."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def caller_of(frame: FrameType) -> str | None:
    """The package's module that called, through whatever of torch lies between."""
    above = frame.f_back
    while above is not None and module_of(above.f_code) is None:
        above = above.f_back
    return None if above is None else module_of(above.f_code)


def calls_of(run: Callable[[], object]) -> set[tuple[str, str]]:
    """(caller, called) for all calls from one module of the package to another.

    A function within a function is what a module hands down to be called: work for a block, say. It does not count.
    """
    found = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        is_handed_down = frame.f_code.co_flags & inspect.CO_NESTED
        called = module_of(frame.f_code) if event == "call" and not is_handed_down else None
        caller = None if called is None else caller_of(frame)
        if called is not None and caller is not None and caller != called:
            found.add((caller, called))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def heights(module: str) -> dict[str, int]:
    """For each list of layers that has a place for the module: how high it is."""
    found = {}
    for contract in contracts():
        for container in contract["containers"]:
            name = f"ntl_kernels.{module}".removeprefix(f"{container}.").partition(".")[0]
            for depth, layer in enumerate(contract["layers"]):
                if name in layer.replace(":", "|").replace(" ", "").split("|"):
                    found[container] = -depth
    return found


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def plain(logits: Tensor, hidden: Tensor, weight: Tensor, backend: str, _: dist.ProcessGroup) -> None:
    cross_entropy_ntl(logits, LABELS, NUMBERS, backend=backend).backward()
    cross_entropy_ntl(logits, LABELS, NUMBERS, backend=backend, reduction="none").sum().backward()
    linear_cross_entropy_ntl(hidden, weight, LABELS, NUMBERS, backend=backend).backward()


def watched(*arguments: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        plain(*arguments)


def sharded(logits: Tensor, hidden: Tensor, weight: Tensor, backend: str, group: dist.ProcessGroup) -> None:
    shard: dict[str, Any] = {"group": group, "vocab_start": 0, "backend": backend}
    vocab_parallel_cross_entropy_ntl(logits, LABELS, NUMBERS, **shard).backward()
    vocab_parallel_linear_cross_entropy_ntl(hidden, weight, LABELS, NUMBERS, **shard).backward()


def sharded_and_watched(*arguments: Any) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        sharded(*arguments)


def spread(logits: Tensor, hidden: Tensor, weight: Tensor, backend: str, _: dist.ProcessGroup) -> None:
    mesh = init_device_mesh("cpu", (1,))
    for placement, of_rows in ((Shard(1), Replicate()), (Shard(0), Shard(0))):
        given, labels = (
            DTensor.from_local(part, mesh, [where]) for part, where in ((logits, placement), (LABELS, of_rows))
        )
        output = cross_entropy_ntl(given, labels, NUMBERS, return_parts=True, backend=backend)
        output.loss.to_local().backward()
    head = DTensor.from_local(weight, mesh, [Shard(0)])
    linear_cross_entropy_ntl(hidden, head, LABELS, NUMBERS, backend=backend).backward()


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("road", [plain, watched, sharded, sharded_and_watched, spread])
def test_calls_run_one_way(road: Callable[..., None], backend: str, group: dist.ProcessGroup) -> None:
    """Whoever follows a call, also into its backward pass, never comes to a layer above the function that was left."""
    logits, hidden, weight = (torch.randn(shape, requires_grad=True) for shape in ((3, 5), (3, 4), (5, 4)))
    arguments = logits, hidden, weight, backend, group
    road(*arguments)  # imports what is imported late
    calls = calls_of(lambda: road(*arguments))
    assert {"checks", "dispatch", "problem"} <= {called for _, called in calls}
    for caller, called in sorted(calls):
        above, below = heights(caller), heights(called)
        assert above and below, (caller, called)
        assert all(below[where] <= above[where] for where in above.keys() & below.keys()), (caller, called)


def test_the_page_shows_these_layers() -> None:
    (layers,) = (contract["layers"] for contract in contracts() if contract["containers"] == ["ntl_kernels"])
    assert [names for names, _ in runpy.run_path(str(ROOT / "docs" / "figures.py"))["LAYERS"]] == list(layers)


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "pages" / "architecture.md").read_text()
    names = set(re.findall(r"`([\w./]+(?:\.py|\.md|\.toml|/\w+))`", page))
    assert len(names) > 30
    for name in names:
        assert any((folder / name).exists() for folder in (ROOT, PACKAGE, PACKAGE / "integrations" / "transformers")), (
            name
        )
