"""torchrun --nproc-per-node 4 -m benchmarks.distributed [--steps N] [--tp N] [--loss logits|fused] [--out FILE]

Trains a small model on sums, with the data split over one mesh dimension and layers and vocabulary over the other, and
checks loss and gradients against a single process. Uses gloo on CPUs and nccl on GPUs.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from ntl_kernels import NumberTokens

from .. import environment, files
from ..commands import Parser, count, in_one_line, writable_file
from .model import HEAD_WIDTH, WIDTH, Model, spread
from .traffic import Traffic

CHARACTERS = "0123456789+=;"
VOCAB_SIZE = 51  # padded, and chosen so that ranks have different numbers of columns
IGNORED = -100
HEADS = WIDTH // HEAD_WIDTH
ROWS, LENGTH = 64, 24
"""Rows per step, on all processes together."""
LEARNING_RATE = 3e-3
TOLERANCE = 1e-5
"""Tolerance of loss and gradients, relative to their largest entry."""


@in_one_line
def main(given: list[str]) -> int:
    arguments = parse(given)
    device = start()
    mesh = init_device_mesh(
        device.type, (dist.get_world_size() // arguments.tp, arguments.tp), mesh_dim_names=("dp", "tp")
    )
    numbers = NumberTokens.from_mapping({digit: float(digit) for digit in range(10)}, VOCAB_SIZE).to(device)
    torch.manual_seed(0)
    single = Model(VOCAB_SIZE, LENGTH, arguments.loss == "fused").to(device)
    model = spread(copy.deepcopy(single), mesh)
    result = {
        "processes": dist.get_world_size(),
        "data_parallel": mesh["dp"].size(),
        "tensor_parallel": mesh["tp"].size(),
        "loss": arguments.loss,
        "tokens_per_step": ROWS * LENGTH,
        **compare(single, model, mesh, numbers, device),
        **train(model, mesh, numbers, device, arguments.steps),
    }
    if dist.get_rank() == 0:
        print(json.dumps(result, indent=1))
        keep(arguments.out, device, f"-m benchmarks.distributed --loss {arguments.loss}", {"result": result})
    dist.destroy_process_group()
    return 0


def parse(given: list[str]) -> Namespace:
    parser = Parser(prog="benchmarks.distributed", description=__doc__)
    parser.add_argument("--steps", type=count, default=60)
    parser.add_argument("--tp", type=count, default=2, help="processes that share layers and vocabulary (default 2)")
    parser.add_argument(
        "--loss", choices=("logits", "fused"), default="fused", help="loss of logits, or fused with the head"
    )
    parser.add_argument("--out", type=Path, help="where to write the results (default: nowhere)")
    arguments = parser.parse_args(given)
    processes = number_of_processes(parser)
    if processes % arguments.tp or HEADS % arguments.tp:
        parser.error(f"--tp {arguments.tp} must divide the {processes} processes and the {HEADS} heads of the model")
    replicas = processes // arguments.tp
    if ROWS % replicas:
        parser.error(
            f"{processes} processes with --tp {arguments.tp} are {replicas} replicas: must divide the {ROWS} rows"
        )
    if arguments.out is not None:
        writable_file(arguments.out)
    return arguments


def number_of_processes(parser: Parser) -> int:
    """The number of processes that torchrun has started; an error without torchrun."""
    if "WORLD_SIZE" not in os.environ:
        parser.error(f"start it with torchrun --nproc-per-node 4 -m {parser.prog}")
    return int(os.environ["WORLD_SIZE"])


def start() -> torch.device:
    """Initialise the process group; return this process's device."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, labels), each [ROWS, LENGTH], of sums such as "12+7=19;". Each position predicts the next; positions
    after the sum are ignored."""
    rng, lines = random.Random(seed), []
    for _ in range(ROWS):
        a, b = rng.randrange(1000), rng.randrange(1000)
        text = [CHARACTERS.index(character) for character in f"{a}+{b}={a + b};"]
        lines.append(text + [IGNORED] * (LENGTH + 1 - len(text)))
    whole = torch.tensor(lines)
    return whole[:, :-1].clamp_min(0), whole[:, 1:].contiguous()


def part_of_process(mesh: DeviceMesh, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(tokens, labels) of this process: equal over "tp", different over "dp"."""
    rows, rank = ROWS // mesh["dp"].size(), mesh["dp"].get_local_rank()
    return tuple(part[rank * rows :][:rows].to(device) for part in batch(seed))  # type: ignore


