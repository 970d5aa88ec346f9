"""torchrun --nproc-per-node 4 -m benchmarks.distributed.bytes [--out FILE]

Counts the bytes that one rank passes to collectives for the loss of a row, compared with torch's `loss_parallel` and a
gather of the logits, each on the same columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl, linear_cross_entropy_ntl

from ..commands import Parser, in_one_line, writable
from .__main__ import keep, number_of_processes, start
from .traffic import Traffic

ROWS, VOCAB_SIZE, WIDTH = 1000, 32000, 64


@in_one_line
def main(given: list[str]) -> int:
    parser = Parser(prog="benchmarks.distributed.bytes", description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(given)
    number_of_processes(parser)
    if arguments.out is not None:
        writable(arguments.out.parent)
    device = start()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    labels = torch.randint(0, VOCAB_SIZE, (ROWS,), device=device)
    few, many = (NumberTokens.from_mapping({i: float(i) for i in range(k)}, VOCAB_SIZE).to(device) for k in (10, 1110))

    def spread(tensor: Tensor, dim: int) -> Tensor:
        whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(dim)]).detach().requires_grad_()

    logits = torch.randn(ROWS, VOCAB_SIZE, device=device, dtype=torch.bfloat16)
    hidden, weight = torch.randn(ROWS, WIDTH, device=device), torch.randn(VOCAB_SIZE, WIDTH, device=device)
    everyones = DTensor.from_local(labels, mesh, [Replicate()], run_check=False)
    smooth = NTLConfig(label_sigma=1.0)
    calls: dict[str, Callable[[], Tensor]] = {
        "CE + NTL": lambda: cross_entropy_ntl(spread(logits, 1), labels, few),
        "CE + NTL, 1110 number tokens": lambda: cross_entropy_ntl(spread(logits, 1), labels, many),
        "CE + NTL, label_smoothing": lambda: cross_entropy_ntl(spread(logits, 1), labels, few, label_smoothing=0.1),
        "CE + NTL, label_sigma, 10 number tokens": lambda: cross_entropy_ntl(
            spread(logits, 1), labels, few, config=smooth
        ),
        f"CE + NTL of hidden states, H = {WIDTH}": lambda: linear_cross_entropy_ntl(
            hidden.requires_grad_(), spread(weight, 0), labels, few
        ),
        "CE, torch loss_parallel": lambda: F.cross_entropy(spread(logits, 1), everyones),
        "CE, gathered logits": lambda: F.cross_entropy(spread(logits, 1).full_tensor(), labels),
    }
    rows = [measure(name, call) for name, call in calls.items()]
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row))
        sizes = {"rows": ROWS, "vocab_size": VOCAB_SIZE, "ranks": dist.get_world_size()}
        keep(arguments.out, device, "-m benchmarks.distributed.bytes", {**sizes, "calls": rows})
    dist.destroy_process_group()
    return 0


def measure(name: str, call: Callable[[], Tensor]) -> dict[str, Any]:
    """The collectives of the forward and backward pass, and the bytes per row that they send."""
    with loss_parallel():
        with Traffic() as forward:
            loss = call()
        with Traffic() as backward:
            loss.backward()
    return {
        "call": name,
        "forward": dict(forward.counts),
        "forward_bytes_per_row": sum(forward.bytes.values()) / ROWS,
        "backward": dict(backward.counts),
        "backward_bytes_per_row": sum(backward.bytes.values()) / ROWS,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
