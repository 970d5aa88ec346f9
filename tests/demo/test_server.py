"""The demo over HTTP, without a browser: its files and answers, the size of uploads, the command line."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from ntl_kernels.config import KINDS
from ntl_kernels.demo import picture
from ntl_kernels.demo import server as serving
from ntl_kernels.demo.__main__ import main
from ntl_kernels.demo.server import FILES, MOST_BYTES, Server
from ntl_kernels.extras import installing


def requested(served: Server, path: str, content: bytes | None = None, **headers: str) -> tuple[int, Any, str]:
    """(status, headers, text) of a GET, or of a POST if there is content."""
    with closing(HTTPConnection(*served.server_address[:2], timeout=60)) as connection:
        connection.request("GET" if content is None else "POST", path, content, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()


def problem(served: Server, path: str, content: bytes = b"", **headers: str) -> tuple[int, str]:
    status, _, text = requested(served, path, content, **headers)
    return status, json.loads(text)["problem"]


def test_the_page_is_served_and_asks_for_nothing_elsewhere(server: Server) -> None:
    for path, name in FILES.items():
        status, headers, text = requested(server, path)
        assert status == 200 and name.rpartition(".")[2] in headers["Content-Type"].replace("javascript", "js")
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert "//" not in re.sub(r"http://www.w3.org/2000/svg|(^|\s)// ", "", text), "an address"
    page = requested(server, "/")[2]
    assert (
        all(f"<option>{kind}</option>" in page for kind in KINDS)
        and f'data-most-bytes="{MOST_BYTES}"' in page
        and "$" not in page
    )
    assert requested(server, "/../server.py")[0] == requested(server, "/server.py")[0] == 404


def test_answers_are_json_whatever_the_request(server: Server) -> None:
    content = json.dumps(picture.FIRST).encode()
    assert json.loads(requested(server, "/picture", content)[2]) == picture.answer({}, content)
    status, words = problem(server, "/tokenizer?name=a%20b.json", b"{")
    assert status == 200 and words.startswith("a b.json is not JSON")
    assert problem(server, "/server.py") == (404, "Page not found.")
    for length in ("-1", "abc", "9" * 5000):
        found = problem(server, "/picture", **{"Content-Length": length})
        assert found == (411, "The request needs a valid Content-Length.")


def test_an_upload_that_is_too_large_is_refused_unread(server: Server) -> None:
    """Its bytes never come, so that whoever waited for them would not answer."""
    words = "big.json has 20,000,001 bytes; the limit is 20,000,000 (20 MB)."
    status, said = problem(server, "/tokenizer?name=big.json", **{"Content-Length": str(MOST_BYTES + 1)})
    assert status == 413 and said.startswith(words)
    status, said = problem(server, f"/tokenizer?name=big.json&size={MOST_BYTES + 1}")
    assert status == 413 and said.startswith(words)
    status, said = problem(server, f"/tokenizer?name=big.json&size={MOST_BYTES}")
    assert status == 200 and said.startswith("big.json is not JSON")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([]) == 2
    assert capsys.readouterr() == ("", f"The demo needs tokenizers: {installing('demo')}\n")


def test_the_library_does_not_import_its_demo_nor_the_demo_tokenizers() -> None:
    program = """
import sys
for name in ("transformers", "tokenizers", "triton"):
    sys.modules[name] = None
import ntl_kernels
print([name for name in sys.modules if ".demo" in name])
from ntl_kernels.demo import picture, server
print(list(picture.answer({}, b'{"heights": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "label": 4}'))[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\narrows\n", done.stderr


@pytest.mark.parametrize("given", ["abc", "70000", "0", "-1", "7_860"])
def test_an_invalid_port_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--port", given])
    assert ended.value.code == 2
    assert f"expected a port from 1 to 65535; got {given!r}" in capsys.readouterr().err


def test_an_address_that_cannot_be_listened_on_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert main(["--port", str(number)]) == 2
    assert capsys.readouterr().err.startswith(f"error: cannot listen on 127.0.0.1, port {number}: ")
    assert main(["--host", "256.256.256.256"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: cannot listen on 256.256.256.256, port 7860 or higher: ") and said.count("\n") == 1


def test_the_first_free_port_until_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(served: Server) -> None:
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr(Server, "serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", opened.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setattr(serving, "FIRST_PORT", number)
        monkeypatch.setattr(serving, "LAST_PORT", number + 50)
        assert main(["--open"]) == 130
    assert number < int(opened[0].removeprefix("http://127.0.0.1:").rstrip("/")) <= number + 50
    assert capsys.readouterr() == (f"The demo is at {opened[0]} (press Ctrl-C to stop)\n", "interrupted\n")
