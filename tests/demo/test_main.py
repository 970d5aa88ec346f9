"""What the demo needs, and what it says without it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from ntl_kernels.demo.__main__ import NEEDED, main
from ntl_kernels.extras import installing


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("missing", [["gradio"], list(NEEDED)])
def test_what_is_missing_is_said_in_a_sentence(
    missing: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else object())
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.err == f"The demo needs {', '.join(missing)}: {installing('demo')}\n"
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


@pytest.mark.parametrize("given", ["abc", "70000", "0", "-1", "7_860"])
def test_a_port_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--port", given])
    assert ended.value.code == 2
    assert f"expected a port from 1 to 65535; got {given!r}" in capsys.readouterr().err


def test_an_address_that_cannot_be_listened_at_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert main(["--port", str(number)]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot listen at 127.0.0.1, port {number}: ")
    assert main(["--host", "256.256.256.256"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: cannot listen at 256.256.256.256") and said.count("\n") == 1


def test_ctrl_c_ends_the_demo_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(host: str, port: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ntl_kernels.demo.__main__.refuse_address", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"
