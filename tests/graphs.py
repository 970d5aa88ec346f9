"""CUDA graphs of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def warm_up(step: Callable[[], object]) -> None:
    """Compile, and fill the caches of the allocator and of the libraries, on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def captured(step: Callable[[], Any]) -> Iterator[tuple[torch.cuda.CUDAGraph, Any]]:
    """The graph of a warmed-up step, and what the step returned.

    The graph is released at the end in any case: while the traceback of a failed assertion keeps one that contains a
    collective, destroying the process group would hang.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            results = step()
        yield graph, results
    finally:
        graph.reset()
