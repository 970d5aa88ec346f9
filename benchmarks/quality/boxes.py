"""Boxes in generated pictures, written as four location tokens by a small encoder and decoder trained from scratch.

A picture has one bright ellipse among up to three rectangles; the answer is the ellipse's box.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from ntl_kernels import NTLConfig, NumberTokens, cross_entropy_ntl

from .. import files
from ..commands import InputError, Parser, count, in_one_line, writable
from ..environment import describe
from .codec import SPAN
from .configuration import METRICS, check, configure, plain, run_name
from .losses import ntl_config

SIDE, PATCH, PATCHES = 48, 6, 64
"""Pixels of a picture and of a patch, and how many patches a picture has."""
PLACES, CORNERS = 128, 4
"""Location tokens, and how many are a box: left, top, right, bottom."""
BATCH, LEARNING_RATE, WARMUP, HIDDEN = 32, 1e-3, 50, 128
VALIDATED, TESTED, VALIDATIONS = 200, 600, 4
NUMBERS = NumberTokens.from_mapping({place: SPAN * place / PLACES for place in range(PLACES)}, PLACES)


class Boxes(NamedTuple):
    """Pictures [N, 64, 36] as patches, and the boxes [N, 4] in pixels."""

    pictures: Tensor
    boxes: Tensor

    @property
    def labels(self) -> Tensor:
        """[N, 4]: the location tokens."""
        return (self.boxes / SIDE * PLACES).long().clamp(0, PLACES - 1)


def drawn(number: int, seed: int) -> Boxes:
    """Generated pictures; rectangles first, so that the ellipse covers them."""
    generator = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(number, 1, 1, generator=generator)

    y, x = torch.meshgrid(torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij")
    pictures, box = 0.25 * torch.randn(number, SIDE, SIDE, generator=generator), torch.empty(0)
    for shape in range(4):
        width, height, brightness = between(7, 24), between(7, 24), between(0.5, 1.2)
        left, top = between(0, 1) * (SIDE - width), between(0, 1) * (SIDE - height)
        if shape < 3:
            inside = (x >= left) & (x < left + width) & (y >= top) & (y < top + height) & (between(0, 1) < 0.7)
        else:
            inside = ((x - left) / width * 2 - 1) ** 2 + ((y - top) / height * 2 - 1) ** 2 <= 1
            brightness = brightness + 0.9
            box = torch.cat([left, top, left + width, top + height], -1)[:, 0]
        pictures = torch.where(inside, brightness + 0.3 * pictures, pictures)
    patches = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(number, PATCHES, PATCH**2)
    return Boxes(patches, box)


class Locator(nn.Module):
    """A decoder that reads the patches, and then the corners one by one."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 4}
        self.decoder = LlamaModel(LlamaConfig(vocab_size=PLACES, **sizes, num_attention_heads=4, num_key_value_heads=4))
        self.patches, self.head = nn.Linear(PATCH**2, HIDDEN), nn.Linear(HIDDEN, PLACES, bias=False)
        self.positions = nn.Parameter(0.02 * torch.randn(PATCHES, HIDDEN))
        self.start = nn.Parameter(0.02 * torch.randn(1, 1, HIDDEN))

    def forward(self, pictures: Tensor, corners: Tensor) -> Tensor:
        """Logits [N, 1 + C, 128] of the next corner after each of C corners [N, C]."""
        seen = self.patches(pictures) + self.positions
        states = [seen, self.start.expand(len(pictures), 1, HIDDEN), self.decoder.embed_tokens(corners)]
        return self.head(self.decoder(inputs_embeds=torch.cat(states, 1)).last_hidden_state[:, PATCHES:])

    @torch.no_grad()
    def answer(self, pictures: Tensor) -> Tensor:
        """Greedy boxes [N, 4] in pixels: the centres of the places."""
        corners = torch.empty(len(pictures), 0, dtype=torch.long)
        for _ in range(CORNERS):
            corners = torch.cat([corners, self(pictures, corners)[:, -1:].argmax(-1)], 1)
        return (corners + 0.5) * SIDE / PLACES


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union [N] of boxes [N, 4]."""

    def area(corners: Tensor) -> Tensor:
        return (corners[:, 2:] - corners[:, :2]).clamp_min(0).prod(-1)

    both = area(torch.cat([torch.maximum(boxes, others)[:, :2], torch.minimum(boxes, others)[:, 2:]], -1))
    return both / (area(boxes) + area(others) - both)


def measured(model: Locator, given: Boxes) -> dict[str, float]:
    """Of greedy answers: mean IoU, the shares of at least 0.5 and 0.75, and the mean error of a corner in pixels."""
    answers = torch.cat([model.answer(pictures) for pictures in given.pictures.split(100)])
    found = overlap(answers, given.boxes)
    shares = {f"iou_{at}": (found >= at / 100).float().mean().item() for at in (50, 75)}
    return {"iou": found.mean().item(), **shares, "mae": (answers - given.boxes).abs().mean().item()}


def train(
    config: NTLConfig, seed: int, pictures: int, steps: int
) -> tuple[dict[str, float], list[dict[str, Any]], int]:
    """(test metrics of the best validation, the validations, the number of parameters)"""
    given, validation, test = drawn(pictures, seed), drawn(VALIDATED, 2**20), drawn(TESTED, 2**20 + 1)
    torch.manual_seed(seed)
    model = Locator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, weights, log = -1.0, model.state_dict(), []
    for step in range(1, steps + 1):
        chosen = torch.randint(len(given.boxes), (BATCH,))
        labels = given.labels[chosen]
        logits = model(given.pictures[chosen], labels[:, :-1])
        cross_entropy_ntl(logits, labels, NUMBERS, config=config).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        (warm if step < WARMUP else fall).step()
        if step % (steps // VALIDATIONS) == 0:
            log.append({"step": step, **{f"eval_{name}": value for name, value in measured(model, validation).items()}})
            log[-1]["eval_loss"] = -log[-1]["eval_iou"]
            if log[-1]["eval_iou"] > best:
                best, weights = log[-1]["eval_iou"], copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    return measured(model, test), log, sum(parameter.numel() for parameter in model.parameters())


@in_one_line
def main(arguments: Sequence[str]) -> int:
    """``boxes [LOSS_OVERRIDE...] [--pictures N] [--steps N] [--seed N]``"""
    parser = Parser(prog="python -m benchmarks.quality boxes", description=__doc__)
    parser.add_argument("loss", nargs="*", help="loss=soft_labels loss.weight=1 ... (default: loss=ce)")
    parser.add_argument("--pictures", type=count, default=1000, help="for training (1000)")
    parser.add_argument("--steps", type=count, default=600, help="of training (600)")
    parser.add_argument("--seed", type=count, default=1, help="of pictures, weights and order (1)")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"), help="the run's folder is made there")
    chosen = parser.parse_args(arguments)
    if chosen.steps < VALIDATIONS:
        parser.error(f"--steps must be at least {VALIDATIONS}, with a validation each; got {chosen.steps}")
    for override in chosen.loss:
        if not re.match(r"loss=\w+$|[+~]*loss\.(?!balance|group_by)", override):
            raise InputError(f"boxes takes loss=L and its options, except balance and group_by; got {override}")
    config = configure(["loss=ce", *chosen.loss, f"seed={chosen.seed}"])  # the last loss counts
    check(config)
    if config.loss.name == "number_level":
        raise InputError("loss=number_level needs one token for each digit; a corner of a box is one token")
    name = f"boxes_{chosen.pictures}"
    changed = [*chosen.loss, f"steps={chosen.steps}"]
    folder = writable(chosen.out / run_name(name, "locator", config.loss.name, chosen.seed, changed))
    started = time.perf_counter()
    found, log, parameters = train(ntl_config(config.loss), chosen.seed, chosen.pictures, chosen.steps)
    told = {"steps": chosen.steps, "pictures": chosen.pictures}
    result = {
        "config": {"dataset": {"name": name, **told}, "model": {"name": "locator"}, "loss": plain(config.loss)}
        | {"seed": chosen.seed},
        "loss": config.loss.name,
        "environment": describe("quality", torch.device("cpu")),
        "sizes": {"train": chosen.pictures, "test": TESTED},
        "parameters": parameters,
        "seconds": time.perf_counter() - started,
        "log": log,
        "metrics": {"test": found},
    }
    files.write(folder / "predictions-test.jsonl", "")
    files.write(folder / METRICS, json.dumps(result, indent=2) + "\n")
    print(", ".join(f"{name} {value:.4f}" for name, value in found.items()))
    return 0
