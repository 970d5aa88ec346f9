"""The losses of DTensors, whose placements determine which rank has which rows and columns.

Meshes may have any number of dimensions. Each dimension may shard the rows, the columns of the logits (the rows of the
head), or nothing; at most one dimension may shard the columns. The computation uses local tensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from .. import steps
from ..backends.layout import loss_dtype
from ..config import NTLOutput
from ..dispatch import as_output, as_result, in_shape, loss_of_hidden, loss_of_logits
from ..problem import Forward, Problem, RowInputs, RowResult, parts_of
from .collectives import finished, sum_ranks
from .split import Split, loss_of_head_shard, loss_of_shard


class Layout(NamedTuple):
    """How rows and columns are distributed over a mesh."""

    mesh: DeviceMesh
    rows: tuple[Placement, ...]
    """The placements of the labels and of other tensors with one entry per row."""
    columns: int | None
    """The mesh dimension over which columns are sharded."""

    @property
    def row_groups(self) -> list[ProcessGroup]:
        """The groups of ranks that have different rows of the same batch."""
        return [self.mesh.get_group(i) for i, placement in enumerate(self.rows) if not placement.is_replicate()]

    def split(self, vocab_size: int, sums_hidden: bool = True) -> Split:
        """This rank's columns, split like ``torch.chunk``."""
        assert self.columns is not None
        step = -(-vocab_size // self.mesh.size(self.columns))
        first = min(self.mesh.get_local_rank(self.columns) * step, vocab_size)
        return Split(first, self.mesh.get_group(self.columns), sums_hidden)

    def scalar(self) -> list[Placement]:
        """The placements of a sum over this rank's rows."""
        return [Replicate() if placement.is_replicate() else Partial() for placement in self.rows]


def cross_entropy(logits: Tensor, problem: Problem, inplace: bool, return_parts: bool) -> Tensor | NTLOutput:
    """The loss of DTensor logits [B..., V] as a DTensor, or the loss with its parts."""
    if not isinstance(logits, DTensor):
        refuse(
            f"labels and weights may be DTensors only if the logits are; got plain logits of shape "
            f"{tuple(logits.shape)}",
            "DTensor.from_local(logits, mesh, placements), or labels.to_local()",
        )
    layout = layout_of_logits(logits)
    local = logits.to_local()
    local_problem = problem_of_rank(problem, layout, local)
    if layout.columns is None:
        result = loss_of_logits(local, local_problem, inplace)
    else:
        result = loss_of_shard(local, local_problem, layout.split(logits.shape[-1]), inplace)
    return as_dtensors(result, local_problem, problem.rows.labels.shape, layout, return_parts)


def layout_of_logits(logits: DTensor) -> Layout:
    rows: list[Placement] = []
    columns = None
    for dim, placement in enumerate(logits.placements):
        if type(placement) is Replicate:
            rows.append(placement)
        elif type(placement) is Shard and placement.dim % logits.ndim < logits.ndim - 1:
            rows.append(Shard(placement.dim % logits.ndim))
        elif type(placement) is Shard and columns is None:
            rows.append(Replicate())
            columns = dim
        else:
            refuse(
                f"logits have placements {placements_of(logits)}",
                "Shard(-1) on at most one mesh dimension; Shard of a row dimension, or Replicate, on the others "
                "(logits.redistribute)",
            )
    return Layout(logits.device_mesh, tuple(rows), columns)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    problem: Problem,
    chunk_size: int | None,
    skip_ignored: bool,
    return_parts: bool,
) -> Tensor | NTLOutput:
    """The loss of hidden states [B..., H], weight [V, H] and bias [V], some of them DTensors, or with its parts.

    The loss is a DTensor if the hidden states are.
    """
    layout = layout_of_head(hidden, weight, bias)
    sums_hidden = layout.columns is not None and not isinstance(hidden, DTensor)
    states, local_weight, local_bias = local_operands(hidden, weight, bias, layout)
    local_problem = problem_of_rank(problem, layout, states)
    operands = states, local_weight, local_bias, local_problem
    if layout.columns is None:
        result = loss_of_hidden(*operands, chunk_size, skip_ignored)
    else:
        split = layout.split(weight.shape[0], sums_hidden)
        result = loss_of_head_shard(*operands, split, chunk_size, skip_ignored)
    if not isinstance(hidden, DTensor):
        return as_result(result, local_problem, return_parts)
    return as_dtensors(result, local_problem, problem.rows.labels.shape, layout, return_parts)


