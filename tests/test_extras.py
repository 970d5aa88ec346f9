"""A module whose library is missing raises an error with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ntl_kernels import extras
from ntl_kernels.extras import installing, needs

ROOT = Path(__file__).parents[1]

BLOCKED = """
import sys
sys.modules[{library!r}] = None  # the import then fails as if it were not installed
import ntl_kernels
import {module}
"""


@pytest.mark.parametrize(
    ("module", "who", "library", "install"),
    [
        ("transformers", "ntl_kernels.integrations", "transformers", f'-e "{ROOT}[transformers]"'),
        ("trl", "ntl_kernels.integrations.trl", "TRL", f'-e "{ROOT}[trl]"'),
        ("axolotl", "ntl_kernels.integrations.axolotl", "Axolotl", '"axolotl>=0.19"'),
    ],
)
def test_a_missing_library_is_named_with_what_installs_it(module: str, who: str, library: str, install: str) -> None:
    code = BLOCKED.format(module=f"ntl_kernels.integrations.{module}", library=library.lower())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    said = done.stderr.rstrip().splitlines()[-1]
    assert done.returncode == 1 and said == f"ImportError: {who} needs {library}: pip install {install}"


def test_other_errors_of_the_imports_stay_what_they_are() -> None:
    for error in (ModuleNotFoundError("no", name="trl_of_others"), ImportError("no", name="trl"), ValueError("no")):
        with pytest.raises(type(error)) as raised, needs("here", "TRL", "trl"):
            raise error
        assert raised.value is error


def test_a_part_of_the_library_that_is_missing_is_the_library() -> None:
    with pytest.raises(ImportError, match='here needs TRL: pip install "trl"') as raised, needs("here", "TRL", "trl"):
        raise ModuleNotFoundError("no", name="trl.trainer")
    assert raised.value.name == "trl.trainer" and isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_the_library_itself_imports_none_of_them() -> None:
    heavy = "{'transformers', 'trl', 'axolotl', 'lightning', 'deepspeed', 'accelerate', 'pydantic', 'sklearn', 'scipy'}"
    code = f"import sys, ntl_kernels.evaluation, ntl_kernels.ntloss; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_an_extra_is_installed_from_the_checkout_or_beside_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installing("demo") == f'pip install -e "{ROOT}[demo]"'
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "ntl_kernels" / "extras.py"))
    assert installing("demo") == 'pip install "ntl_kernels[demo]"'