def denominators(labels: Tensor, numbers: NumberTokens, mesh: DeviceMesh) -> dict[str, Tensor]:
    """The denominators of this process's loss, from the tokens and number tokens of all processes.

    Each token is on one process of "dp" and on all of "tp", so the counts are summed over "dp" only. FSDP and DDP
    average gradients over "dp", so the counts are divided by its size.
    """
    is_number = numbers.table(labels.device).lookup[labels.clamp_min(0)] >= 0
    counts = torch.stack([(labels != IGNORED).sum(), (is_number & (labels != IGNORED)).sum()]).float()
    dist.all_reduce(counts, group=mesh.get_group("dp"))
    tokens, number_tokens = (counts / mesh["dp"].size()).unbind()
    return {"num_tokens": tokens, "num_numbers": number_tokens}


def plain(tensor: Any) -> Tensor:
    """The full tensor, gathered if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def mean_over(mesh: DeviceMesh, loss: Tensor) -> float:
    """The mean over the processes of "dp"."""
    total = loss.detach().clone()
    dist.all_reduce(total, group=mesh.get_group("dp"))
    return total.item() / mesh["dp"].size()


def compare(
    single: Model, model: Model, mesh: DeviceMesh, numbers: NumberTokens, device: torch.device
) -> dict[str, Any]:
    """Compare loss and gradients of one step with a single process on the whole batch."""
    whole = single(*(part.to(device) for part in batch(0)), numbers)
    whole.backward()
    tokens, labels = part_of_process(mesh, 0, device)
    loss = plain(model(tokens, labels, numbers, **denominators(labels, numbers, mesh)))
    loss.backward()
    errors = {}
    for (name, expected), parameter in zip(single.named_parameters(), model.parameters(), strict=True):
        gradient, truth = plain(parameter.grad), expected.grad
        errors[name] = ((gradient - truth).abs().max() / truth.abs().max()).item()
    worst = max(errors, key=lambda name: errors[name])
    loss_error = abs(mean_over(mesh, loss) / whole.item() - 1)
    model.zero_grad()
    if not (loss_error < TOLERANCE and errors[worst] < TOLERANCE):
        raise SystemExit(
            f"differs from a single process: relative error {loss_error:.1e} of the loss, {errors[worst]:.1e} of the "
            f"gradient of {worst}"
        )
    return {
        "loss_of_one_process": whole.item(),
        "loss_error": loss_error,
        "largest_gradient_error": errors[worst],
        "gradient_with_it": worst,
        "gradients": len(errors),
    }


def train(model: Model, mesh: DeviceMesh, numbers: NumberTokens, device: torch.device, steps: int) -> dict[str, Any]:
    """Train some steps; return their cost, and the communication of one step and of the loss alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, seconds, sent = [], [], {}
    for step in range(steps):
        tokens, labels = part_of_process(mesh, step, device)
        started = time.perf_counter()
        with Traffic() if step == 0 else torch.enable_grad() as traffic:
            loss = plain(model(tokens, labels, numbers, **denominators(labels, numbers, mesh)))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if isinstance(traffic, Traffic):
            sent = {"collectives": dict(traffic.counts), "bytes": dict(traffic.bytes)}
        else:
            seconds.append(time.perf_counter() - started)
        losses.append(mean_over(mesh, loss))
    return {
        "steps": steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "median_seconds_per_step": sorted(seconds)[len(seconds) // 2] if seconds else None,
        "sent_per_step_and_process": sent,
    }


def keep(path: Path | None, device: torch.device, program: str, results: dict[str, Any]) -> None:
    """Write results with their environment, if a file is given."""
    if path is None:
        return
    command = f"torchrun --nproc-per-node {dist.get_world_size()} {program}"
    described = environment.describe("distributed", device, command=command)
    files.write(path, json.dumps({"environment": described, **results}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
