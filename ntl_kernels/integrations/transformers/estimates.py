"""NTL of a window whose number tokens nobody counted: what is made of it, a warning, and what the log can show.

The stock ``Trainer`` counts the tokens of an accumulation window, not its numbers. A batch's mean NTL then weighs as
much as the batch has of the window's tokens, and a batch without numbers leaves its share of the weight to nobody.
"""

from __future__ import annotations

import warnings
from itertools import count

import torch
from torch import Tensor

from ...dispatch import is_capturing
from ...tracing import has_values

KEYS = count()
WARNED: set[int] = set()

WARNING = (
    "num_items_in_batch came without num_numbers_in_batch. Where a batch is part of a larger one (gradient "
    "accumulation, several processes), one without number tokens takes its share of NTL away: the weight in effect is "
    "lambda times the share of tokens in batches with numbers, which NTLWeightCallback logs as ntl_weight_in_effect. "
    "NTLTrainer counts the numbers, and NTLConfig(mean_over='tokens') needs no such count"
)


class Estimate:
    """What an installed loss has estimated since the last log."""

    def __init__(self) -> None:
        self.key = next(KEYS)
        self.totals: Tensor | None = None
        """[2] float32: the tokens of all batches, and of those with numbers."""

    def numbers_of_window(self, num_items: float | Tensor, tokens: Tensor, numbers: Tensor, warns: bool) -> Tensor:
        """The number tokens of a window of ``num_items`` tokens that has as many per token as this batch, 0-d."""
        if warns and may_be_more(num_items, tokens):
            warn_once(self.key)
        if torch.is_grad_enabled() and not (torch.compiler.is_compiling() or is_capturing(tokens)):
            self.add(tokens, numbers)
        return numbers * num_items / tokens.clamp(min=1)

    def add(self, tokens: Tensor, numbers: Tensor) -> None:
        """Note a batch that trains. Not in a compiled or captured graph, whose results do not outlive its next run."""
        batch = torch.stack([tokens, torch.where(numbers > 0, tokens, 0)]).float()
        self.totals = batch if self.totals is None else self.totals + batch

    def take(self, device: torch.device) -> Tensor:
        """The totals since the last call, float32 [2] on this device."""
        totals, self.totals = self.totals, None
        return torch.zeros(2, device=device) if totals is None else totals.to(device)


def may_be_more(num_items: float | Tensor, tokens: Tensor) -> bool:
    """Whether a window may have more tokens than this batch: yes on a GPU, since to look would be to wait for it."""
    if tokens.device.type != "cpu" or not has_values(tokens):
        return True
    if isinstance(num_items, Tensor) and (num_items.device.type != "cpu" or not has_values(num_items)):
        return True
    return bool(num_items > tokens)


@torch.compiler.assume_constant_result
def warn_once(key: int) -> bool:
    """Warn for this estimate, the first time. In compiled code that is when it is traced."""
    if key not in WARNED:
        WARNED.add(key)
        warnings.warn(WARNING, stacklevel=2)
    return True
