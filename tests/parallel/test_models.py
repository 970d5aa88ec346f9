"""Patched models whose head a tensor-parallel plan has split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from ..versions import needs
from .cases import in_whole, mesh_of
from .ranks import Ranks


def patched_llama(group: ProcessGroup, plan: str) -> list[float]:
    """How far loss, loss in evaluation and gradients are from those of the same model on one device."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    from ntl_kernels.integrations.transformers import apply_ntl_to_model, remove_ntl_from_model

    from ..integrations.models import NUMBERS, make_model
    from ..integrations.training import all_rows

    mesh, found = mesh_of(group, (4,)), []
    rows = all_rows()
    for is_split in (False, True):
        torch.manual_seed(0)
        model = make_model("llama")
        if is_split and plan == "transformers":
            apply_tensor_parallelism(model, mesh, {"lm_head": "colwise_gather_output"})
            split_weight(model.lm_head, mesh)
        elif is_split:
            layouts: dict[str, Any] = {
                "local": {},
                "columns": {"output_layouts": Shard(-1), "use_local_output": False},
                "gathered": {"output_layouts": Replicate()},
            }
            parallelize_module(model.lm_head, mesh, ColwiseParallel(**layouts[plan]))
        apply_ntl_to_model(model, NUMBERS)
        loss = model.train()(**rows).loss
        loss.backward()
        found.append([loss.detach(), *(in_whole(p.grad) for p in model.parameters())])
        if is_split:
            assert isinstance(model.lm_head.weight.grad, DTensor) and type(loss) is torch.Tensor
        remove_ntl_from_model(model)
    return [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*found, strict=True)]


def split_weight(head: torch.nn.Linear, mesh: Any) -> None:
    """Give a head its rows, as loading a model by a plan does."""
    from torch.distributed.tensor import Shard, distribute_tensor

    if not isinstance(head.weight, DTensor):
        head.weight = torch.nn.Parameter(distribute_tensor(head.weight.detach(), mesh, [Shard(0)]))


UNEVEN = needs("transformers", 5, 21, to="shard a head whose rows do not divide by the ranks")


@pytest.mark.parametrize("plan", ["local", "columns", "gathered", pytest.param("transformers", marks=UNEVEN)])
def test_a_patched_model_computes_from_its_rows_of_the_head(ranks: Ranks, plan: str) -> None:
    for errors in ranks.run(patched_llama, plan, ranks=4):
        assert max(errors) < 1e-5, errors
