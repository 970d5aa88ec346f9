"""What the demo needs, and what it says without it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ntl_kernels.demo.__main__ import NEEDED, main


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("missing", [["gradio"], list(NEEDED)])
def test_what_is_missing_is_said_in_a_sentence(
    missing: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else object())
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.err == f'The demo needs {", ".join(missing)}: pip install "ntl_kernels[demo]"\n'
    assert said.out == ""


def test_the_computations_need_neither_gradio_nor_transformers() -> None:
    program = """
import sys
for name in ("gradio", "transformers", "tokenizers", "triton"):
    sys.modules[name] = None
import ntl_kernels.demo.live, ntl_kernels.demo.tokenizer_file, ntl_kernels.demo.views
from ntl_kernels.demo.losses import Options, Shape, VOCABULARIES, compare
print(compare(VOCABULARIES["digits"], 4, Shape(5), Options()).number_mass)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1)


def test_the_library_does_not_import_its_demo() -> None:
    done = run("import sys, ntl_kernels; print([name for name in sys.modules if 'gradio' in name or '.demo' in name])")
    assert done.stdout.strip() == "[]", done.stderr