def layout_of_head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Layout:
    named = {"hidden": hidden, "weight": weight, "bias": bias}
    given = {name: tensor for name, tensor in named.items() if isinstance(tensor, DTensor)}
    if not given:
        refuse(
            "labels, token_weights and number_weights may be DTensors only if hidden or weight is; got plain tensors",
            "labels.to_local()",
        )
    mesh = next(iter(given.values())).device_mesh
    shown = ", ".join(f"{name} {placements_of(tensor)}" for name, tensor in given.items())
    works = (
        "on each mesh dimension weight Shard(0) with hidden Replicate, weight Replicate with rows of hidden sharded, "
        "or both Replicate; the first on at most one dimension. bias must be placed like weight. Tensors that are "
        "replicated everywhere may be plain tensors"
    )
    if any(tensor.device_mesh != mesh for tensor in given.values()):
        refuse(f"the tensors are on different meshes: {shown}", "the same mesh for all tensors")
    spread = (
        tensor.placements if isinstance(tensor, DTensor) else [Replicate()] * mesh.ndim
        for tensor in (hidden, weight, weight if bias is None else bias)
    )
    rows: list[Placement] = []
    columns = None
    for dim, (of_hidden, of_weight, of_bias) in enumerate(zip(*spread, strict=True)):
        is_row = type(of_hidden) is Shard and of_hidden.dim % hidden.ndim < hidden.ndim - 1
        if of_bias != of_weight:
            refuse(shown, works)
        elif of_weight == Replicate() and (of_hidden == Replicate() or (is_row and isinstance(weight, DTensor))):
            rows.append(of_hidden)
        elif of_weight == Shard(0) and of_hidden == Replicate() and columns is None:
            rows.append(Replicate())
            columns = dim
        else:
            refuse(shown, works)
    return Layout(mesh, tuple(rows), columns)


def local_operands(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout
) -> tuple[Tensor, Tensor, Tensor | None]:
    """This rank's part of hidden, weight and bias. Their gradients are partial sums where other ranks hold the rest."""
    of_hidden = [Partial() if dim == layout.columns else placement for dim, placement in enumerate(layout.rows)]
    of_weight = [Shard(0) if dim == layout.columns else placement for dim, placement in enumerate(layout.scalar())]
    given = (hidden, of_hidden), (weight, of_weight), (bias, of_weight)
    states, local_weight, local_bias = (
        tensor.to_local(grad_placements=placements) if isinstance(tensor, DTensor) else tensor
        for tensor, placements in given
    )
    assert states is not None and local_weight is not None
    return states, local_weight, local_bias


def problem_of_rank(problem: Problem, layout: Layout, like: Tensor) -> Problem:
    """The problem of this rank's rows. Missing denominators are summed over the rows of all ranks, which sends two
    numbers in each group."""
    names = {"num_tokens": "num_tokens", "num_numbers": "num_numbers", "ntl_weight": "config.weight"}
    scalars = {field: local_scalar(name, getattr(problem, field)) for field, name in names.items()}
    rows = (
        None if tensor is None else local_row(name, tensor, layout)
        for name, tensor in zip(RowInputs._fields, problem.rows, strict=True)
    )
    # The parts contain a shard's denominators.
    local = problem.changed(rows=RowInputs(*rows), wants_parts=True, **scalars)  # type: ignore[arg-type]
    if not local.lacks_denominators or not layout.row_groups:
        return local
    flat = local.changed(rows=local.rows.flat(loss_dtype(like.dtype)))
    if local.backend == "reference":  # the reference has no separate count step
        flat = flat.changed(backend="eager")
    totals = steps.count(like.detach(), flat)
    for group in layout.row_groups:
        totals = finished(sum_ranks(totals, group))
    return local.counted(*totals.unbind())


