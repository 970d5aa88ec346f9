"""The collectives of this package: functional ones, which a compiler sees and overlaps with what lies between.

None is differentiable: a gradient that passed through one would be counted once per rank. They are called inside
`autograd.Function` only.
"""

from __future__ import annotations

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed import ProcessGroup

# torch 2.13 renames it and warns of the old name
start_all_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor


def gather_ranks(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """[R, ...] of the tensors [...] of all ranks, in their order; under way until :func:`finished`."""
    return start_all_gather(tensor.contiguous().unsqueeze(0), 0, group)


def sum_ranks(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the ranks, for all of them; under way until :func:`finished`."""
    return functional.all_reduce(tensor.contiguous(), "sum", group)


def finished(tensor: Tensor) -> Tensor:
    """What a collective gives, as a plain tensor. Waits for it on the device, not on the host."""
    return tensor.wait() if isinstance(tensor, functional.AsyncCollectiveTensor) else tensor


def checked_group(group: object) -> ProcessGroup:
    """The process group; raise for anything else."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("the losses of a sharded vocabulary need torch.distributed.init_process_group first")
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be the torch.distributed.ProcessGroup whose ranks hold the shards; got {type(group).__name__}"
        )
    if dist.get_rank(group) < 0:
        raise ValueError("group must contain this process; it does not")
    return group


def group_size(group: ProcessGroup) -> int:
    """How many ranks it has."""
    return dist.get_world_size(group)
