"""Support for a head whose rows (the vocabulary) are split over devices by a tensor-parallel plan.

Torch's `parallelize_module` puts hooks around the head's forward; transformers' own plan wraps the forward in a
function. Both pass a DTensor to the head and expect a result whose last dimension is split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._subclasses import FakeTensor

from ...config import NTLOutput
from ...tracing import PLAIN_TYPES, has_dtensor
from .frameworks import FRAMEWORKS


def inner_forward(head: Any) -> Any:
    """The cell in which a plan's function stores the forward that it calls; None for a head without such a plan."""
    forward = head.__dict__.get("forward")
    names = getattr(getattr(forward, "__code__", None), "co_freevars", ())
    for framework in FRAMEWORKS:
        variable = framework.kept_head_forward
        if variable in names and getattr(forward, "__module__", None) == framework.package:
            return forward.__closure__[names.index(variable)]
    return None


def put_head_forward(head: Any, forward: Callable[..., Tensor]) -> None:
    """Install this function as the head's forward, inside transformers' plan if there is one."""
    cell = inner_forward(head)
    if cell is None:
        head.forward = forward
    else:
        cell.cell_contents = forward


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the whole tensor if it is not split."""
    return tensor.to_local() if has_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def as_plain(output: NTLOutput) -> NTLOutput:
    """An output that is complete on every rank, as plain tensors."""
    return NTLOutput(*(local(part) for part in output))


def as_columns(probes: Tensor, weight: Tensor) -> Tensor:
    """Probes [1, ..., 8] in place of logits; split over the last dimension if the weight's rows are split."""
    if not has_dtensor(weight):
        return probes
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(weight, DTensor)
    return DTensor.from_local(probes, weight.device_mesh, [Shard(-1)], run_check=False)


def own_probes(logits: Tensor, count: int) -> Tensor:
    """This rank's probes [1, ..., 8] from those that the plan has gathered."""
    return local(logits)[..., :count]


def is_served(weight: Tensor) -> bool:
    """Whether the loss can be computed from this weight."""
    return type(weight) in (*PLAIN_TYPES, FakeTensor) or has_dtensor(weight)
