"""The demo, served."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from ntl_kernels.demo.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """At a free port of this machine."""
    with Server(socket.AF_INET, ("127.0.0.1", 0)) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()
