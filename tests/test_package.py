"""The package: what importing it needs, how it is distributed, how it is checked."""

from __future__ import annotations

import email
import email.message
import json
import os
import re
import shutil
import subprocess
import symtable
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import ntl_kernels

from .conftest import HERE, LONGEST
from .refactoring_mistakes import read

PACKAGE = Path(ntl_kernels.__file__).parent
ROOT = Path(__file__).parent.parent


def test_imports_without_triton_and_transformers() -> None:
    program = """
import sys, torch
for name in ("triton", "transformers", "trl", "tokenizers"):
    sys.modules[name] = None
import ntl_kernels as k
numbers = k.NumberTokens.from_mapping({1: 1.0, 2: 2.0}, 5)
logits = torch.randn(3, 5, requires_grad=True)
k.cross_entropy_ntl(logits, torch.tensor([1, 2, 0]), numbers).backward()
hidden, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
k.linear_cross_entropy_ntl(hidden, weight, torch.tensor([1, 2, 0]), numbers).backward()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_names_are_where_they_belong() -> None:
    assert all(hasattr(ntl_kernels, name) for name in ntl_kernels.__all__)
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "kernels":
            assert "triton.language" not in path.read_text(), path


def test_no_package_hides_one_of_its_modules() -> None:
    """`from package import name` imports a submodule only if the package's own code has not bound its name."""
    for init in [*PACKAGE.rglob("__init__.py"), *(ROOT / "benchmarks").rglob("__init__.py")]:
        symbols = symtable.symtable(init.read_text(), str(init), "exec").get_symbols()
        bound = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
        assert not bound & {path.stem for path in init.parent.iterdir()}, init


