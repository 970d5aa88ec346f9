"""The demo's page over HTTP, with the standard library alone.

GET returns the page's files; POST calls `picture` or `tokenizer` and returns JSON. Nothing is kept or written to disk.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import sys
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from string import Template
from threading import Timer
from typing import Any
from urllib.parse import parse_qsl

from ..config import KINDS
from . import picture, tokenizer
from .tokenizer import whole_number

FIRST_PORT, LAST_PORT = 7860, 7959
MOST_BYTES = 20_000_000
"""The maximum size of a request; a larger one is refused unread."""
FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
ANSWERS = {"/picture": picture.answer, "/tokenizer": tokenizer.bounded_answer}
POLICY = "default-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'none'"
"""The browser loads nothing from elsewhere and runs only the page's own script."""
SECONDS = 30  # in which a request must arrive
OWN_HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE)
"""Anyone may point a name to this machine, but not an address."""


class Server(ThreadingTCPServer):
    """The demo's server."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, family: int, address: Any, name: str = "localhost") -> None:
        self.address_family, self.name = family, name
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if self.address_family == socket.AF_INET6 else f"http://{host!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a browser may disconnect before the response
            super().handle_error(request, client_address)


def listening(host: str, port: int | None) -> Server:
    """A server on a host and port; None for the first free port from :data:`FIRST_PORT`. Raise an OSError if the host
    does not exist, or its ports are taken."""
    for candidate in range(FIRST_PORT, LAST_PORT + 1) if port is None else [port]:
        family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
        try:
            return Server(family, address, host)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or candidate in (port, LAST_PORT):
                raise
    raise AssertionError("the last port is bound, or its error is raised")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = 2 * SECONDS  # of a client that does not read

    def setup(self) -> None:
        super().setup()
        self.limit = Timer(SECONDS, self.connection.shutdown, [socket.SHUT_RD])
        self.limit.start()

    def finish(self) -> None:
        self.limit.cancel()
        super().finish()

    def parse_request(self) -> bool:
        """Whether a request is valid and from this page; others that a browser has open could send some, too. If not,
        it is answered here."""
        if not super().parse_request():
            return False
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        is_own = OWN_HOST.fullmatch(host) or host.partition(":")[0].lower() == self.server.name.lower()
        is_own = bool(is_own) and origin in (None, f"http://{host}", f"https://{host}")
        if not is_own:
            self.problem(HTTPStatus.FORBIDDEN, f"The demo answers only its own page; got {host=}, {origin=}.")
        self.path, _, self.query = self.path.partition("?")
        return is_own

    def do_GET(self) -> None:
        if name := FILES.get(self.path):
            self.reply(HTTPStatus.OK, TYPES[Path(name).suffix], content_of(name))
        else:
            self.reply(HTTPStatus.NOT_FOUND, "text/plain", "Page not found.")

    def do_POST(self) -> None:
        """The answer of :data:`ANSWERS`, or {"problem": a sentence}.

        The page does not send a file that is too large, since a browser may lose the response to an unread body. It
        sends the file's size instead, as "size".
        """
        question = dict(parse_qsl(self.query))
        length = whole_number(self.headers.get("Content-Length", ""))
        size = max(length or 0, whole_number(question.get("size", "")) or 0)
        if self.path not in ANSWERS:
            return self.problem(HTTPStatus.NOT_FOUND, "Page not found.")
        if length is None:
            return self.problem(HTTPStatus.LENGTH_REQUIRED, "The request needs a valid Content-Length.")
        if size > MOST_BYTES:
            problem = f"{question.get('name', 'The request')} has {size:,} bytes; the limit is {MOST_BYTES:,} "
            problem += f"({MOST_BYTES // 10**6} MB). Python has no limit: "
            problem += "print(NumberTokens.from_tokenizer(tokenizer).describe())"
            return self.problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem)
        content = self.rfile.read(length)
        self.limit.cancel()
        if len(content) < length:
            return self.problem(HTTPStatus.REQUEST_TIMEOUT, f"The request did not arrive whole in {SECONDS} seconds.")
        try:
            text = json.dumps(ANSWERS[self.path](question, content))
        except Exception:
            self.problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The demo failed; its terminal shows why.")
            raise
        self.reply(HTTPStatus.OK, "application/json", text)

    def problem(self, status: HTTPStatus, sentence: str) -> None:
        self.reply(status, "application/json", json.dumps({"problem": sentence}))

    def reply(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing: a drag makes hundreds of requests."""


def content_of(name: str) -> str:
    """A file of the page; the HTML with values filled in from Python."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    if name != "page.html":
        return text
    kinds = "".join(f"<option>{kind}</option>" for kind in KINDS)
    buttons = "".join(f'<button type="button">{name}</button> ' for name in picture.PRESETS)
    first = escape(json.dumps({"tokens": picture.TOKENS, "presets": picture.PRESETS, **picture.FIRST}))
    return Template(text).substitute(kinds=kinds, presets=buttons, first=first, most_bytes=MOST_BYTES)
