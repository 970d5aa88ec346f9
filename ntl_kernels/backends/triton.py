"""The row contract on GPUs: launches of the kernels in :mod:`ntl_kernels.kernels`.

A step never waits, and allocates only what it returns::

    forward   count_kernel          only if a denominator of "mean" was not given
              row_losses_kernel     every row: its fields and, for "mean" and "sum", its gradient
              sum_kernel            only for many rows, see below
              finish_kernel         the loss and the parts
    backward  scale_kernel          "mean" and "sum": times the upstream gradient; returns at once where that is 1
              row_gradients_kernel  "none" and float16: every row's gradient

For more than 65,536 rows, several programs sum a share each, into a few KB: those of count_kernel, whose sums an
operator of torch then adds up, and those of sum_kernel, whose sums finish_kernel adds up. These are two more launches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..kernels.arguments import Labels, Numbers, Options, Scalars, Tile
from ..kernels.gradients import row_gradients_kernel
from ..kernels.losses import Sums, count_kernel, finish_kernel, row_losses_kernel, scale_kernel, sum_kernel
from ..kernels.shards import Shard
from ..kernels.softcap import EXACT, HARDWARE
from ..problem import NUM_FIELDS, NUM_PARTS, Forward, Problem
from ..spec import LossSpec
from .launch import launch
from .layout import VECTOR_BYTES, is_phase_equal
from .tiles import (
    CACHED_BYTES,
    LANES,
    MOST_THREADS,
    UNROLL,
    UNROLL_OF_MANY_OPERATIONS,
    kept_tile,
    least_threads,
    tile_for,
    unroll_of,
)

PLATFORM = "hip" if torch.version.hip else "xpu" if torch.xpu.is_available() else "cuda"
MOST_WARPS = MOST_THREADS // LANES[PLATFORM]
HIGHEST_FAST_SOFTCAP = 43.0
"""The largest softcap for which all powers are within the range of float32: 2 * 43 / log(2) < 126."""
TOTAL_BLOCK = 4096
"""Rows per iteration of the kernels over all rows."""
MOST_ROWS_OF_A_PROGRAM = 2**16
"""Up to so many, these kernels are a single program of at most 16 iterations, each of which waits for memory: assumed
to take no longer than a second launch. More rows are shared by several programs, so their sums have another order."""
TOTAL_PROGRAMS = 128
"""The programs that share more rows: about one for each multiprocessor, but the same number on every GPU, so that the
order of sums depends on N alone."""
SCALE_PROGRAMS = 1024
"""The number of programs of the scale kernel, over which the rows are distributed; most of its calls return at once."""


class Arguments(NamedTuple):
    """What kernels need to know of a problem."""

    labels: Labels
    numbers: Numbers
    num_tokens: Any
    """This and the next two: a number, a pointer to one, or None."""
    num_numbers: Any
    ntl_weight: Any
    scalars: Scalars
    options: Options
    block: int
    """Lanes that hold the number tokens."""


def arguments_of(problem: Problem, logits: Tensor) -> Arguments:
    """The arguments for logits, or statistics of these."""
    spec, table = problem.spec, problem.table
    scalars, costs = constants_of(spec)
    labels, weights, number_weights = readable(*problem.rows)
    num_tokens, num_numbers, ntl_weight = readable(problem.num_tokens, problem.num_numbers, problem.ntl_weight)
    return Arguments(
        Labels(labels, weights, number_weights, spec.ignore_index),
        Numbers(table.ids, table.values, table.lookup, table.groups, table.ids.shape[0], *costs),
        num_tokens,
        num_numbers,
        ntl_weight,
        scalars,
        options_of(spec, logits.element_size(), PLATFORM),
        next_power_of_2(table.width),
    )


def readable(*given: Any) -> list[Any]:
    """Tensors, numbers and None as a kernel takes them: a number as a float, since an integer would recompile for its
    value; a tensor without the negative bit, since a kernel reads its memory."""
    return [each.resolve_neg() if isinstance(each, Tensor) else None if each is None else float(each) for each in given]


def terms_of(problem: Problem, given: Arguments) -> tuple[Any, Any, Any]:
    """(the denominators of CE and of NTL, lambda) for a row; both denominators are 1 unless the loss is a mean."""
    if problem.spec.reduction != "mean":
        return 1.0, 1.0, given.ntl_weight
    return given.num_tokens, problem.divisor_of_ntl(given.num_tokens, given.num_numbers), given.ntl_weight


def forward(logits: Tensor, problem: Problem, gradient: Tensor | None) -> Forward:
    if problem.lacks_denominators:
        problem = problem.counted(*count(problem, logits.shape[2], torch.float32).unbind())
    row_count = problem.rows.labels.numel()
    fields = torch.empty((NUM_FIELDS, row_count), dtype=torch.float32, device=logits.device)
    losses = fields.new_empty(row_count) if problem.spec.reduction == "none" else None
    launch_row_losses(logits, problem, fields, losses, gradient)
    loss, parts = finish(fields, problem)
    return Forward(loss if losses is None else losses, parts, fields)


def count(problem: Problem, vocab_size: int, dtype: torch.dtype) -> Tensor:
    row_count = problem.rows.labels.numel()
    programs = programs_over(row_count)
    totals = torch.empty(2 * programs, dtype=dtype, device=problem.rows.labels.device)
    given = arguments_of(problem, totals)
    arguments = given.labels, given.numbers, vocab_size, row_count, totals
    launch(count_kernel, programs, totals.device, arguments, {"BLOCK": TOTAL_BLOCK}, num_warps=MOST_WARPS)
    return totals if programs == 1 else totals.view(2, programs).sum(1)


def row_losses(logits: Tensor, problem: Problem, fields: Tensor, gradient: Tensor | None) -> None:
    launch_row_losses(logits, problem, fields, None, gradient)


def launch_row_losses(
    logits: Tensor, problem: Problem, fields: Tensor, losses: Tensor | None, gradient: Tensor | None
) -> None:
    """:func:`row_losses`; also writes the rows' w (CE + lambda u NTL) to ``losses`` [N], if given."""
    row_count = problem.rows.labels.numel()
    if row_count == 0:
        return
    given = arguments_of(problem, logits)
    tile, launch_options = loss_tile(logits, gradient, given.options, given.block)
    arguments = (
        *in_memory(logits),
        *in_memory(gradient),
        *logits.shape[1:],
        given.labels,
        given.numbers,
        fields,
        losses,
        *terms_of(problem, given),
        given.scalars,
    )
    constants = {"OPTIONS": given.options, "BLOCK": given.block, "TILE": tile}
    launch(row_losses_kernel, row_count, logits.device, arguments, constants, **launch_options)


