"""The row contract on GPUs: launches of the kernels in :mod:`ntl_kernels.kernels`.

A step never waits, and allocates only what it returns::

    forward   count_kernel          only if a denominator of "mean" was not given
              row_losses_kernel     every row: its fields and, for "mean" and "sum", its gradient
              finish_kernel         the loss and the parts
    backward  scale_kernel          "mean" and "sum": times the upstream gradient; returns at once where that is 1
              row_gradients_kernel  "none" and float16: every row's gradient
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from ..kernels.arguments import Labels, Matrix, Numbers, Options, Scalars, Shares, Tile, Transform
from ..kernels.losses import row_gradients_kernel, row_losses_kernel, scale_kernel
from ..kernels.softcap import EXACT, HARDWARE
from ..kernels.totals import count_kernel, finish_kernel
from ..problem import NUM_FIELDS, NUM_PARTS, Field, Forward, Problem
from ..spec import LossSpec
from ..tokens import NumberTable
from .launch import launch
from .layout import VECTOR_BYTES, is_phase_equal
from .tiles import (
    LANES,
    MOST_THREADS,
    NUMBERS_PER_THREAD_WITH_SUMS,
    UNROLL,
    UNROLL_OF_MANY_OPERATIONS,
    kept_tile,
    tile_for,
)

PLATFORM = "hip" if torch.version.hip else "xpu" if torch.xpu.is_available() else "cuda"
HIGHEST_FAST_SOFTCAP = 43.0
"""The largest softcap for which all powers are within the range of float32: 2 * 43 / log(2) < 126."""
TOTAL_BLOCK = 4096
"""Rows per iteration of the kernels over all rows."""
SCALE_PROGRAMS = 1024
"""The number of programs of the scale kernel, over which the rows are distributed; most of its calls return at once."""


def forward(logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
    if problem.lacks_denominators:
        problem = problem.counted(*count(problem, logits.shape[2], torch.float32).unbind())
    rows = problem.labels.numel()
    fields = torch.empty((NUM_FIELDS, rows), dtype=torch.float32, device=logits.device)
    losses = fields.new_empty(rows) if problem.reduction == "none" else None
    launch_row_losses(logits, problem, fields, losses, gradient)
    loss, parts = finish(fields, problem)
    return Forward(loss if losses is None else losses, parts, fields)


def count(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
    totals = torch.empty(2, dtype=dtype, device=problem.labels.device)
    launch(
        count_kernel,
        1,
        (
            labels_of(problem),
            numbers_of(problem.table),
            vocab_size,
            problem.labels.numel(),
            totals,
        ),
        {"BLOCK": TOTAL_BLOCK},
        num_warps=MOST_THREADS // LANES[PLATFORM],
    )
    return totals


def row_losses(logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
    launch_row_losses(logits, problem, fields, None, gradient)


def launch_row_losses(
    logits: Tensor, problem: Problem, fields: Tensor, losses: Tensor | None, gradient: Tensor | None
) -> None:
    """:func:`row_losses`; ``losses`` [N] takes the rows' w (CE + lambda NTL), if given."""
    walks = 1 if gradient is None else 2
    launch_rows(row_losses_kernel, walks, logits, problem, gradient, (fields, losses, *shares_of(problem)))


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    loss, parts = fields.new_empty(()), fields.new_empty(NUM_PARTS)
    launch(
        finish_kernel,
        1,
        (
            fields,
            fields.shape[1],
            *given_shares(problem),
            loss,
            parts,
        ),
        {
            "MEAN": problem.reduction == "mean",
            "OVER_TOKENS": problem.spec.mean_over == "tokens",
            "BLOCK": TOTAL_BLOCK,
        },
        num_warps=MOST_THREADS // LANES[PLATFORM],
    )
    return loss, parts


def row_gradients(logits: Tensor, problem: Problem, fields: Tensor, upstream: Tensor, gradient: Tensor) -> None:
    stride = upstream.stride(0) if upstream.ndim else 0
    own = *shares_of(problem), fields[Field.PEAK : Field.NTL], as_argument(upstream), stride
    launch_rows(row_gradients_kernel, 1, logits, problem, gradient, own)


def launch_rows(
    kernel: Any, walks: int, logits: Tensor, problem: Problem, gradient: Tensor | None, own: tuple[Any, ...]
) -> None:
    """Launch a kernel of the loss, one program per row; ``walks`` is how often it walks the row."""
    rows = problem.labels.numel()
    if rows == 0:
        return
    options, block = options_of(problem.spec, logits), block_of(problem.table)
    tile, how = loss_tile(logits, gradient, options, block, walks)
    launch(
        kernel,
        rows,
        (
            *matrices_of(logits, gradient),
            labels_of(problem),
            numbers_of(problem.table),
            *own,
            transform_of(problem.spec),
            scalars_of(problem.spec),
        ),
        {"OPTIONS": options, "BLOCK": block, "TILE": tile},
        **how,
    )


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    count = gradient.shape[0] * gradient.shape[1]
    if count == 0:
        return
    tile, how = tile_of(gradient, None)
    launch(
        scale_kernel,
        min(count, SCALE_PROGRAMS),
        (
            matrix_of(gradient),
            gradient.stride(0),
            *gradient.shape[1:],
            count,
            as_argument(upstream),
        ),
        {"TILE": tile},
        **how,
    )


def matrices_of(logits: Tensor, gradient: Tensor | None) -> tuple[Matrix, Matrix | None, int, int, int, int]:
    """Logits [B, T, V] and their gradient as kernel arguments."""
    (_, length, vocab_size), (stride, row_stride, _) = logits.shape, logits.stride()
    if gradient is None:
        return Matrix(logits, row_stride), None, stride, 0, length, vocab_size
    gradient_stride, gradient_row_stride, _ = gradient.stride()
    matrices = Matrix(logits, row_stride), Matrix(gradient, gradient_row_stride)
    return *matrices, stride, gradient_stride, length, vocab_size


