"""``python -m ntl_kernels.demo``: serve the demo on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import socket
import sys

from ..extras import installing

NEEDED = ("gradio", "tokenizers", "transformers")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ntl_kernels.demo", description="See the Number Token Loss at work."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=port, default=None, help="default: the first free one from 7860 on")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")
    chosen = parser.parse_args(arguments)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"The demo needs {', '.join(missing)}: {installing('demo')}", file=sys.stderr)
        return 2
    try:
        refuse_address(chosen.host, chosen.port)
        from .app import serve

        serve(chosen.host, chosen.port, chosen.open)
    except OSError as error:
        print(f"error: cannot listen at {chosen.host}, port {chosen.port or 'from 7860 on'}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return 128 + signal.SIGINT  # pages are served until then


def port(text: str) -> int:
    """For ``type=``: a port that may be listened at."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535; got {text!r}")
    return number


def refuse_address(host: str, port: int | None) -> None:
    """An OSError if it cannot be listened at, before gradio is imported, which takes seconds."""
    family, kind, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)


if __name__ == "__main__":
    sys.exit(main())