def finish(fields: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    programs = programs_over(fields.shape[1])
    if programs > 1:
        fields = sums_of_programs(fields, programs, problem.spec.label_share)
    loss, parts = fields.new_empty(()), fields.new_empty(NUM_PARTS)
    terms = readable(problem.num_tokens, problem.num_numbers, problem.ntl_weight)
    constants = {
        "MEAN": problem.spec.reduction == "mean",
        "OVER_TOKENS": problem.spec.mean_over == "tokens",
        "ARE_SUMS": programs > 1,
        **sharing(problem.spec.label_share),
    }
    arguments = fields, fields.shape[1], *terms, problem.spec.label_share, loss, parts
    launch(finish_kernel, 1, fields.device, arguments, constants, num_warps=MOST_WARPS)
    return loss, parts


def sums_of_programs(fields: Tensor, programs: int, label_share: float = 1.0) -> Tensor:
    """The Sums [S, P] of the rows of each program."""
    sums = fields.new_empty((len(Sums._fields), programs))
    arguments = fields, fields.shape[1], label_share, sums
    launch(sum_kernel, programs, fields.device, arguments, sharing(label_share), num_warps=MOST_WARPS)
    return sums


def sharing(label_share: float) -> dict[str, Any]:
    """The constants of kernels over all rows: one more sum takes registers, and so half of the rows at a time."""
    return {"SHARED": label_share != 1, "BLOCK": TOTAL_BLOCK if label_share == 1 else TOTAL_BLOCK // 2}


def programs_over(row_count: int) -> int:
    """The number of programs of a kernel over all rows."""
    return 1 if row_count <= MOST_ROWS_OF_A_PROGRAM else TOTAL_PROGRAMS


def row_gradients(
    logits: Tensor,
    problem: Problem,
    first: int | None,
    fields: Tensor,
    number_logits: Tensor | None,
    upstream: Tensor,
    gradient: Tensor,
) -> None:
    row_count, width = problem.rows.labels.numel(), logits.shape[2]
    if row_count == 0 or width == 0:
        return
    given = arguments_of(problem, logits)
    unroll = unroll_of(given.options) if first is None else UNROLL_OF_MANY_OPERATIONS
    tile, launch_options = tile_of(logits, gradient, unroll, least_threads(given.options, given.block))
    arguments = (
        *in_memory(logits),
        *in_memory(gradient),
        logits.shape[1],
        row_count,
        Shard(first, width, problem.vocab_size),
        given.labels,
        given.numbers,
        fields,
        number_logits,
        upstream.resolve_neg(),
        upstream.stride(0) if upstream.ndim else 0,
        *terms_of(problem, given),
        given.scalars,
    )
    constants = {"OPTIONS": given.options, "BLOCK": given.block, "TILE": tile}
    launch(row_gradients_kernel, row_count, logits.device, arguments, constants, **launch_options)


def scale_(gradient: Tensor, upstream: Tensor) -> None:
    row_count = gradient.shape[0] * gradient.shape[1]
    if row_count == 0:
        return
    tile, launch_options = tile_of(gradient, None)
    arguments = *in_memory(gradient), *gradient.shape[1:], row_count, upstream.resolve_neg()
    launch(scale_kernel, min(row_count, SCALE_PROGRAMS), gradient.device, arguments, {"TILE": tile}, **launch_options)


def in_memory(rows: Tensor | None) -> tuple[Tensor | None, int, int]:
    """Rows [B, T, V] as kernel arguments: with the distances between batch entries and between rows."""
    return (None, 0, 0) if rows is None else (rows, rows.stride(0), rows.stride(1))


next_power_of_2 = lru_cache(maxsize=256)(triton.next_power_of_2)


@lru_cache(maxsize=256)
def constants_of(spec: LossSpec) -> tuple[Scalars, tuple[float, float, float]]:
    """The floats of a spec that the kernels need: (scalars, the last three of Numbers)."""
    inner, outer = 1.0, spec.logit_scale
    if spec.softcap is not None:
        inner, outer = spec.logit_scale / spec.softcap, spec.softcap
    factor = outer / math.log(2.0)
    derived = {
        "inner": inner,
        "outer": outer,
        "factor": factor,
        "coarse_factor": 2.0 ** (math.frexp(factor)[1] - 1),
        "has_cross_entropy": float(spec.has_cross_entropy),
        "rise": 0.0 if spec.squash_factor is None else spec.squash_factor - 1.0,
    }
    scalars = Scalars(**{name: getattr(spec, name, None) for name in Scalars._fields} | derived)
    return scalars, (*spec.cost_line, spec.worst_loss)


@lru_cache(maxsize=256)
def options_of(spec: LossSpec, item: int, platform: str) -> Options:
    """The options for logits with elements of ``item`` bytes."""
    is_low = spec.softcap is not None and spec.softcap <= HIGHEST_FAST_SOFTCAP
    tanh = HARDWARE if item == 2 and platform == "cuda" and is_low else EXACT
    derived = {
        "kind": "cumulative" if spec.is_cumulative else spec.kind,
        "label_smoothing": spec.label_smoothing > 0,
        "softcap": 0 if spec.softcap is None else tanh.value,
    }
    return Options(**{name: getattr(spec, name) for name in Options._fields} | derived)


def tile_of(
    logits: Tensor, gradient: Tensor | None, unroll: int = UNROLL, least_threads: int = 0
) -> tuple[Tile, dict[str, Any]]:
    """The tile for rows of [B, T, V], and Triton's options for it."""
    item = logits.element_size()
    aligned, row_bytes = are_aligned(logits, gradient), logits.shape[2] * item
    stays = gradient is not None and gradient.nbytes <= CACHED_BYTES
    return tile_for(row_bytes, item, aligned, gradient is not None, stays, unroll, least_threads, PLATFORM)


def loss_tile(logits: Tensor, gradient: Tensor | None, options: Options, block: int) -> tuple[Tile, dict[str, Any]]:
    """:func:`tile_of` for a kernel of the loss, which with a gradient walks a row twice; the options also take
    registers."""
    if gradient is not None and PLATFORM == "cuda":
        item, stays = logits.element_size(), gradient.nbytes <= CACHED_BYTES
        aligned, major = are_aligned(logits, gradient), major_of(logits.device)
        kept = kept_tile(logits.shape[2] * item, item, aligned, stays, block, options, major)
        if kept is not None:
            return kept
    return tile_of(logits, gradient, unroll_of(options), least_threads(options, block))


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
    strides = zip(tensor.stride()[:2], tensor.shape[:2], strict=True)
    return (
        tensor.data_ptr() % VECTOR_BYTES == 0
        and tensor.shape[2] % vector == 0
        and all(stride % vector == 0 or size == 1 for stride, size in strides)
    )
