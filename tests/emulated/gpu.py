"""The emulated GPU as the project's tests use it: what kernels may write, and CPU tensors that pass for GPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from benchmarks.speed.idle import cpu_as_device

from ..emulator.driver import Asked
from ..emulator.emulator import Emulator, emulator
from ..emulator.memory import Roles

ROLES = {
    "count_kernel": Roles(frozenset({"totals"})),
    "sum_kernel": Roles(frozenset({"sums"})),
    "finish_kernel": Roles(frozenset({"loss", "parts"})),
    "row_losses_kernel": Roles(frozenset({"gradient", "fields", "losses"})),
    "row_gradients_kernel": Roles(frozenset({"gradient"})),
    "scale_kernel": Roles(frozenset(), updates=frozenset({"gradient"})),
    "shard_statistics_kernel": Roles(frozenset({"statistics"})),
    "number_columns_kernel": Roles(frozenset({"number_logits"})),
    "cumulative_losses_kernel": Roles(frozenset({"losses"})),
    "merge_shards_kernel": Roles(frozenset({"fields"})),
}
"""Of each kernel."""
ROLES_OF_GROUPS = ROLES | {"number_columns_kernel": Roles(frozenset(), updates=frozenset({"number_logits"}))}
"""With several groups of number tokens: a row of number logits holds those of the label's group, and zeros."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def emulated_gpu() -> Iterator[Emulator]:
    """Let ``backend="triton"`` run on CPU tensors as it does on a GPU's. Compiled kernels are kept, so that a launch
    meets those of all tests before it."""

    def roles_of(asked: Asked) -> Roles:
        is_grouped = "numbers" in asked.arguments and asked.arguments["numbers"].groups is not None
        return (ROLES_OF_GROUPS if is_grouped else ROLES)[asked.kernel]

    with emulator().active(), cpu_as_device(), mock.patch.object(emulator(), "roles_of", roles_of):
        yield emulator()
