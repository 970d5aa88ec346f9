"""A program: compile some candidates in workers, then launch them here, on a GPU that runs nothing.

Prints as JSON how many there are, why some are left out, and how many kernels were compiled by the workers and here.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.speed import candidates
from benchmarks.speed.candidates import Candidate, Item, compiled_ahead, distinct, fault, walking
from benchmarks.speed.idle import FUNCTION, MODULE, idle_device, idle_driver
from benchmarks.speed.tune import under
from benchmarks.speed.workloads import logits, make_case

CPU = torch.device("cpu")
SPILLING, IMPOSSIBLE = Candidate(64, 4, 8), Candidate(96, 4, 8)
TRIED = [Candidate(32, 4, 8), SPILLING, IMPOSSIBLE]
WORKLOADS = [logits(f"v-{vocab}", "test", rows, vocab, "bfloat16") for rows, vocab in ((5000, 4000), (40, 4008))]
"""The first does not fit the L2 cache."""


def fault_when_idle(item: Item) -> str | None:
    with idle_device():
        spills = 7 if item[2] == SPILLING else 0
        idle_driver().utils.load_binary = lambda *binary: (MODULE, FUNCTION, 0, spills, 1024)
        return fault(item)


def kernels() -> set[Path]:
    return set(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))


def main() -> None:
    with patch.object(candidates, "candidates", lambda: TRIED):
        faults = compiled_ahead(WORKLOADS, CPU, fault_when_idle)
        items = [(workload, CPU, way) for workload in WORKLOADS for way in distinct(workload, CPU).values()]
    ahead = kernels()
    with idle_device():
        for workload, _, way in (item for item in items if item not in faults):
            under(partial(walking, way), make_case(workload, CPU))(0)
    reasons = [(way and way.threads, reason) for (_, _, way), reason in faults.items()]
    print(json.dumps([len(items), reasons, len(ahead), len(kernels() - ahead)]))


if __name__ == "__main__":
    main()
