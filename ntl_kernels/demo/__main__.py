"""``python -m ntl_kernels.demo``: serve the demo on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import webbrowser
from argparse import ArgumentTypeError
from contextlib import suppress
from threading import Thread

from ..command_line import WRONG_INPUT, Parser
from ..extras import installing
from .server import FIRST_PORT, listening
from .tokenizer import whole_number


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m ntl_kernels.demo", description="See the Number Token Loss at work.")
    parser.add_argument("--host", default="127.0.0.1", help="address or name (default: this machine only)")
    parser.add_argument("--port", type=port, help=f"default: the first free port from {FIRST_PORT}")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("tokenizers") is None:
        print(f"The demo needs tokenizers: {installing('demo')}", file=sys.stderr)
        return WRONG_INPUT
    try:
        server = listening(chosen.host, chosen.port)
    except (OSError, UnicodeError) as error:
        where = chosen.port or f"{FIRST_PORT} or higher"
        print(f"error: cannot listen on {chosen.host}, port {where}: {error}", file=sys.stderr)
        return WRONG_INPUT
    with suppress(OSError):  # a pipe that nobody reads
        print(f"The demo is at {server.url} (press Ctrl-C to stop)", flush=True)
    if chosen.open:  # a browser in the terminal returns when it is closed
        Thread(target=webbrowser.open, args=[server.url], daemon=True).start()
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    return 128 + signal.SIGINT  # what ended it


def port(text: str) -> int:
    """For ``type=``: a port number."""
    number = whole_number(text) or 0
    if not 1 <= number <= 65535:
        raise ArgumentTypeError(f"expected a port from 1 to 65535; got {text!r}")
    return number


if __name__ == "__main__":
    os._exit(main())  # not waiting for threads inside torch, at which Python would abort
