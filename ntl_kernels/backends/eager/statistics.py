"""The number statistics of every row, independent of its label, and their gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ...tokens import NumberTable
from ..contract import NumberField
from ..layout import loss_dtype
from .blocks import Block, blocks_of
from .normaliser import normaliser_of, share_of


def number_statistics(logits: Tensor, table: NumberTable) -> Tensor:
    shape = len(NumberField), logits.shape[0] * logits.shape[1]
    statistics = logits.new_empty(shape, dtype=loss_dtype(logits.dtype))

    def work(block: Block) -> None:
        x = block.as_loss_dtype()
        number_logits = x.index_select(-1, table.ids)
        number_normaliser = normaliser_of(number_logits, number_logits.amax(-1, keepdim=True), number_logits)
        q = number_logits.div_(number_normaliser.total)
        expected_value = (q * table.values.to(q.dtype)).sum(-1, keepdim=True)
        normaliser = normaliser_of(x, x.amax(-1, keepdim=True), block.buffer("powers"))
        mass = share_of(number_normaliser, normaliser)
        found = torch.stack([*normaliser, *number_normaliser, expected_value, mass])
        statistics[:, block.rows] = found.squeeze(-1)

    blocks_of(logits, None, None).for_each(work)
    return statistics


def number_statistics_gradients(
    logits: Tensor, table: NumberTable, statistics: Tensor, upstreams: Tensor, gradient: Tensor
) -> None:
    ids, values = table.ids.long(), table.values.to(statistics.dtype)

    def work(block: Block) -> None:
        peak, total, number_peak, number_total, expected_value, mass = statistics[:, block.rows].unsqueeze(-1).unbind()
        upstream_value, upstream_mass = upstreams[:, block.rows].unsqueeze(-1).unbind()
        mass_pull = upstream_mass * mass
        x = block.as_loss_dtype()
        q = (x.index_select(-1, ids) - number_peak).exp() / number_total
        offsets = values - expected_value  # a rounded centre, relative to which large values do not lose precision
        number_pull = upstream_value * (offsets - (q * offsets).sum(-1, keepdim=True))
        g = torch.sub(x, peak, out=block.target(x, keep=False)).exp_().mul_(-mass_pull / total)
        block.write(g.index_add_(-1, ids, q * (mass_pull + number_pull)))

    blocks_of(logits, None, gradient).for_each(work)