def built(kind: str, folder: Path, out: Path) -> None:
    command = [sys.executable, "setup.py", "-q", kind, "-d", str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, built from a copy of its sources, and the wheel built from it."""
    folder, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("distributions")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder)
    for name in ("ntl_kernels", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    built("sdist", folder, out)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (folder / "unpacked").iterdir()
    stale = unpacked / "build" / "lib" / "ntl_kernels" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    built("bdist_wheel", unpacked, out)
    return out


def test_distributions_hold_the_package_and_what_installing_needs_alone(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    package = {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]
    in_wheel = wheel(distributions).namelist()
    assert package <= names and package <= set(in_wheel) and "ntl_kernels/stale.py" not in in_wheel
    assert {name.partition("/")[0].partition("-")[0] for name in in_wheel} == {"ntl_kernels"}


def wheel(distributions: Path) -> zipfile.ZipFile:
    (path,) = distributions.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(distributions: Path) -> email.message.Message:
    archive = wheel(distributions)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    return email.message_from_bytes(archive.read(name))


def test_the_wheel_works_where_there_is_no_checkout(distributions: Path, tmp_path: Path) -> None:
    """In an environment with only the wheel, which sees this one's packages (but not its editable installs)."""
    empty = tmp_path / "empty"
    venv.create(empty, with_pip=False)
    (site,) = (empty / "lib").glob("python*/site-packages")
    wheel(distributions).extractall(site)
    (site / "others.pth").write_text("\n".join([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]) + "\n")
    command = [str(empty / "bin" / "python"), "-I", shutil.copy(HERE / "try_wheel.py", tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(site) and found["version"] == ntl_kernels.__version__
    help_ = subprocess.run(
        [*command[:2], "-m", "ntl_kernels.demo", "--help"], cwd=tmp_path, capture_output=True, timeout=120
    )
    assert help_.returncode == 0 and b"--port" in help_.stdout, help_.stderr


def test_metadata(distributions: Path) -> None:
    """Author and links from CITATION.cff, which contains no version that could differ."""
    found = metadata(distributions)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nauthors:\n  - name: {found['Author']}\n" in citation and "\nversion:" not in citation
    assert found["License-Expression"] == "MIT" and not found["License"]
    assert found["Version"] == ntl_kernels.__version__ and "number token loss" in found["Keywords"]
    links = dict(link.split(", ", 1) for link in found.get_all("Project-URL"))
    assert links and all(link.startswith("https://") for link in links.values())
    assert links["Paper"] in citation and ("Repository" in links) == ("\nrepository-code:" in citation)
    description = found.get_payload()  # stands without the repository
    assert set(re.findall(r"\]\(([a-z]*:|#)?", description)) <= {"https:", "http:", "#"}
    assert "cross_entropy_ntl" in description and len(description) > len((ROOT / "README.md").read_text()) / 2


@pytest.mark.parametrize(("tag", "code"), [(f"v{ntl_kernels.__version__}", 0), ("v9.9.9", 1)])
def test_a_release_has_the_version_of_its_tag(tag: str, code: int, distributions: Path, tmp_path: Path) -> None:
    """The workflow's command, run on the build; publishing waits for its job, and has the only token."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = (workflow["jobs"][name] for name in ("build", "publish"))
    (check,) = (step["run"] for step in build["steps"] if step.get("name") == "The tag is the version")
    (tmp_path / "dist").symlink_to(distributions)
    done = subprocess.run(["bash", "-c", check], cwd=tmp_path, env={**os.environ, "GITHUB_REF_NAME": tag})
    assert done.returncode == code
    assert workflow["jobs"]["test"] == {"uses": "./.github/workflows/ci.yml"} and build["needs"] == "test"
    used = [step["uses"] for step in build["steps"] + publish["steps"] if "uses" in step]
    assert len(used) == 4 and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)
    assert workflow[True]["push"]["tags"] == ["v*"] and workflow["permissions"] == {"contents": "read"}  # YAML: on
    assert publish["needs"] == "build" and publish["environment"] == "pypi" and "permissions" not in build
    assert publish["permissions"] == {"id-token": "write"}


def test_every_way_to_check_runs_the_same_checks() -> None:
    """CI, the workflow and pre-commit use one command and one version of the linter."""
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    goals = dict(re.findall(r"^(test|test-all): (.*)$", makefile, flags=re.MULTILINE))
    quick = "lint types docs tests"
    assert goals == {"test": quick, "test-all": f"{quick}-all emulated other-torch frameworks"}
    assert 'make "${@:-test-all}"' in ci
    assert "- run: .ci/run ${{ matrix.goals }}\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (pinned,) = re.findall(r"ruff==([0-9.]+)", (ROOT / "setup.py").read_text())
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert f"rev: v{pinned}\n" in hooks and "python -m mypy" in hooks


def test_the_oldest_that_are_promised_are_tried() -> None:
    setup = (ROOT / "setup.py").read_text()
    (python,) = re.findall(r'python_requires=">=([0-9.]+)"', setup)
    (torch,) = re.findall(r'"torch>=([0-9.]+)"', setup)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (triton,) = re.findall(r'"triton>=([0-9.]+);', setup)
    assert f'python: "{python}", torch: "{torch}.0", triton: "{triton}.0"' in workflow
    makefile = (ROOT / "Makefile").read_text()
    assert f"torch=={torch}.0 torch==" in makefile and f" triton=={triton}.0)\n" in makefile
    page = (ROOT / "docs" / "pages" / "versions.md").read_text()
    for package, oldest in re.findall(r'"(torch|triton|transformers|accelerate|trl|peft|datasets)>=([0-9.]+)', setup):
        assert f"| {package} | {oldest} |" in page, package
    configuration = (ROOT / "pyproject.toml").read_text()
    assert f'python_version = "{python}"' in configuration
    assert f'target-version = "py{python.replace(".", "")}"' in configuration


STEPS = {"main": ["main job"], "bench": ["speed"], "test": ["linter", "types", "documentation", "tests"]}
ONCE = ["environment (once)", "installation (once)", "installation"]
STEPS["test-all"] = [*STEPS["test"], "emulated GPU", "emulated GPU", *ONCE, "tests"]
STEPS["test-all"] += ["tests with frameworks that pin other versions"]


@pytest.mark.parametrize("goal", STEPS)
def test_make_says_each_step_and_makes_the_environment_once(goal: str, tmp_path: Path) -> None:
    """Without running them: the steps on a fresh machine, and on one with the environment."""

    def steps() -> list[str]:
        environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "MAKEFLAGS")}
        command = ["make", "-n", goal, f"VENV={tmp_path}/venv"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return re.findall(r"^printf .* \"(.*)\"$", done.stdout, flags=re.MULTILINE)

    assert [step.partition(":")[0] for step in steps()] == [*ONCE, *STEPS[goal]]
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()
    (tmp_path / "venv" / f".installed-{'bench' if goal in ('main', 'bench') else 'dev'}").touch()
    assert [step.partition(":")[0] for step in steps()] == STEPS[goal]


def test_the_files_that_start_first_exist() -> None:
    assert all((HERE / name).is_file() for name in LONGEST)


def test_the_code_still_has_what_refactoring_mistakes_change() -> None:
    """Otherwise `python -m tests.refactoring_mistakes` would try fewer of them."""
    assert [mistake.id for mistake in read(HERE / "refactoring_mistakes.json") if mistake.is_stale] == []
