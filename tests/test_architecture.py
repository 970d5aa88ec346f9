"""Imports run one way: down the layers that pyproject.toml lists for import-linter, which `make lint` runs."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter import api

import ntl_kernels

PACKAGE = Path(ntl_kernels.__file__).parent
ROOT = PACKAGE.parent


def linted(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("tracing.py", "from . import ops"),
        ("dispatch.py", "def late() -> None:\n    from .parallel import tensors"),
        ("kernels/walk.py", "from .losses import row_losses_kernel"),
    ],
)
def test_an_upward_import_is_found(importer: str, statement: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in (PACKAGE.name, "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    with (tmp_path / PACKAGE.name / importer).open("a") as file:
        file.write(f"\n\n{statement}\n")
    done = linted(tmp_path)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout


def test_the_page_shows_these_layers() -> None:
    contracts = api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["ntl_kernels"])
    assert [names for names, _ in runpy.run_path(str(ROOT / "docs" / "figures.py"))["LAYERS"]] == list(layers)


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "pages" / "contributing.md").read_text()
    folders = ROOT, PACKAGE, PACKAGE / "integrations" / "transformers"
    for name in set(re.findall(r"`([\w./]+(?:\.py|\.md|\.toml|/\w+))`", page)):
        assert any((folder / name).exists() for folder in folders), name
