"""The demo's page over HTTP, with the standard library alone.

GET answers with the page's files; POST asks `picture` or `tokenizer` and answers with JSON. Nothing is kept between two
requests, and no upload is written to disk.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from string import Template
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from . import picture, tokenizer

FIRST_PORT, LAST_PORT = 7860, 7959
MOST_BYTES = 20_000_000
"""Of a request. A larger one is refused unread."""
FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
ANSWERS: Mapping[str, Callable[[Mapping[str, str], bytes], dict[str, Any]]] = {
    "/picture": picture.answer,
    "/tokenizer": tokenizer.answer,
}
POLICY = "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'none'"
"""The browser loads nothing from elsewhere, and runs no script but the page's file."""


class Server(ThreadingTCPServer):
    """Where the demo listens."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, family: int, address: Any) -> None:
        self.address_family = family
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a browser may leave before it is answered
            super().handle_error(request, client_address)


def listening(host: str, port: int | None) -> Server:
    """A server at an address and a port; None for the first free port from :data:`FIRST_PORT` on.

    Raises:
        OSError: there is no such address, or its ports are taken.
    """
    for candidate in range(FIRST_PORT, LAST_PORT + 1) if port is None else [port]:
        family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
        try:
            return Server(family, address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or candidate in (port, LAST_PORT):
                raise
    raise AssertionError("the last port is listened at, or its error raised")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        name = FILES.get(urlsplit(self.path).path)
        if name is None:
            self.reply(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.")
        else:
            self.reply(HTTPStatus.OK, TYPES[Path(name).suffix], content_of(name))

    def do_POST(self) -> None:
        """The answer of :data:`ANSWERS`, or {"problem": a sentence}.

        The page does not send a file that is too large, since a browser may lose the answer to a body that is not read.
        It tells the file's size instead, as "size".
        """
        url = urlsplit(self.path)
        question = dict(parse_qsl(url.query))
        length = whole_number(self.headers.get("Content-Length", ""))
        if url.path not in ANSWERS:
            self.reply_json(HTTPStatus.NOT_FOUND, {"problem": "There is no such page."})
        elif length is None:
            self.reply_json(HTTPStatus.LENGTH_REQUIRED, {"problem": "A request must tell its length."})
        elif (size := max(length, whole_number(question.get("size", "")) or 0)) > MOST_BYTES:
            self.reply_json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"problem": too_large(question, size)})
        else:
            self.reply_json(HTTPStatus.OK, ANSWERS[url.path](question, self.rfile.read(length)))

    def reply_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self.reply(status, "application/json", json.dumps(content))

    def reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing: a drag makes hundreds of requests."""


def content_of(name: str) -> str:
    """A file of the page; the HTML with what only Python knows."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    if name != "page.html":
        return text
    return Template(text).substitute(kinds=picture.kinds(), first=picture.first(), most_bytes=MOST_BYTES)


def whole_number(text: str) -> int | None:
    """The number that a text is; None if it is none."""
    return int(text) if re.fullmatch("[0-9]{1,15}", text) else None


def too_large(question: Mapping[str, str], size: int) -> str:
    """Why a request is refused."""
    return (
        f"{question.get('name', 'The request')} has {size:,} bytes; at most {MOST_BYTES:,} are read "
        f"({MOST_BYTES // 10**6} MB). Python has no limit: print(NumberTokens.from_tokenizer(tokenizer).describe())"
    )
