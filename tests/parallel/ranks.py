"""Real processes that run functions together: started once, called many times, and never waited for forever."""

from __future__ import annotations

import gc
import io
import multiprocessing
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

START_SECONDS = 120
"""For a process to import torch, on a busy machine."""
CALL_SECONDS = 120
PRELOADED = [
    "tests.parallel.cases",
    "tests.parallel.test_models",
    "tests.integrations.training",
    "torch._dynamo.testing",
    "transformers.models.llama.modeling_llama",
]
"""Imported once, by the server from which every process is forked."""


class RankError(AssertionError):
    """The errors of ranks."""


class Ranks:
    """``size`` processes with a gloo group of their first n, for every n."""

    def __init__(self, size: int, folder: Path, timeout: float = 20.0) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.processes, self.pipes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = rank, size, str(folder / "store"), timeout, theirs
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.collect(range(size), START_SECONDS)

    def run(
        self, function: Callable[..., Any], *arguments: Any, ranks: int, seconds: float = CALL_SECONDS
    ) -> list[Any]:
        """What ``function(group, *arguments)`` returns in each of the first ``ranks`` processes."""
        replies = self.replies(function, *arguments, ranks=ranks, seconds=seconds)
        failed = [f"rank {rank}: {reply}" for rank, (is_fine, reply) in enumerate(replies) if not is_fine]
        if failed:
            raise RankError("\n".join(failed))
        return [reply for _, reply in replies]

    def replies(
        self, function: Callable[..., Any], *arguments: Any, ranks: int, seconds: float = CALL_SECONDS
    ) -> list[tuple[bool, Any]]:
        """(True, result) or (False, traceback) of each rank."""
        for pipe in self.pipes[:ranks]:
            pipe.send_bytes(packed((function, ranks, arguments)))
        return self.collect(range(ranks), seconds)

    def collect(self, ranks: range, seconds: float) -> list[tuple[bool, Any]]:
        deadline, replies = time.monotonic() + seconds, []
        for rank in ranks:
            if not self.pipes[rank].poll(max(0.0, deadline - time.monotonic())):
                self.stop()
                raise RankError(f"rank {rank} did not answer within {seconds} s")
            try:
                replies.append(unpacked(self.pipes[rank].recv_bytes()))
            except EOFError:
                self.processes[rank].join(10)
                replies.append((False, f"the process ended with exit code {self.processes[rank].exitcode}"))
        return replies

    def are_alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def stop(self) -> None:
        """End the processes, by their handles."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)


def serve(rank: int, size: int, store: str, timeout: float, pipe: Connection) -> None:
    """One process: run the functions that it receives until the connection ends."""
    gc.freeze()  # imported objects are not collected
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    groups = {n: dist.new_group(list(range(n)), timeout=limit) for n in range(1, size + 1)}
    pipe.send_bytes(packed((True, None)))
    while True:
        try:
            function, ranks, arguments = unpacked(pipe.recv_bytes())
        except EOFError:
            return
        try:
            reply = True, function(groups[ranks], *arguments)
        except Exception:
            reply = False, traceback.format_exc()
        pipe.send_bytes(packed(reply))


def packed(value: Any) -> bytes:
    """With tensors by value: shared memory would end with the process that created it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpacked(value: bytes) -> Any:
    return torch.load(io.BytesIO(value), weights_only=False)
