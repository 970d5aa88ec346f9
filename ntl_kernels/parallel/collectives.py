"""The collectives of this package. They are functional, so a compiler can see them and overlap them with computation.

None is differentiable: a gradient through one would be counted once per rank. They are only called inside an
`autograd.Function`.
"""

from __future__ import annotations

import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed import ProcessGroup

from ..tracing import is_functorch, unsupported_transform

# torch 2.13 renames it and warns of the old name
start_all_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor


def gather_ranks(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The tensors [...] of all ranks as [R, ...], in rank order; pending until :func:`finished`."""
    return start_all_gather(tensor.contiguous().unsqueeze(0), 0, group)


def sum_ranks(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over all ranks, on every rank; pending until :func:`finished`."""
    return functional.all_reduce(tensor.contiguous(), "sum", group)


def finished(tensor: Tensor) -> Tensor:
    """The result of a collective as a plain tensor. The device waits for it, not the host."""
    return tensor.wait() if isinstance(tensor, functional.AsyncCollectiveTensor) else tensor


def check_transforms(*upstreams: Tensor) -> None:
    """Raise under transforms that do not support collectives; also used in the backward pass."""
    found = unsupported_transform(*upstreams)
    if found or is_functorch():
        raise RuntimeError(
            f"the losses of a sharded vocabulary do not support {found or 'torch.func transforms'}; use autograd "
            f"(backward, torch.autograd.grad)"
        )


def checked_group(group: object) -> ProcessGroup:
    """The process group; raise for anything else."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("call torch.distributed.init_process_group before a loss of a sharded vocabulary")
    if not isinstance(group, ProcessGroup):
        raise TypeError(
            f"group must be the torch.distributed.ProcessGroup whose ranks hold the shards; got {type(group).__name__}"
        )
    if dist.get_rank(group) < 0:
        raise ValueError("group must contain this process, but does not")
    return group
