"""Kernels of packages that ask torch for a GPU when they are imported: only the files of their loss are loaded.

What such a file imports from its own package, beyond the loss, is replaced by stand-ins, which do what the package does
on an H100.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from torch import Tensor

Plain = dict[str, Any]
"""Name -> value."""


@cache
def unsloth_cross_entropy() -> Callable[..., Tensor]:
    """`fast_cross_entropy_loss(logits [B, T, V], labels [B, T])`, the mean of the rows."""
    import triton
    import triton.language as tl
    from packaging.version import Version
    from triton.language.extra import libdevice

    known = {"triton": triton, "next_power_of_2": triton.next_power_of_2}
    settings = definitions(file_of("unsloth", "kernels/utils.py"), ("MAX_FUSED_SIZE", "calculate_settings"), known)
    device = {"torch_gpu_device": lambda device: nullcontext(), "is_cdna": lambda: False}
    stand_ins = {
        "unsloth.kernels.utils": {**settings, **device, "triton_cast": tl.cast, "triton_tanh": libdevice.tanh},
        # They choose a hint for the cache, which an H100 does not get.
        "unsloth.kernels.rope_embedding": {"_eviction_hints_ok": lambda device: False},
        "transformers.models.llama.modeling_llama": {"logger": None},
        "unsloth_zoo.utils": {"Version": Version},
        "unsloth_zoo.loss_utils": {"patch_loss_functions": None, "post_patch_loss_function": None},
    }
    return loaded("unsloth", "kernels/cross_entropy_loss.py", stand_ins).fast_cross_entropy_loss


@cache
def fla_cross_entropy() -> Callable[[Tensor, Tensor], Tensor]:
    """`FusedCrossEntropyLoss()` of logits [N, V] and labels [N]: the mean of the rows."""
    operators = loaded(
        "fla", "ops/utils/op.py", {"fla.utils": {"IS_GATHER_SUPPORTED": True, "IS_NVIDIA_BLACKWELL": False}}
    )
    same = ("autocast_custom_bwd", "autocast_custom_fwd", "input_guard")  # they set the device and the dtype
    stand_ins = {
        "fla.backends": {"dispatch": unchanged},  # to other backends, none of which is on by default
        "fla.ops.utils.op": vars(operators),
        "fla.utils": dict.fromkeys(same, unchanged),
    }
    return loaded("fla", "modules/fused_cross_entropy/ops.py", stand_ins).FusedCrossEntropyLoss()


def unchanged(function: Any) -> Any:
    return function


def file_of(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return next(found for folder in spec.submodule_search_locations if (found := Path(folder, path)).exists())


def loaded(package: str, path: str, stand_ins: dict[str, Plain]) -> ModuleType:
    """A file of a package as a module. Assertions are left out: some want a tensor of a GPU."""
    file = file_of(package, path)
    module = ModuleType(".".join([package, *Path(path).with_suffix("").parts]))
    module.__file__, module.__package__ = str(file), module.__name__.rpartition(".")[0]
    with patch.dict(sys.modules, {name: module_of(name, values) for name, values in stand_ins.items()}):
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec", optimize=1), vars(module))
    return module


def module_of(name: str, values: Plain) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module


def definitions(file: Path, names: tuple[str, ...], known: Plain) -> Plain:
    """Constants and functions of a file that cannot be imported; ``known`` are the names that they use."""
    scope = dict(known)
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if getattr(node, "name", None) in names or getattr(getattr(node, "target", None), "id", None) in names:
            exec(compile(ast.Module([node], []), str(file), "exec"), scope)
    return {name: scope[name] for name in names}
