"""``python -m ntl_kernels.demo``: serve the demo on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import warnings
import webbrowser

from ..extras import installing
from .server import FIRST_PORT, listening


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ntl_kernels.demo", description="See the Number Token Loss at work."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=port, help=f"default: the first free one from {FIRST_PORT} on")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("tokenizers") is None:
        print(f"The demo needs tokenizers: {installing('demo')}", file=sys.stderr)
        return 2
    try:
        server = listening(chosen.host, chosen.port)
    except OSError as error:
        where = chosen.port or f"from {FIRST_PORT} on"
        print(f"error: cannot listen at {chosen.host}, port {where}: {error}", file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore", module=r"ntl_kernels\.demo")  # the page says what from_tokenizer warns of
    print(f"The demo is at {server.url} (Ctrl-C ends it)", flush=True)
    if chosen.open:
        webbrowser.open(server.url)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    return 128 + signal.SIGINT  # pages are served until then


def port(text: str) -> int:
    """For ``type=``: a port that may be listened at."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535; got {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
