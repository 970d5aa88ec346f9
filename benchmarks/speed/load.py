"""A process that keeps all cores busy, like data loader workers or another training run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM = """
import os, sys, torch
parent, cores = map(int, sys.argv[1:])
torch.set_num_threads(cores)
matrix = torch.randn(1024, 1024)
torch.mm(matrix, matrix)
print("busy", flush=True)
while os.getppid() == parent:  # and no longer
    torch.mm(matrix, matrix)
"""


@contextmanager
def all_cores_busy() -> Iterator[None]:
    """Run matrix products in as many threads as there are cores during the measurement."""
    command = [sys.executable, "-c", PROGRAM, str(os.getpid()), str(os.cpu_count() or 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "busy\n":
                raise RuntimeError("the process that should keep all cores busy has ended")
            yield
        finally:
            process.kill()
