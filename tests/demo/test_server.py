"""The demo over HTTP, without a browser: its files and answers, the size of uploads, the command line."""

from __future__ import annotations

import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest

from ntl_kernels.config import KINDS
from ntl_kernels.demo import picture, tokenizer
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


def answer_to(served: Server, sent: bytes) -> bytes:
    with socket.create_connection(served.server_address[:2], timeout=60) as connection:
        with suppress(OSError):  # it may have answered before the end
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


GOOD = json.dumps(picture.FIRST).encode()
VOCAB = {str(digit): digit for digit in range(10)} | {"km": 10}
MODEL, WHOLE = {"type": "WordLevel", "vocab": VOCAB, "unk_token": "km"}, {"version": "1.0", "added_tokens": []}
PADDING = {"strategy": "BatchLongest", "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
DOUBLED = {"type": "Replace", "pattern": {"String": "0"}, "content": "00"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SETTINGS: list[dict[str, Any]] = [{"label": [1]}, {"kind": {}}, {"weight": 1e999}]
SETTINGS += [{"heights": [height] * 11} for height in (10**400, -1, None, math.nan)]
PARTS: list[dict[str, Any]] = [
    *({}, {"pre_tokenizer": {"type": "FixedLength", "length": 0}}),  # the second makes the tokenizers package panic
    # These ask for more memory than there is, which would end the process.
    {"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 60}},
    {"normalizer": {"type": "Sequence", "normalizers": [[{"String": "0"}, "00"]] * 60}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**BYTES, "use_regex": False}] * 60}},
    {"padding": {**PADDING, "pad_to_multiple_of": 2**40}},
    {"model": {**MODEL, "vocab": {"0": 2**32 - 1, "km": 1}}},
]
BODIES = [GOOD, b"", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000]
BODIES += [json.dumps(picture.FIRST | each).encode() for each in SETTINGS]
BODIES += [json.dumps({**WHOLE, "model": MODEL, **each}).encode() for each in PARTS]
LINES = ["POST /picture HTTP/1.1", "POST /tokenizer?name=%00%ff HTTP/1.0", "GET / HTTP/1.1", "PUT / HTTP/1.1", "GET /"]
LINES += ["POST http://[::1 HTTP/1.1", "GET /%2e%2e/server.py HTTP/1.1", "BREW", f"GET /{'a' * 70_000} HTTP/1.1", "\0"]
HEADERS = ["Content-Length: {}", "Content-Length: -1", "Content-Length: 99999999999", "Transfer-Encoding: chunked"]
HEADERS += ["Content-Length: 5\r\nContent-Length: 7", "no colon", "\r\n".join(["X: y"] * 120), "É: \0"]
HOSTS = ["Host: 127.0.0.1:7860", "Host: localhost", "Host: [::1]:80", "Host: evil.example"]


def test_every_request_gets_an_answer_and_none_ends_the_demo(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 at random, 200 of them at once."""
    monkeypatch.setattr(tokenizer, "MOST_MEMORY", 2**29)  # which is full sooner
    chance, hostile = random.Random(0), []
    for number in range(512):
        body, cut = chance.choice(BODIES), chance.randrange(10_000)
        body = body if number % 4 else body[:cut] + chance.randbytes(9) + body[cut + number % 9 :]
        head = [chance.choice([*LINES[:2], chance.choice(LINES)]), chance.choice(HOSTS)]
        head.append(chance.choice([HEADERS[0], chance.choice(HEADERS)]).format(len(body)))
        hostile.append("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
    with ThreadPool(200) as pool:
        answers = pool.map(partial(answer_to, server), hostile[:200], chunksize=1)
    answers += [answer_to(server, sent) for sent in hostile[200:]]
    assert all(re.match(rb"HTTP/1.0 [24]|HTTP/1.0 50[15]|<|{", answer) for answer in answers)
    assert requested(server, "/picture", GOOD)[0] == 200 and "Traceback" not in capfd.readouterr().err


def test_a_file_that_never_ends_gets_an_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "SECONDS", 1)
    split = {"type": "Split", "pattern": {"Regex": "[0-9]+[0-9]*[a-j]"}, "behavior": "Isolated", "invert": False}
    model = {**MODEL, "vocab": VOCAB | {"0" * 4000: 11}}
    found = problem(server, "/tokenizer", json.dumps({**WHOLE, "model": model, "pre_tokenizer": split}).encode())
    assert found == (200, "tokenizer.json: its tokenizer needs more than 1 seconds or 2 GB of memory, or fails.")


def test_ctrl_c_while_the_page_is_in_use_is_no_crash() -> None:
    usual = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background may ignore it
    command = [sys.executable, "-m", "ntl_kernels.demo"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, preexec_fn=usual) as process:
        assert process.stdout and process.stderr
        port = int(re.findall("[0-9]+", process.stdout.readline())[4])

        def drag() -> None:
            with suppress(OSError, HTTPException):
                while True:
                    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                        connection.request("POST", "/picture", GOOD)
                        connection.getresponse().read()

        with ThreadPool(3) as pool:
            dragged = [pool.apply_async(drag) for _ in range(3)]
            time.sleep(1)
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            assert (process.wait(), process.stderr.read()) == (130, "interrupted\n")
            for each in dragged:
                each.get()


OWN = [("localhost:1", "http://localhost:1"), ("[::1]:80", None), ("10.0.0.7", "https://10.0.0.7")]
FOREIGN = [("evil.example", None), ("127.0.0.1.evil.org", None), ("", None), ("localhost:1", "http://evil.example")]
FOREIGN += [("localhost:1", "http://localhost:2"), ("localhost:1", "null")]


@pytest.mark.parametrize(("host", "origin"), [*OWN, *FOREIGN])
def test_pages_from_elsewhere_are_refused(host: str, origin: str | None, server: Server) -> None:
    """Also those whose name leads to this machine."""
    headers = {"Host": host} | ({"Origin": origin} if origin is not None else {})
    status = 200 if (host, origin) in OWN else 403
    found, (_, _, text) = requested(server, "/", None, **headers), requested(server, "/picture", GOOD, **headers)
    assert found[0] == status and found[1]["X-Content-Type-Options"] == "nosniff"
    assert (status == 403) == text.startswith('{"problem": "The demo answers only its own page; got host=')


def test_slow_clients_do_not_stay(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.3)
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        connection.sendall(b"POST /picture HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in connection.recv(1000)


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
    for host in ("256.256.256.256", "a..b", "a" * 64):
        assert main(["--host", host]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: cannot listen on {host}, port 7860 or higher: ") and said.count("\n") == 1


def test_the_first_free_port_until_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(served: Server) -> None:
        while not opened:  # by a thread
            time.sleep(0.01)
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
