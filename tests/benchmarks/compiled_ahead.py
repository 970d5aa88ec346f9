"""A program: compile some candidates in workers, then launch them here, on a GPU that runs nothing.

Prints as JSON the candidates left out with the reason, and how many kernels were compiled by the workers and here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.speed import candidates
from benchmarks.speed.candidates import Candidate, compiled_ahead, distinct, fault, walking
from benchmarks.speed.idle import FUNCTION, MODULE, idle_device, idle_driver
from benchmarks.speed.workloads import Workload, logits, make_case
from ntl_kernels import cross_entropy_ntl

CPU = torch.device("cpu")
UNROLL = (("unroll", 8),)
SPILLING, IMPOSSIBLE = Candidate(64, 4, UNROLL), Candidate(96, 4, UNROLL)
TRIED = [Candidate(32, 4, UNROLL), SPILLING, IMPOSSIBLE]
WORKLOADS = [logits(f"v-{vocab}", "test", 40, vocab, "bfloat16") for vocab in (4000, 4008)]
SPILLS = 7


def fault_when_idle(item: tuple[Workload, torch.device, Candidate | None]) -> str | None:
    with idle_device():
        spills = SPILLS if item[2] == SPILLING else 0
        idle_driver().utils.load_binary = lambda *binary: (MODULE, FUNCTION, 0, spills, 1024)
        return fault(item)


def kernels() -> set[Path]:
    return set(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))


def main() -> None:
    with patch.object(candidates, "candidates", lambda: TRIED):
        faults = compiled_ahead(WORKLOADS, CPU, fault_when_idle)
        ways = [(w, tile, way) for w in WORKLOADS for tile, way in distinct(w, CPU).items()]
    ahead = kernels()
    with idle_device():
        for workload, tile, way in ways:
            if candidates.kernel_of(tile, workload) not in faults:
                tensors = make_case(workload, CPU).sets[0]
                with walking(way):
                    loss = cross_entropy_ntl(tensors.logits, tensors.labels, candidates.number_tokens(workload))
                    torch.autograd.grad(loss, tensors.logits)
    reasons = {tile.threads: reason for (tile, _), reason in faults.items()}
    print(json.dumps([len(ways), reasons, len(ahead), len(kernels() - ahead)]))


if __name__ == "__main__":
    main()