def local_row(name: str, tensor: Tensor, layout: Layout) -> Tensor:
    """This rank's labels or weights."""
    is_whole = all(placement.is_replicate() for placement in layout.rows)
    plain = ", or a plain tensor, equal on all ranks" if is_whole else ""
    works = f"a DTensor on the same mesh with placements {layout.rows}{plain}"
    if not isinstance(tensor, DTensor):
        if not is_whole:
            refuse(f"{name} must be sharded like the rows of the logits or hidden states; got a plain tensor", works)
        return tensor
    fits = tensor.device_mesh == layout.mesh and all(
        have in (want, Replicate()) for have, want in zip(tensor.placements, layout.rows, strict=True)
    )
    if not fits:
        refuse(f"{name} have placements {placements_of(tensor)}", works)
    return tensor.redistribute(placements=layout.rows).to_local()  # slices replicated tensors, sends nothing


def local_scalar(name: str, given: Any) -> Any:
    """A denominator or lambda, as a number or plain tensor."""
    if not isinstance(given, DTensor):
        return given
    if any(not placement.is_replicate() for placement in given.placements):
        refuse(
            f"{name} has placements {placements_of(given)}", f"a number, a plain 0-d tensor, or {name}.full_tensor()"
        )
    return given.to_local()


def as_dtensors(
    result: Forward, problem: Problem, shape: torch.Size, layout: Layout, return_parts: bool
) -> Tensor | NTLOutput:
    """The result of this rank's rows as DTensors; ``shape`` is that of the labels of all ranks."""
    replicated = [Replicate()] * layout.mesh.ndim

    def spread(part: Tensor) -> Tensor:
        if problem.spec.reduction == "none" and part.ndim == len(shape) and len(shape) > 0:
            stride = torch.empty(shape, device="meta").stride()
            return DTensor.from_local(part, layout.mesh, layout.rows, run_check=False, shape=shape, stride=stride)
        return DTensor.from_local(part, layout.mesh, replicated, run_check=False)

    loss = in_shape(result.loss, problem)
    if problem.spec.reduction == "none" or not layout.row_groups:
        loss = spread(loss)
    else:  # summed here, because ``item()`` of a partial sum would return this rank's part only
        total = DTensor.from_local(loss, layout.mesh, layout.scalar(), run_check=False)
        loss = total.redistribute(placements=replicated)
    if not return_parts:
        return loss
    output = as_output(result, problem)
    if layout.row_groups:
        output = over_all_rows(output, result.fields, problem, layout)
    _, *parts = output
    return NTLOutput(loss, *(spread(part) for part in parts))


def over_all_rows(output: NTLOutput, fields: Tensor, problem: Problem, layout: Layout) -> NTLOutput:
    """The output with its parts computed over the rows of all ranks; the loss stays that of this rank's rows."""
    total = torch.stack([fields.sum(-1), fields.count_nonzero(-1).to(fields.dtype)])
    for group in layout.row_groups:
        total = finished(sum_ranks(total, group))
    sums, counts = (RowResult(*each.unbind()) for each in total)
    is_mean, has_numbers = problem.spec.reduction == "mean", problem.num_numbers is not None
    tokens = output.num_tokens if is_mean else sums.row_weight
    numbers = output.num_numbers if is_mean and has_numbers else sums.number_row_weight
    parts = parts_of(sums, counts, tokens, numbers, problem)
    if problem.spec.reduction == "none":
        parts = parts._replace(cross_entropy=output.cross_entropy, ntl=output.ntl)
    return NTLOutput(output.loss, *parts)


def placements_of(tensor: DTensor) -> str:
    """A tensor's placements and mesh shape, for error messages."""
    return f"{tuple(tensor.placements)} on a mesh of shape {tuple(tensor.device_mesh.shape)}"


def refuse(given: str, works: str) -> NoReturn:
    raise ValueError(f"{given}. Supported: {works}")
