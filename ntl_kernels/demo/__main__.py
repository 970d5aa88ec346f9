"""``python -m ntl_kernels.demo``: serve the demo on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import sys

NEEDED = ("gradio", "tokenizers", "transformers")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ntl_kernels.demo", description="See the Number Token Loss at work."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=int, default=None, help="default: the first free one from 7860 on")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")
    chosen = parser.parse_args(arguments)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f'The demo needs {", ".join(missing)}: pip install "ntl_kernels[demo]"', file=sys.stderr)
        return 2
    from .app import serve

    serve(chosen.host, chosen.port, chosen.open)
    return 0


if __name__ == "__main__":
    sys.exit(main())
