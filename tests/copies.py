"""Detects copies between host and device without a device: on the device "meta", which has no values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FROM_THE_HOST = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
"""They fill a tensor on the host and copy it to its device, which no dispatch mode detects for "meta"."""
INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
COPIES = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}
"""Operator -> which argument it reads."""


@contextmanager
def refused_copies() -> Iterator[None]:
    """Raise if something is copied between two devices: on a GPU, that waits, and a CUDA graph cannot contain it."""
    with RefusedFunctions(), RefusedOperators():
        yield


class RefusedFunctions(TorchFunctionMode):
    """Copies that happen before any operator runs."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in FROM_THE_HOST:
            source = args[-1] if function is torch.Tensor.new_tensor else args[0]
            home = source.device if isinstance(source, Tensor) else torch.device("cpu")
            refuse_unless(home == result.device, f"{function.__name__} of {source!r}")
        if function in INDEXING and not is_on_host(args[0]):
            index = args[1] if isinstance(args[1], tuple) else args[1:2]
            lists = [part for part in index if isinstance(part, (list, range))]
            refuse_unless(not lists, f"the index {lists}")
        return result


class RefusedOperators(TorchDispatchMode):
    """The copies of an operator."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in COPIES:
            source = args[COPIES[function]]
            refuse_unless(source.device == result.device, f"{function} from {source.device} to {result.device}")
        else:
            tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
            beside = any(not is_on_host(tensor) for tensor in tensors)
            refuse_unless(
                not (beside and any(is_on_host(tensor) and tensor.ndim for tensor in tensors)),
                f"{function} of tensors on {[str(tensor.device) for tensor in tensors]}",
            )
        return result


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def refuse_unless(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"copied between devices: {what}")