def matrix_of(tensor: Tensor) -> Matrix:
    return Matrix(tensor, tensor.stride(1))


def labels_of(problem: Problem) -> Labels:
    return Labels(as_argument(problem.labels), as_argument(problem.token_weights), problem.spec.ignore_index)


def numbers_of(table: NumberTable) -> Numbers:
    return Numbers(*table, table.ids.shape[0])


def shares_of(problem: Problem) -> Shares:
    """The denominators and lambda of a row's terms; the denominators are 1 unless the loss is a mean."""
    ntl_weight = as_argument(problem.ntl_weight)
    if problem.reduction != "mean":
        return Shares(1.0, 1.0, ntl_weight)
    return Shares(as_argument(problem.num_tokens), as_argument(problem.ntl_denominator), ntl_weight)


def given_shares(problem: Problem) -> Shares:
    """The denominators and lambda as passed by the caller."""
    return Shares(as_argument(problem.num_tokens), as_argument(problem.num_numbers), as_argument(problem.ntl_weight))


def as_argument(given: Tensor | float | None) -> Tensor | float | None:
    """A number as a float, since an integer would recompile for its value; a tensor without the negative bit, since a
    kernel reads its memory."""
    if isinstance(given, Tensor):
        return given.resolve_neg()
    return None if given is None else float(given)


next_power_of_2 = lru_cache(maxsize=256)(triton.next_power_of_2)


@lru_cache(maxsize=256)
def transform_of(spec: LossSpec) -> Transform:
    if spec.softcap is None:
        return transform_by(1.0, spec.logit_scale, spec.logit_scale)
    return transform_by(spec.logit_scale / spec.softcap, spec.softcap, spec.logit_scale)


def transform_by(inner: float, outer: float, scale: float) -> Transform:
    """A transform with the derived factors of its exponents."""
    factor = outer / math.log(2.0)
    return Transform(inner, outer, scale, factor, 2.0 ** (math.frexp(factor)[1] - 1))


@lru_cache(maxsize=256)
def scalars_of(spec: LossSpec) -> Scalars:
    return Scalars(*(float(getattr(spec, name)) for name in Scalars._fields))


def options_of(spec: LossSpec, logits: Tensor) -> Options:
    return options_for(spec, logits.element_size(), PLATFORM)


@lru_cache(maxsize=256)
def options_for(spec: LossSpec, item: int, platform: str) -> Options:
    """The options for logits with elements of ``item`` bytes."""
    is_low = spec.softcap is not None and spec.softcap <= HIGHEST_FAST_SOFTCAP
    tanh = HARDWARE if item == 2 and platform == "cuda" and is_low else EXACT
    return Options(
        kind="cumulative" if spec.label_sigma > 0 else spec.kind,
        reweigh=spec.reweigh,
        smoothing=spec.label_smoothing > 0,
        softcap=0 if spec.softcap is None else tanh.value,
    )


def block_of(table: NumberTable) -> int:
    return next_power_of_2(table.ids.shape[0])


def tile_of(
    logits: Tensor, gradient: Tensor | None, unroll: int = UNROLL, least_threads: int = 0
) -> tuple[Tile, dict[str, Any]]:
    """The tile for rows of [B, T, V], and Triton's options for it."""
    item = logits.element_size()
    aligned, writes = are_aligned(logits, gradient), gradient is not None
    return tile_for(logits.shape[2] * item, item, aligned, writes, unroll, least_threads, PLATFORM)


def loss_tile(
    logits: Tensor, gradient: Tensor | None, options: Options, block: int, walks: int = 1
) -> tuple[Tile, dict[str, Any]]:
    """:func:`tile_of` for the loss, whose options also take registers.

    Args:
        walks: how often a launch walks a row.
    """
    is_cumulative = options.kind == "cumulative"
    if walks == 2 and PLATFORM == "cuda":
        item = logits.element_size()
        aligned, major = are_aligned(logits, gradient), major_of(logits.device)
        kept = kept_tile(logits.shape[2] * item, item, aligned, block, options, major)
        if kept is not None:
            return kept
    unroll = UNROLL_OF_MANY_OPERATIONS if options.softcap or options.smoothing or is_cumulative else UNROLL
    return tile_of(logits, gradient, unroll, block // NUMBERS_PER_THREAD_WITH_SUMS if is_cumulative else 0)


@lru_cache(maxsize=256)
def major_of(device: torch.device) -> int:
    """The major compute capability of an NVIDIA GPU; 0 for other devices."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


def are_aligned(logits: Tensor, gradient: Tensor | None) -> bool:
    """Whether every row of both starts at a multiple of 16 bytes and has a multiple of 16 bytes."""
    vector = VECTOR_BYTES // logits.element_size()
    aligned = is_aligned(logits, vector) and (gradient is None or is_aligned(gradient, vector))
    if not aligned and gradient is not None and not is_phase_equal(logits, gradient):
        raise ValueError("logits and gradient must start at the same offset modulo 16 bytes in every row")
    return aligned


def is_aligned(tensor: Tensor, vector: int) -> bool:
    """Whether every row of [B, T, V] starts at a multiple of 16 bytes and has a multiple of 16 bytes."""
    return (
        tensor.data_ptr() % VECTOR_BYTES == 0
        and tensor.shape[2] % vector == 0
        and all(
            stride % vector == 0 or size == 1
            for stride, size in zip(tensor.stride()[:2], tensor.shape[:2], strict=True)
        )
    )
